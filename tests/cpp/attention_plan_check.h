// What a plan of attention over spans has to be: every row reads each key that it sees once, at its own cell.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ops/attention_plan.h"

namespace kvtrie::ops {

inline std::map<std::int32_t, std::int32_t> cells_by_position(const CellSpans& spans) {
  std::map<std::int32_t, std::int32_t> cells;
  for (const CellSpan& span : spans)
    for (std::uint32_t i = 0; i < span.length; ++i)
      cells[span.position + static_cast<int>(i)] = static_cast<int>(span.cell + i);
  return cells;
}

inline RowBounds bounds_of(const QueryRows& query, std::uint32_t i) {
  if (query.bounds.empty()) return {0, query.position + static_cast<std::int32_t>(i) + 1};
  return query.bounds[i].first < query.bounds[i].end ? query.bounds[i] : RowBounds{};
}

// In every split a tile has exactly the range that its rows see together; a tile with partials has one split.
inline void check_tile(const AttentionPlan& plan, const Tile& tile, const PlanLimits& limits) {
  ASSERT_GT(tile.row_count, 0);
  ASSERT_LE(tile.row_count, static_cast<std::int32_t>(limits.rows_per_tile));
  const auto size = static_cast<std::int32_t>(limits.keys_per_tile);
  std::map<std::int32_t, RowBounds> splits, wanted;
  const auto add = [size](auto& to, RowBounds range) {
    for (std::int64_t at = range.first; at < range.end; at = (at / size + 1) * size) {
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(range.end, (at / size + 1) * size));
      const RowBounds part{static_cast<std::int32_t>(at), end};
      const auto [entry, fresh] = to.emplace(static_cast<std::int32_t>(at / size), part);
      if (!fresh) entry->second = {std::min(entry->second.first, part.first), std::max(entry->second.end, part.end)};
    }
  };
  std::int64_t next = -std::int64_t{size};
  for (std::int32_t s = 0; s < tile.segment_count; ++s) {
    const Segment& segment = plan.segments[tile.segment_begin + s];
    ASSERT_GT(segment.length, 0);
    ASSERT_TRUE(segment.position == next || segment.position >= (next + size - 1) / size * size)
        << "a gap inside a split";
    next = std::int64_t{segment.position} + segment.length;
    add(splits, {segment.position, segment.position + segment.length});
  }
  for (std::int32_t r = 0; r < tile.row_count; ++r) add(wanted, plan.row_bounds[plan.row_ids[tile.row_begin + r]]);
  if (tile.partial_begin < 0) {
    ASSERT_EQ(splits, wanted);
    return;
  }
  ASSERT_EQ(splits.size(), 1U);
  ASSERT_EQ(splits.begin()->second, wanted.at(splits.begin()->first));
}

// Every visible key of every row is in exactly one tile of that row, at its own cell, and partials are numbered so that
// each is written once and read once, in order of position.
inline void check_plan(const AttentionPlan& plan, const std::vector<QueryRows>& queries, const PlanLimits& limits) {
  ASSERT_EQ(plan.row_bounds.size(), plan.rows + plan.turned.size());
  const auto row_of = [&](std::int32_t id) {
    return id < static_cast<std::int32_t>(plan.rows) ? TurnedRow{id, 0} : plan.turned[id - plan.rows];
  };
  std::vector<std::map<std::int32_t, std::int32_t>> turns(plan.rows);  // position -> by how much the query was turned
  std::vector<std::map<std::int32_t, std::int32_t>> seen(plan.rows);
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> partials(plan.rows);  // (first position, partial)
  std::vector<int> direct(plan.rows, 0);
  for (const Tile& tile : plan.tiles) {
    ASSERT_NO_FATAL_FAILURE(check_tile(plan, tile, limits));
    for (std::int32_t r = 0; r < tile.row_count; ++r) {
      const std::int32_t id = plan.row_ids[tile.row_begin + r], row = row_of(id).row;
      const RowBounds own = plan.row_bounds[id];
      if (id != row) ASSERT_GE(tile.partial_begin, 0) << "a copy has no output of its own";
      std::int32_t first = -1;
      for (std::int32_t s = 0; s < tile.segment_count; ++s) {
        const Segment& segment = plan.segments[tile.segment_begin + s];
        for (std::int32_t i = 0; i < segment.length; ++i) {
          const std::int32_t at = segment.position + i;
          if (id != row && (at < own.first || at >= own.end)) continue;
          if (first < 0) first = at;
          ASSERT_TRUE(seen[row].emplace(at, segment.cell + i).second) << "row " << row << " sees twice";
          turns[row][at] = row_of(id).by;
        }
      }
      if (tile.partial_begin < 0)
        ++direct[row];
      else
        partials[row].push_back(
            {id == row ? plan.segments[tile.segment_begin].position : first, tile.partial_begin + r});
    }
  }
  std::vector<int> written(plan.partials, 0);
  for (const QueryRows& query : queries)
    for (std::uint32_t i = 0; i < query.count; ++i) {
      const std::uint32_t row = query.row + i;
      const RowBounds bounds = bounds_of(query, i);
      ASSERT_EQ(plan.row_bounds[row], bounds);
      const CellSpans keys(query.keys.begin(), query.keys.end());
      for (const auto& [at, cell] : cells_by_position(keys))
        if (at >= bounds.first && at < bounds.end) {
          ASSERT_EQ(seen[row].count(at) ? seen[row][at] : -1, cell) << "row " << row << " key " << at;
        }
      for (const CellSpan& span : query.keys)
        for (std::int32_t at = std::max(span.position, bounds.first); at < std::min(span.end_position(), bounds.end);
             ++at)
          ASSERT_EQ(turns[row][at], span.moved) << "row " << row << " key " << at;
      std::sort(partials[row].begin(), partials[row].end());
      ASSERT_EQ(direct[row], partials[row].empty() ? 1 : 0) << "row " << row;
      std::vector<std::int32_t> merged(plan.merge_ids.begin() + plan.merge_begin[row],
                                       plan.merge_ids.begin() + plan.merge_begin[row + 1]);
      std::vector<std::int32_t> wanted;
      for (const auto& [first, partial] : partials[row]) wanted.push_back(partial), ++written[partial];
      ASSERT_EQ(merged, wanted);
    }
  for (const int count : written) ASSERT_EQ(count, 1);
}

}  // namespace kvtrie::ops
