// Attention over spans, serial family: one work-item computes one tile for HEADS query heads of one KV head.
//
//   score[r][k] = scale * q[r].k[k]  (softcapped, masked)     out[r] = sum_k softmax(score[r])[k] * v[k]
//
// Layouts. q [rows][heads][K_DIM] f32; key of (KV head g, cell c): k + g * k_head_stride + c * k_cell_stride, likewise
// v; out [rows][heads][V_DIM] f32; partial_out [partials][heads][V_DIM]; partial_stats [partials][heads][2] = (max,
// sum). `table` holds the plan (csrc/ops/attention_plan.h):  tile = (row_begin, row_count, segment_begin,
// segment_count, partial_begin),  segment = (cell, length, position).
//
// The work of one tile, for its "lines" (row x head of the group):
//
//          block 0      block 1             blocks of 32 positions from multiples of 32 on;
//   line 0 [scores-exp]-[...]-> O, m, l     SPLIT positions later the state is merged into the line's total and
//   line 1 [   "      ]-[...]->             starts again, exactly as attention_merge.cl merges partials
//
// Why so: a block's keys are found through a list of 32 cells, so bits do not depend on how a history lies in cells;
// each line's sums run over the same lanes and keys in the same order whatever the other lines are; a long history cut
// into partials (decode) and one walked by a single tile (prefill) do the same arithmetic. Every fused multiply-add is
// written out and contraction is off. LINES lines x KEYS keys share each load of q and K (VW accumulators), LINES x
// CHUNKS share each load of V.
//
// A row sees the positions first <= p < end of its bounds, or with MASKED all but those whose mask is -inf. Hidden keys
// are selected away: their V is never multiplied in. Lane i of a block is always position base + i, whether or not the
// tile has keys for the lanes before it, and a split of which a row sees nothing leaves its total alone: so what
// other rows of the tile see changes no bits.
// REQUIRES: K_DIM and V_DIM divisible by VW, V_DIM / VW by CHUNKS and MANY_CHUNKS, local size 1, at most MAX_ROWS rows
// in a tile.
#pragma OPENCL FP_CONTRACT OFF

#ifndef K_DIM
#define K_DIM 64  // numbers per key
#endif
#ifndef V_DIM
#define V_DIM K_DIM  // numbers per value
#endif
#ifndef HEADS
#define HEADS 1  // query heads of one KV head that one work-item takes (a divisor of the group)
#endif
#ifndef ATTENTION_VW
#define ATTENTION_VW 8  // VW here: floats of a vector, 4, 8 or 16
#endif
#ifndef LINES
#define LINES 1  // lines that share each load: 1, 2, 4 or 8, at most VW
#endif
#ifndef CHUNKS
#define CHUNKS 1  // V vectors accumulated at once; LINES * CHUNKS accumulators
#endif
#ifndef MANY_CHUNKS
#define MANY_CHUNKS 1  // the same where a tile has many lines (attention_many.clh)
#endif
#ifndef MAX_ROWS
#define MAX_ROWS 32  // most rows of a tile
#endif
#ifndef MASKED
#define MASKED 0  // 1: an additive mask [rows][mask_stride] decides what is visible, bounds do not
#endif

// The first defines VW, which the choices below ask for.
#include "attention_lanes.clh"
#include "work_item.clh"

// What is fetched meanwhile: a block's values while its keys are scored, then the next block's keys. FAR, where that
// comes too late because blocks are small or arithmetic takes as long: the next block's keys, then its values.
#define FAR (CELL_BITS(K_FORMAT) <= 16 && CELL_BITS(V_FORMAT) <= 16 && (K_DIM <= 64 || LINES == 8))
#define K_WORDS CELL_WORDS(K_FORMAT, K_DIM)
#define V_WORDS CELL_WORDS(V_FORMAT, V_DIM)
#if FAR
#define SCORE_AHEAD K_CELL
#define SCORE_FETCHES K_WORDS
#define ADD_AHEAD V_CELL
#define ADD_FETCHES V_WORDS
#else
#define SCORE_AHEAD V_CELL
#define SCORE_FETCHES V_WORDS
#define ADD_AHEAD K_CELL
#define ADD_FETCHES K_WORDS
#endif

#define BLOCK 32
#define KEYS (VW / LINES)
#define MANY 4         // lines that share each load where a tile has many
#define MANY_FROM 16   // lines of a tile from which that pays
#if VW == 16
#define AT_ONCE 2   // lanes whose sums are made at a time: 16 accumulators of 32 registers
#define BATCH 16
#if CELL_BLOCK(K_FORMAT) > VW || CELL_BLOCK(V_FORMAT) > VW
#define UNROLL _Pragma("unroll 2")  // so that neighbours that share a scale are read together
#else
#define UNROLL
#endif
#define FETCH_ROWS 0  // 1: whole rows are fetched at a time, once for all lines of a tile; 0: between vectors, for each
#else
#define AT_ONCE 1  // 8 of 16
#define BATCH 32   // so that K, then V are read from the first-level cache, which does not hold both
#define UNROLL _Pragma("unroll 4")  // a turn of 8 multiplications is too short: it waits for its own sums
#define FETCH_ROWS 1
#endif
#define MOST (LINES > MANY ? LINES : MANY)  // lines that share loads, at most
#define MAX_LINES (MAX_ROWS * HEADS + MOST)

// What every step of a tile needs.
typedef struct {
  const __global K_CELL* k;  // of the KV head
  const __global V_CELL* v;
  ulong k_cell_stride, v_cell_stride;
  int count;  // lines
  float scale, softcap;
} Tile;

#if TURNED(K_FORMAT)
#define QUERY float  // turned as keys are, in memory of the tile
#else
#define QUERY __global float
#endif

// A tile's lines, numbered row by row, HEADS to a row. What follows the last one up to MOST repeats it.
typedef struct {
  const QUERY* q[MAX_LINES];
  int first[MAX_LINES], end[MAX_LINES];  // the positions that it sees
#if MASKED
  const __global float* mask[MAX_LINES];  // of its row
#define MASK_OF(lines, i) (lines)->mask[i]
#else
#define MASK_OF(lines, i) ((const __global float*)0)
#endif
} Lines;

// Of each line: running maximum of its scores, and below it the sum of exponentials.
typedef struct {
  float max[MAX_LINES], sum[MAX_LINES];
} State;

// A place in the list of segments: cell number `used` of segment `at`. The tile's own end at `count`; what follows up
// to `limit` belongs to the tiles that are likely to come next.
typedef struct {
  const __global int* segments;
  int count, limit, at, used;
} Cursor;
int position_of(const Cursor* c) { return c->segments[3 * c->at + 2] + c->used; }

// Lanes [begin, end) of a block have keys; lane i is position base + i. None: the tile has no more blocks.
typedef struct {
  int base, begin, end;
} Block;

// Where each lane's K and V begin. Lanes without a key repeat one that has: it is computed, then hidden.
typedef struct {
  long k[BLOCK], v[BLOCK];
} Cells;

void place_cells(int cell, int count, ulong stride, long* places) {
  long place = (long)stride * cell;
  for (int i = 0; i < count; ++i, place += (long)stride) places[i] = place;
}

// Takes the keys up to the next multiple of BLOCK. Behind the tile's last block come the cells of some block that is
// worth fetching, and none without one.
Block next_block(Cursor* c, const Tile* tile, Cells* cells) {
  const int count = c->at < c->count ? c->count : c->limit;
  if (c->at == c->limit) return (Block){0, 0, 0};
  const bool own = c->at < c->count;
  const int position = position_of(c), base = position / BLOCK * BLOCK, begin = position - base;
  int lane = begin;
  while (c->at < count && lane < BLOCK && position_of(c) == base + lane) {
    const int length = c->segments[3 * c->at + 1], take = min(BLOCK - lane, length - c->used);
    place_cells(c->segments[3 * c->at] + c->used, take, tile->k_cell_stride, cells->k + lane);
    place_cells(c->segments[3 * c->at] + c->used, take, tile->v_cell_stride, cells->v + lane);
    lane += take;
    c->used += take;
    if (c->used == length) ++c->at, c->used = 0;
  }
  for (int i = 0; i < begin; ++i) cells->k[i] = cells->k[begin], cells->v[i] = cells->v[begin];
  for (int i = lane; i < BLOCK; ++i) cells->k[i] = cells->k[begin], cells->v[i] = cells->v[begin];
  return own ? (Block){base, begin, lane} : (Block){0, 0, 0};
}

#include "cell_scales.clh"
#include "attention_block.clh"
#include "attention_many.clh"

// Adds one block to LINES lines from `line0` on.
void attend_block(const Tile* tile, const Lines* lines, int line0, Block block, const Cells* cells, const Cells* next,
                  float* o, State* state) {
  Seen seen;
  if (!see_lines(LINES, lines, line0, block, &seen)) return;
  float scores[LINES * BLOCK] ALIGNED, shrink[LINES];
  const bool fetches = !FETCH_ROWS || line0 == 0;
#if FAR
  const ScoreAhead keys = {fetches ? tile->k : 0, next->k};
  const AddAhead values = {fetches ? tile->v : 0, next->v};
#else
  const ScoreAhead keys = {fetches ? tile->v : 0, cells->v};
  const AddAhead values = {fetches ? tile->k : 0, next->k};
#endif
  score_block(lines->q + line0, tile->k, cells->k, keys, scores);
  const float scale = adjust_scores(LINES, tile, lines, line0, block, &seen, scores);
  weigh_lines(LINES, scale, scores, state->max + line0, state->sum + line0, shrink);
  add_values(o + line0 * V_DIM, scores, shrink, &seen, tile->v, cells->v, values);
}

// The same for up to BATCH lines and a block that was brought.
void attend_brought(const Tile* tile, const Lines* lines, int line0, int count, Block block, const Brought* brought,
                    const Cells* next, float* o, State* state) {
  Seen seen[BATCH / MANY];
  int begin = BATCH, end = 0;  // the lines of groups that see a key
  for (int i = 0; i < count; i += MANY)
    if (see_lines(MANY, lines, line0 + i, block, seen + i / MANY)) begin = min(begin, i), end = i + MANY;
  float scores[BATCH * BLOCK] ALIGNED, shrink[BATCH], scale = 1.0f;
  for (int i = 0; i < count; i += MANY) {
    FETCH_SHARE(tile->k, next->k, K_WORDS, line0 + i, tile->count);
    if (i < begin || i >= end) continue;
    score_many(lines->q + line0 + i, brought, scores + i * BLOCK);
    scale = adjust_scores(MANY, tile, lines, line0 + i, block, seen + i / MANY, scores + i * BLOCK);
  }
  if (begin < end)
    weigh_lines(end - begin, scale, scores + begin * BLOCK, state->max + line0 + begin, state->sum + line0 + begin,
                shrink + begin);
  for (int i = 0; i < count; i += MANY) {
    FETCH_SHARE(tile->v, next->v, V_WORDS, line0 + i, tile->count);
    if (i >= begin && i < end)
      add_many(o + (line0 + i) * V_DIM, scores + i * BLOCK, shrink + i, seen + i / MANY, brought->v);
  }
}

// Adds one block to all lines of a tile. `next` is fetched meanwhile.
void attend_all(const Tile* tile, const Lines* lines, Block block, const Cells* cells, const Cells* next,
                Brought* brought, float* o, State* state) {
  if (tile->count < MANY_FROM) {
    for (int line = 0; line < tile->count; line += LINES)
      attend_block(tile, lines, line, block, cells, next, o, state);
    return;
  }
  bring_block(tile->k, tile->v, cells, block, brought);
  for (int line = 0; line < tile->count; line += BATCH)
    attend_brought(tile, lines, line, min(BATCH, tile->count - line), block, brought, next, o, state);
}

// total = total * exp(M - M') + o * exp(m - M'), M' = max(M, m), and the same for the sums.
void merge_line(__global float* total, const float* o, float max_, float sum, float* total_max, float* total_sum) {
  const float new_max = fmax(*total_max, max_), base = new_max == -INFINITY ? 0.0f : new_max;
  const float keep = exp_one(*total_max - base), add = exp_one(max_ - base);
  for (int d = 0; d < V_DIM; d += VW) STORE(FMA(KEPT(o + d), (VEC)add, LOAD(total + d) * keep), total + d);
  *total_sum = FMA(sum, add, *total_sum * keep);
  *total_max = new_max;
}

void normalise_line(__global float* total, float max_, float sum, const __global float* sink) {
  float keep = 1.0f;
  if (sink != 0 && *sink != -INFINITY) {
    const float top = fmax(max_, *sink);
    keep = exp_one(max_ - top);
    sum = FMA(sum, keep, exp_one(*sink - top));
  }
  const float factor = sum == 0.0f ? 0.0f : keep / sum;
  for (int d = 0; d < V_DIM; d += VW) STORE(LOAD(total + d) * factor, total + d);
}

#if TURNED(K_FORMAT)
// The queries of a tile as its keys are kept.
void turn_queries(const __global float* const* q, int count, float* to) {
  for (int i = 0; i < count; ++i)
    for (int d = 0; d < K_DIM; d += CELL_BLOCK(K_FORMAT)) {
      float* block = to + i * K_DIM + d;
      for (int j = 0; j < CELL_BLOCK(K_FORMAT); ++j) block[j] = q[i][d + j];
      turn_block(block, TURN_OUT);
    }
}
#endif

// Global size (tiles, heads / HEADS), local size 1.
KERNEL void attend_tiles(IDS __global const float* restrict q, ulong q_offset, __global const K_CELL* restrict k,
                         ulong k_offset, __global const V_CELL* restrict v, ulong v_offset, ulong k_head_stride,
                         ulong k_cell_stride, ulong v_head_stride, ulong v_cell_stride,
                         __global const int* restrict table, int bounds_at, int row_ids_at, int segments_at,
                         int tiles_at, int split, int heads, int group, float scale, float softcap,
                         __global const float* restrict mask, ulong mask_offset, ulong mask_stride,
                         __global const float* restrict sinks, ulong sinks_offset, int has_sinks,
                         __global float* restrict out, ulong out_offset, __global float* restrict partial_out,
                         __global float* restrict partial_stats) {
  const int head0 = (int)ID(1) * HEADS;
  __global const int* entry = table + tiles_at + 5 * (int)ID(0);
  const int partial_begin = entry[4];
  const __global int* row_ids = table + row_ids_at + entry[0];
  const Tile tile = {k + k_offset + (ulong)(head0 / group) * k_head_stride,
                     v + v_offset + (ulong)(head0 / group) * v_head_stride,
                     k_cell_stride,
                     v_cell_stride,
                     entry[1] * HEADS,
                     scale,
                     softcap};
  Lines lines;
#if TURNED(K_FORMAT)
  const __global float* given[MAX_LINES];
  float queries[MAX_LINES * K_DIM] ALIGNED;
#endif
  for (int i = 0; i < tile.count + MOST - 1; ++i) {
    const int line = min(i, tile.count - 1), row = row_ids[line / HEADS];
#if TURNED(K_FORMAT)
    given[i] = q + q_offset + ((ulong)row * heads + head0 + line % HEADS) * K_DIM;
    lines.q[i] = queries + line * K_DIM;
#else
    lines.q[i] = q + q_offset + ((ulong)row * heads + head0 + line % HEADS) * K_DIM;
#endif
    lines.first[i] = MASKED ? 0 : table[bounds_at + 2 * row];
    lines.end[i] = MASKED ? INT_MAX : table[bounds_at + 2 * row + 1];
#if MASKED
    lines.mask[i] = mask + mask_offset + (ulong)row * mask_stride;
#endif
  }
#if TURNED(K_FORMAT)
  turn_queries(given, tile.count, queries);
#endif
  Cursor cursor = {table + segments_at + 3 * entry[2], entry[3], (tiles_at - segments_at) / 3 - entry[2], 0, 0};
  float o[MAX_LINES * V_DIM] ALIGNED;
  State state, total;
#define OUT_LINE(i) (out + out_offset + ((ulong)row_ids[(i) / HEADS] * heads + head0 + (i) % HEADS) * V_DIM)

  for (int i = 0; i < tile.count && partial_begin < 0; ++i) {
    total.max[i] = -INFINITY, total.sum[i] = 0.0f;
    for (int d = 0; d < V_DIM; d += VW) STORE((VEC)0.0f, OUT_LINE(i) + d);
  }
  Cells cells[2] = {{{0}}};
  Brought brought;
  int turn = 0;
  Block block = next_block(&cursor, &tile, cells);
  while (block.end > 0) {
    for (int i = 0; i < tile.count + MOST - 1; ++i) {
      state.max[i] = -INFINITY, state.sum[i] = 0.0f;
      for (int d = 0; d < V_DIM; d += VW) KEEP((VEC)0.0f, o + i * V_DIM + d);
    }
    const int split_begin = block.base / split * split, split_end = split_begin + split;
    while (block.end > 0 && block.base < split_end) {
      const Block next = next_block(&cursor, &tile, cells + (1 - turn));
      attend_all(&tile, &lines, block, cells + turn, cells + (1 - turn), &brought, o, &state);
      block = next;
      turn = 1 - turn;
    }
    for (int i = 0; i < tile.count && partial_begin < 0; ++i)
      if (lines.first[i] < split_end && lines.end[i] > split_begin)
        merge_line(OUT_LINE(i), o + i * V_DIM, state.max[i], state.sum[i], total.max + i, total.sum + i);
  }

  for (int i = 0; i < tile.count; ++i) {
    if (partial_begin < 0) {
      normalise_line(OUT_LINE(i), total.max[i], total.sum[i], has_sinks ? sinks + sinks_offset + head0 + i % HEADS : 0);
#if TURNED(V_FORMAT)
      turn_output(OUT_LINE(i), V_DIM, 0, 1);
#endif
      continue;
    }
    const ulong at = (ulong)(partial_begin + i / HEADS) * heads + head0 + i % HEADS;  // its only split
    for (int d = 0; d < V_DIM; d += VW) STORE(KEPT(o + i * V_DIM + d), partial_out + at * V_DIM + d);
    partial_stats[2 * at] = state.max[i];
    partial_stats[2 * at + 1] = state.sum[i];
  }
}
