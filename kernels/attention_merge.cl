// Joins the partial results of each row and head (kernels/attention.cl) into the final output.
//
//   partial_out [partials][heads][V_DIM], partial_stats [partials][heads][2] = (max, sum)  ->  out [rows][heads][V_DIM]
//   the partials of row r are merge_ids[merge_begin[r]] .. merge_ids[merge_begin[r + 1] - 1], in position order
//
//   total <- total * exp(M - M') + o_i * exp(m_i - M'),   M' = max(M, m_i),   the same for the sums of exponentials
//
// The arithmetic and its order are those of a tile that walks the whole history, so both give the same bits. A row
// without partials was written by its tile and is left alone. A sink is one more logit in the denominator.
#pragma OPENCL FP_CONTRACT OFF

#ifndef V_DIM
#define V_DIM 64  // numbers per value
#endif

#include "exp.clh"
#include "work_item.clh"

KERNEL void attend_merge(IDS __global const float* restrict partial_out, __global const float* restrict partial_stats,
                         __global const int* restrict table, int merge_begin_at, int merge_ids_at, int heads,
                         __global const float* restrict sinks, ulong sinks_offset, int has_sinks,
                         __global float* restrict out, ulong out_offset) {
  const int row = ID(0), head = ID(1);
  const int begin = table[merge_begin_at + row], end = table[merge_begin_at + row + 1];
  if (begin == end) return;
  float total[V_DIM];
  for (int d = 0; d < V_DIM; ++d) total[d] = 0.0f;
  float total_max = -INFINITY, total_sum = 0.0f;
  for (int i = begin; i < end; ++i) {
    const ulong at = (ulong)table[merge_ids_at + i] * heads + head;
    const float new_max = fmax(total_max, partial_stats[2 * at]);
    const float base = new_max == -INFINITY ? 0.0f : new_max;
    const float keep = exp_one(total_max - base), add = exp_one(partial_stats[2 * at] - base);
    for (int d = 0; d < V_DIM; ++d) total[d] = FMA(partial_out[at * V_DIM + d], add, total[d] * keep);
    total_sum = FMA(partial_stats[2 * at + 1], add, total_sum * keep);
    total_max = new_max;
  }
  float keep = 1.0f;
  if (has_sinks && sinks[sinks_offset + head] != -INFINITY) {
    const float sink = sinks[sinks_offset + head], top = fmax(total_max, sink);
    keep = exp_one(total_max - top);
    total_sum = FMA(total_sum, keep, exp_one(sink - top));
  }
  const float factor = total_sum == 0.0f ? 0.0f : keep / total_sum;
  out += out_offset + ((ulong)row * heads + head) * V_DIM;
  for (int d = 0; d < V_DIM; ++d) out[d] = total[d] * factor;
}
