// Copies between the cells of one layer's pool and linear memory, and rotation of stored K.
//
// Pool: K [kv_heads][cells][k_dim], V [kv_heads][cells][v_dim]. Linear memory: element d of the i-th cell of a run lies
// at
//     base + (row + head * head_stride + i * token_stride) * dim + d         run = (cell, length, row, head_stride)
// so one table serves tensors [rows][kv_heads][dim] and section images alike (csrc/ops/cells.h).
//
// One work-group of LANES work-items handles one (run, KV head), K then V. Equal storage types are copied bit by bit,
// so that NaN payloads survive; others are converted with round-to-nearest-even, eight at a time.
#pragma OPENCL FP_CONTRACT OFF

#ifndef POOL
#define POOL 1  // storage of the pool: 0 float32, 1 float16
#endif
#ifndef LINEAR
#define LINEAR 0  // storage of linear memory: 0 float32, 1 float16, 2 bfloat16
#endif
#ifndef LANES
#define LANES 1  // work-items that share one run and head
#endif

#include "storage.clh"

#if POOL == LINEAR && POOL == 0
#define POOL_T uint
#define LINEAR_T uint
#elif POOL == LINEAR
#define POOL_T ushort
#define LINEAR_T ushort
#else
#define POOL_T STORAGE(POOL)
#define LINEAR_T STORAGE(LINEAR)
#endif

// LANES work-items copy one row of `dim` numbers.
void load_row(__global const LINEAR_T* from, __global POOL_T* to, int dim) {
  int d = 8 * (int)get_local_id(0);
#if POOL == LINEAR
  for (; d + 8 <= dim; d += 8 * LANES) vstore8(vload8(0, from + d), 0, to + d);
  for (int i = d; i < min(d + 8, dim); ++i) to[i] = from[i];
#else
  for (; d + 8 <= dim; d += 8 * LANES) WRITE8(POOL, READ8(LINEAR, from + d), to + d);
  for (int i = d; i < min(d + 8, dim); ++i) WRITE1(POOL, READ1(LINEAR, from + i), to + i);
#endif
}

void store_row(__global const POOL_T* from, __global LINEAR_T* to, int dim) {
  int d = 8 * (int)get_local_id(0);
#if POOL == LINEAR
  for (; d + 8 <= dim; d += 8 * LANES) vstore8(vload8(0, from + d), 0, to + d);
  for (int i = d; i < min(d + 8, dim); ++i) to[i] = from[i];
#else
  for (; d + 8 <= dim; d += 8 * LANES) WRITE8(LINEAR, READ8(POOL, from + d), to + d);
  for (int i = d; i < min(d + 8, dim); ++i) WRITE1(LINEAR, READ1(POOL, from + i), to + i);
#endif
}

#define FIND_RUN                                               \
  const int head = get_global_id(2);                           \
  __global const int* run = table + 4 * (int)get_global_id(1); \
  const ulong cell = (ulong)head * cells + run[0];             \
  const ulong row = (ulong)run[2] + (ulong)head * (ulong)run[3];

__kernel void load_cells(__global const LINEAR_T* restrict k_from, ulong k_base,
                         __global const LINEAR_T* restrict v_from, ulong v_base, __global POOL_T* restrict k_pool,
                         ulong k_offset, __global POOL_T* restrict v_pool, ulong v_offset,
                         __global const int* restrict table, int token_stride, ulong cells, int k_dim, int v_dim) {
  FIND_RUN
  for (int i = 0; i < run[1]; ++i)
    load_row(k_from + k_base + (row + (ulong)i * token_stride) * k_dim, k_pool + k_offset + (cell + i) * k_dim, k_dim);
  for (int i = 0; i < run[1]; ++i)
    load_row(v_from + v_base + (row + (ulong)i * token_stride) * v_dim, v_pool + v_offset + (cell + i) * v_dim, v_dim);
}

__kernel void store_cells(__global const POOL_T* restrict k_pool, ulong k_offset,
                          __global const POOL_T* restrict v_pool, ulong v_offset, __global LINEAR_T* restrict k_to,
                          ulong k_base, __global LINEAR_T* restrict v_to, ulong v_base,
                          __global const int* restrict table, int token_stride, ulong cells, int k_dim, int v_dim) {
  FIND_RUN
  for (int i = 0; i < run[1]; ++i)
    store_row(k_pool + k_offset + (cell + i) * k_dim, k_to + k_base + (row + (ulong)i * token_stride) * k_dim, k_dim);
  for (int i = 0; i < run[1]; ++i)
    store_row(v_pool + v_offset + (cell + i) * v_dim, v_to + v_base + (row + (ulong)i * token_stride) * v_dim, v_dim);
}
