// q8_0: quantisation as GGML defines it, and products with what it stands for.
#include <limits>

#include "circle.h"
#include "ops/matmul.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_variant.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

constexpr WeightDType kQ8 = WeightDType::kQ8;

// A weight [out, in] whose blocks differ in size by powers of two, and some are zero.
std::vector<float> random_weight(std::int64_t out, std::int64_t in, std::uint32_t salt) {
  Random random(salt);
  std::vector<float> w = random.normals(static_cast<std::size_t>(out * in));
  for (std::int64_t n = 0; n < out; ++n)
    for (std::int64_t b = 0; b * 32 < in; ++b) {
      const float size = random.below(9) == 0 ? 0.0f : std::ldexp(1.0f, random.below(10) - 5);
      for (std::int64_t k = b * 32; k < std::min(in, b * 32 + 32); ++k) w[n * in + k] *= size;
    }
  return w;
}

// The float32 weight that q8_0 makes of w [.., in].
std::vector<float> quantised(const std::vector<float>& w, std::int64_t in) {
  return reference::dequantise_q8(reference::quantise_q8(w, static_cast<std::size_t>(in)),
                                  static_cast<std::size_t>(in));
}

Tensor upload_weight(const std::vector<float>& w, std::int64_t in) {
  return upload(w, {static_cast<std::int64_t>(w.size()) / in, in});
}

// A packed weight's numbers as float32 [out, in]: its products with the unit vectors, which are exact.
std::vector<float> unpacked(const PackedWeight& packed) {
  const std::int64_t in = packed.in_features(), out = packed.out_features();
  std::vector<float> unit(static_cast<std::size_t>(in * in), 0.0f), w(static_cast<std::size_t>(in * out));
  for (std::int64_t k = 0; k < in; ++k) unit[k * in + k] = 1.0f;
  const std::vector<float> turned = download(matmul(upload(unit, {in, in}), packed));
  for (std::int64_t n = 0; n < out; ++n)
    for (std::int64_t k = 0; k < in; ++k) w[n * in + k] = turned[k * out + n] + 0.0f;  // no negative zeros
  return w;
}

class MatmulQ8 : public OpsTest {};

TEST_F(MatmulQ8, ReferenceFollowsTheDefinition) {
  std::vector<float> w(40, 0.0f);
  w[0] = -127.0f;  // d = 1
  w[1] = 2.5f, w[2] = -2.5f, w[3] = 3.5f, w[4] = 0.49f;
  w[33] = 254.0f, w[34] = 1.0f;  // d = 2 in the second block, of 8 numbers
  const reference::Q8Blocks blocks = reference::quantise_q8(w, 40);
  EXPECT_EQ(blocks.scales, (std::vector<std::uint16_t>{float_to_half(1.0f), float_to_half(2.0f)}));
  const std::vector<std::int8_t> first(blocks.numbers.begin(), blocks.numbers.begin() + 5);
  EXPECT_EQ(first, (std::vector<std::int8_t>{-127, 3, -3, 4, 0}));  // halves away from zero
  EXPECT_EQ(blocks.numbers[32 + 1], 127);
  EXPECT_EQ(blocks.numbers[32 + 2], 1);
  EXPECT_EQ(blocks.numbers.size(), 64U);
  EXPECT_EQ(quantised(w, 40)[33], 254.0f);
}

TEST_F(MatmulQ8, ReferenceStaysWithinHalfAStep) {
  const auto w = random_weight(20, 70, 1);
  const auto q = quantised(w, 70);
  for (std::size_t n = 0; n < 20; ++n)
    for (std::size_t b = 0; b < 3; ++b) {
      float most = 0.0f;
      for (std::size_t k = b * 32; k < std::min<std::size_t>(70, b * 32 + 32); ++k)
        most = std::max(most, std::fabs(w[n * 70 + k]));
      for (std::size_t k = b * 32; k < std::min<std::size_t>(70, b * 32 + 32); ++k)
        ASSERT_WITHIN(most == 0.0f ? 0.0 : std::fabs(q[n * 70 + k] - w[n * 70 + k]) / (0.57f * most / 127.0f),
                      testing::kHalfStep)
            << n << ", " << k;
    }
}

TEST_F(MatmulQ8, QuantisesOnTheDeviceAsTheReference) {
  for (const auto& [out, in] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {1, 1}, {130, 37}, {48, 160}, {70, 32}, {16, 31}}) {
    const auto w = random_weight(out, in, 2);
    EXPECT_TRUE(same_bits(unpacked(pack(upload_weight(w, in), true, kQ8, Precision::kExact)), quantised(w, in)))
        << out << " x " << in;
  }
}

TEST_F(MatmulQ8, QuantisesEveryStorageAndLayout) {
  const std::int64_t out = 70, in = 45;
  const auto w = random_weight(out, in, 3);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto bytes = stored(w, dtype);
    std::vector<float> kept(w.size()), turned(w.size());
    for (std::int64_t n = 0; n < out; ++n)
      for (std::int64_t k = 0; k < in; ++k) {
        kept[n * in + k] = reference::Numbers{bytes.data(), dtype}[n * in + k];
        turned[k * out + n] = kept[n * in + k];
      }
    const auto wanted = quantised(kept, in);
    EXPECT_TRUE(same_bits(unpacked(pack(upload_as(w, dtype, {out, in}), true, kQ8, Precision::kExact)), wanted))
        << name_of(dtype);
    EXPECT_TRUE(same_bits(unpacked(pack(upload_as(turned, dtype, {in, out}), false, kQ8, Precision::kExact)), wanted))
        << name_of(dtype);
  }
}

TEST_F(MatmulQ8, HasTheBitsOfTheFloat32WeightItStandsFor) {
  for (const auto& [in, out] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {1, 1}, {37, 130}, {600, 48}, {1056, 70}}) {
    const auto w = random_weight(out, in, 4);
    const PackedWeight q8 = pack(upload_weight(w, in), true, kQ8, Precision::kExact),
                       plain = pack(upload_weight(quantised(w, in), in));
    for (const std::int64_t rows : {1, 2, 4, 5, 8, 9, 70}) {
      const Tensor x = upload(Random(5).normals(static_cast<std::size_t>(rows * in)), {rows, in});
      EXPECT_TRUE(same_bits(download(matmul(x, q8)), download(matmul(x, plain))))
          << rows << " x " << in << " x " << out;
    }
  }
}

TEST_F(MatmulQ8, AgreesWithTheReference) {
  Random random(6);
  for (int round = 0; round < 12; ++round) {
    const std::int64_t in = 1 + random.below(300), out = 1 + random.below(200), rows = 1 + random.below(70);
    const auto w = random.normals(static_cast<std::size_t>(in * out), 1.0f / std::sqrt(static_cast<float>(in)));
    const auto x = random.normals(static_cast<std::size_t>(rows * in));
    const auto kept = quantised(w, in);
    const auto wanted = reference::matmul(x, {kept.data(), DType::kFloat32}, static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(in), static_cast<std::size_t>(out));
    expect_close(download(matmul(upload(x, {rows, in}), pack(upload_weight(w, in), true, kQ8, Precision::kExact))),
                 wanted, kProducts, cat(rows, " x ", in, " x ", out));
  }
}

TEST_F(MatmulQ8, RowBitsDoNotDependOnTheOtherRows) {
  const auto w = random_weight(100, 600, 7);
  const PackedWeight packed = pack(upload_weight(w, 600), true, kQ8, Precision::kExact);
  const Tensor x = upload(Random(8).normals(70 * 600), {70, 600});
  const auto whole = download(matmul(x, packed));
  for (std::int64_t count = 1; count <= 70; ++count) {
    const std::vector<float> wanted(whole.end() - count * 100, whole.end());
    ASSERT_TRUE(same_bits(download(matmul(x.slice(70 - count, 70), packed)), wanted)) << count;
  }
}

TEST_F(MatmulQ8, AddAndGateHaveTheBitsOfTheirParts) {
  for (const std::int64_t rows : oracle::sampled({1, 9, 2, 8, 70}, 2, 5))
    for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {1, 1}, {37, 130}, {600, 47}}) {
      const Tensor x = upload(Random(9).normals(static_cast<std::size_t>(rows * in)), {rows, in});
      const Tensor gate = upload_weight(random_weight(out, in, 10), in),
                   up = upload_weight(random_weight(out, in, 11), in);
      const PackedWeight packed = pack(gate, true, kQ8, Precision::kExact);
      const Tensor g = matmul(x, packed), u = matmul(x, pack(up, true, kQ8, Precision::kExact));
      const Tensor residual = upload(Random(12).normals(static_cast<std::size_t>(rows * out)), {rows, out});
      EXPECT_TRUE(same_bits(download(matmul(x, packed, residual)), download(add(g, residual)))) << rows << ", " << in;
      const PackedPair pair = pack_pair(gate, up, kQ8, Precision::kExact);
      EXPECT_TRUE(same_bits(download(matmul_gated(x, pair)), download(silu_mul(g, u)))) << rows << ", " << in;
      EXPECT_TRUE(same_bits(download(matmul_gated(x, pair, Activation::kGeluTanh)), download(gelu_mul(g, u))))
          << rows << ", " << in;
    }
}

TEST_F(MatmulQ8, TinyBlocksBecomeZeroAndHugeOnesFit) {
  std::vector<float> w(4 * 32, 0.0f);
  for (int k = 0; k < 32; ++k) {
    w[k] = 1e-40f;                                  // denormal
    w[32 + k] = 127.0f * 0x1p-25f;                  // d is half the smallest float16: rounds to zero
    w[64 + k] = 127.0f * 0x1p-24f;                  // the smallest float16
    w[96 + k] = k % 2 == 0 ? kMaxQ8 : -kMaxQ8 / 2;  // the largest
  }
  const auto got = unpacked(pack(upload_weight(w, 32), true, kQ8, Precision::kExact));
  EXPECT_TRUE(same_bits(got, quantised(w, 32)));
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[32], 0.0f);
  EXPECT_EQ(got[64], w[64]);
  EXPECT_EQ(got[96], kMaxQ8);
  EXPECT_EQ(got[97], -64.0f * 65504.0f);
}

TEST_F(MatmulQ8, RefusesWhatItCannotHold) {
  const auto refused = [](float value, std::size_t at) {
    std::vector<float> w(70 * 40, 1.0f);
    w[at] = value;
    return error_of(ErrorKind::kArgument, [&] { pack(upload_weight(w, 40), true, kQ8, Precision::kExact); });
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(contains(refused(std::nanf(""), 0), "[ops.pack] w: got a NaN, allowed finite numbers"));
  EXPECT_TRUE(contains(refused(-std::nanf(""), 70 * 40 - 1), "w: got a NaN"));
  EXPECT_TRUE(contains(refused(-infinity, 39), "magnitude of inf, allowed up to 8.31901e+06 in q8_0"));
  EXPECT_TRUE(contains(refused(std::nextafter(kMaxQ8, infinity), 41), "w: got float32 [70, 40] with a magnitude of"));
  const Tensor good = Tensor::zeros(shared_device(), DType::kFloat32, {4, 8});
  const Tensor bad = upload(std::vector<float>(32, 1e9f), {4, 8});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { pack_pair(good, bad, kQ8, Precision::kExact); }),
                       "[ops.pack_pair] up: got"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { pack_pair(bad, good, kQ8, Precision::kExact); }),
                       "[ops.pack_pair] gate: got"));
}

TEST_F(MatmulQ8, KeepsItsKindAndRefusesOtherConversions) {
  const Tensor w = upload(random_weight(70, 40, 13), {70, 40});
  const PackedWeight packed = pack(w, true, kQ8, Precision::kExact);
  EXPECT_STREQ(name_of(packed.dtype()), "q8_0");
  EXPECT_EQ(packed.nbytes(), 2U * 2 * (64 * 2 + 64 * 32));  // 70 outputs in two groups, 40 inputs in two blocks
  EXPECT_STREQ(name_of(pack(w).dtype()), "float32");
  EXPECT_EQ(pack(w, true, WeightDType::kFloat32).dtype(), WeightDType::kFloat32);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { pack(w, true, WeightDType::kFloat16); }),
                       "[ops.pack] dtype: got float16 for float32 [70, 40], allowed float32 or q8_0"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { weight_dtype_from_name("q3_0", "ops.pack", "dtype"); }),
                       "dtype: got q3_0, allowed float32, float16, bfloat16, q8_0, q4_0"));
}

TEST_F(MatmulQ8, VariantsOfEveryVectorWidthAgree) {
  for (const std::int32_t width : oracle::sampled({8, 16}, 1, 2))
    for (const std::int32_t rows : oracle::sampled({4, 64, 1}, 1, 3))
      for (const auto gated : {std::optional<Activation>(), std::optional(Activation::kSilu)}) {
        const PackedVariant variant = choose_variant(width, rows, kQ8, gated);
        EXPECT_TRUE(agrees_where_it_runs([&] { return variant_agrees(device_ptr(), variant); })) << variant.key();
        EXPECT_TRUE(agrees_where_it_runs([&] { return variant_agrees(device_ptr(), general_variant(variant)); }))
            << variant.key();
      }
}

// A device on which the fast variants failed computes the same bits by the general one.
TEST_F(MatmulQ8, GeneralVariantTakesTheFastOnesPlace) {
  const cl::DevicePtr other = cl::Device::open(device().info(), device().options());
  for (const std::int32_t rows : {1, 4, 9})
    registry::set_verdict(*other, choose_variant(vector_width(*other), rows, kQ8).key(), false);
  const auto w = random_weight(70, 45, 14), x = Random(15).normals(9 * 45);
  const Tensor w_there = Tensor::from_host(other, DType::kFloat32, {70, 45}, w.data());
  const Tensor x_there = Tensor::from_host(other, DType::kFloat32, {9, 45}, x.data());
  const auto wanted = download(matmul(upload(x, {9, 45}), pack(upload_weight(w, 45), true, kQ8, Precision::kExact)));
  EXPECT_TRUE(same_bits(download(matmul(x_there, pack(w_there, true, kQ8, Precision::kExact))), wanted));
  EXPECT_TRUE(same_bits(download(matmul(x_there.slice(0, 1), pack(w_there, true, kQ8, Precision::kExact))),
                        std::vector<float>(wanted.begin(), wanted.begin() + 70)));
}

// Scales and numbers as packed on a device whose division is off by up to 2.5 units in the last place, as OpenCL
// allows.
TEST_F(MatmulQ8, PackingDoesNotDependOnTheDivisionOfTheDevice) {
  constexpr std::int32_t kOut = 64, kIn = 320;
  const Tensor weight = upload_weight(random_weight(kOut, kIn, 21), kIn);
  const auto words_with = [&](int off) {
    const Tensor panels = empty_blocks(device_ptr(), kQ8, 1, kIn),
                 most = Tensor::zeros(device_ptr(), DType::kUInt32, {1});
    device().launch(
        device().kernel("pack_q8", "pack_q8", join("-DSTORED=0 -DDIVISION_OFF=", off, row_option(device()))),
        {4, kIn / 32, 0}, {1, 1, 0}, weight.buffer(), weight.offset(), panels.buffer(), most.buffer(), kOut, kIn,
        std::int32_t{1}, std::int32_t{1}, std::int32_t{0});
    return download<std::uint32_t>(panels);
  };
  const auto wanted = words_with(0);
  for (const int off : oracle::sampled({-3, 3, -2, -1, 1, 2}, 2, 6)) EXPECT_EQ(words_with(off), wanted) << off;
}

class MatmulQ8Oclgrind : public OpsTest {};

TEST_F(MatmulQ8Oclgrind, PackedAndGated) {
  const auto w = random_weight(18, 35, 16), x = Random(17).normals(9 * 35);
  const Tensor weight = upload_weight(w, 35), rows = upload(x, {9, 35});
  const auto kept = quantised(w, 35);
  expect_close(download(matmul(rows, pack(weight, true, kQ8, Precision::kExact))),
               reference::matmul(x, {kept.data(), DType::kFloat32}, 9, 35, 18), kProducts);
  EXPECT_EQ(matmul_gated(rows, pack_pair(weight, weight, kQ8, Precision::kExact)).shape(), (Shape{9, 18}));
}

}  // namespace
}  // namespace kvtrie::ops
