// Joins the partial results of each row and head (kernels/attention.cl) into the final output.
//
//   partial_out [partials][heads][V_DIM], partial_stats [partials][heads][2] = (max, sum)  ->  out [rows][heads][V_DIM]
//   the partials of row r are merge_ids[merge_begin[r]] .. merge_ids[merge_begin[r + 1] - 1], in position order
//
// The arithmetic and its order are those of a tile that walks the whole history (attention_total.clh), so both give the
// same bits. A row without partials was written by its tile and is left alone. LANES work-items share a row and head;
// each has every LANES-th number.
#pragma OPENCL FP_CONTRACT OFF

#ifndef V_DIM
#define V_DIM 64  // numbers per value
#endif

#ifndef LANES
#define LANES 1  // work-items of a group
#endif

#include "attention_total.clh"
#include "cell_format.clh"
#include "work_item.clh"

// Numbers of a lane, and which they are: whole blocks where values are turned, so that no lane waits for another.
#if TURNED(V_FORMAT)
#define MERGED_BLOCK CELL_BLOCK(V_FORMAT)
#else
#define MERGED_BLOCK 1
#endif
#define MERGED ((V_DIM / MERGED_BLOCK + LANES - 1) / LANES * MERGED_BLOCK)
#define MERGED_AT(j) (((j) / MERGED_BLOCK * LANES + lane) * MERGED_BLOCK + (j) % MERGED_BLOCK)

KERNEL void attend_merge(IDS __global const float* restrict partial_out, __global const float* restrict partial_stats,
                         __global const int* restrict table, int merge_begin_at, int merge_ids_at, int heads,
                         __global const float* restrict sinks, ulong sinks_offset, int has_sinks,
                         __global float* restrict out, ulong out_offset) {
  const int row = ID(0) / LANES, head = ID(1), lane = LANE_ID;
  const int begin = table[merge_begin_at + row], end = table[merge_begin_at + row + 1];
  if (begin == end) return;
  float values[MERGED];
  for (int i = 0; i < MERGED; ++i) values[i] = 0.0f;
  Total total = {-INFINITY, 0.0f};
#if LANES > 1
#pragma unroll 4  // so that reads of several partials are on their way
#endif
  for (int i = begin; i < end; ++i) {
    const ulong at = (ulong)table[merge_ids_at + i] * heads + head;
    float keep, add;
    join_split(&total, partial_stats[2 * at], partial_stats[2 * at + 1], &keep, &add);
    for (int j = 0; j < MERGED; ++j)
      if (MERGED_AT(j) < V_DIM)
        values[j] = FMA(partial_out[at * V_DIM + MERGED_AT(j)], add, values[j] * keep);
  }
  const float factor = output_factor(total, has_sinks ? sinks[sinks_offset + head] : -INFINITY);
  out += out_offset + ((ulong)row * heads + head) * V_DIM;
  for (int j = 0; j < MERGED; ++j)
    if (MERGED_AT(j) < V_DIM) out[MERGED_AT(j)] = values[j] * factor;
#if TURNED(V_FORMAT)
  turn_output(out, V_DIM, lane, LANES);
#endif
}
