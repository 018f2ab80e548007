// Copies between the cells of one layer's pool and linear memory, and rotation of stored K.
//
// Pool: K [kv_heads][cells], V [kv_heads][cells], rows of k_dim and v_dim numbers (cell_format.clh). Linear memory: the
// row of the i-th cell of a run is number
//     row + head * head_stride + i * token_stride         from base on; run = (cell, length, row, head_stride)
// so one table serves tensors [rows][kv_heads][dim] and section images alike (csrc/ops/cells.h).
//
// One work-group of LANES work-items handles one (run, KV head), K then V. Rows that are kept alike on both sides are
// copied bit by bit, so that NaN payloads survive; others are converted with round-to-nearest-even, VW at a time.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LINEAR
#define LINEAR 0  // linear memory: the pool's format for rows as there, else numbers: 0 float32, 1 float16, 2 bfloat16
#endif
#ifndef V_LINEAR
#define V_LINEAR LINEAR  // the same for V
#endif
#ifndef LANES
#define LANES 1  // work-items that share one run and head
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "cell_format.clh"

// What rows are copied in, bit by bit: images have K and V one behind the other, where all words are of this size.
#if K_FORMAT == 0 && V_FORMAT == 0
#define RAW uint
#else
#define RAW ushort
#endif
#define RAW_WORDS(F, dim) (CELL_WORDS(F, dim) * (int)(sizeof(CELL(F)) / sizeof(RAW)))

#if (K_FORMAT == LINEAR || V_FORMAT == V_LINEAR) && LANES == 1 && __has_builtin(__builtin_nontemporal_store)
#define STREAMS
// A long copy of one work-item past the cache: a line that is written whole need not be read first, which is a third of
// the traffic. The 32-byte stores want an aligned target, the loads do not.
typedef uint8 __attribute__((aligned(1))) unaligned8;
void stream(__global const uchar* from, __global uchar* to, ulong bytes) {
  ulong done = min(bytes, (ulong)(-(long)(ulong)to & 31));
  for (ulong i = 0; i < done; ++i) to[i] = from[i];
  for (; done + 32 <= bytes; done += 32) {
    const uint8 line = *(__global const unaligned8*)(from + done);
    __builtin_nontemporal_store(line, (__global uint8*)(to + done));
  }
  for (; done < bytes; ++done) to[done] = from[done];
}
#endif

#define SIDE k
#define FORMAT K_FORMAT
#define OUTSIDE LINEAR
#include "cell_rows.clh"  // each time
#define SIDE v
#define FORMAT V_FORMAT
#define OUTSIDE V_LINEAR
#include "cell_rows.clh"  // each time

#define FIND_RUN                                    \
  const int head = ID(2);                           \
  __global const int* run = table + 4 * (int)ID(1); \
  const ulong cell = (ulong)head * cells + run[0];  \
  const ulong row = (ulong)run[2] + (ulong)head * (ulong)run[3];

KERNEL void load_cells(IDS __global const k_row* restrict k_from, ulong k_base, __global const v_row* restrict v_from,
                       ulong v_base, __global k_cell* restrict k_pool, ulong k_offset, __global v_cell* restrict v_pool,
                       ulong v_offset, __global const int* restrict table, int token_stride, ulong cells, int k_dim,
                       int v_dim) {
  FIND_RUN
  k_load(k_from + k_base, row, k_pool + k_offset, cell, run[1], token_stride, k_dim);
  v_load(v_from + v_base, row, v_pool + v_offset, cell, run[1], token_stride, v_dim);
}

KERNEL void store_cells(IDS __global const k_cell* restrict k_pool, ulong k_offset, __global const v_cell* restrict v_pool,
                        ulong v_offset, __global k_row* restrict k_to, ulong k_base, __global v_row* restrict v_to,
                        ulong v_base, __global const int* restrict table, int token_stride, ulong cells, int k_dim,
                        int v_dim) {
  FIND_RUN
  k_store(k_pool + k_offset, cell, k_to + k_base, row, run[1], token_stride, k_dim);
  v_store(v_pool + v_offset, cell, v_to + v_base, row, run[1], token_stride, v_dim);
}
