// Products of blocks by a processor's integer units: how far they may be from float64, rows that do not depend on each
// other, the same bits from either unit, and float32 where it is asked for. Skipped where a processor has none.
#include <cmath>
#include <limits>

#include "circle.h"
#include "ops/experts.h"
#include "ops/integer_units.h"
#include "ops/matmul.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_variant.h"
#include "ops/pack_blocks.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kIn = 768, kOut = 70;
// Steps from 0 to the largest magnitude of a block of x.
double levels_of(Precision precision) { return precision == Precision::kFast ? 127.0 : 32639.0; }

// Forces integer units while it lives.
class ForcedUnits {
 public:
  explicit ForcedUnits(IntegerUnits units) { set_integer_units(*shared_device(), units); }
  ~ForcedUnits() { set_integer_units(*shared_device(), std::nullopt); }
  ForcedUnits(const ForcedUnits&) = delete;
  ForcedUnits& operator=(const ForcedUnits&) = delete;
};

class IntegerProducts : public ::testing::WithParamInterface<WeightDType>, public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (integer_units(device()) == IntegerUnits::kNone) GTEST_SKIP() << "the processor has no integer units";
  }
  static std::vector<std::byte> blocks(std::int64_t out = kOut, std::uint32_t salt = 1, std::int64_t in = kIn) {
    return reference::sample_blocks(GetParam(), static_cast<std::size_t>(out * in), salt);
  }
  static BlockMatrix matrix(std::span<const std::byte> raw, std::int64_t out = kOut) {
    return {device_ptr(), raw, GetParam(), out};
  }
  // Those by integers; the fast one of three kinds, which differ in what their blocks hold, and in the soak of all.
  static std::vector<Precision> precisions() {
    const bool is_sample =
        GetParam() == WeightDType::kQ8 || GetParam() == WeightDType::kQ4_1 || GetParam() == WeightDType::kQ6K;
    return oracle::sampled({Precision::kAuto, Precision::kFast}, is_sample ? 2 : 1, is_sample ? 2 : 1);
  }
  // Numbers of very different sizes, as activations are.
  static std::vector<float> numbers(std::int64_t rows, std::int64_t in = kIn) {
    std::vector<float> x = Random(5).normals(static_cast<std::size_t>(rows * in));
    const std::vector<float> sizes = Random(6).normals(static_cast<std::size_t>(in));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(3.0f * sizes[i % in]);
    return x;
  }
};

std::string name_of_blocks(const ::testing::TestParamInfo<WeightDType>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Types, IntegerProducts, ::testing::ValuesIn(kBlockDTypes), name_of_blocks);

// The numbers of blocks whose integers are all zero: their shifts (of those about a middle, -middle * scale).
std::vector<float> shifts_of(WeightDType dtype, std::vector<std::byte> raw) {
  struct Range {
    std::size_t begin, end;
  };
  const auto integers = [&]() -> Range {
    switch (dtype) {
      case WeightDType::kQ4_1:
      case WeightDType::kQ5_1:
        return {4, 24};
      case WeightDType::kQ4K:
      case WeightDType::kQ5K:
        return {16, 176};
      case WeightDType::kQ6K:
        return {0, 192};
      case WeightDType::kQ2K:
        return {16, 80};
      default:
        return {2, 34};
    }
  }();
  const std::size_t size = block_size(dtype).bytes;
  for (std::size_t i = 0; i < raw.size(); ++i)
    if (i % size >= integers.begin && i % size < std::min(integers.end, size)) raw[i] = std::byte{0};
  return reference::dequantise_blocks(dtype, raw);
}

// Against float64. A block of x loses up to half a step of its largest magnitude / levels in each number; the rest are
// roundings to 24 bits: of a block's scales and sum, six, and of the sums of all blocks, two for each. A quotient that
// rounding took across a half is off by 2^-16 of a step more.
TEST_P(IntegerProducts, AreAsFarFromFloat64AsRoundingExplains) {
  const auto raw = blocks();
  const std::int64_t block = GetParam() == WeightDType::kQ6K ? 16 : 32;
  const auto w = reference::dequantise_blocks(GetParam(), raw), shift = shifts_of(GetParam(), raw);
  const double unit = (2.0 * kIn / block + 10.0) * 0x1p-24;
  std::vector<std::pair<std::int64_t, Precision>> cases;
  for (const Precision precision : precisions())
    for (const std::int64_t rows : {1, 5, 9, 70}) cases.emplace_back(rows, precision);
  for (const auto& [rows, precision] : cases) {
    const auto x = numbers(rows);
    const double step = (1.0 + 0x1p-15) / levels_of(precision);
    const auto got = download(matmul(upload(x, {rows, kIn}), pack_blocks(matrix(raw), precision)));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t n = 0; n < kOut; ++n) {
        double sum = 0.0, bound = 0.0;
        for (std::int64_t begin = 0; begin < kIn; begin += block) {
          double most = 0.0, weights = 0.0;
          for (std::int64_t k = begin; k < begin + block; ++k) {
            const double a = x[row * kIn + k], b = w[n * kIn + k];
            most = std::max(most, std::fabs(a)), weights += std::fabs(b), sum += a * b;
            bound += unit * std::fabs(a) * (std::fabs(b) + 2.0 * std::fabs(shift[n * kIn + k]));
          }
          bound += 0.5 * step * most * weights;
        }
        ASSERT_LE(std::fabs(got[row * kOut + n] - sum), bound) << rows << " rows: " << row << ", " << n;
      }
    }
  }
}

TEST_P(IntegerProducts, ARowDoesNotDependOnThoseBesideIt) {
  constexpr std::int64_t kAll = 277;  // in two work-items of tiles
  const Tensor x = upload(numbers(kAll), {kAll, kIn});
  for (const Precision precision : precisions()) {
    const PackedWeight packed = pack_blocks(matrix(blocks()), precision);
    const auto all = download(matmul(x, packed));
    for (const std::int64_t rows : oracle::sampled({1, 2, 4, 7, 8, 9, 16, 17, 59, 61, 64, 65, 130, 257}, 6, 14)) {
      const auto some = download(matmul(x.slice(kAll - rows, kAll), packed));
      EXPECT_TRUE(same_bits(some, {all.end() - rows * kOut, all.end()})) << name_of(precision) << " " << rows;
    }
  }
}

// One row is rounded a slice of 4,096 at a time, many in shorter ones.
TEST_P(IntegerProducts, ARowOfSeveralSlicesDoesNotEither) {
  constexpr std::int64_t kLong = 4096 + 512, kRows = 9, kMany = 200;  // kMany: more outputs than a work-item has
  const Tensor x = upload(numbers(kRows, kLong), {kRows, kLong});
  for (const Precision precision : precisions()) {
    const PackedWeight packed = pack_blocks(matrix(blocks(kMany, 1, kLong), kMany), precision);
    const auto all = download(matmul(x, packed));
    const auto last = download(matmul(x.slice(kRows - 1, kRows), packed));
    EXPECT_TRUE(same_bits(last, {all.end() - kMany, all.end()})) << name_of(precision);
  }
}

TEST_P(IntegerProducts, EveryUnitGivesTheSameBits) {
  for (const Precision precision : precisions()) {
    const PackedWeight packed = pack_blocks(matrix(blocks()), precision);
    for (const std::int64_t rows : {1, 8, 17, 100}) {
      const Tensor x = upload(numbers(rows), {rows, kIn});
      const auto wanted = download(matmul(x, packed));
      const ForcedUnits forced(IntegerUnits::kVnni);
      EXPECT_TRUE(same_bits(download(matmul(x, packed)), wanted)) << name_of(precision) << " " << rows;
    }
  }
}

// Where it is asked for, where units are switched off, and with narrower vectors.
TEST_P(IntegerProducts, ExactOnesHaveTheBitsOfTheFloat32Weight) {
  const auto raw = blocks(), other = blocks(kOut, 2);
  const PackedWeight exact = pack_blocks(matrix(raw), Precision::kExact),
                     fast = pack_blocks(matrix(raw), Precision::kFast), usual = pack_blocks(matrix(raw)),
                     plain = pack(upload(reference::dequantise_blocks(GetParam(), raw), {kOut, kIn}));
  EXPECT_EQ(exact.precision(), Precision::kExact);
  for (const std::int64_t rows : {1, 8, 20}) {
    const Tensor x = upload(numbers(rows), {rows, kIn});
    const auto wanted = download(matmul(x, plain));
    EXPECT_TRUE(same_bits(download(matmul(x, exact)), wanted)) << rows;
    EXPECT_FALSE(same_bits(download(matmul(x, usual)), wanted)) << rows << ": integer units were not used";
    if (precisions().size() > 1)
      EXPECT_FALSE(same_bits(download(matmul(x, fast)), download(matmul(x, usual)))) << rows << ": as many bits";
    const ForcedUnits none(IntegerUnits::kNone);
    for (const PackedWeight& each : {usual, fast}) EXPECT_TRUE(same_bits(download(matmul(x, each)), wanted)) << rows;
  }
}

TEST_P(IntegerProducts, GatedAndRoutedOnesHaveTheBitsOfSeparateProducts) {
  const auto a = blocks(kOut, 7), b = blocks(kOut, 8);
  for (const Precision precision : precisions()) {
    const PackedWeight gate = pack_blocks(matrix(a), precision), up = pack_blocks(matrix(b), precision);
    const PackedPair pair = pack_pair_blocks(matrix(a), matrix(b), precision);
    PackedSet weights(gate, 2), pairs(pair, 2);
    for (const std::int64_t i : {0, 1}) weights.put(i, i == 0 ? gate : up), pairs.put(i, pair);
    for (const std::int64_t rows : {1, 7, 33}) {
      const Tensor x = upload(numbers(rows), {rows, kIn}),
                   chosen = upload(std::vector<std::int32_t>(rows, 1)).reshape({rows, 1});
      const Tensor separate = silu_mul(matmul(x, gate), matmul(x, up));
      EXPECT_TRUE(same_bits(matmul_gated(x, pair), separate)) << rows;
      EXPECT_TRUE(same_bits(matmul_routed(x, pairs, chosen), separate)) << rows;
      EXPECT_TRUE(same_bits(matmul_routed(x, weights, chosen), matmul(x, up))) << rows;
    }
  }
}

TEST_P(IntegerProducts, NonNumbersStayAndSmallOnesAreZeros) {
  const PackedWeight packed = pack_blocks(matrix(blocks()));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float specials[] = {NAN, kInfinity, -kInfinity, 0x1p-101f, 0.0f, 0x1p-100f};
  auto x = numbers(20);
  for (std::size_t row = 0; row < 6; ++row) {
    std::fill_n(x.begin() + row * kIn, kIn, 0.0f);
    x[row * kIn + 37] = specials[row];
  }
  for (const std::int64_t rows : {1, 6, 20}) {
    const auto got = download(matmul(upload({x.begin(), x.begin() + rows * kIn}, {rows, kIn}), packed));
    for (std::int64_t n = 0; n < kOut && rows == 1; ++n) EXPECT_TRUE(std::isnan(got[n]));
    if (rows == 1) continue;
    for (std::int64_t n = 0; n < kOut; ++n) {
      for (const std::int64_t row : {0, 1, 2}) EXPECT_TRUE(std::isnan(got[row * kOut + n]));
      for (const std::int64_t row : {3, 4}) EXPECT_EQ(got[row * kOut + n], 0.0f);
    }
    EXPECT_TRUE(std::any_of(got.begin() + 5 * kOut, got.begin() + 6 * kOut, [](float y) { return y != 0.0f; }));
  }
}

TEST_P(IntegerProducts, EveryVariantAndItsReplacementProveThemselves) {
  struct Case {
    IntegerUnits units;
    std::int32_t rows;
  };
  const Case cases[] = {
      {IntegerUnits::kVnni, 1}, {IntegerUnits::kVnni, 4}, {IntegerUnits::kVnni, 9}, {integer_units(device()), 9}};
  for (const Precision precision : precisions()) {
    for (const Case& each : cases) {
      for (const bool gated : {false, true}) {
        const std::optional<Activation> activation = gated ? std::optional(Activation::kSilu) : std::nullopt;
        const PackedVariant variant = choose_integers(each.units, each.rows, GetParam(), activation, precision);
        EXPECT_TRUE(variant_agrees(device_ptr(), variant)) << variant.key();
        EXPECT_TRUE(variant_agrees(device_ptr(), general_variant(variant))) << general_variant(variant).key();
      }
    }
  }
}

// 37 inputs: q8_0 fills its last block up.
TEST_F(OpsTest, IntegerProductsOfAPartOfABlock) {
  if (integer_units(device()) == IntegerUnits::kNone) GTEST_SKIP() << "the processor has no integer units";
  const PackedWeight packed = pack(upload(Random(3).normals(70 * 37), {70, 37}), true, WeightDType::kQ8),
                     exact =
                         pack(upload(Random(3).normals(70 * 37), {70, 37}), true, WeightDType::kQ8, Precision::kExact);
  for (const std::int64_t rows : {1, 5, 20}) {
    const auto x = Random(4).normals(rows * 37);
    const auto got = download(matmul(upload(x, {rows, 37}), packed)),
               wanted = download(matmul(upload(x, {rows, 37}), exact));
    // 37 numbers of up to 6 times up to 4, each off by up to 6 / 65278.
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 37 * 4 * 6.0 / 65278);
  }
}

TEST_F(OpsTest, UnitsThatAreNotThereAreRefused) {
  const ForcedWidth narrow(8);
  EXPECT_EQ(integer_units(device()), IntegerUnits::kNone);
  if (device().info().kind == cl::DeviceKind::kCpu) return;
  EXPECT_TRUE(contains(error_of(ErrorKind::kNotSupported, [] { set_integer_units(device(), IntegerUnits::kVnni); }),
                       "[set_integer_units] units: got vnni, allowed up to none"));
}

TEST_F(OpsTest, APrecisionIsNamedOrRefused) {
  for (const Precision precision : {Precision::kAuto, Precision::kExact, Precision::kFast})
    EXPECT_EQ(precision_from_name(name_of(precision), "test"), precision);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { precision_from_name("half", "ops.pack"); }),
                       "[ops.pack] precision: got \"half\", allowed \"auto\", \"exact\", \"fast\""));
}

}  // namespace
}  // namespace kvtrie::ops
