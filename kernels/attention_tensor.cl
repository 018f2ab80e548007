// Attention over spans with tensor cores: NVIDIA from compute capability 8.0 on, K_DIM = V_DIM, cells of float16, of float32
// with heads of up to 128, or of q8_0 with heads of 64 or 128.
//
// Same data and plan as attention.cl (see there for the layouts). A line is one row of one query head; those of one K/V
// head share what is read. A group computes WARPS warps of lines of one tile (attention_lines.clh); a tile with more has
// `parts` groups. Global size (WARPS * 32, tiles * parts, K/V heads).
//
//   for each block of keys (attention_walk.clh):
//     K has come      scores = q k        on the way: V of this block, K of the next one
//     V has come      own = own * shrink + weights v        on the way: K and V of the next block
//   float32 cells: what has come becomes halves first (attention_floats.clh); on the way is V, then K of the next block
//   cells of blocks: the same, into a slot that K and V have in turn (attention_blocks.clh)
//   at the end of a split: total <- total, own (attention_total.clh); `total` lies in `out`, each number kept by one lane
//   a tile of one of several splits: own -> partial_out, partial_stats, which attention_merge.cl joins, or, where
//   MERGES, the last group of a row and K/V head (attention_merged.clh)
//
// What a line gets does not depend on the lines beside it, on WARPS, PAIRED or the cells: blocks lie at multiples of KEYS,
// and what others see is hidden from it. Float32 accuracy with TERMS 2, that of halves with TERMS 1. What lies in hidden
// cells never matters; a line that sees a value that is not finite gets NaN in all numbers of its head.
#pragma OPENCL FP_CONTRACT OFF

#if !defined(__NV_CL_C_VERSION) && !defined(cl_nv_pragma_unroll) && !defined(__NVPTX__)
#error "for compilers of NVIDIA: inline PTX"
#endif

#ifndef K_DIM
#define K_DIM 128  // numbers per key and value, a multiple of 16 up to 256
#endif
#ifndef WARPS
#define WARPS 4  // of a group
#endif
#ifndef PAIRED
#define PAIRED 0  // 1: 8 lines to a warp, and half the registers
#endif
#ifndef MERGES
#define MERGES 0  // 1: the last group that has a part of a row and K/V head merges them
#endif
#ifndef TERMS
#define TERMS 2  // halves that stand for a float32
#endif

#ifndef CELL_FORMAT
#define CELL_FORMAT 1  // of K and V (cell_format.clh): 0 float32, 1 float16, 3 q8_0
#endif

#include "attention_lines.clh"
#include "attention_scales.clh"
#include "attention_floats.clh"
#include "attention_blocks.clh"
#include "attention_merged.clh"
#include "work_group.clh"

// Of local memory: lots, and behind them scales.
#if BLOCK_CELLS
#define HELD_BYTES (RAW_V + RAW_LOT(V_FORMAT))
#define HELD_SCALES (ROW_BLOCKS * SCALE_PITCH)
#define BRING_K(slot_at) bring_raw(slots + RAW_K, k, lane, &cells, RAW_ROW(K_FORMAT))
#define BRING_V(slot_at) bring_raw(slots + RAW_V, v, lane, &cells, RAW_ROW(V_FORMAT))
#else
#define HELD_BYTES (LOTS * LOT_BYTES)
#define HELD_SCALES (FLOAT_CELLS ? KEYS : 0)
#define BRING_K(slot_at) bring(slot_at, k, k_cell_stride, lane, &cells)
#define BRING_V(slot_at) bring(slot_at, v, v_cell_stride, lane, &cells)
#endif

// Row and head, or partial and head, of a line: which output it is.
INLINE int place_of(const Tile* tile, int line) {
  const int row = line / tile->group, head = tile->kv_head * tile->group + line % tile->group;
  return (tile->out_row >= 0 ? tile->out_row + row : tile->ids[row]) * tile->heads + head;
}

// The positions that every row of a tile sees.
INLINE void seen_by_all(const __global int* table, int bounds_at, const __global int* ids, int rows, int l, int* first,
                        int* end) {
  int latest = 0, earliest = 0x7fffffff;
  if (l < rows) {
    latest = table[bounds_at + 2 * ids[l]];
    earliest = table[bounds_at + 2 * ids[l] + 1];
  }
  SYNC_WARP();
  *first = max_of_warp(latest);
  *end = -max_of_warp(-earliest);
}

// Takes the split [begin, split_end) into the totals and begins anew; the `last` one writes the outputs.
INLINE void close_split(const Tile* tile, Lines* lines, Total* totals, float (*own)[NUMBERS], int line, int begin,
                        int split_end, bool last, int t, const __global float* sinks, int has_sinks,
                        __global float* out) {
#pragma unroll
  for (int h = 0; h < OF_LANE; ++h) {
    const bool seen = max(lines->first[h], begin) < min(lines->end[h], split_end);
    const bool fresh = totals[h].max_ == -INFINITY;
    const float sum = sum_of_four(lines->sum[h]) * WEIGHT_UNIT;
    const int at = line + 8 * h < tile->count ? place_of(tile, line + 8 * h) : -1;
    float keep = 1.0f, add = 0.0f;
    if (seen) join_split(&totals[h], lines->max_[h] * lines->natural[h], sum, &keep, &add);
    if (at >= 0 && (seen || last)) {
      const float factor = last ? output_factor(totals[h], has_sinks ? sinks[at % tile->heads] : -INFINITY) : 1.0f;
      add *= WEIGHT_UNIT;
      __global float2* to = (__global float2*)(out + (ulong)at * K_DIM + 2 * t);
#pragma unroll
      for (int n = 0; n < K_DIM / 8; ++n) {
        float2 total = fresh ? (float2)0.0f : to[4 * n];
        total.x = FMA(own[n][2 * h], add, total.x * keep);
        total.y = FMA(own[n][2 * h + 1], add, total.y * keep);
        to[4 * n] = last ? total * factor : total;
      }
    }
    SYNC_WARP();
    lines->max_[h] = -INFINITY;
    lines->sum[h] = 0.0f;
#pragma unroll
    for (int n = 0; n < K_DIM / 8; ++n) own[n][2 * h] = own[n][2 * h + 1] = 0.0f;
  }
}

INLINE void write_partials(const Tile* tile, const Lines* lines, float (*own)[NUMBERS], int line, int t,
                           __global float* partial_out, __global float* partial_stats) {
#pragma unroll
  for (int h = 0; h < OF_LANE; ++h) {
    const float sum = sum_of_four(lines->sum[h]) * WEIGHT_UNIT;
    if (line + 8 * h >= tile->count) continue;
    const int at = place_of(tile, line + 8 * h);
    __global float2* to = (__global float2*)(partial_out + (ulong)at * K_DIM + 2 * t);
#pragma unroll
    for (int n = 0; n < K_DIM / 8; ++n) to[4 * n] = (float2)(own[n][2 * h], own[n][2 * h + 1]) * WEIGHT_UNIT;
    if (t == 0) {
      partial_stats[2 * at] = lines->max_[h] * lines->natural[h];
      partial_stats[2 * at + 1] = sum;
    }
  }
}

GROUP_KERNEL(LANES) void attend_tiles(
    GROUP_IDS __global const float* ALONE q, ulong q_offset, __global const KvNumber* ALONE k, ulong k_offset,
    __global const KvNumber* ALONE v, ulong v_offset, ulong k_head_stride, ulong k_cell_stride, ulong v_head_stride,
    ulong v_cell_stride, __global const int* ALONE table, int bounds_at, int row_ids_at, int segments_at,
    int tiles_at, int split, int heads, int group, float scale, float softcap, __global const float* ALONE sinks,
    ulong sinks_offset, int has_sinks, __global float* ALONE out, ulong out_offset, __global float* OWN partial_out,
    __global float* OWN partial_stats, int parts
#if MERGES
    ,
    int merge_begin_at, int merge_ids_at, __global int* OWN lines_done, int rows
#endif
) {
  LOCAL_BYTES(lots, HELD_BYTES, 0);
#if HELD_SCALES > 0
  LOCAL_ARRAY(float, scales, HELD_SCALES, HELD_BYTES);
#else
  __local const float* scales = 0;
#endif
  AWAIT();
  const int lane = get_local_id(0), l = lane % WARP, t = l % 4;
  __global const int* given = table + tiles_at + 5 * (GROUP_ID(1) / parts);
  const Tile tile = {table + row_ids_at + given[0], given[1] * group, group, heads, GROUP_ID(2), given[4]};
  const int part = GROUP_ID(1) % parts;
  if (part * WARPS * LINES_OF_WARP >= tile.count) return;
  const int line0 = (part * WARPS + lane / WARP) * LINES_OF_WARP, line = line0 + l / 4;
  const bool busy = line0 < tile.count;
  k += k_offset + (ulong)tile.kv_head * k_head_stride;
  v += v_offset + (ulong)tile.kv_head * v_head_stride;
  out += out_offset;

  Walk walk = {table + segments_at + 3 * given[2], given[3], split, 0, 0, 0, 0, 0};
  open_segment(&walk);
  const uint slots = ADDRESS(lots);
  int from[AHEAD + 1];
  Cells cells;
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    from[i] = next_block(&walk, l, &cells);
    if (from[i] != NO_KEY) BRING_K(slots + 2 * i * LOT_BYTES);
    COMMIT();
#if !FLOAT_CELLS
    if (from[i] != NO_KEY) BRING_V(slots + (2 * i + 1) * LOT_BYTES);
    COMMIT();
#endif
  }

  Lines lines;
  Total totals[OF_LANE];
  const __global float* queries[OF_LANE];
#pragma unroll
  for (int h = 0; h < OF_LANE; ++h) {
    const int own_line = min(line + 8 * h, tile.count - 1), row = tile.ids[own_line / group];
    lines.first[h] = table[bounds_at + 2 * row];
    lines.end[h] = table[bounds_at + 2 * row + 1];
    lines.max_[h] = totals[h].max_ = -INFINITY;
    lines.sum[h] = totals[h].sum = 0.0f;
    queries[h] = q + q_offset + ((ulong)row * heads + tile.kv_head * group + own_line % group) * K_DIM;
  }
  Operand query[K_DIM / 16];
  float back[OF_LANE];
  read_queries(queries, t, query, back);
#pragma unroll
  for (int h = 0; h < OF_LANE; ++h) lines.natural[h] = softcap > 0.0f ? 1.0f : scale * back[h];
  int all_first, all_end;
  seen_by_all(table, bounds_at, tile.ids, given[1], l, &all_first, &all_end);

  float own[K_DIM / 8][NUMBERS];
#pragma unroll
  for (int n = 0; n < K_DIM / 8; ++n)
#pragma unroll
    for (int c = 0; c < NUMBERS; ++c) own[n][c] = 0.0f;
  int slot = 0, split_end = 0;
  while (from[0] != NO_KEY) {
    if (from[0] >= split_end) split_end = split_end_of(from[0], split);
    const int to = block_end(from[0], split_end);
    const bool whole = max(all_first, from[0] & -KEYS) == from[0] && to - from[0] == KEYS && to <= all_end;
    float scores[KEYS / 8][NUMBERS], shrink[OF_LANE];
#if FLOAT_CELLS
    ARRIVED(0);
    barrier(CLK_LOCAL_MEM_FENCE);  // K has come for all, and the slot of V is free
    BRING_V(slots + LOT_BYTES);
    COMMIT();
    split_lot(lots, 0, lane, scales);
    barrier(CLK_LOCAL_MEM_FENCE);  // for all
#else
    ARRIVED(2 * AHEAD - 1);
    barrier(CLK_LOCAL_MEM_FENCE);  // K has come for all, and the slot before it is free
#if BLOCK_CELLS
    unpack_lot(lots, RAW_K, RAW_ROW(K_FORMAT), lane, scales);
    barrier(CLK_LOCAL_MEM_FENCE);  // for all
#endif
    from[AHEAD] = next_block(&walk, l, &cells);
    if (from[AHEAD] != NO_KEY) BRING_K(slots + (slot == 0 ? LOTS - 1 : slot - 1) * LOT_BYTES);
    COMMIT();
#endif
    if (busy) {
      score_block(query, slots + slot * LOT_BYTES, scales, l, scores);
#if FLOAT_CELLS
      scale_scores(scales, t, scores);
#endif
      if (softcap > 0.0f) cap_scores(softcap, scale, back, scores);
      if (!whole) hide_keys(&lines, from[0], to, t, scores);
      weigh(&lines, scores, shrink);
    }
    ARRIVED(FLOAT_CELLS ? 0 : 2 * AHEAD - 1);
    barrier(CLK_LOCAL_MEM_FENCE);  // V has come for all, and the slot of K is free
#if FLOAT_CELLS
    from[1] = next_block(&walk, l, &cells);
    if (from[1] != NO_KEY) BRING_K(slots);
    COMMIT();
    split_lot(lots, LOT_BYTES, lane, scales);
    barrier(CLK_LOCAL_MEM_FENCE);  // for all
#else
#if BLOCK_CELLS
    unpack_lot(lots, RAW_V, RAW_ROW(V_FORMAT), lane, scales);
    barrier(CLK_LOCAL_MEM_FENCE);  // for all
#endif
    if (from[AHEAD] != NO_KEY) BRING_V(slots + slot * LOT_BYTES);
    COMMIT();
#endif
    slot = slot == LOTS - 1 ? 0 : slot + 1;
    if (HELD_SCALES == 0 && !whole) {
      const int infinite = infinite_keys(lots, slot * LOT_BYTES, l, false);
      if (max_of_warp(infinite) != 0) {  // for all warps alike
        barrier(CLK_LOCAL_MEM_FENCE);    // all have seen them
        if (lane < WARP) infinite_keys(lots, slot * LOT_BYTES, l, true);
        barrier(CLK_LOCAL_MEM_FENCE);
        spoil(&lines, from[0], to, t, infinite);
      }
    }
    if (busy) {
#if BLOCK_CELLS
      add_blocks(&lines, scales, from[0], to, t, scores, shrink, slots + slot * LOT_BYTES, l, own);
#else
      Operand weights[KEYS / 16];
#if FLOAT_CELLS
      float unit[OF_LANE];
      scale_weights(&lines, scales, from[0], to, t, scores, scores, unit);
#else
      const float* unit = 0;  // weights are as they are
#endif
      weights_as_operands(scores, weights);
      add_values(weights, shrink, unit, slots + slot * LOT_BYTES, l, own);
#endif
      if (tile.out_row < 0 && from[1] >= split_end)
        close_split(&tile, &lines, totals, own, line, split_end - split, split_end, from[1] == NO_KEY, t,
                    sinks + sinks_offset, has_sinks, out);
    }
    slot = slot == LOTS - 1 ? 0 : slot + 1;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) from[i] = from[i + 1];
  }
#if !MERGES
  if (!busy) return;
#endif
  if (busy && tile.out_row >= 0) {
    write_partials(&tile, &lines, own, line, t, partial_out, partial_stats);
  } else if (busy && walk.segments == 0) {
    close_split(&tile, &lines, totals, own, line, 0, 0, true, t, sinks + sinks_offset, has_sinks, out);
  }
#if MERGES
  if (tile.out_row < 0) return;
  __local int* complete = (__local int*)lots;  // of each row of the tile
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // all lines of the group are written
  const Merging merging = {partial_out, partial_stats, table + merge_begin_at, table + merge_ids_at, lines_done, rows};
  count_lines(&tile, &merging, part * WARPS * LINES_OF_WARP, lane, complete);
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // and what other groups have written is seen by all
  for (int r = 0; r < given[1]; ++r)
    if (complete[r] >= 0) merge_row(&tile, &merging, complete[r], lane, sinks + sinks_offset, has_sinks, out);
#endif
}
