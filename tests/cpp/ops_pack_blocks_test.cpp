// GGML's blocks of 4 to 8 bits: what they stand for, how they are packed, and products with the bits of what they stand
// for.
#include "circle.h"
#include "ops/matmul.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_variant.h"
#include "ops/pack_blocks.h"
#include "ops/self_test.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kIn = 512;  // of all of them whole blocks

class PackBlocks : public ::testing::WithParamInterface<WeightDType>, public OpsTest {
 protected:
  static std::vector<std::byte> blocks(std::int64_t out, std::uint32_t salt = 1, std::int64_t in = kIn) {
    return reference::sample_blocks(GetParam(), static_cast<std::size_t>(out * in), salt);
  }
  static BlockMatrix matrix(std::span<const std::byte> raw, std::int64_t out) {
    return {device_ptr(), raw, GetParam(), out};
  }
  // The float32 weight, packed.
  static PackedWeight widened(const std::vector<std::byte>& raw, std::int64_t out, std::int64_t in = kIn) {
    return pack(upload(reference::dequantise_blocks(GetParam(), raw), {out, in}));
  }
  static Tensor rows_of(std::int64_t rows, std::int64_t in = kIn) {
    return upload(Random(5).normals(static_cast<std::size_t>(rows * in)), {rows, in});
  }
};

std::string name_of_blocks(const ::testing::TestParamInfo<WeightDType>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Every, PackBlocks, ::testing::ValuesIn(kBlockDTypes), name_of_blocks);

// Each type has programs of its own, some twenty.
class BlockProducts : public PackBlocks {};
INSTANTIATE_TEST_SUITE_P(Types, BlockProducts,
                         ::testing::ValuesIn(oracle::sampled({WeightDType::kQ5_1, WeightDType::kQ6K, WeightDType::kQ2K,
                                                              WeightDType::kQ4K, WeightDType::kQ4_0, WeightDType::kQ8,
                                                              WeightDType::kQ4_1, WeightDType::kQ5_0,
                                                              WeightDType::kQ5K},
                                                             1, 3)),
                         name_of_blocks);

TEST_P(PackBlocks, HoldsTheNumbersThatGgmlMeans) {
  for (const std::int64_t out : {1, 16, 64, 70, 130}) {
    const auto raw = blocks(out);
    const PackedWeight packed = pack_blocks(matrix(raw, out));
    EXPECT_EQ(packed.out_features(), out);
    EXPECT_EQ(packed.in_features(), kIn);
    EXPECT_EQ(packed.dtype(), GetParam());
    std::vector<std::byte> stream(packed.nbytes());
    packed.panels().copy_to_host(stream.data());
    const auto wanted = reference::dequantise_blocks(GetParam(), raw);
    for (std::int64_t n = 0; n < (out + 63) / 64 * 64; ++n)
      for (std::int64_t k = 0; k < kIn; ++k)
        ASSERT_EQ(reference::packed_number(GetParam(), stream, kIn, n, k), n < out ? wanted[n * kIn + k] : 0.0f)
            << n << ", " << k;
  }
}

TEST_P(BlockProducts, ProductsHaveTheBitsOfTheFloat32Weight) {
  for (const std::int64_t in : {256, 512, 1536})
    for (const std::int64_t out : {16, 70, 192}) {
      const auto raw = blocks(out, 3, in);
      const PackedWeight packed = pack_blocks(matrix(raw, out), Precision::kExact), plain = widened(raw, out, in);
      for (const std::int64_t rows : {1, 2, 5, 8, 9, 70})
        EXPECT_TRUE(same_bits(download(matmul(rows_of(rows, in), packed)), download(matmul(rows_of(rows, in), plain))))
            << rows << " x " << in << " x " << out;
    }
}

TEST_P(BlockProducts, EveryWidthGivesTheSameBits) {
  const auto raw = blocks(100);
  const PackedWeight packed = pack_blocks(matrix(raw, 100)), plain = widened(raw, 100);
  for (const std::int64_t rows : {1, 3, 8, 20, 131}) {
    const auto wanted = download(matmul(rows_of(rows), plain));
    for (const std::int32_t width : {4, 8}) {
      const ForcedWidth forced(width);
      EXPECT_TRUE(same_bits(download(matmul(rows_of(rows), packed)), wanted)) << rows << " rows, vectors of " << width;
    }
  }
}

TEST_P(BlockProducts, GatedPairsHaveTheBitsOfTheFloat32Pair) {
  for (const std::int64_t out : {16, 40, 130}) {
    const auto gate = blocks(out, 7), up = blocks(out, 8);
    const PackedPair pair = pack_pair_blocks(matrix(gate, out), matrix(up, out), Precision::kExact);
    const PackedPair plain = pack_pair(upload(reference::dequantise_blocks(GetParam(), gate), {out, kIn}),
                                       upload(reference::dequantise_blocks(GetParam(), up), {out, kIn}));
    for (const std::int64_t rows : oracle::sampled({4, 9, 1}, 2, 3))
      for (const Activation activation : oracle::sampled({Activation::kSilu, Activation::kGeluTanh}, 1, 2))
        EXPECT_TRUE(same_bits(download(matmul_gated(rows_of(rows), pair, activation)),
                              download(matmul_gated(rows_of(rows), plain, activation))))
            << rows << " rows, " << out << " outputs";
  }
}

TEST_P(BlockProducts, EmbedsTheNumbersThatItStandsFor) {
  const auto raw = blocks(130);
  const PackedWeight packed = pack_blocks(matrix(raw, 130));
  const auto numbers = reference::dequantise_blocks(GetParam(), raw);
  for (const std::vector<std::int32_t>& ids : {std::vector{129}, {0, 63, 64, 127, 3}, std::vector(9, 128)}) {
    std::vector<float> wanted;
    for (const std::int32_t id : ids)
      wanted.insert(wanted.end(), numbers.begin() + id * kIn, numbers.begin() + (id + 1) * kIn);
    EXPECT_EQ(download(embedding(packed, upload(ids))), wanted);  // zeros have either sign
  }
  for (const float each : download(embedding(packed, upload(std::vector{130})))) ASSERT_TRUE(std::isnan(each));
  for (const float each : download(embedding(packed, upload(std::vector{-1})))) ASSERT_TRUE(std::isnan(each));
  const std::vector<PackedWeight> parts{pack_blocks(matrix(std::span(raw).first(raw.size() / 130 * 64), 64)),
                                        pack_blocks(matrix(std::span(raw).subspan(raw.size() / 130 * 64), 66))};
  const Tensor ids = upload(std::vector{129, 64, 63, 0, 130, -1});
  EXPECT_TRUE(same_bits(download(embedding(parts, ids)), download(embedding(packed, ids))));
}

TEST_P(BlockProducts, WeightsThatAreKeptDifferentlyAreOneProduct) {
  const auto raw = blocks(70);
  const std::vector<PackedWeight> parts = {
      pack_blocks(matrix(raw, 70)), pack(upload(Random(8).normals(20 * kIn), {20, kIn})), pack_blocks(matrix(raw, 70))};
  for (const std::int64_t rows : {1, 3, 20}) {
    const Tensor x = rows_of(rows), add = upload(Random(9).normals(rows * 160), {rows, 160});
    const auto got = download(matmul(x, parts)), added = download(matmul(x, parts, add));
    const auto shifted = download(matmul(x, parts, add.slice(0, 1).reshape({160}))), addends = download(add);
    std::int64_t begin = 0;
    for (const PackedWeight& part : parts) {
      const auto own = download(matmul(x, part));
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t n = 0; n < part.out_features(); ++n) {
          const std::int64_t at = row * 160 + begin + n;
          ASSERT_EQ(got[at], own[row * part.out_features() + n]);
          ASSERT_EQ(added[at], got[at] + addends[at]);
          ASSERT_EQ(shifted[at], got[at] + addends[begin + n]);
        }
      begin += part.out_features();
    }
  }
}

TEST_P(BlockProducts, EveryVariantAndItsReplacementProveThemselves) {
  for (const std::int32_t width : {4, 8})
    for (const std::int32_t rows : {1, 4, 9}) {
      const PackedVariant variant = choose_variant(width, rows, GetParam());
      EXPECT_TRUE(variant_agrees(device_ptr(), variant)) << variant.key();
      EXPECT_TRUE(variant_agrees(device_ptr(), general_variant(variant))) << general_variant(variant).key();
    }
}

TEST_P(PackBlocks, RefusesBytesThatAreNoRowsOfBlocks) {
  const auto raw = blocks(3);
  const auto message = [](const BlockMatrix& w) { return error_of(ErrorKind::kArgument, [&] { pack_blocks(w); }); };
  BlockMatrix wrong = matrix(raw, 3);
  wrong.blocks = wrong.blocks.first(wrong.blocks.size() - 1);
  EXPECT_TRUE(contains(message(wrong), "[ops.pack_blocks] w: got")) << message(wrong);
  EXPECT_TRUE(contains(message(matrix(raw, 0)), "got 0 outputs, allowed 1 to"));
  EXPECT_TRUE(contains(message(matrix({}, 1)), "got 0 bytes"));
  wrong = matrix(raw, 3);
  wrong.dtype = WeightDType::kFloat16;
  EXPECT_TRUE(contains(message(wrong), "dtype: got float16, allowed q8_0"));
  const auto other = blocks(2);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { pack_pair_blocks(matrix(raw, 3), matrix(other, 2)); }),
                       "[ops.pack_pair_blocks] up: got"));
}

// Packed, blocks take at most a thirtieth more than in a file.
TEST_P(PackBlocks, TakesHardlyMoreThanTheFile) {
  const auto raw = blocks(64);
  EXPECT_LE(static_cast<double>(pack_blocks(matrix(raw, 64)).nbytes()), 1.03 * static_cast<double>(raw.size()));
}

}  // namespace
}  // namespace kvtrie::ops
