#include "ops/attention_plan.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kPlanAttention = "ops.plan_attention";
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

void check_limits(const PlanLimits& limits) {
  require(limits.keys_per_tile > 0 && limits.keys_per_tile % 32 == 0, kPlanAttention, "keys_per_tile: got ",
          limits.keys_per_tile, ", allowed positive multiples of 32");
  require(limits.rows_per_tile > 0, kPlanAttention, "rows_per_tile: got 0, allowed 1 or more");
}

// Appends what of `from` lies at positions [begin, end).
void append_range(CellSpans& spans, std::span<const CellSpan> from, std::int32_t begin, std::int32_t end) {
  auto at =
      std::partition_point(from.begin(), from.end(), [&](const CellSpan& s) { return s.end_position() <= begin; });
  for (; at != from.end() && at->position < end; ++at) {
    const std::int32_t low = std::max(begin, at->position), high = std::min(end, at->end_position());
    append_span(spans, {at->cell + static_cast<Cell>(low - at->position), static_cast<std::uint32_t>(high - low), low,
                        at->moved});
  }
}

bool sees(const RowBounds& bounds) { return bounds.first < bounds.end; }

RowBounds bounds_of(const QueryRows& query, std::uint32_t index) {
  if (query.bounds.empty()) return {0, query.position + static_cast<std::int32_t>(index) + 1};
  return sees(query.bounds[index]) ? query.bounds[index] : RowBounds{};
}

void check_query(const QueryRows& query) {
  require(query.count > 0, kPlanAttention, "count: got 0 rows, allowed 1 or more");
  require(query.position >= 0 && query.position + std::int64_t{query.count} <= kMaxInt, kPlanAttention,
          "position: got ", query.position, " and ", query.count, " rows, allowed 0 to 2^31");
  require(query.bounds.empty() || query.bounds.size() == query.count, kPlanAttention, "bounds: got ",
          query.bounds.size(), ", allowed none or one for each of ", query.count, " rows");
  const std::int64_t begin = query.keys.empty() ? 0 : query.keys.front().position;
  std::int64_t next = begin;
  for (const CellSpan& span : query.keys) {
    require(begin >= 0 && span.position == next && span.length > 0, kPlanAttention, "keys: got a span at position ",
            span.position, " of ", span.length, " cells, allowed spans without gaps; expected position ",
            std::max<std::int64_t>(next, 0));
    next += span.length;
    require(static_cast<std::int64_t>(span.cell) + span.length <= kMaxInt && next <= kMaxInt, kPlanAttention,
            "keys: got cell ", span.cell, ", allowed below 2^31");
    require(span.moved >= 0 && next + span.moved <= kMaxInt, kPlanAttention, "keys: got a span that moved by ",
            span.moved, ", allowed 0 to what keeps positions below 2^31");
  }
  for (std::uint32_t i = 0; i < query.count; ++i) {
    const RowBounds bounds = bounds_of(query, i);
    require(!sees(bounds) || (bounds.first >= begin && bounds.end <= next), kPlanAttention, "keys: got positions ",
            begin, " to ", next, ", allowed at least the ones that row ", i, " sees, ", bounds.first, " to ",
            bounds.end);
  }
}

void place_rows(std::span<const QueryRows> queries, AttentionPlan& plan) {
  std::uint64_t rows = 0;
  for (const QueryRows& query : queries) rows += query.count;
  require(rows <= static_cast<std::uint64_t>(kMaxInt), kPlanAttention, "rows: got ", rows, ", allowed below 2^31");
  plan.rows = static_cast<std::uint32_t>(rows);
  plan.row_bounds.resize(rows);
  std::vector<bool> placed(rows, false);
  for (const QueryRows& query : queries) {
    check_query(query);
    for (std::uint32_t i = 0; i < query.count; ++i) {
      const std::uint64_t row = static_cast<std::uint64_t>(query.row) + i;
      require(row < rows && !placed[row], kPlanAttention, "row: got ", row, ", allowed each of 0 to ", rows - 1,
              " once");
      placed[row] = true;
      plan.row_bounds[row] = bounds_of(query, i);
    }
  }
}

// The smallest range of [low, high) that has all these rows see there. Empty when they see nothing.
RowBounds seen_within(std::span<const RowBounds> rows, std::int64_t low, std::int64_t high) {
  std::int64_t first = high, end = low;
  for (const RowBounds& bounds : rows) {
    if (bounds.first >= high || bounds.end <= low) continue;
    first = std::min<std::int64_t>(first, std::max<std::int64_t>(low, bounds.first));
    end = std::max<std::int64_t>(end, std::min<std::int64_t>(high, bounds.end));
  }
  return first < end ? RowBounds{static_cast<std::int32_t>(first), static_cast<std::int32_t>(end)} : RowBounds{};
}

std::span<const RowBounds> rows_of(const AttentionPlan& plan, const QueryRows& query) {
  return std::span(plan.row_bounds).subspan(query.row, query.count);
}

void add_tile(std::span<const std::int32_t> rows, std::span<const CellSpan> keys, std::int32_t partial_begin,
              AttentionPlan& plan) {
  plan.tiles.push_back({static_cast<std::int32_t>(plan.row_ids.size()), static_cast<std::int32_t>(rows.size()),
                        static_cast<std::int32_t>(plan.segments.size()), static_cast<std::int32_t>(keys.size()),
                        partial_begin});
  plan.row_ids.insert(plan.row_ids.end(), rows.begin(), rows.end());
  for (const CellSpan& span : keys) {
    plan.segments.push_back(
        {static_cast<std::int32_t>(span.cell), static_cast<std::int32_t>(span.length), span.position});
  }
}

// One tile per block of rows, which walks all keys that its rows see. The longest walks of causal rows come first.
void add_walks(const QueryRows& query, const PlanLimits& limits, AttentionPlan& plan) {
  const std::int64_t split = limits.keys_per_tile;
  for (std::uint32_t end = query.count; end > 0;) {
    const std::uint32_t begin = (end - 1) / limits.rows_per_tile * limits.rows_per_tile;
    const std::span<const RowBounds> bounds = rows_of(plan, query).subspan(begin, end - begin);
    const RowBounds all = seen_within(bounds, 0, kMaxInt);
    CellSpans keys;
    for (std::int64_t low = all.first / split * split; low < all.end; low += split) {
      const RowBounds seen = seen_within(bounds, low, low + split);
      append_range(keys, query.keys, seen.first, seen.end);
    }
    std::vector<std::int32_t> rows;
    for (std::uint32_t i = begin; i < end; ++i) rows.push_back(static_cast<std::int32_t>(query.row + i));
    add_tile(rows, keys, -1, plan);
    end = begin;
  }
}

// Rows that read the same cells at the same positions in one split, each within its bounds.
struct Shared {
  CellSpans keys;
  std::vector<std::int32_t> rows;
};

// Whether both name the same cells wherever both name any, and there is such a place. A cell's K are rotated for one
// position, so that spans that have the same cells at the same positions have moved alike.
bool agree(const CellSpans& a, const CellSpans& b) {
  bool meet = false;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int32_t a_end = a[i].end_position(), b_end = b[j].end_position();
    if (std::max(a[i].position, b[j].position) < std::min(a_end, b_end)) {
      if (std::int64_t{a[i].cell} - a[i].position != std::int64_t{b[j].cell} - b[j].position) return false;
      meet = true;
    }
    ++(a_end < b_end ? i : j);
  }
  return meet;
}

// REQUIRES: agree(a, b).
CellSpans united(const CellSpans& a, const CellSpans& b) {
  CellSpans all;
  append_range(all, a, 0, b.front().position);
  append_range(all, b, 0, static_cast<std::int32_t>(kMaxInt));
  append_range(all, a, b.back().end_position(), static_cast<std::int32_t>(kMaxInt));
  return all;
}

// The groups of one split. Candidates for agreement are found by the cell that their last key's run would have at 0.
class SplitGroups {
 public:
  explicit SplitGroups(std::vector<Shared>& groups) : groups_(groups) {}

  std::vector<std::int32_t>& rows_for(CellSpans keys) {
    std::vector<std::size_t>& alike = by_run_[std::int64_t{keys.back().cell} - keys.back().position];
    for (const std::size_t index : alike) {
      if (!agree(groups_[index].keys, keys)) continue;
      groups_[index].keys = united(groups_[index].keys, keys);
      return groups_[index].rows;
    }
    alike.push_back(groups_.size());
    groups_.push_back({std::move(keys), {}});
    return groups_.back().rows;
  }

 private:
  std::vector<Shared>& groups_;
  std::map<std::int64_t, std::vector<std::size_t>> by_run_;
};

// Groups the rows of all short queries split by split, in ascending order of position.
std::vector<Shared> share_splits(const std::vector<const QueryRows*>& queries, const PlanLimits& limits,
                                 const AttentionPlan& plan) {
  const std::int64_t split = limits.keys_per_tile;
  std::int64_t first = kMaxInt, end = 0;
  for (const QueryRows* query : queries) {
    const RowBounds all = seen_within(rows_of(plan, *query), 0, kMaxInt);
    if (!sees(all)) continue;
    first = std::min<std::int64_t>(first, all.first);
    end = std::max<std::int64_t>(end, all.end);
  }
  std::vector<Shared> groups;
  for (std::int64_t low = first / split * split; low < end; low += split) {
    SplitGroups found(groups);
    for (const QueryRows* query : queries) {
      const RowBounds seen = seen_within(rows_of(plan, *query), low, low + split);
      if (!sees(seen)) continue;
      CellSpans keys;
      append_range(keys, query->keys, seen.first, seen.end);
      std::vector<std::int32_t>& rows = found.rows_for(std::move(keys));
      for (std::uint32_t row = query->row; row < query->row + query->count; ++row) {
        if (sees(seen_within({&plan.row_bounds[row], 1}, low, low + split)))
          rows.push_back(static_cast<std::int32_t>(row));
      }
    }
  }
  return groups;
}

// The rows of short queries that see nothing at all: a tile without keys makes their output 0.
Shared blind_rows(const std::vector<const QueryRows*>& queries, const AttentionPlan& plan) {
  Shared blind;
  for (const QueryRows* query : queries) {
    for (std::uint32_t row = query->row; row < query->row + query->count; ++row)
      if (!sees(plan.row_bounds[row])) blind.rows.push_back(static_cast<std::int32_t>(row));
  }
  return blind;
}

// Gives a partial to every row of each tile from `first_tile` on, except where all rows of a tile have no other tile.
// The partials of a row's copies are the row's: they come in position order, as the copies do.
void number_partials(std::size_t first_tile, AttentionPlan& plan) {
  const std::size_t all_rows = plan.row_bounds.size();
  std::vector<std::int32_t> tiles_of_row(all_rows, 0);
  for (std::size_t t = first_tile; t < plan.tiles.size(); ++t) {
    for (std::int32_t i = 0; i < plan.tiles[t].row_count; ++i)
      ++tiles_of_row[plan.row_ids[plan.tiles[t].row_begin + i]];
  }
  std::vector<std::vector<std::int32_t>> merges(all_rows);
  std::int32_t next = 0;
  for (std::size_t t = first_tile; t < plan.tiles.size(); ++t) {
    Tile& tile = plan.tiles[t];
    const auto rows = std::span(plan.row_ids).subspan(tile.row_begin, tile.row_count);
    const bool alone = std::all_of(rows.begin(), rows.end(), [&](std::int32_t row) {
      return tiles_of_row[row] == 1 && row < static_cast<std::int32_t>(plan.rows);
    });
    tile.partial_begin = alone ? -1 : next;
    if (alone) continue;
    for (const std::int32_t row : rows) merges[row].push_back(next++);
  }
  for (std::size_t i = 0; i < plan.turned.size(); ++i) {
    std::vector<std::int32_t>& of_row = merges[plan.turned[i].row];
    of_row.insert(of_row.end(), merges[plan.rows + i].begin(), merges[plan.rows + i].end());
  }
  merges.resize(plan.rows);
  plan.partials = static_cast<std::uint32_t>(next);
  plan.merge_begin.assign(1, 0);
  for (const auto& ids : merges) {
    plan.merge_ids.insert(plan.merge_ids.end(), ids.begin(), ids.end());
    plan.merge_begin.push_back(static_cast<std::int32_t>(plan.merge_ids.size()));
  }
}

bool has_moved(const QueryRows& query) {
  return std::any_of(query.keys.begin(), query.keys.end(), [](const CellSpan& span) { return span.moved != 0; });
}

// The same rows once more for each run of keys that moved alike, each with bounds inside its run.
struct Copies {
  std::vector<QueryRows> queries;
  std::vector<std::vector<RowBounds>> bounds;

  void add(const QueryRows& query, AttentionPlan& plan) {
    for (auto at = query.keys.begin(); at != query.keys.end();) {
      const auto next =
          std::find_if(at, query.keys.end(), [&](const CellSpan& span) { return span.moved != at->moved; });
      const RowBounds run{at->position, std::prev(next)->end_position()};
      QueryRows& copy = queries.emplace_back(query);
      copy.row = static_cast<std::uint32_t>(plan.row_bounds.size());
      copy.keys = {at, next};
      std::vector<RowBounds>& own = bounds.emplace_back();
      for (std::uint32_t i = 0; i < query.count; ++i) {
        const RowBounds all = plan.row_bounds[query.row + i];
        const RowBounds inside{std::max(all.first, run.first), std::min(all.end, run.end)};
        own.push_back(sees(inside) ? inside : RowBounds{});
        plan.turned.push_back({static_cast<std::int32_t>(query.row + i), at->moved});
      }
      copy.bounds = own;
      plan.row_bounds.insert(plan.row_bounds.end(), own.begin(), own.end());
      at = next;
    }
    require(plan.row_bounds.size() <= static_cast<std::size_t>(kMaxInt), kPlanAttention, "rows: got ",
            plan.row_bounds.size(), " with copies, allowed below 2^31");
  }
};

void add_splits(const std::vector<Shared>& groups, const PlanLimits& limits, AttentionPlan& plan) {
  const std::size_t first_tile = plan.tiles.size();
  for (const Shared& group : groups) {
    const std::span<const std::int32_t> all(group.rows);
    for (std::size_t begin = 0; begin < all.size(); begin += limits.rows_per_tile) {
      const auto rows = all.subspan(begin, std::min<std::size_t>(limits.rows_per_tile, all.size() - begin));
      std::int32_t first = static_cast<std::int32_t>(kMaxInt), end = 0;
      for (const std::int32_t row : rows) {
        first = std::min(first, plan.row_bounds[row].first);
        end = std::max(end, plan.row_bounds[row].end);
      }
      CellSpans keys;
      append_range(keys, group.keys, first, end);
      add_tile(rows, keys, 0, plan);
    }
  }
  number_partials(first_tile, plan);
}

}  // namespace

AttentionPlan plan_attention(std::span<const QueryRows> queries, const PlanLimits& limits) {
  check_limits(limits);
  AttentionPlan plan;
  plan.keys_per_tile = limits.keys_per_tile;
  place_rows(queries, plan);
  std::vector<const QueryRows*> few, may_be_blind;
  Copies copies;
  for (const QueryRows& query : queries) {
    if (has_moved(query)) {
      copies.add(query, plan);
    } else if (query.count >= limits.rows_for_whole_history) {
      add_walks(query, limits, plan);
      continue;
    } else {
      few.push_back(&query);
    }
    may_be_blind.push_back(&query);
  }
  for (const QueryRows& copy : copies.queries) few.push_back(&copy);
  std::vector<Shared> groups = share_splits(few, limits, plan);
  groups.push_back(blind_rows(may_be_blind, plan));
  add_splits(groups, limits, plan);
  return plan;
}

AttentionPlan plan_dense(std::uint32_t rows, std::uint32_t keys, const PlanLimits& limits) {
  check_limits(limits);
  require(rows > 0 && keys > 0 && keys <= kMaxInt, "ops.plan_dense", "got ", rows, " rows and ", keys,
          " keys, allowed 1 or more of each");
  AttentionPlan plan;
  plan.keys_per_tile = limits.keys_per_tile;
  plan.rows = rows;
  plan.row_bounds.assign(rows, {0, static_cast<std::int32_t>(keys)});
  std::vector<std::int32_t> all(rows);
  for (std::uint32_t i = 0; i < rows; ++i) all[i] = static_cast<std::int32_t>(i);
  const std::uint32_t step = rows >= limits.rows_for_whole_history ? keys : limits.keys_per_tile;
  std::vector<Shared> groups;
  for (std::uint64_t begin = 0; begin < keys; begin += step) {
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(step, keys - begin));
    groups.push_back({{{static_cast<Cell>(begin), length, static_cast<std::int32_t>(begin)}}, all});
  }
  add_splits(groups, limits, plan);
  return plan;
}

PlanOffsets append_plan(std::vector<std::int32_t>& table, const AttentionPlan& plan) {
  static_assert(sizeof(Tile) == 5 * sizeof(std::int32_t) && sizeof(Segment) == 3 * sizeof(std::int32_t) &&
                sizeof(RowBounds) == 2 * sizeof(std::int32_t));
  PlanOffsets offsets;
  offsets.row_bounds = append_ints(table, plan.row_bounds);
  offsets.row_ids = append_ints(table, plan.row_ids);
  offsets.segments = append_ints(table, plan.segments);
  offsets.tiles = append_ints(table, plan.tiles);
  offsets.merge_begin = append_ints(table, plan.merge_begin);
  offsets.merge_ids = append_ints(table, plan.merge_ids);
  return offsets;
}

}  // namespace kvtrie::ops
