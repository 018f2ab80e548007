// Products by matrix units that are not NVIDIA's (kernels/matmul_matrix.cl), on devices that pose as having one: all
// but the instruction itself runs here. matrix_layout_test has the vendors' tables.
#include "ops/matmul_matrix.h"

#include "circle.h"
#include "group_weight.h"
#include "ops/matmul_proof.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/tensor_cores.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

using oracle::sampled;

// One of scales, bfloat16 and one of shifts, float16, each kind of block, and then the others.
constexpr WeightDType kMatrixTypes[] = {WeightDType::kQ8,      WeightDType::kBFloat16, WeightDType::kQ2K,
                                        WeightDType::kFloat16, WeightDType::kQ6K,      WeightDType::kQ5K,
                                        WeightDType::kQ4_0,    WeightDType::kQ4K,      WeightDType::kQ4_1,
                                        WeightDType::kQ5_0,    WeightDType::kQ5_1};

class MatmulMatrix : public OpsTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr std::int64_t kRows = 85, kOut = 150;

  static cl::DevicePtr posing(const std::string& words) {
    const auto list = cl::list_devices(words);
    return cl::Device::open(list.at(device().info().index), {.cache_folder = test_cache_folder()});
  }
  static std::int64_t in_of(WeightDType stored) { return is_from_blocks(stored) ? 512 : 160; }
  Tensor there(const std::vector<float>& values, Shape shape) const {
    return Tensor::from_host(posing_, DType::kFloat32, std::move(shape), values.data());
  }
  BlockMatrix blocks(const GroupWeight& w) const { return {posing_, w.bytes, w.stored, w.out}; }
  Tensor tensor(const GroupWeight& w) const {
    return Tensor::from_host(posing_, w.source(), {w.out, w.in}, w.bytes.data());
  }
  PackedWeight packed(const GroupWeight& w, Precision precision = Precision::kAuto) const {
    return is_from_blocks(w.stored) ? pack_blocks(blocks(w), precision) : pack(tensor(w), true, w.stored, precision);
  }
  PackedPair pair(const GroupWeight& gate, const GroupWeight& up) const {
    return is_from_blocks(gate.stored) ? pack_pair_blocks(blocks(gate), blocks(up))
                                       : pack_pair(tensor(gate), tensor(up), gate.stored);
  }
  // By the unit, and not by what stands in for it.
  bool used(WeightDType stored, std::optional<Activation> gated = {}, std::int32_t terms = 2) const {
    return registry::verdict(*posing_, choose_matrix(*posing_, {1, 1, 1}, {stored, {}, gated}, terms).key()) == true;
  }

  cl::DevicePtr posing_ = posing(cat("gpu ", GetParam()));
};
INSTANTIATE_TEST_SUITE_P(Units, MatmulMatrix, ::testing::Values("wmma", "mfma", "dpas"),
                         [](const auto& unit) { return std::string(unit.param); });

TEST_P(MatmulMatrix, AgreesWithTheReference) {
  for (const WeightDType stored : sampled(kMatrixTypes, 4, 11)) {
    const std::int64_t in = in_of(stored);
    const GroupWeight w(stored, kOut, in);
    const auto x = rows_of(kRows, in), wanted = w.products(x);
    const PackedWeight weight = packed(w);
    const Tensor all = there(x, {kRows, in});
    for (const std::int64_t rows : {1, 11, 16, 17, 85}) {
      check_rows(download(matmul(all.slice(0, rows), weight)), wanted, rows, kOut, name_of(stored));
    }
    EXPECT_TRUE(used(stored)) << name_of(stored);
  }
}

TEST_P(MatmulMatrix, RowBitsDoNotDependOnTheOtherRows) {
  for (const WeightDType stored : sampled(kMatrixTypes, 3, 11))
    for (const Precision precision : {Precision::kAuto, Precision::kFast}) {
      const std::int64_t in = in_of(stored);
      const PackedWeight weight = packed(GroupWeight(stored, kOut, in), precision);
      const Tensor x = there(rows_of(kRows, in), {kRows, in});
      const auto whole = download(matmul(x, weight));
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {3, 5}, {62, 73}, {5, 75}, {2, 19}})
        EXPECT_TRUE(same_bits(download(matmul(x.slice(begin, end), weight)),
                              std::vector<float>(whole.begin() + begin * kOut, whole.begin() + end * kOut)))
            << begin << " to " << end << ", " << name_of(stored) << " " << name_of(precision);
      EXPECT_TRUE(used(stored, {}, terms_of(precision))) << name_of(stored);
    }
}

TEST_P(MatmulMatrix, OneTermIsAHalf) {
  for (const WeightDType stored : {WeightDType::kQ8, WeightDType::kQ2K}) {
    const std::int64_t in = in_of(stored);
    const GroupWeight w(stored, kOut, in);
    const auto x = Random(7).normals(static_cast<std::size_t>(kRows * in));
    const auto wanted = w.products(reference::halved_rows(x, static_cast<std::size_t>(in)));
    expect_close(download(matmul(there(x, {kRows, in}), packed(w, Precision::kFast))), wanted, kProducts, "");
  }
}

TEST_P(MatmulMatrix, OneTermOfBFloat16IsTwo) {
  const GroupWeight w(WeightDType::kBFloat16, kOut, in_of(WeightDType::kBFloat16));
  const auto x = Random(7).normals(static_cast<std::size_t>(kRows * w.in));
  check_two_terms(download(matmul(there(x, {kRows, w.in}), packed(w, Precision::kFast))), w.products(x));
}

TEST_P(MatmulMatrix, AddAndGateHaveTheBitsOfSeparateOperations) {
  // No group of outputs is full, and each output of silu_mul is one of a vector, whose exp a CPU has bits of its own
  // for.
  constexpr std::int64_t kIn = 96, kOutputs = 72;
  for (const WeightDType stored : {WeightDType::kQ8, WeightDType::kBFloat16}) {
    const GroupWeight gate(stored, kOutputs, kIn), up(stored, kOutputs, kIn, 3);
    for (const std::int64_t rows : {1, 6, 20}) {
      const Tensor x = there(Random(7).normals(static_cast<std::size_t>(rows * kIn)), {rows, kIn});
      const Tensor g = matmul(x, packed(gate)), u = matmul(x, packed(up));
      EXPECT_TRUE(same_bits(matmul_gated(x, pair(gate, up)), silu_mul(g, u))) << rows << " " << name_of(stored);
      const Tensor bias = there(Random(5).normals(kOutputs), {kOutputs});
      EXPECT_TRUE(same_bits(matmul(x, packed(gate), bias), add(g, bias))) << rows << " " << name_of(stored);
      EXPECT_TRUE(same_bits(matmul(x, packed(gate), u), add(g, u))) << rows << " " << name_of(stored);
    }
    EXPECT_TRUE(used(stored, Activation::kSilu)) << name_of(stored);
  }
}

TEST_P(MatmulMatrix, ANaNReachesItsOwnRowAlone) {
  for (const WeightDType stored : {WeightDType::kQ8, WeightDType::kBFloat16}) {
    const PackedWeight weight = packed(GroupWeight(stored, 64, 64));
    for (const std::int64_t rows : {2, 20}) {
      auto x = Random(7).normals(static_cast<std::size_t>(rows * 64));
      x[63] = std::numeric_limits<float>::quiet_NaN();
      const auto y = download(matmul(there(x, {rows, 64}), weight));
      for (std::int64_t i = 0; i < rows * 64; ++i) ASSERT_EQ(std::isnan(y[i]), i < 64) << i;
    }
  }
}

// "exact", other types, and k that is no multiple of 32 are as they were.
TEST_P(MatmulMatrix, LeavesTheRestToTheOtherKernels) {
  const GroupWeight w(WeightDType::kQ8, 70, 64), odd(WeightDType::kQ8, 70, 40), wide(WeightDType::kFloat32, 70, 64);
  const auto x = Random(7).normals(3 * 64), short_x = Random(7).normals(3 * 40);
  expect_close(download(matmul(there(x, {3, 64}), packed(w, Precision::kExact))), w.products(x), kProducts, "exact");
  expect_close(download(matmul(there(short_x, {3, 40}), packed(odd))), odd.products(short_x), kProducts, "k");
  expect_close(download(matmul(there(x, {3, 64}), packed(wide))), wide.products(x), kProducts, "float32");
  EXPECT_FALSE(used(WeightDType::kQ8));
  EXPECT_FALSE(used(WeightDType::kFloat32));
}

class MatmulMatrixRefused : public MatmulMatrix {};
INSTANTIATE_TEST_SUITE_P(Units, MatmulMatrixRefused, ::testing::Values("small wmma", "small mfma", "small dpas"),
                         [](const auto& unit) { return std::string(unit.param).substr(6); });

// A form that cannot run takes the other one with it, as they would round differently from what stands in for one.
TEST_P(MatmulMatrixRefused, FallsBackForAllNumbersOfRows) {
  const GroupWeight w(WeightDType::kQ8, 70, 64);
  const auto x = Random(7).normals(70 * 64);
  const auto whole = download(matmul(there(x, {70, 64}), packed(w)));
  expect_close(whole, w.products(x), kProducts, "");
  const auto one = download(matmul(there(x, {70, 64}).slice(0, 1), packed(w)));
  EXPECT_TRUE(same_bits(one, std::vector<float>(whole.begin(), whole.begin() + 70)));
  const MatrixVariant variant = choose_matrix(*posing_, {1, 70, 64}, {w.stored}, 2);
  EXPECT_EQ(registry::verdict(*posing_, variant.key()), false);
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_TRUE(contains(warnings().front(), cat("kernel ", variant.key(), " is not used on"))) << warnings().front();
  warnings().clear();
}

}  // namespace
}  // namespace kvtrie::ops
