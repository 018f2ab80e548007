#include "ops/attention_plan.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kWhere = "ops.plan_attention";
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

void check_limits(const PlanLimits& limits) {
  require(limits.keys_per_tile > 0 && limits.keys_per_tile % 32 == 0, kWhere, "keys_per_tile: got ",
          limits.keys_per_tile, ", allowed positive multiples of 32");
  require(limits.rows_per_tile > 0, kWhere, "rows_per_tile: got 0, allowed 1 or more");
}

// Appends a segment, joined to the one before where cells and positions go on.
void append_segment(std::vector<Segment>& segments, std::size_t first, const Segment& segment) {
  if (segments.size() > first) {
    Segment& last = segments.back();
    if (last.cell + last.length == segment.cell && last.position + last.length == segment.position) {
      last.length += segment.length;
      return;
    }
  }
  segments.push_back(segment);
}

// The part of `spans` at positions [begin, end). `from` is a hint: the first span that may reach `begin`, advanced.
void append_range(std::vector<Segment>& segments, std::span<const CellSpan> spans, std::size_t& from,
                  std::int64_t begin, std::int64_t end) {
  const std::size_t first = segments.size();
  while (from < spans.size() && spans[from].end_position() <= begin) ++from;
  for (std::size_t i = from; i < spans.size() && spans[i].position < end; ++i) {
    const std::int64_t low = std::max<std::int64_t>(begin, spans[i].position);
    const std::int64_t high = std::min<std::int64_t>(end, spans[i].end_position());
    const std::int64_t cell = static_cast<std::int64_t>(spans[i].cell) + (low - spans[i].position);
    append_segment(
        segments, first,
        {static_cast<std::int32_t>(cell), static_cast<std::int32_t>(high - low), static_cast<std::int32_t>(low)});
  }
}

void check_keys(const QueryRows& query) {
  std::int64_t next = 0;
  for (const CellSpan& span : query.keys) {
    require(span.position == next && span.length > 0, kWhere, "keys: got a span at position ", span.position, " of ",
            span.length, " cells, allowed spans without gaps; expected position ", next);
    next += span.length;
    require(static_cast<std::int64_t>(span.cell) + span.length <= kMaxInt && next <= kMaxInt, kWhere, "keys: got cell ",
            span.cell, ", allowed below 2^31");
  }
  const std::int64_t end = static_cast<std::int64_t>(query.position) + query.count;
  require(query.position >= 0 && next >= end, kWhere, "keys: got ", next, " positions, allowed at least ", end);
}

void place_rows(std::span<const QueryRows> queries, AttentionPlan& plan) {
  std::uint64_t rows = 0;
  for (const QueryRows& query : queries) rows += query.count;
  require(rows <= static_cast<std::uint64_t>(kMaxInt), kWhere, "rows: got ", rows, ", allowed below 2^31");
  plan.rows = static_cast<std::uint32_t>(rows);
  plan.row_positions.assign(rows, -1);
  for (const QueryRows& query : queries) {
    require(query.count > 0, kWhere, "count: got 0 rows, allowed 1 or more");
    for (std::uint32_t i = 0; i < query.count; ++i) {
      const std::uint64_t row = static_cast<std::uint64_t>(query.row) + i;
      require(row < rows && plan.row_positions[row] < 0, kWhere, "row: got ", row, ", allowed each of 0 to ", rows - 1,
              " once");
      plan.row_positions[row] = query.position + static_cast<std::int32_t>(i);
    }
  }
}

// One tile per block of rows, which walks all keys its last row can see. The longest walks come first.
void add_walks(const QueryRows& query, const PlanLimits& limits, AttentionPlan& plan) {
  for (std::uint32_t end = query.count; end > 0;) {
    const std::uint32_t begin = (end - 1) / limits.rows_per_tile * limits.rows_per_tile;
    Tile tile{};
    tile.row_begin = static_cast<std::int32_t>(plan.row_ids.size());
    tile.row_count = static_cast<std::int32_t>(end - begin);
    for (std::uint32_t i = begin; i < end; ++i) plan.row_ids.push_back(static_cast<std::int32_t>(query.row + i));
    tile.segment_begin = static_cast<std::int32_t>(plan.segments.size());
    std::size_t from = 0;
    append_range(plan.segments, query.keys, from, 0, static_cast<std::int64_t>(query.position) + end);
    tile.segment_count = static_cast<std::int32_t>(plan.segments.size()) - tile.segment_begin;
    tile.partial_begin = -1;
    plan.tiles.push_back(tile);
    end = begin;
  }
}

// Rows that read the same cells at the same positions in one stretch.
struct Shared {
  std::vector<Segment> segments;
  std::vector<std::int32_t> rows;
};

// Groups the rows of all short queries stretch by stretch, in ascending order of position.
std::vector<Shared> share_stretches(const std::vector<const QueryRows*>& queries, const PlanLimits& limits) {
  std::vector<Shared> groups;
  std::vector<std::size_t> hints(queries.size(), 0);
  std::int64_t last = 0;
  for (const QueryRows* query : queries)
    last = std::max<std::int64_t>(last, query->position + std::int64_t{query->count});
  for (std::int64_t begin = 0; begin < last; begin += limits.keys_per_tile) {
    std::map<std::vector<std::int32_t>, std::size_t> found;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const QueryRows& query = *queries[i];
      const std::int64_t end =
          std::min<std::int64_t>(begin + limits.keys_per_tile, query.position + std::int64_t{query.count});
      if (end <= begin) continue;
      std::vector<Segment> segments;
      append_range(segments, query.keys, hints[i], begin, end);
      std::vector<std::int32_t> key;
      for (const Segment& s : segments) key.insert(key.end(), {s.cell, s.length, s.position});
      const auto [at, is_new] = found.try_emplace(std::move(key), groups.size());
      if (is_new) groups.push_back({std::move(segments), {}});
      for (std::uint32_t r = 0; r < query.count; ++r) {
        if (query.position + std::int64_t{r} >= begin)
          groups[at->second].rows.push_back(static_cast<std::int32_t>(query.row + r));
      }
    }
  }
  return groups;
}

void add_tile(const Shared& group, std::size_t begin, std::size_t end, AttentionPlan& plan) {
  Tile tile{};
  tile.row_begin = static_cast<std::int32_t>(plan.row_ids.size());
  tile.row_count = static_cast<std::int32_t>(end - begin);
  plan.row_ids.insert(plan.row_ids.end(), group.rows.begin() + static_cast<std::ptrdiff_t>(begin),
                      group.rows.begin() + static_cast<std::ptrdiff_t>(end));
  tile.segment_begin = static_cast<std::int32_t>(plan.segments.size());
  tile.segment_count = static_cast<std::int32_t>(group.segments.size());
  plan.segments.insert(plan.segments.end(), group.segments.begin(), group.segments.end());
  tile.partial_begin = 0;
  plan.tiles.push_back(tile);
}

// Gives a partial to every row of each tile from `first_tile` on, except where all rows of a tile have no other tile.
void number_partials(std::size_t first_tile, AttentionPlan& plan) {
  std::vector<std::int32_t> tiles_of_row(plan.rows, 0);
  for (std::size_t t = first_tile; t < plan.tiles.size(); ++t) {
    for (std::int32_t i = 0; i < plan.tiles[t].row_count; ++i)
      ++tiles_of_row[plan.row_ids[plan.tiles[t].row_begin + i]];
  }
  std::vector<std::vector<std::int32_t>> merges(plan.rows);
  std::int32_t next = 0;
  for (std::size_t t = first_tile; t < plan.tiles.size(); ++t) {
    Tile& tile = plan.tiles[t];
    const auto rows = std::span(plan.row_ids).subspan(tile.row_begin, tile.row_count);
    const bool alone = std::all_of(rows.begin(), rows.end(), [&](std::int32_t row) { return tiles_of_row[row] == 1; });
    tile.partial_begin = alone ? -1 : next;
    if (alone) continue;
    for (const std::int32_t row : rows) merges[row].push_back(next++);
  }
  plan.partials = static_cast<std::uint32_t>(next);
  plan.merge_begin.assign(1, 0);
  for (const auto& ids : merges) {
    plan.merge_ids.insert(plan.merge_ids.end(), ids.begin(), ids.end());
    plan.merge_begin.push_back(static_cast<std::int32_t>(plan.merge_ids.size()));
  }
}

void add_stretches(const std::vector<Shared>& groups, const PlanLimits& limits, AttentionPlan& plan) {
  const std::size_t first_tile = plan.tiles.size();
  for (const Shared& group : groups) {
    for (std::size_t begin = 0; begin < group.rows.size(); begin += limits.rows_per_tile)
      add_tile(group, begin, std::min<std::size_t>(begin + limits.rows_per_tile, group.rows.size()), plan);
  }
  number_partials(first_tile, plan);
}

}  // namespace

AttentionPlan plan_attention(std::span<const QueryRows> queries, const PlanLimits& limits) {
  check_limits(limits);
  AttentionPlan plan;
  plan.keys_per_tile = limits.keys_per_tile;
  place_rows(queries, plan);
  std::vector<const QueryRows*> few;
  for (const QueryRows& query : queries) {
    check_keys(query);
    if (query.count >= limits.rows_for_whole_history) {
      add_walks(query, limits, plan);
    } else {
      few.push_back(&query);
    }
  }
  add_stretches(share_stretches(few, limits), limits, plan);
  return plan;
}

AttentionPlan plan_dense(std::uint32_t rows, std::uint32_t keys, const PlanLimits& limits) {
  check_limits(limits);
  require(rows > 0 && keys > 0 && keys <= kMaxInt, "ops.plan_dense", "got ", rows, " rows and ", keys,
          " keys, allowed 1 or more of each");
  AttentionPlan plan;
  plan.keys_per_tile = limits.keys_per_tile;
  plan.rows = rows;
  plan.row_positions.assign(rows, static_cast<std::int32_t>(keys) - 1);
  std::vector<std::int32_t> all(rows);
  for (std::uint32_t i = 0; i < rows; ++i) all[i] = static_cast<std::int32_t>(i);
  const std::uint32_t step = rows >= limits.rows_for_whole_history ? keys : limits.keys_per_tile;
  std::vector<Shared> groups;
  for (std::uint64_t begin = 0; begin < keys; begin += step) {
    const auto length = static_cast<std::int32_t>(std::min<std::uint64_t>(step, keys - begin));
    const auto cell = static_cast<std::int32_t>(begin);
    groups.push_back({{{cell, length, cell}}, all});
  }
  add_stretches(groups, limits, plan);
  return plan;
}

}  // namespace kvtrie::ops
