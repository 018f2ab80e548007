// The plan of attention over spans, against what every row must see.
#include "ops/attention_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "attention_plan_check.h"
#include "base/error.h"

namespace kvtrie::ops {
namespace {

// A history of `length` positions in spans of random lengths up to `longest`, in scattered cells.
CellSpans scattered(std::mt19937& random, std::int32_t length, std::int32_t longest, Cell first_cell) {
  CellSpans spans;
  for (std::int32_t position = 0; position < length;) {
    const auto take = std::min<std::int32_t>(length - position, 1 + static_cast<std::int32_t>(random() % longest));
    spans.push_back({first_cell, static_cast<std::uint32_t>(take), position});
    position += take;
    first_cell += static_cast<Cell>(take + 1 + random() % 3);
  }
  return spans;
}

// As removals in the middle leave a history: runs that have moved, further down by more or less. What begins before
// position 300 may be shared, and moves alike in all histories.
void move_some(std::mt19937& random, CellSpans& spans) {
  std::int32_t moved = 0;
  for (CellSpan& span : spans) {
    if (span.position < 300) continue;
    if (random() % 4 == 0) moved = static_cast<std::int32_t>(random() % 3) * 40;
    span.moved = moved;
  }
}

// None (causal), a window, or anything within [0, length).
std::vector<RowBounds> random_bounds(std::mt19937& random, const QueryRows& query, std::int32_t length) {
  std::vector<RowBounds> bounds(query.count);
  const auto kind = random() % 3;
  const auto window = 1 + static_cast<std::int32_t>(random() % 400);
  for (std::uint32_t i = 0; i < query.count; ++i) {
    const std::int32_t end = query.position + static_cast<std::int32_t>(i) + 1;
    bounds[i] = kind == 1 ? RowBounds{std::max(0, end - window), end}
                          : RowBounds{static_cast<std::int32_t>(random() % length),
                                      static_cast<std::int32_t>(random() % (length + 1))};
  }
  return kind == 0 ? std::vector<RowBounds>() : bounds;
}

// Drops the cells in front that no row sees.
void forget_unseen(CellSpans& spans, const std::vector<RowBounds>& bounds) {
  if (bounds.empty()) return;
  std::int32_t first = spans.back().end_position();
  for (const RowBounds& each : bounds)
    if (each.first < each.end) first = std::min(first, each.first);
  std::erase_if(spans, [first](const CellSpan& span) { return span.end_position() <= first; });
  if (spans.empty()) return;
  const auto cut = static_cast<std::uint32_t>(std::max(0, first - spans[0].position));
  spans[0] = {spans[0].cell + cut, spans[0].length - cut, spans[0].position + static_cast<std::int32_t>(cut),
              spans[0].moved};
}

std::int64_t keys_of(const AttentionPlan& plan, const Tile& tile) {
  std::int64_t keys = 0;
  for (std::int32_t s = 0; s < tile.segment_count; ++s) keys += plan.segments[tile.segment_begin + s].length;
  return keys;
}

TEST(AttentionPlan, CoversEachVisibleKeyOnceOverRandomSteps) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const PlanLimits limits{static_cast<std::uint32_t>(32 << random() % 4),
                            1 + static_cast<std::uint32_t>(random() % 16), 8};
    std::vector<CellSpans> histories;
    std::vector<std::vector<RowBounds>> bounds;
    std::vector<QueryRows> queries;
    std::uint32_t row = 0;
    const CellSpans shared = scattered(random, 300, 90, 1000);
    for (int s = 0, sequences = 1 + static_cast<int>(random() % 5); s < sequences; ++s) {
      const auto length = 1 + static_cast<std::int32_t>(random() % 700);
      CellSpans spans = scattered(random, length, 1 + static_cast<int>(random() % 200), 5000 * (s + 1));
      if (random() % 2 && length > 300) {  // the first 300 positions are the shared prefix
        CellSpans joined = shared;
        for (const CellSpan& span : spans) {
          if (span.end_position() <= 300) continue;
          const auto cut = static_cast<std::uint32_t>(std::max(0, 300 - span.position));
          joined.push_back({span.cell + cut, span.length - cut, span.position + static_cast<int>(cut)});
        }
        spans = joined;
      }
      if (random() % 2) move_some(random, spans);
      histories.push_back(std::move(spans));
      const auto count = 1 + static_cast<std::uint32_t>(random() % std::min(length, random() % 2 ? 4 : 60));
      queries.push_back({row, count, length - static_cast<std::int32_t>(count)});
      row += count;
      bounds.push_back(random_bounds(random, queries.back(), length));
      forget_unseen(histories.back(), bounds.back());
    }
    for (std::size_t i = 0; i < queries.size(); ++i) queries[i].keys = histories[i], queries[i].bounds = bounds[i];
    const AttentionPlan plan = plan_attention(queries, limits);
    ASSERT_EQ(plan.rows, row);
    ASSERT_NO_FATAL_FAILURE(check_plan(plan, queries, limits)) << "round " << round;
  }
}

TEST(AttentionPlan, DecodeCutsAtAbsoluteMultiples) {
  const CellSpans keys{{100, 1300, 0}};
  const std::vector<QueryRows> queries{{0, 1, 1299, keys}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 3U);
  EXPECT_EQ(plan.partials, 3U);
  EXPECT_EQ(plan.segments[1].position, 512);
  EXPECT_EQ(plan.segments[1].cell, 612);
  EXPECT_EQ(plan.segments[2].length, 1300 - 1024);
}

TEST(AttentionPlan, SharedSplitsBecomeOneTileForAllRows) {
  const CellSpans a{{0, 1024, 0}, {2000, 5, 1024}}, b{{0, 600, 0}, {600, 424, 600}, {3000, 9, 1024}};
  const std::vector<QueryRows> queries{{0, 1, 1028, a}, {1, 1, 1032, b}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 4U);  // two shared splits, two tails
  EXPECT_EQ(plan.tiles[0].row_count, 2);
  EXPECT_EQ(plan.tiles[1].row_count, 2);
  EXPECT_EQ(plan.tiles[2].row_count, 1);
  EXPECT_EQ(plan.partials, 6U);
}

TEST(AttentionPlan, AWindowCostsItsKeys) {
  const CellSpans keys{{0, 100000, 0}};
  for (const std::int32_t position : {99999, 99840, 1535}) {  // in the midst of a split, and at its end
    const std::vector<RowBounds> bounds{{position - 511, position + 1}};
    const std::vector<QueryRows> queries{{0, 1, position, keys, bounds}};
    const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
    ASSERT_EQ(plan.tiles.size(), position == 1535 ? 1U : 2U);
    std::int64_t sum = 0;
    for (const Tile& tile : plan.tiles) sum += keys_of(plan, tile);
    EXPECT_EQ(sum, 512);
  }
  std::vector<RowBounds> bounds;
  for (std::int32_t t = 99936; t < 100000; ++t) bounds.push_back({t - 511, t + 1});
  const std::vector<QueryRows> queries{{0, 64, 99936, keys, bounds}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 4U);
  for (const Tile& tile : plan.tiles) EXPECT_EQ(keys_of(plan, tile), 512 + 15);
}

TEST(AttentionPlan, LeavesOutSplitsThatNoRowSees) {
  const CellSpans keys{{0, 4000, 0}};
  std::vector<RowBounds> bounds(8, RowBounds{0, 10});
  bounds[3] = {3000, 3010};
  const std::vector<QueryRows> queries{{0, 8, 3990, keys, bounds}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 1U);
  ASSERT_EQ(plan.segments.size(), 2U);
  EXPECT_EQ(plan.segments[0].length, 10);
  EXPECT_EQ(plan.segments[1].position, 3000);
  EXPECT_EQ(plan.segments[1].length, 10);
}

TEST(AttentionPlan, WindowsOnSharedCellsBecomeOneTile) {
  const CellSpans a{{0, 1024, 0}, {2000, 5, 1024}}, b{{700, 324, 700}, {3000, 9, 1024}}, c{{5000, 1030, 0}};
  const std::vector<RowBounds> at_a{{600, 1029}}, at_b{{710, 1033}}, at_c{{600, 1030}};
  const std::vector<QueryRows> queries{{0, 1, 1028, a, at_a}, {1, 1, 1032, b, at_b}, {2, 1, 1029, c, at_c}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 5U);
  EXPECT_EQ(plan.tiles[0].row_count, 2);
  EXPECT_EQ(keys_of(plan, plan.tiles[0]), 1024 - 600);
  EXPECT_EQ(plan.partials, 6U);
}

TEST(AttentionPlan, SharesOnlyWhereCellsAgree) {
  const PlanLimits limits{64, 16, 8};
  const CellSpans a{{0, 10, 0}, {100, 40, 10}}, b{{50, 10, 0}, {100, 40, 10}};  // one end, two beginnings
  const std::vector<RowBounds> late{{15, 50}}, first_ten{{10, 20}}, last_ten{{30, 40}};
  const auto tiles = [&](const std::vector<QueryRows>& queries) {
    const AttentionPlan plan = plan_attention(queries, limits);
    check_plan(plan, queries, limits);
    return plan.tiles.size();
  };
  EXPECT_EQ(tiles({{0, 1, 49, a}, {1, 1, 49, b}}), 2U);
  EXPECT_EQ(tiles({{0, 1, 49, a}, {1, 1, 49, b, late}}), 1U);  // what both see agrees
  EXPECT_EQ(tiles({{0, 1, 49, a, first_ten}, {1, 1, 49, b, last_ten}}), 2U);
}

TEST(AttentionPlan, RowsThatSeeNothingHaveATileWithoutKeys) {
  const std::vector<RowBounds> bounds{{4, 4}, {7, 2}};
  const std::vector<QueryRows> queries{{0, 2, 9, {}, bounds}};
  for (const std::uint32_t walk : {1U, 8U}) {
    const AttentionPlan plan = plan_attention(queries, {512, 16, walk});
    ASSERT_EQ(plan.tiles.size(), 1U);
    EXPECT_EQ(plan.tiles[0].row_count, 2);
    EXPECT_EQ(plan.tiles[0].segment_count, 0);
    EXPECT_EQ(plan.tiles[0].partial_begin, -1);
    EXPECT_EQ(plan.row_bounds, (std::vector<RowBounds>{{0, 0}, {0, 0}}));
  }
}

TEST(AttentionPlan, OneTilePerRowNeedsNoPartials) {
  const CellSpans keys{{7, 40, 0}};
  const std::vector<QueryRows> queries{{0, 3, 37, keys}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  EXPECT_EQ(plan.partials, 0U);
  EXPECT_EQ(plan.tiles[0].partial_begin, -1);
}

TEST(AttentionPlan, DenseSeesEveryKey) {
  for (const std::uint32_t rows : {1U, 5U, 40U}) {
    const AttentionPlan plan = plan_dense(rows, 1100, {512, 16, 8});
    std::vector<std::int64_t> keys(rows, 0);
    for (const Tile& tile : plan.tiles)
      for (std::int32_t r = 0; r < tile.row_count; ++r)
        for (std::int32_t s = 0; s < tile.segment_count; ++s)
          keys[plan.row_ids[tile.row_begin + r]] += plan.segments[tile.segment_begin + s].length;
    EXPECT_EQ(keys, std::vector<std::int64_t>(rows, 1100));
  }
}

TEST(AttentionPlan, RefusesWhatIsNotAStep) {
  const CellSpans keys{{0, 10, 0}}, gap{{0, 5, 0}, {9, 5, 6}}, late{{0, 5, 1}};
  const auto refused = [](const std::vector<QueryRows>& queries, const PlanLimits& limits = {}) {
    try {
      plan_attention(queries, limits);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused({{0, 1, 9, keys}}));
  EXPECT_TRUE(refused({{0, 2, 9, keys}}));  // keys end before the rows do
  EXPECT_TRUE(refused({{0, 1, 9, gap}}));
  EXPECT_TRUE(refused({{0, 1, 3, late}}));
  EXPECT_TRUE(refused({{1, 1, 9, keys}}));                   // row 0 is missing
  EXPECT_TRUE(refused({{0, 1, 9, keys}, {0, 1, 9, keys}}));  // row 0 twice
  EXPECT_TRUE(refused({{0, 0, 9, keys}}));
  EXPECT_TRUE(refused({{0, 1, -1, keys}}));
  const std::vector<RowBounds> two{{0, 5}, {0, 6}}, beyond{{3, 11}}, before{{0, 4}}, negative{{-1, 4}}, inside{{2, 6}};
  EXPECT_FALSE(refused({{0, 1, 40, late, inside}}));  // its own position need not be there
  EXPECT_TRUE(refused({{0, 1, 9, keys, two}}));
  EXPECT_TRUE(refused({{0, 1, 9, keys, beyond}}));
  EXPECT_TRUE(refused({{0, 1, 5, late, before}}));
  EXPECT_TRUE(refused({{0, 1, 9, keys, negative}}));
  EXPECT_TRUE(refused({{0, 1, 9, {}, inside}}));
  EXPECT_TRUE(refused({{0, 1, 9, keys}}, {100, 16, 8}));  // splits are whole blocks of 32 keys
}

}  // namespace
}  // namespace kvtrie::ops
