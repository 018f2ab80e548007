// The choice of tokens against the reference: one set of options, and rows with their own.
#include <algorithm>
#include <cmath>

#include "ops/sample.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class Sample : public OpsTest {};

// The token is the kept one at which the reference distribution passes the row's number.
void check_draw(std::int32_t drawn, const std::vector<float>& row, const SampleOptions& options) {
  const auto p = reference::sample_distribution(row, options);
  const auto token = static_cast<std::size_t>(drawn);
  ASSERT_LT(token, p.size());
  ASSERT_GT(p[token], 0.0) << "a token that is cut off";
  double before = 0.0;
  for (std::size_t i = 0; i < token; ++i) before += p[i];
  const double u = reference::sample_uniform(options.seed, options.counter);
  ASSERT_WITHIN(std::max({0.0, before - u, u - before - p[token]}), kDraw) << "token " << token << " u " << u;
}

std::vector<float> row_of(const std::vector<float>& logits, std::int64_t vocab, std::size_t row) {
  const auto at = logits.begin() + static_cast<std::int64_t>(row) * vocab;
  return {at, at + vocab};
}

void check_drawn_rows(const std::vector<float>& logits, std::int64_t vocab, const std::vector<SampleOptions>& rows,
                      const std::vector<LogitEdit>& edits) {
  const Tensor x = upload(logits, {std::ssize(rows), vocab});
  const auto drawn = download<std::int32_t>(sample_rows(x, rows, edits));
  const auto edited = reference::edit_logits(logits, static_cast<std::size_t>(vocab), edits);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(cat("row ", r));
    check_draw(drawn[r], row_of(edited, vocab, r), rows[r]);
  }
}

void check_draws(const std::vector<float>& logits, std::int64_t rows, std::int64_t vocab,
                 const SampleOptions& options) {
  const auto drawn = download<std::int32_t>(sample(upload(logits, {rows, vocab}), options));
  SampleOptions own = options;
  for (std::size_t r = 0; r < drawn.size(); ++r, ++own.counter) check_draw(drawn[r], row_of(logits, vocab, r), own);
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

// Rows of every kind side by side, in an order of their own; edits for some.
struct Mixed {
  std::vector<SampleOptions> rows;
  std::vector<LogitEdit> edits;
};
Mixed mixed_rows(Random& random, std::int32_t count, std::int32_t vocab) {
  Mixed made;
  for (std::int32_t row = 0; row < count; ++row) {
    SampleOptions options;
    options.temperature = random.below(4) == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(random.below(5));
    options.top_k = random.below(2) == 0 ? 0 : random.below(20);
    options.top_p = random.below(2) == 0 ? 1.0f : 0.7f;
    options.min_p = random.below(2) == 0 ? 0.0f : 0.05f;
    options.seed = (static_cast<std::uint64_t>(random.below(1000)) << 32) + 7;
    options.counter = static_cast<std::uint32_t>(random.below(50));
    made.rows.push_back(options);
    for (std::int32_t token = random.below(9); token < vocab && random.below(3) > 0; token += 7) {
      const float add = random.below(6) == 0 ? -INFINITY : -0.5f;
      made.edits.push_back({row, token, 0.8f + 0.2f * static_cast<float>(random.below(4)), add});
    }
  }
  return made;
}

TEST_F(Sample, RowsHaveTheirOwnOptionsAndEdits) {
  Random random(66);
  for (const std::int32_t vocab : {2, 7, 100, 1031}) {
    for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
      const ForcedFamily forced(family);
      const auto logits = random.normals(static_cast<std::size_t>(30 * vocab), 2.0f);
      const Mixed mixed = mixed_rows(random, 30, vocab);
      check_drawn_rows(logits, vocab, mixed.rows, vocab > 2 ? mixed.edits : std::vector<LogitEdit>{});
    }
  }
}

TEST_F(Sample, ARowDoesNotDependOnTheOthers) {
  Random random(67);
  const auto logits = random.normals(12 * 300, 2.0f);
  const Mixed mixed = mixed_rows(random, 12, 300);
  const auto together = download<std::int32_t>(sample_rows(upload(logits, {12, 300}), mixed.rows, mixed.edits));
  for (std::size_t row = 0; row < mixed.rows.size(); ++row) {
    std::vector<LogitEdit> own;
    for (LogitEdit edit : mixed.edits) {
      if (edit.row == static_cast<std::int32_t>(row)) own.push_back({0, edit.token, edit.divide, edit.add});
    }
    const Tensor alone = upload(row_of(logits, 300, row), {1, 300});
    const auto drawn = download<std::int32_t>(sample_rows(alone, std::span(mixed.rows).subspan(row, 1), own));
    EXPECT_EQ(drawn[0], together[row]) << "row " << row;
  }
}

TEST_F(Sample, TheFirstOfTheLikeliestAtTemperatureZero) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    std::vector<float> logits(2 * 201, 1.0f);
    logits[150] = logits[77] = 3.0f;  // of the first row
    EXPECT_EQ(download<std::int32_t>(sample(upload(logits, {2, 201}), {0.0f})), (std::vector<std::int32_t>{77, 0}));
  }
}

TEST_F(Sample, NoTokenWhereNoneIsFinite) {
  const std::vector<float> logits{1, 2, NAN, NAN, 1, INFINITY, -INFINITY, -INFINITY, 1, NAN};
  const std::vector<SampleOptions> rows{{0.0f}, {1.0f}, {1.0f}, {0.0f}, {1.0f}};
  const std::vector<LogitEdit> none{{0, 0, 1.0f, -INFINITY}, {0, 1, 1.0f, -INFINITY}};
  const auto drawn = download<std::int32_t>(sample_rows(upload(logits, {5, 2}), rows, none));
  EXPECT_EQ(drawn, (std::vector<std::int32_t>{-1, -1, -1, -1, 0}));
}

TEST_F(Sample, RefusesWrongEdits) {
  const Tensor x = upload({1, 2, 3, 4}, {2, 2});
  const std::vector<SampleOptions> rows(2);
  const auto refused = [&](const std::vector<LogitEdit>& edits, const char* wanted) {
    const std::string got = error_of(ErrorKind::kArgument, [&] { sample_rows(x, rows, edits); });
    EXPECT_TRUE(contains(got, wanted)) << got;
  };
  refused({{2, 0}}, "edits: got row 2, allowed 0 to 1");
  refused({{-1, 0}}, "edits: got row -1");
  refused({{0, 2}}, "edits: got token 2, allowed 0 to 1");
  refused({{0, 0, 0.0f}}, "edits: got a divisor of 0");
  refused({{0, 0, 1.0f, INFINITY}}, "edits: got a summand of inf");
  refused({{0, 0, 1.0f, NAN}}, "edits: got a summand of nan");
  refused({{0, 1}, {0, 1}}, "edits: got token 1 of row 0 out of order");
  refused({{1, 0}, {0, 1}}, "edits: got token 1 of row 0 out of order");
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample_rows(x, std::span(rows).first(1)); }),
                       "options: got 1 rows, allowed as many as the logits' 2"));
}

TEST_F(Sample, RefusesWrongArguments) {
  const Tensor x = upload({1, 2}, {1, 2});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {-1.0f, 0, 1.0f, 0}); }), "temperature: got -1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {1.0f, -2, 1.0f, 0}); }), "top_k: got -2"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { sample(x, {1.0f, 0, 0.0f, 0}); }), "top_p: got 0"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  sample(x, {1.0f, 0, 1.0f, 0, 0, 1.5f});
                                }),
                       "min_p: got 1.5"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { sample(x.reshape({2}), {}); }), "logits: got"));
}

class SampleOclgrind : public OpsTest {};

TEST_F(SampleOclgrind, BothFamilies) {
  Random random(65);
  const auto logits = random.normals(2 * 21);
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    check_draws(logits, 2, 21, {0.9f, 9, 0.8f, 11});
    check_drawn_rows(logits, 21, {{0.0f}, {0.9f, 9, 0.8f, 11, 2, 0.1f}},
                     {{0, 3, 2.0f, 0.5f}, {1, 20, 1.0f, -INFINITY}});
  }
}

}  // namespace
}  // namespace kvtrie::ops
