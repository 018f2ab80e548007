// Attention over spans: the plan. Pure host arithmetic; no device, no K/V bytes.
//
// Concept. A step's queries attend to histories given as lists of spans. The plan cuts that work into *tiles*: some
// query rows x some splits of cells. A kernel computes each tile's partial result (output and log-sum-exp per row
// and head); a merge kernel joins the partials of each row. Decode, prefill, and several conversations that read one
// shared prefix once (cascade) are the same two kernels with different plans:
//
//     decode, 1 row, long history        prefill, many rows             cascade, 3 sessions on one prefix
//     rows  keys ------------------>     rows                           rows  shared prefix      own tails
//      r0   [tile0][tile1][tile2]         r0-r15  [tile0 --------]       r0   [tile0 ][tile1 ]   [tile2]
//                                         r16-r31 [tile1 ------------]   r1   [   "  ][  "   ]   [tile3]
//                                                                        r2   [   "  ][  "   ]   [tile4]
//
// Splits are cut at absolute positions (multiples of `keys_per_tile`), never at places that depend on who else is in
// the step, so that a row's result depends on its own spans only.
//
// Sequences share a tile where a whole split of their histories lies in the same cells; so sharing changes no bits
// either.
//
// Which keys a row sees is one range of positions per row, [first, end): causal, sliding window, chunked and
// bidirectional attention differ in these two numbers only, and kernels know nothing else about masks. They *select*:
// what lies outside is never multiplied in, so freed cells may hold NaN. Splits that no row of a tile sees are left
// out of the plan.
// Keys that have moved (base/cell_span.h) are read with queries turned by as much. The tiles know nothing of it: a row
// some of whose keys have moved gets *copies*, numbered behind the rows, one for each run of its keys that moved alike.
// Whoever launches the plan turns them (ops/attention.h). A copy sees its run only; its partials are merged into the
// row's. Such rows are cut into splits however many they are: a walk would join what it sums up in another order, and a
// row's bits would depend on how many rows came with it.
//
//     row 5, keys   [moved 0 ][moved 24 -------------][moved 0 ---]
//     copies        rows + 0  rows + 1                rows + 2
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cell_span.h"

namespace kvtrie::ops {

// The positions a row sees: first <= p < end. Empty (first >= end): the row's output is 0.
struct RowBounds {
  std::int32_t first = 0, end = 0;
  bool operator==(const RowBounds&) const = default;
};

// The rows of one sequence in a step: `count` consecutive rows from `row`, at consecutive positions from `position`.
// `keys` is in position order without gaps, from any position on, and covers every position that `bounds` names, the
// step's own rows included where they are seen. Both must outlive the call.
struct QueryRows {
  std::uint32_t row = 0;
  std::uint32_t count = 0;
  std::int32_t position = 0;
  std::span<const CellSpan> keys = {};
  std::span<const RowBounds> bounds = {};  // [count]; empty: causal, [0, own position + 1)
};

struct PlanLimits {
  std::uint32_t keys_per_tile = 512;  // a split never crosses a multiple of this
  std::uint32_t rows_per_tile = 16;   // query rows that share each K/V load
  // Below this many rows a history is cut into one tile per split (parallel over keys); from it on, one tile walks
  // all splits of its rows (parallel over rows, no partials to merge).
  std::uint32_t rows_for_whole_history = 8;
};

// A copy of query row `row`, turned by `by` positions.
struct TurnedRow {
  std::int32_t row = 0, by = 0;
  bool operator==(const TurnedRow&) const = default;
};

// Plain arrays in the exact layout the kernels read (all int32; see kernels/attention.cl).
// A tile's segments are in position order, with gaps only where splits are left out. One without segments makes the
// output of its rows 0.
struct Tile {
  std::int32_t row_begin, row_count;          // into AttentionPlan::row_ids
  std::int32_t segment_begin, segment_count;  // into AttentionPlan::segments
  std::int32_t partial_begin;                 // this tile's first partial, one per row; -1: it writes its rows' output
};
struct Segment {
  std::int32_t cell, length, position;
};

struct AttentionPlan {
  std::uint32_t rows = 0;
  std::uint32_t partials = 0;
  std::uint32_t keys_per_tile = 512;  // the limit it was made with; kernels close a split at its multiples
  std::vector<RowBounds> row_bounds;  // [rows + copies]; {0, 0} for a row that sees nothing
  std::vector<TurnedRow> turned;      // [copies]: row id `rows + i` is turned[i]
  std::vector<std::int32_t> row_ids;  // query rows and copies, tile after tile
  std::vector<Segment> segments;
  std::vector<Tile> tiles;
  std::vector<std::int32_t> merge_begin;  // [rows + 1] into merge_ids
  std::vector<std::int32_t> merge_ids;    // partials of each row, in position order
};

// Where each array of a plan begins in a table of int32.
struct PlanOffsets {
  std::int32_t row_bounds = 0, row_ids = 0, segments = 0, tiles = 0, merge_begin = 0, merge_ids = 0;
};
// Appends the plan as the kernels read it: they find the end of the segments where the tiles begin.
PlanOffsets append_plan(std::vector<std::int32_t>& table, const AttentionPlan& plan);

// Throws kArgument unless the queries' rows are exactly 0 .. rows-1 and each one's keys have no gaps and cover what its
// rows see.
AttentionPlan plan_attention(std::span<const QueryRows> queries, const PlanLimits& limits);

// The plan of dense attention: each of `rows` rows sees keys 0 .. keys-1, which lie in cells 0 .. keys-1.
AttentionPlan plan_dense(std::uint32_t rows, std::uint32_t keys, const PlanLimits& limits);

}  // namespace kvtrie::ops
