// Products of packed weights by matrix instructions (kernels/matmul_tensor.cl). What they compute is played by
// tests/gpu; here are the choices of the host, what happens where the instructions are missing, and on a GPU that has
// them, the results.
#include "ops/matmul_tensor.h"

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

// As a GPU of 132 units with 228 KiB each chooses.
constexpr TensorLimits kLarge{132, 228 << 10};
TensorVariant chosen(std::int32_t m, std::int32_t n, std::optional<Activation> gated = {}) {
  return choose_tensor(kLarge, {m, n, 4096}, WeightDType::kQ8, gated);
}

TEST(MatmulTensorChoice, FollowsTheRows) {
  EXPECT_EQ(chosen(1, 4096).rows, 1);
  EXPECT_EQ(chosen(2, 4096).rows, 8);
  EXPECT_EQ(chosen(8, 4096).rows, 8);
  EXPECT_EQ(chosen(9, 4096).rows, 0);
  EXPECT_EQ(chosen(32, 4096).warps_n, 1);
  EXPECT_EQ(chosen(33, 4096).warps_n, 2);
  EXPECT_EQ(chosen(512, 4096).warps_n, 2);
}

// As many groups as run at a time share the local memory of a unit.
TEST(MatmulTensorChoice, RingsFillLocalMemory) {
  EXPECT_EQ(chosen(1, 4096).ring_bytes, 131072U);   // 128 groups
  EXPECT_EQ(chosen(1, 8192).ring_bytes, 114688U);   // 256: two to a unit
  EXPECT_EQ(chosen(1, 14336).ring_bytes, 53248U);   // 448: four
  EXPECT_EQ(chosen(1, 128256).ring_bytes, 40960U);  // more than run at a time
  EXPECT_EQ(chosen(512, 4096).ring_bytes, 65536U);
  EXPECT_EQ(chosen(16, 4096).ring_bytes, 36864U);  // four groups of two warps to a unit
  EXPECT_EQ(choose_tensor({46, 100 << 10}, {1, 4096, 4096}, WeightDType::kQ8, {}).ring_bytes, 40960U);
}

// Groups are of 128 packed outputs x 32 warps_n rows.
TEST(MatmulTensorChoice, SplitsWhereUnitsWouldBeIdle) {
  EXPECT_TRUE(chosen(16, 4096).split);                       // 32 groups
  EXPECT_TRUE(chosen(64, 14336).split);                      // 112
  EXPECT_FALSE(chosen(64, 128256).split);                    // 1,002
  EXPECT_TRUE(chosen(128, 4096).split);                      // 64
  EXPECT_FALSE(chosen(512, 4096).split);                     // 256
  EXPECT_FALSE(chosen(128, 14336).split);                    // 224
  EXPECT_TRUE(chosen(64, 8192, Activation::kSilu).split);    // 128, of both weights
  EXPECT_FALSE(chosen(64, 20000, Activation::kSilu).split);  // 313
}

// Warps of 64 rows where two groups of 128 x 128 have room and there are two for each unit.
TEST(MatmulTensorChoice, OneTermTakesLargerTiles) {
  const auto one = [](const TensorLimits& limits, std::int32_t m, std::int32_t n) {
    return choose_tensor(limits, {m, n, 4096}, WeightDType::kFloat16, {}, 1);
  };
  EXPECT_EQ(one(kLarge, 512, 14336).warp_rows, 64);  // 448 groups
  EXPECT_EQ(one(kLarge, 512, 14336).ring_bytes, 49152U);
  EXPECT_EQ(one(kLarge, 1024, 4096).warp_rows, 32);  // 256
  EXPECT_EQ(one(kLarge, 2048, 4096).warp_rows, 64);
  EXPECT_EQ(one({108, 164 << 10}, 4096, 14336).warp_rows, 32);
  EXPECT_EQ(one(kLarge, 8, 14336).rows, 8);
  EXPECT_EQ(chosen(4096, 14336).warp_rows, 32);
  // Of bfloat16, x has two terms then.
  EXPECT_EQ(choose_tensor(kLarge, {512, 14336, 4096}, WeightDType::kBFloat16, {}, 1).warp_rows, 32);
  TensorVariant variant = one(kLarge, 512, 14336);
  EXPECT_TRUE(contains(variant.key(), "-DTERMS=1"));
  EXPECT_TRUE(contains(variant.key(), "-DWARP_ROWS=64"));
  variant.terms = 2;
  EXPECT_FALSE(contains(variant.key(), "TERMS"));
}

class MatmulTensor : public OpsTest {
 protected:
  static bool takes(std::int64_t k, WeightDType stored, std::int64_t first = 0) {
    const Tensor x = Tensor::zeros(shared_device(), DType::kFloat32, {k + 8});
    return tensor_takes(x.slice(first, first + k), {1, 64, static_cast<std::int32_t>(k)}, stored);
  }
};

TEST_F(MatmulTensor, TakesWholeUnitsOfAllButFloat32) {
  EXPECT_TRUE(takes(64, WeightDType::kFloat16));
  EXPECT_TRUE(takes(96, WeightDType::kQ8));
  EXPECT_TRUE(takes(256, WeightDType::kQ6K));
  EXPECT_FALSE(takes(48, WeightDType::kFloat16));
  EXPECT_FALSE(takes(64, WeightDType::kFloat32));
  EXPECT_TRUE(takes(64, WeightDType::kBFloat16));
  EXPECT_FALSE(takes(64, WeightDType::kFloat16, 3));  // begins at no multiple of 16 bytes
  EXPECT_TRUE(takes(64, WeightDType::kFloat16, 4));
}

// A driver that says it has the instructions and does not take them: the work-group family computes, and a warning says
// so.
TEST_F(MatmulTensor, FallsBackWhereTheCompilerRefuses) {
  if (tensor_cores(device())) GTEST_SKIP() << "they work here";
  const auto list = cl::list_devices("gpu compute_capability=90");
  const auto emulated = cl::Device::open(list.at(device().info().index), {.cache_folder = test_cache_folder()});
  ASSERT_TRUE(tensor_cores(*emulated));
  const GroupWeight w(WeightDType::kFloat16, 70, 64);
  const PackedWeight packed = pack(Tensor::from_host(emulated, w.source(), {w.out, w.in}, w.bytes.data()), true);
  const auto x = Random(7).normals(3 * 64);
  const Tensor some = Tensor::from_host(emulated, DType::kFloat32, {3, 64}, x.data());
  expect_close(download(matmul(some, packed)), w.products(x), kProducts, "");
  const InputNorm norm{Tensor::from_host(emulated, DType::kFloat32, {64}, Random(5).normals(64).data()), 1e-6f, 1.0f};
  EXPECT_TRUE(same_bits(download(matmul(some, packed, {}, norm)),
                        download(matmul(rms_norm(some, norm.weight, norm.eps, norm.offset), packed))));
  const TensorVariant variant =
      choose_tensor({emulated->info().compute_units, local_bytes_of_unit(*emulated)}, {3, 70, 64}, w.stored, {});
  EXPECT_EQ(registry::verdict(*emulated, variant.key()), false);
  const PackedWeight fast = pack(Tensor::from_host(emulated, w.source(), {w.out, w.in}, w.bytes.data()), true,
                                 std::nullopt, Precision::kFast);
  EXPECT_TRUE(same_bits(download(matmul(some, fast)), download(matmul(some, packed))));
  TensorVariant one_term = variant;
  one_term.terms = 1;
  EXPECT_EQ(registry::verdict(*emulated, one_term.key()), false);
  ASSERT_FALSE(warnings().empty());
  for (const std::string& warning : warnings()) EXPECT_TRUE(contains(warning, "is not used on")) << warning;
  warnings().clear();
}

// ---- where they are
// ----------------------------------------------------------------------------------------------------

class MatmulTensorDevice : public OpsTest {
 protected:
  static constexpr std::int64_t kRows = 140, kOut = 200;
  void SetUp() override {
    if (!tensor_cores(device())) GTEST_SKIP() << "no tensor cores";
  }
};

TEST_F(MatmulTensorDevice, AgreesWithTheReference) {
  for (const WeightDType stored : sampled(kGroupTypes, 11, 11)) {
    const std::int64_t in = is_from_blocks(stored) ? 512 : 320;
    const GroupWeight w(stored, kOut, in);
    const auto x = rows_of(kRows, in), wanted = w.products(x);
    const PackedWeight packed = w.packed();
    const Tensor all = upload(x, {kRows, in});
    for (const std::int64_t rows : {1, 8, 9, 40, 140}) {
      check_rows(download(matmul(all.slice(0, rows), packed)), wanted, rows, kOut, name_of(stored));
    }
  }
}

TEST_F(MatmulTensorDevice, RowBitsDoNotDependOnTheOtherRows) {
  for (const WeightDType stored : sampled(kGroupTypes, 11, 11))
    for (const Precision precision : {Precision::kAuto, Precision::kFast}) {
      const std::int64_t in = is_from_blocks(stored) ? 512 : 320;
      const PackedWeight packed = GroupWeight(stored, kOut, in).packed(precision);
      const Tensor x = upload(rows_of(kRows, in), {kRows, in});
      const auto whole = download(matmul(x, packed));
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {3, 5}, {64, 73}, {5, 75}, {2, 10}})
        EXPECT_TRUE(same_bits(download(matmul(x.slice(begin, end), packed)),
                              std::vector<float>(whole.begin() + begin * kOut, whole.begin() + end * kOut)))
            << begin << " to " << end << ", " << name_of(stored) << " " << name_of(precision);
    }
}

// One term: rows rounded as the reference rounds them, and warps of 64 rows as those of 32.
TEST_F(MatmulTensorDevice, OneTermIsAHalf) {
  for (const WeightDType stored : {WeightDType::kFloat16, WeightDType::kQ8, WeightDType::kQ4K}) {
    const std::int64_t in = is_from_blocks(stored) ? 512 : 320;
    const GroupWeight w(stored, kOut, in);
    const auto x = Random(7).normals(static_cast<std::size_t>(kRows * in));
    const auto wanted = w.products(reference::halved_rows(x, static_cast<std::size_t>(in)));
    expect_close(download(matmul(upload(x, {kRows, in}), w.packed(Precision::kFast))), wanted, kProducts, "");
  }
}

TEST_F(MatmulTensorDevice, OneTermOfBFloat16IsTwo) {
  constexpr std::int64_t kIn = 320;
  const GroupWeight w(WeightDType::kBFloat16, kOut, kIn);
  const auto x = Random(7).normals(static_cast<std::size_t>(kRows * kIn)), wanted = w.products(x);
  check_two_terms(download(matmul(upload(x, {kRows, kIn}), w.packed(Precision::kFast))), wanted);
}

TEST_F(MatmulTensorDevice, AddAndGateHaveTheBitsOfSeparateOperations) {
  const ForcedWidth narrow(4);
  for (const WeightDType stored : {WeightDType::kQ8, WeightDType::kFloat16, WeightDType::kBFloat16, WeightDType::kQ4K})
    for (const std::int64_t rows : {1, 6, 20, 100}) {
      const std::int64_t in = is_from_blocks(stored) ? 256 : 96, out = 77;
      const GroupWeight gate(stored, out, in), up(stored, out, in, 3);
      const Tensor x = upload(Random(7).normals(static_cast<std::size_t>(rows * in)), {rows, in});
      const Tensor g = matmul(x, gate.packed()), u = matmul(x, up.packed());
      EXPECT_TRUE(same_bits(matmul_gated(x, pair_of(gate, up)), silu_mul(g, u))) << rows << " " << name_of(stored);
      EXPECT_TRUE(same_bits(matmul_gated(x, pair_of(gate, up), Activation::kGeluTanh), gelu_mul(g, u))) << rows;
      const Tensor bias = upload(Random(5).normals(static_cast<std::size_t>(out)), {out});
      EXPECT_TRUE(same_bits(matmul(x, gate.packed(), bias), add(g, bias))) << rows << " " << name_of(stored);
      EXPECT_TRUE(same_bits(matmul(x, gate.packed(), u), add(g, u))) << rows << " " << name_of(stored);
    }
}

// Those of a launch of rms_norm before it: told to take none, and as many as there are.
TEST_F(MatmulTensorDevice, ANormHasTheBitsOfALaunchOfItsOwn) {
  for (const WeightDType stored : sampled(kGroupTypes, 11, 11)) {
    const std::int64_t in = is_from_blocks(stored) ? 512 : 320;
    const GroupWeight gate(stored, kOut, in), up(stored, kOut, in, 3);
    const PackedWeight packed = gate.packed();
    const InputNorm norm{upload(Random(5).normals(static_cast<std::size_t>(in)), {in}), 1e-6f, 1.0f};
    for (const std::int64_t rows : {1, 5, 8, 9}) {
      const Tensor x = upload(rows_of(rows, in), {rows, in});
      const Tensor h = rms_norm(x, norm.weight, norm.eps, norm.offset);
      for (const std::int64_t numbers : {std::int64_t{0}, std::int64_t{1} << 20}) {
        set_norm_numbers(*shared_device(), numbers);
        EXPECT_TRUE(same_bits(matmul(x, packed, {}, norm), matmul(h, packed))) << rows << " " << name_of(stored);
        EXPECT_TRUE(
            same_bits(matmul_gated(x, pair_of(gate, up), Activation::kSilu, norm), matmul_gated(h, pair_of(gate, up))))
            << rows << " " << name_of(stored);
      }
      set_norm_numbers(*shared_device(), std::nullopt);
    }
  }
}

TEST_F(MatmulTensorDevice, ANaNReachesItsOwnRowAlone) {
  const PackedWeight packed = GroupWeight(WeightDType::kFloat16, 64, 64).packed();
  for (const std::int64_t rows : {2, 20, 70}) {
    auto x = Random(7).normals(static_cast<std::size_t>(rows * 64));
    x[63] = std::numeric_limits<float>::quiet_NaN();
    const auto y = download(matmul(upload(x, {rows, 64}), packed));
    for (std::int64_t i = 0; i < rows * 64; ++i) ASSERT_EQ(std::isnan(y[i]), i < 64) << i;
  }
}

}  // namespace
}  // namespace kvtrie::ops
