// CLBlast's parameters: ours are used only where their products are right.
#include "ops/matmul_clblast.h"

#include "circle.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class MatmulClblast : public OpsTest {
 protected:
  // The worst difference from the reference, over the largest of its numbers.
  static double error_of_product(const cl::DevicePtr& device, std::int64_t rows, std::int64_t in, std::int64_t out) {
    Random random(60);
    const auto x = random.normals(static_cast<std::size_t>(rows * in)),
               w = random.normals(static_cast<std::size_t>(in * out));
    const Tensor y =
        matmul(Tensor::from_host(device, DType::kFloat32, {rows, in}, x.data()),
               Tensor::from_host(device, DType::kFloat32, {out, in}, w.data()), true, MatmulBackend::kClblast);
    const auto got = download(y);
    const auto wanted = reference::matmul(x, {w.data(), DType::kFloat32}, static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(in), static_cast<std::size_t>(out));
    testing::Difference difference;
    for (std::size_t i = 0; i < got.size(); ++i) difference.add(got[i], wanted[i]);
    return difference.of_largest();
  }
};

// CLBlast computes with this set, reports success, and is wrong by up to 1e31 on PoCL.
std::vector<BlasSet> wrong_sets() {
  std::vector<BlasSet> sets{{"Xgemm",
                             {{"GEMMK", 1},
                              {"KREG", 4},
                              {"KWG", 1},
                              {"KWI", 1},
                              {"MDIMA", 1},
                              {"MDIMC", 1},
                              {"MWG", 16},
                              {"NDIMB", 1},
                              {"NDIMC", 1},
                              {"NWG", 4},
                              {"SA", 0},
                              {"SB", 0},
                              {"STRM", 0},
                              {"STRN", 0},
                              {"VWM", 8},
                              {"VWN", 4}}}};
  sets.push_back({"GemmRoutine", {{"XGEMM_MIN_INDIRECT_SIZE", 1}}});
  return sets;
}

TEST_F(MatmulClblast, WrongParametersAreSeenAndTakenBack) {
  if (oracle::circle() == oracle::Circle::kTest) GTEST_SKIP() << "compiles all of CLBlast's products three times";
  const cl::DevicePtr other = cl::Device::open(device().info(), {});
  EXPECT_WITHIN(error_of_product(other, 150, 64, 70), kClblast);  // with the parameters of this kind of device
  const cl::BlasParameters before = cl::blas_parameters(other, "Xgemm");
  EXPECT_FALSE(apply_blas_sets(other, wrong_sets()));
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_TRUE(contains(warnings()[0], "GEMMK=1"));
  EXPECT_TRUE(contains(warnings()[0], "differ from the reference")) << warnings()[0];
  warnings().clear();
  EXPECT_EQ(cl::blas_parameters(other, "Xgemm"), before);
  EXPECT_WITHIN(error_of_product(other, 150, 64, 70), kClblast);
}

TEST_F(MatmulClblast, EachKindOfDeviceHasItsParameters) {
  if (oracle::circle() == oracle::Circle::kTest) GTEST_SKIP() << "compiles CLBlast's products with other parameters";
  EXPECT_TRUE(blas_sets(cl::DeviceKind::kGpu).empty());
  EXPECT_FALSE(apply_blas_sets(device_ptr(), {}));
  if (device().info().kind != cl::DeviceKind::kCpu) return;
  EXPECT_WITHIN(error_of_product(device_ptr(), 4, 16, 8), kClblast);
  const std::vector<BlasSet> sets = blas_sets(cl::DeviceKind::kCpu);
  for (const BlasSet& set : sets) EXPECT_EQ(cl::blas_parameters(device_ptr(), set.kernel), set.parameters);
}

}  // namespace
}  // namespace kvtrie::ops
