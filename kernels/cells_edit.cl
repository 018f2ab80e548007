// In-place changes to the cells of a pool [kv_heads][cells], rows of `dim` numbers: rotation of stored K, and filling.
//
// Rotation. K is stored after RoPE, so moving a key by `delta` positions is one more rotation of each pair (x, y) by
// delta * inverse_frequency, the same for every cell:  x' = x cos - y sin,  y' = y cos + x sin.  `turns` holds
// (cos, sin) per pair, computed on the host in double. Arithmetic is float32 whatever the storage.
//
// fma(), not FMA (vector.clh): a cell that was turned on the device has the bytes of one that was turned in a tier, on
// every processor. Where there is no such instruction that is a call for every number, in what only edits need.
//
// A pair lies in two blocks where the format has blocks: the row's blocks that have pairs are taken out, turned and
// written back, which rounds every number of them once more.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items that share one run and head
#endif
#ifndef K_DIM
#define K_DIM 64  // numbers of a row, for formats in blocks
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "cell_format.clh"

#if LANES > 1
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#else
#define SYNC
#endif

// READ and WRITE: of number d of a row.
#define TURN_PAIRS(READ, WRITE)                                                                                \
  for (int i = LANE_ID; i < pairs; i += LANES) {                                                               \
    const int a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + pairs;                                \
    const float x = READ(a), y = READ(b), cos_ = turns[2 * i], sin_ = turns[2 * i + 1];                        \
    WRITE(fma(x, cos_, -(y * sin_)), a);                                                                       \
    WRITE(fma(y, cos_, x * sin_), b);                                                                          \
  }

// One work-group per (run, KV head); run = (cell, length, unused, unused). Pairs are (i, i + half) or, interleaved,
// (2i, 2i + 1).
__kernel void rotate_cells(__global K_CELL* restrict pool, ulong offset, __global const int* restrict table,
                           __global const float* restrict turns, int pairs, int interleaved, ulong cells, int dim) {
  const int head = get_global_id(2);
  __global const int* run = table + 4 * (int)get_global_id(1);
#if CELL_BLOCK(K_FORMAT) > 1
  __local float numbers[K_DIM];
  const int block = CELL_BLOCK(K_FORMAT), turned = (2 * pairs + block - 1) / block * block;
#endif
  for (int c = 0; c < run[1]; ++c) {
    __global K_CELL* row = pool + offset + ((ulong)head * cells + run[0] + c) * CELL_WORDS(K_FORMAT, dim);
#if CELL_BLOCK(K_FORMAT) == 1
#define READ_STORED(d) READ_CELL(K_FORMAT, row, d)
#define WRITE_STORED(x, d) WRITE_CELL(K_FORMAT, x, row, d)
    TURN_PAIRS(READ_STORED, WRITE_STORED)
#else
#define READ_OWN(d) numbers[d]
#define WRITE_OWN(x, d) numbers[d] = x
#define OWN_VECTOR(d) LOAD(numbers + (d))
#if TURNED(K_FORMAT)
    for (int b = LANE_ID; b < turned / block; b += LANES) {
      float own[CELL_BLOCK(K_FORMAT)];
      for (int i = 0; i < block; ++i) own[i] = READ_CELL(K_FORMAT, row, b * block + i);
      turn_block(own, TURN_OUT);
      for (int i = 0; i < block; ++i) numbers[b * block + i] = own[i];
    }
#else
    for (int d = LANE_ID; d < turned; d += LANES) numbers[d] = READ_CELL(K_FORMAT, row, d);
#endif
    SYNC;
    TURN_PAIRS(READ_OWN, WRITE_OWN)
    SYNC;
    WRITE_CELL_ROW(K_FORMAT, row, turned, OWN_VECTOR, READ_OWN);
    SYNC;
#endif
  }
}

// `words`: the pool tensor as 16-bit words; `word_dim`: words per cell and head. One work-item per (cell, KV head).
__kernel void fill_cells(__global ushort* restrict words, ulong word_offset, int first_cell, ulong cells, int word_dim,
                         uint pattern) {
  const ulong cell = (ulong)get_global_id(1) * cells + first_cell + get_global_id(0);
  for (int i = 0; i < word_dim; ++i) words[word_offset + cell * word_dim + i] = (ushort)pattern;
}
