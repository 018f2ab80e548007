// Rotary embeddings against the reference.
#include <algorithm>
#include <cmath>

#include "ops/ops.h"
#include "ops/rope.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class Rope : public OpsTest {};

RopeParams scaled(RopeScaling scaling) {
  RopeParams params;
  params.base = 500000.0;
  params.scaling = scaling;
  params.factor = 8.0;
  params.original_max_positions = 256;
  params.max_positions = 2048;
  params.short_factors.assign(32, 1.5);
  params.long_factors.assign(32, 3.0);
  return params;
}

TEST_F(Rope, AgreesForBothLayoutsAndPartialHeads) {
  Random random(60);
  for (const bool interleaved : {false, true})
    for (const auto& [dim, dims] :
         {std::pair<std::int32_t, std::int32_t>{64, 0}, {64, 32}, {10, 6}, {128, 0}, {2, 2}}) {
      RopeParams params;
      params.dims = dims;
      params.interleaved = interleaved;
      const auto x = random.normals(static_cast<std::size_t>(5 * 3 * dim));
      const std::vector<std::int32_t> positions{0, 1, 77, 4000, 120000};
      for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
        const ForcedFamily forced(family);
        expect_close(download(rope(upload(x, {5, 3, dim}), upload(positions), params)),
                     reference::rope(x, positions, 3, static_cast<std::size_t>(dim), params), kRotation,
                     cat("dim ", dim));
      }
    }
}

TEST_F(Rope, TablesFollowTheirDefinitions) {
  const auto plain = [](std::size_t i) { return std::pow(500000.0, -2.0 * static_cast<double>(i) / 64); };
  const RopeTable linear = rope_table(scaled(RopeScaling::kLinear), 64);
  EXPECT_FLOAT_EQ(linear.inverse_frequencies[5], static_cast<float>(plain(5) / 8.0));
  EXPECT_EQ(linear.attention_factor, 1.0f);

  const RopeTable llama = rope_table(scaled(RopeScaling::kLlama3), 64);
  EXPECT_FLOAT_EQ(llama.inverse_frequencies[0], 1.0f);                                  // many turns: kept
  EXPECT_FLOAT_EQ(llama.inverse_frequencies[31], static_cast<float>(plain(31) / 8.0));  // below one turn: divided
  const double turns = 256 * plain(6) / (2 * M_PI), smooth = (turns - 1.0) / 3.0;
  ASSERT_TRUE(smooth > 0.0 && smooth < 1.0);
  EXPECT_FLOAT_EQ(llama.inverse_frequencies[6], static_cast<float>((1 - smooth) * plain(6) / 8.0 + smooth * plain(6)));

  const RopeTable yarn = rope_table(scaled(RopeScaling::kYarn), 64);
  EXPECT_FLOAT_EQ(yarn.attention_factor, static_cast<float>(0.1 * std::log(8.0) + 1.0));
  EXPECT_FLOAT_EQ(yarn.inverse_frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(yarn.inverse_frequencies[31], static_cast<float>(plain(31) / 8.0));

  const RopeTable near = rope_table(scaled(RopeScaling::kLongRope), 64, 256),
                  far = rope_table(scaled(RopeScaling::kLongRope), 64, 257);
  EXPECT_FLOAT_EQ(near.inverse_frequencies[4], static_cast<float>(plain(4) / 1.5));
  EXPECT_FLOAT_EQ(far.inverse_frequencies[4], static_cast<float>(plain(4) / 3.0));
  EXPECT_FLOAT_EQ(far.attention_factor, static_cast<float>(std::sqrt(1.0 + std::log(8.0) / std::log(256.0))));

  const RopeTable low = rope_table(scaled(RopeScaling::kDynamic), 64, 2048),
                  high = rope_table(scaled(RopeScaling::kDynamic), 64, 4096);
  EXPECT_FLOAT_EQ(low.inverse_frequencies[9], static_cast<float>(plain(9)));
  const double base = 500000.0 * std::pow(8.0 * 2.0 - 7.0, 64.0 / 62.0);
  EXPECT_FLOAT_EQ(high.inverse_frequencies[9], static_cast<float>(std::pow(base, -18.0 / 64)));
}

TEST_F(Rope, ScalesAndShifts) {
  Random random(61);
  const auto x = random.normals(2 * 64);
  const std::vector<std::int32_t> positions{3, 500};
  const RopeParams yarn = scaled(RopeScaling::kYarn);
  expect_close(download(rope(upload(x, {2, 1, 64}), upload(positions), yarn)),
               reference::rope(x, positions, 1, 64, yarn), kRotation);
  EXPECT_TRUE(yarn.can_shift());
  EXPECT_FALSE(scaled(RopeScaling::kDynamic).can_shift());
  EXPECT_FALSE(scaled(RopeScaling::kLongRope).can_shift());
}

TEST_F(Rope, RefusesWrongArguments) {
  const Tensor x = upload(std::vector<float>(12), {2, 1, 6});
  const Tensor positions = upload(std::vector<std::int32_t>{0, 1});
  RopeParams params;
  params.dims = 5;
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { rope(x, positions, params); }), "dims: got 5"));
  params.dims = 8;
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { rope(x, positions, params); }), "dims: got 8"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { rope(x, upload(std::vector<std::int32_t>{0}), RopeParams{}); }),
               "positions: got"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { rope(x, x, RopeParams{}); }), "positions: got float32"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { rope_table(scaled(RopeScaling::kLongRope), 32); }),
                       "short_factors: got 32 numbers, allowed 16"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { rope_scaling_from_name("ntk"); }), "scaling: got \"ntk\""));
}

}  // namespace
}  // namespace kvtrie::ops
