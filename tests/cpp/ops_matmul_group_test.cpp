// Products of packed weights by work-groups (kernels/matmul_group.cl): forced on whatever device the tests run on.
#include "ops/matmul_group.h"

#include "circle.h"
#include "group_weight.h"
#include "ops/attention_variant.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

using oracle::sampled;

// Whole blocks where there are blocks. Rows of x that begin anywhere make programs of their own: of two types.
std::vector<std::int64_t> inputs_for(WeightDType stored) {
  if (is_from_blocks(stored)) return {1280, block_size(stored).numbers};
  if (stored == WeightDType::kFloat32) return sampled<std::int64_t>({45, 1300, 1, 64}, 1, 2);
  if (stored == WeightDType::kQ8) return sampled<std::int64_t>({1300, 45, 1, 64}, 1, 1);
  return {1300, 64};
}

class MatmulGroup : public OpsTest {
 protected:
  MatmulGroup() { set_tensor_cores(device(), false); }
  ~MatmulGroup() override { set_tensor_cores(device(), std::nullopt); }
  static constexpr std::int64_t kRows = 140, kOut = 100;
  static std::vector<float> rows_of(std::int64_t rows, std::int64_t in) {
    return Random(7).normals(static_cast<std::size_t>(rows * in));
  }

 private:
  ForcedFamily forced_{KernelFamily::kWorkGroup};
};

// Each number of rows has programs of its own, for each type, which take a second to compile: a type has a third of
// them, and in the smallest circle fewer.
TEST_F(MatmulGroup, AgreesWithTheReferenceForEveryTypeAndNumberOfRows) {
  const std::vector<std::int64_t> numbers_of_rows[] = {{1, 9}, {8, 5, 10}, {140, 2, 4}};
  std::size_t turn = 0;
  for (const WeightDType stored : sampled(kGroupTypes, 3, 11)) {
    const auto rows_of_type = sampled(numbers_of_rows[turn++ % 3], 1, 1);
    for (const std::int64_t in : inputs_for(stored)) {
      const GroupWeight w(stored, kOut, in);
      const auto x = rows_of(kRows, in), wanted = w.products(x);
      const Tensor all = upload(x, {kRows, in});
      const PackedWeight packed = w.packed();
      for (const std::int64_t rows : rows_of_type)
        expect_close(download(matmul(all.slice(0, rows), packed)), {wanted.begin(), wanted.begin() + rows * kOut},
                     kProducts, cat(rows, " x ", in, " ", name_of(stored)));
    }
  }
}

TEST_F(MatmulGroup, RowBitsDoNotDependOnTheOtherRows) {
  for (const WeightDType stored :
       sampled({WeightDType::kFloat32, WeightDType::kQ5K, WeightDType::kQ8, WeightDType::kFloat16}, 1, 2))
    for (const std::int64_t in : inputs_for(stored)) {
      const PackedWeight packed = GroupWeight(stored, kOut, in).packed();
      const Tensor x = upload(rows_of(kRows, in), {kRows, in});
      const auto whole = download(matmul(x, packed));
      for (const auto& [begin, end] : sampled({std::pair<std::int64_t, std::int64_t>{0, 1},
                                               {3, 5},
                                               {64, 73},
                                               {5, 75},
                                               {139, 140},
                                               {3, 7},
                                               {1, 6},
                                               {2, 10}},
                                              4, 8))
        EXPECT_TRUE(same_bits(download(matmul(x.slice(begin, end), packed)),
                              std::vector<float>(whole.begin() + begin * kOut, whole.begin() + end * kOut)))
            << begin << " to " << end << " of " << in << ", " << name_of(stored);
    }
}

// A device of 32 lanes and 16 KiB, and large ones, idle and busy: what they run has the same bits everywhere.
TEST_F(MatmulGroup, DeviceLimitsChangeNoBit) {
  for (const WeightDType stored : sampled({WeightDType::kQ5K, WeightDType::kFloat16}, 1, 1)) {
    const GroupWeight w(stored, 150, 1280);
    const PackedWeight packed = w.packed();
    const Tensor x = upload(rows_of(kRows, 1280), {kRows, 1280});
    for (const std::int32_t rows : sampled({140, 8, 1}, 1, 2)) {
      const Sides sides{rows, 150, 1280};
      std::optional<std::vector<float>> first;
      for (const GroupLimits& limits :
           sampled({GroupLimits{32, 16384, 1}, {1024, 49152, 132}, {64, 32768, 1}, {128, 16384, 64}, {256, 49152, 1}},
                   2, 3)) {
        const GroupVariant variant = choose_group(limits, sides, stored, {}, true);
        EXPECT_LE(static_cast<std::size_t>(variant.lanes), limits.lanes);
        EXPECT_LE(2 * variant.local_bytes(), limits.local_bytes);
        const cl::DeviceInfo& info = device().info();
        if (static_cast<std::size_t>(variant.lanes) > info.max_work_group || variant.local_bytes() > info.local_bytes)
          continue;
        const Tensor y = Tensor::empty(shared_device(), DType::kFloat32, {rows, 150});
        bare::matmul_group(variant, x.slice(0, rows), packed.panels(), sides, {}, y, {0, 150});
        const auto got = download(y);
        if (!first) first = got;
        EXPECT_TRUE(same_bits(got, *first)) << variant.key();
      }
    }
  }
}

// Registers may leave a kernel fewer lanes than the device has: a variant with fewer takes over, not the serial kernel.
TEST_F(MatmulGroup, AKernelThatAllowsFewerLanesHasAVariant) {
  const auto list = cl::list_devices("gpu kernel_lanes=32");
  const auto limited = cl::Device::open(list.at(device().info().index), {.cache_folder = test_cache_folder()});
  if (limited->info().max_work_group < 64) GTEST_SKIP() << "no device with larger groups";
  EXPECT_EQ(lanes_for(*limited), 32);
  const AttentionSizes sizes{4, 2, 64, 64, plain_format(DType::kFloat16)};
  EXPECT_TRUE(contains(choose_attention_variant(limited, sizes, false).key(), "-DLANES=32"));
  const GroupWeight w(WeightDType::kQ8, kOut, 64);
  const auto x = rows_of(12, 64), wanted = w.products(x);
  const PackedWeight packed =
      pack(Tensor::from_host(limited, w.source(), {w.out, w.in}, w.bytes.data()), true, w.stored);
  for (const std::int64_t rows : sampled({12, 1}, 1, 2)) {
    const Tensor some = Tensor::from_host(limited, DType::kFloat32, {rows, 64}, x.data());
    expect_close(download(matmul(some, packed)), {wanted.begin(), wanted.begin() + rows * kOut}, kProducts, "");
    const Sides sides{static_cast<std::int32_t>(rows), kOut, 64};
    for (const std::size_t lanes : {64, 32}) {
      GroupLimits limits = group_limits(*limited);
      limits.lanes = lanes;
      EXPECT_EQ(registry::verdict(*limited, choose_group(limits, sides, w.stored, {}, true).key()), lanes == 32);
    }
  }
  EXPECT_FALSE(warnings().empty());
  for (const std::string& warning : warnings()) EXPECT_TRUE(contains(warning, "allowed 32 of this kernel")) << warning;
  warnings().clear();
}

TEST_F(MatmulGroup, AddAndGateHaveTheBitsOfSeparateOperations) {
  const ForcedWidth narrow(4);  // as on GPUs, where drivers call 1 native
  for (const WeightDType stored : sampled({WeightDType::kQ8, WeightDType::kFloat16, WeightDType::kQ4K}, 1, 1))
    for (const std::int64_t rows : sampled({1, 20, 6}, 2, 3)) {
      const std::int64_t in = is_from_blocks(stored) ? 256 : 92, out = 77;
      const GroupWeight gate(stored, out, in), up(stored, out, in, 3);
      const Tensor x = upload(rows_of(rows, in), {rows, in});
      const Tensor g = matmul(x, gate.packed()), u = matmul(x, up.packed());
      const PackedPair pair = pair_of(gate, up);
      EXPECT_TRUE(same_bits(matmul_gated(x, pair), silu_mul(g, u))) << rows << " " << name_of(stored);
      if (stored == WeightDType::kQ8 && rows == 1) {
        EXPECT_TRUE(same_bits(matmul_gated(x, pair, Activation::kGeluTanh), gelu_mul(g, u))) << rows;
      }
      const Tensor bias = upload(Random(5).normals(static_cast<std::size_t>(out)), {out});
      EXPECT_TRUE(same_bits(matmul(x, gate.packed(), bias), add(g, bias))) << rows << " " << name_of(stored);
      EXPECT_TRUE(same_bits(matmul(x, gate.packed(), u), add(g, u))) << rows << " " << name_of(stored);
    }
}

TEST_F(MatmulGroup, PartsOfOneProductLieSideBySide) {
  const GroupWeight a(WeightDType::kQ8, 40, 64), b(WeightDType::kQ4_0, 70, 64);
  const PackedWeight parts[] = {a.packed(), b.packed()};
  for (const std::int64_t rows : sampled({12, 1}, 1, 2)) {
    const Tensor x = upload(rows_of(rows, 64), {rows, 64});
    const auto both = download(matmul(x, parts)), first = download(matmul(x, parts[0])),
               second = download(matmul(x, parts[1]));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t n = 0; n < 110; ++n)
        ASSERT_EQ(both[r * 110 + n], n < 40 ? first[r * 40 + n] : second[r * 70 + n - 40]);
  }
}

TEST_F(MatmulGroup, EmbeddingGivesTheNumbers) {
  for (const WeightDType stored : sampled(kGroupTypes, 3, 11)) {
    const std::int64_t in = is_from_blocks(stored) ? 256 : 70;
    const GroupWeight w(stored, kOut, in);
    const std::vector<std::int32_t> ids{0, 99, 63, 64, 17, 100, -1};
    const auto got = download(embedding(w.packed(), upload(ids)));
    for (std::size_t t = 0; t < ids.size(); ++t)
      for (std::int64_t k = 0; k < in; ++k) {
        const float one = got[t * in + k];
        if (ids[t] < 0 || ids[t] >= kOut)
          ASSERT_TRUE(std::isnan(one));
        else
          ASSERT_EQ(one, w.numbers[ids[t] * in + k]) << name_of(stored) << " " << ids[t] << ", " << k;
      }
    const GroupWeight more(stored, 70, in);
    const std::vector<PackedWeight> parts{w.packed(), more.packed()};
    const Tensor several = upload(std::vector<std::int32_t>{kOut, 3, kOut + 69, kOut + 70, -1});
    const auto from_parts = download(embedding(parts, several));
    for (std::int64_t k = 0; k < in; ++k) {
      ASSERT_EQ(from_parts[k], more.numbers[k]);
      ASSERT_EQ(from_parts[in + k], w.numbers[3 * in + k]);
      ASSERT_EQ(from_parts[2 * in + k], more.numbers[69 * in + k]);
      ASSERT_TRUE(std::isnan(from_parts[3 * in + k]) && std::isnan(from_parts[4 * in + k]));
    }
  }
}

TEST_F(MatmulGroup, ANaNReachesItsOwnRowAlone) {
  const PackedWeight packed = GroupWeight(WeightDType::kFloat32, 64, 45).packed();
  for (const std::int64_t rows : {2, 20}) {
    auto x = rows_of(rows, 45);
    x[44] = std::numeric_limits<float>::quiet_NaN();  // the last of row 0
    const auto y = download(matmul(upload(x, {rows, 45}), packed));
    for (std::int64_t i = 0; i < rows * 64; ++i) ASSERT_EQ(std::isnan(y[i]), i < 64) << i;
  }
}

// At most 64 slices of whole units, whatever k is.
TEST_F(MatmulGroup, SlicesCoverAnyK) {
  for (const std::int32_t k : {1, 16, 17, 576, 1000, 1536, 2048, 8192, 8200, 100000}) {
    const std::int32_t slice = slice_for(k);
    EXPECT_EQ(slice % 16, 0);
    EXPECT_GE(slice, 16);
    EXPECT_LE((k + slice - 1) / slice, 64) << k;
  }
}

// What docs/gpu.md counts on: two groups to a unit where the product has as many, whole lines where it has more.
TEST_F(MatmulGroup, ChoosesByRowsUnitsAndLimits) {
  const GroupLimits large{1024, 49152, 132};
  const auto chosen = [&](std::int32_t m, std::int32_t n, WeightDType stored) {
    return choose_group(large, {m, n, 2048}, stored, {}, true);
  };
  EXPECT_EQ(chosen(1, 2048, WeightDType::kQ8).columns, 32);
  EXPECT_EQ(chosen(1, 128256, WeightDType::kQ8).columns, 64);
  EXPECT_EQ(chosen(1, 2048, WeightDType::kQ8).lanes, 128);
  EXPECT_EQ(chosen(3, 2048, WeightDType::kQ8).rows, 4);
  EXPECT_EQ(chosen(512, 2048, WeightDType::kQ8).lanes, 128);
  EXPECT_EQ(chosen(512, 8192, WeightDType::kQ8).lanes, 256);
}

class MatmulGroupOclgrind : public OpsTest {};

TEST_F(MatmulGroupOclgrind, EveryTypeFewAndManyRows) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  for (const WeightDType stored : {WeightDType::kFloat16, WeightDType::kQ8, WeightDType::kQ5_1, WeightDType::kQ6K}) {
    const std::int64_t in = is_from_blocks(stored) ? block_size(stored).numbers : 21;
    const GroupWeight w(stored, 18, in);
    const PackedWeight packed = w.packed();
    for (const std::int32_t rows : {1, 5, 10}) {
      const auto x = Random(7).normals(static_cast<std::size_t>(rows * in));
      const Sides sides{rows, 18, static_cast<std::int32_t>(in)};
      const Tensor y = Tensor::empty(shared_device(), DType::kFloat32, {rows, 18});
      bare::matmul_group(choose_group({32, 16384, 1}, sides, stored, {}, false), upload(x, {rows, in}), packed.panels(),
                         sides, {}, y, {0, 18});
      expect_close(download(y), w.products(x), kProducts, name_of(stored));
    }
    const Tensor y = Tensor::empty(shared_device(), DType::kFloat32, {1, in});
    bare::embed(packed.panels(), stored, {1, 18, static_cast<std::int32_t>(in)}, {40, 58},
                upload(std::vector<std::int32_t>{57}), y);
    EXPECT_EQ(download(y).back(), w.numbers.back());
  }
}

}  // namespace
}  // namespace kvtrie::ops
