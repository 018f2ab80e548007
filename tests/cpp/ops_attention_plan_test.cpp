// The plan of attention over spans, against what every row must see.
#include "ops/attention_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

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

std::map<std::int32_t, std::int32_t> cells_by_position(const CellSpans& spans) {
  std::map<std::int32_t, std::int32_t> cells;
  for (const CellSpan& span : spans)
    for (std::uint32_t i = 0; i < span.length; ++i)
      cells[span.position + static_cast<int>(i)] = static_cast<int>(span.cell + i);
  return cells;
}

// Every visible key of every row is in exactly one tile of that row, at its own cell, and partials are numbered so that
// each is written once and read once, in order of position.
void check_plan(const AttentionPlan& plan, const std::vector<QueryRows>& queries, const PlanLimits& limits) {
  std::vector<std::map<std::int32_t, std::int32_t>> seen(plan.rows);
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> partials(plan.rows);  // (first position, partial)
  std::vector<int> direct(plan.rows, 0);
  for (const Tile& tile : plan.tiles) {
    ASSERT_GT(tile.row_count, 0);
    ASSERT_LE(tile.row_count, static_cast<std::int32_t>(limits.rows_per_tile));
    ASSERT_GT(tile.segment_count, 0);
    for (std::int32_t r = 0; r < tile.row_count; ++r) {
      const std::int32_t row = plan.row_ids[tile.row_begin + r];
      for (std::int32_t s = 0; s < tile.segment_count; ++s) {
        const Segment& segment = plan.segments[tile.segment_begin + s];
        for (std::int32_t i = 0; i < segment.length; ++i)
          ASSERT_TRUE(seen[row].emplace(segment.position + i, segment.cell + i).second)
              << "row " << row << " sees twice";
      }
      if (tile.partial_begin < 0)
        ++direct[row];
      else
        partials[row].push_back({plan.segments[tile.segment_begin].position, tile.partial_begin + r});
    }
  }
  std::vector<int> written(plan.partials, 0);
  for (const QueryRows& query : queries)
    for (std::uint32_t i = 0; i < query.count; ++i) {
      const std::uint32_t row = query.row + i;
      const std::int32_t position = query.position + static_cast<std::int32_t>(i);
      ASSERT_EQ(plan.row_positions[row], position);
      const CellSpans keys(query.keys.begin(), query.keys.end());
      for (const auto& [at, cell] : cells_by_position(keys))
        if (at <= position) {
          ASSERT_EQ(seen[row].count(at) ? seen[row][at] : -1, cell) << "row " << row << " key " << at;
        }
      ASSERT_EQ(direct[row], partials[row].empty() ? 1 : 0) << "row " << row;
      std::vector<std::int32_t> merged(plan.merge_ids.begin() + plan.merge_begin[row],
                                       plan.merge_ids.begin() + plan.merge_begin[row + 1]);
      std::vector<std::int32_t> wanted;
      for (const auto& [first, partial] : partials[row]) wanted.push_back(partial), ++written[partial];
      ASSERT_EQ(merged, wanted);
      ASSERT_TRUE(std::is_sorted(partials[row].begin(), partials[row].end()));
    }
  for (const int count : written) ASSERT_EQ(count, 1);
}

TEST(AttentionPlan, CoversEachVisibleKeyOnceOverRandomSteps) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const PlanLimits limits{static_cast<std::uint32_t>(32 << random() % 4),
                            1 + static_cast<std::uint32_t>(random() % 16), 8};
    std::vector<CellSpans> histories;
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
      histories.push_back(std::move(spans));
      const auto count = 1 + static_cast<std::uint32_t>(random() % std::min(length, random() % 2 ? 4 : 60));
      queries.push_back({row, count, length - static_cast<std::int32_t>(count), {}});
      row += count;
    }
    for (std::size_t i = 0; i < queries.size(); ++i) queries[i].keys = histories[i];
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

TEST(AttentionPlan, SharedStretchesBecomeOneTileForAllRows) {
  const CellSpans a{{0, 1024, 0}, {2000, 5, 1024}}, b{{0, 600, 0}, {600, 424, 600}, {3000, 9, 1024}};
  const std::vector<QueryRows> queries{{0, 1, 1028, a}, {1, 1, 1032, b}};
  const AttentionPlan plan = plan_attention(queries, {512, 16, 8});
  ASSERT_EQ(plan.tiles.size(), 4U);  // two shared stretches, two tails
  EXPECT_EQ(plan.tiles[0].row_count, 2);
  EXPECT_EQ(plan.tiles[1].row_count, 2);
  EXPECT_EQ(plan.tiles[2].row_count, 1);
  EXPECT_EQ(plan.partials, 6U);
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
  EXPECT_TRUE(refused({{0, 1, 9, keys}}, {100, 16, 8}));  // stretches are whole blocks of 32 keys
}

}  // namespace
}  // namespace kvtrie::ops
