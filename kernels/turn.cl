// Queries for keys that have moved: the rows as they are, then the copies of them that attention's tiles read, each
// turned on by as many positions as its keys have moved (csrc/ops/turned_queries.h).
//
//   q [rows][heads][dim]  ->  turned [rows + copies][heads][dim]
//
//   table, int32      from sources_at: [rows + copies][2]   (row of q, number of its turn; -1: as it is)
//                     from ropes_at:   [layers][3]          (where the turns of the layer begin, pairs, interleaved)
//                     turn t of those: [2][pairs]           cosines, then sines: float32, of angles in float64
//
// One more rotation of each pair (x, y), as stored keys are rotated (cells_edit.cl):  x' = x cos - y sin,
// y' = y cos + x sin.  Numbers beyond the pairs are copied.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items that share one row
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "work_item.clh"

// One head: pairs that are VW apart in memory, then the rest one by one.
INLINE void turn_head(__global const float* x, __global float* y, __global const float* turn, int pairs,
                      int interleaved, int lane) {
  const int whole = interleaved ? 0 : pairs / VW * VW;
  for (int i = VW * lane; i < whole; i += VW * LANES) {
    const VEC u = LOAD(x + i), v = LOAD(x + i + pairs), c = LOAD(turn + i), s = LOAD(turn + i + pairs);
    STORE(FMA(u, c, -(v * s)), y + i);
    STORE(FMA(v, c, u * s), y + i + pairs);
  }
  for (int i = whole + lane; i < pairs; i += LANES) {
    const int a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + pairs;
    const float u = x[a], v = x[b], c = turn[i], s = turn[i + pairs];
    y[a] = FMA(u, c, -(v * s));
    y[b] = FMA(v, c, u * s);
  }
}

// Global size (LANES, rows + copies), local size (LANES, 1).
KERNEL void take_turned(IDS __global const float* restrict q, ulong q_offset, __global const int* restrict table,
                        int sources_at, int ropes_at, int layer, int heads, int dim, __global float* restrict turned,
                        ulong turned_offset) {
  const int lane = LANE_ID, size = heads * dim;
  __global const int *source = table + sources_at + 2 * (int)ID(1), *rope = table + ropes_at + 3 * layer;
  q += q_offset + (ulong)source[0] * size;
  turned += turned_offset + ID(1) * (ulong)size;
  if (source[1] < 0) {
    for (int d = lane; d < size; d += LANES) turned[d] = q[d];
    return;
  }
  const int pairs = rope[1];
  __global const float* turn = (__global const float*)(table + rope[0]) + (ulong)source[1] * 2 * pairs;
  for (int at = 0; at < size; at += dim) {
    turn_head(q + at, turned + at, turn, pairs, rope[2], lane);
    for (int d = 2 * pairs + lane; d < dim; d += LANES) turned[at + d] = q[at + d];
  }
}
