// Rotary embeddings and sampling against the reference.
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
                     reference::rope(x, positions, 3, static_cast<std::size_t>(dim), params), 1e-5f, cat("dim ", dim));
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
               reference::rope(x, positions, 1, 64, yarn), 1e-5f);
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

class Sample : public OpsTest {};

// Every draw is the kept token at which the reference distribution passes the row's number.
void check_draws(const std::vector<float>& logits, std::int64_t rows, std::int64_t vocab,
                 const SampleOptions& options) {
  const auto drawn = download<std::int32_t>(sample(upload(logits, {rows, vocab}), options));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
    const auto p = reference::sample_distribution(row, options);
    const auto token = static_cast<std::size_t>(drawn[r]);
    ASSERT_LT(token, p.size());
    ASSERT_GT(p[token], 0.0) << "row " << r << " drew a token that is cut off";
    double before = 0.0;
    for (std::size_t i = 0; i < token; ++i) before += p[i];
    const double u = reference::sample_uniform(options.seed, static_cast<std::uint32_t>(r));
    ASSERT_TRUE(u >= before - 1e-4 && u <= before + p[token] + 1e-4) << "row " << r << " token " << token << " u " << u;
  }
}

TEST_F(Sample, DrawsWhatTheDistributionSays) {
  Random random(62);
  for (const std::int64_t vocab : {1, 5, 100, 3001}) {
    const std::int64_t rows = 40;
    const auto logits = random.normals(static_cast<std::size_t>(rows * vocab), 2.0f);
    for (const SampleOptions options :
         {SampleOptions{1.0f, 0, 1.0f, 1}, SampleOptions{0.7f, 10, 1.0f, 2}, SampleOptions{1.3f, 0, 0.6f, 3},
          SampleOptions{0.9f, 20, 0.8f, 4}, SampleOptions{1.0f, 1, 1.0f, 5}, SampleOptions{1.0f, 0, 1e-6f, 6}})
      check_draws(logits, rows, vocab, options);
  }
}

TEST_F(Sample, DrawsTheSameInWorkGroups) {
  Random random(63);
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  const auto logits = random.normals(20 * 501, 2.0f);
  check_draws(logits, 20, 501, {0.9f, 50, 0.8f, 7});
  check_draws(logits, 20, 501, {1.0f, 0, 1.0f, 8});
}

TEST_F(Sample, KeepsTheFirstOfTiedTokens) {
  const std::vector<float> logits(64 * 16, 0.5f);  // all tokens tie
  const auto drawn = download<std::int32_t>(sample(upload(logits, {64, 16}), {1.0f, 3, 1.0f, 9}));
  EXPECT_EQ(*std::max_element(drawn.begin(), drawn.end()), 2);
  EXPECT_EQ(*std::min_element(drawn.begin(), drawn.end()), 0);
}

TEST_F(Sample, FrequenciesMatchTheDistribution) {
  const std::vector<float> one{0.0f, 1.0f, 2.0f, -1.0f, 1.5f};
  const SampleOptions options{1.0f, 4, 0.95f, 10};
  const auto p = reference::sample_distribution(one, options);
  constexpr int kRows = 20000;
  std::vector<float> logits;
  for (int r = 0; r < kRows; ++r) logits.insert(logits.end(), one.begin(), one.end());
  std::vector<double> counts(5, 0.0);
  for (const std::int32_t token : download<std::int32_t>(sample(upload(logits, {kRows, 5}), options)))
    counts[token] += 1.0 / kRows;
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(counts[i], p[i], 0.015) << "token " << i;  // over four standard deviations
}

TEST_F(Sample, SeedDecides) {
  Random random(64);
  const Tensor logits = upload(random.normals(8 * 200), {8, 200});
  const auto draw = [&](std::uint64_t seed) { return download<std::int32_t>(sample(logits, {1.0f, 0, 1.0f, seed})); };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
  EXPECT_NE(draw(5), draw(5 + (std::uint64_t{1} << 40)));
  EXPECT_EQ(download<std::int32_t>(sample(logits, {0.0f, 0, 1.0f, 5})), download<std::int32_t>(argmax(logits)));
}

TEST_F(Sample, RefusesWrongArguments) {
  const Tensor x = upload({1, 2}, {1, 2});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {-1.0f, 0, 1.0f, 0}); }), "temperature: got -1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {1.0f, -2, 1.0f, 0}); }), "top_k: got -2"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {1.0f, 0, 0.0f, 0}); }), "top_p: got 0"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { sample(x.reshape({2}), {}); }), "logits: got"));
}

class SampleOclgrind : public OpsTest {};

TEST_F(SampleOclgrind, BothFamilies) {
  Random random(65);
  const auto logits = random.normals(2 * 21);
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    check_draws(logits, 2, 21, {0.9f, 9, 0.8f, 11});
  }
}

}  // namespace
}  // namespace kvtrie::ops
