// Copies between the cells of one layer's pool and linear memory, and rotation of stored K.
//
// Pool: K [kv_heads][cells][k_dim], V [kv_heads][cells][v_dim]. Linear memory: element d of the i-th cell of a run lies
// at
//     base + (row + head * head_stride + i * token_stride) * dim + d         run = (cell, length, row, head_stride)
// so one table serves tensors [rows][kv_heads][dim] and section images alike (csrc/ops/cells.h).
//
// One work-group of LANES work-items handles one (run, KV head), K then V. Equal storage types are copied bit by bit,
// so that NaN payloads survive; others are converted with round-to-nearest-even, VW at a time.
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

#include "vector.clh"
#undef VW
#define VW ROW_VW
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

#if POOL == LINEAR && LANES == 1
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
#define STREAM
#endif
#endif
#endif

#ifdef STREAM
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

// LANES work-items copy one row of `dim` numbers.
void load_row(__global const LINEAR_T* from, __global POOL_T* to, int dim) {
  int d = VW * (int)get_local_id(0);
#if POOL == LINEAR
  for (; d + VW <= dim; d += VW * LANES) STORE(LOAD(from + d), to + d);
  for (int i = d; i < min(d + VW, dim); ++i) to[i] = from[i];
#else
  for (; d + VW <= dim; d += VW * LANES) WRITE_VEC(POOL, READ_VEC(LINEAR, from + d), to + d);
  for (int i = d; i < min(d + VW, dim); ++i) WRITE1(POOL, READ1(LINEAR, from + i), to + i);
#endif
}

void store_row(__global const POOL_T* from, __global LINEAR_T* to, int dim) {
  int d = VW * (int)get_local_id(0);
#if POOL == LINEAR
  for (; d + VW <= dim; d += VW * LANES) STORE(LOAD(from + d), to + d);
  for (int i = d; i < min(d + VW, dim); ++i) to[i] = from[i];
#else
  for (; d + VW <= dim; d += VW * LANES) WRITE_VEC(LINEAR, READ_VEC(POOL, from + d), to + d);
  for (int i = d; i < min(d + VW, dim); ++i) WRITE1(LINEAR, READ1(POOL, from + i), to + i);
#endif
}

#ifdef STREAM
#define COPY_RUN(row_wise, from, to, n) \
  stream((__global const uchar*)(from), (__global uchar*)(to), (ulong)(n) * sizeof(POOL_T))
#else
#define COPY_RUN(row_wise, from, to, n) row_wise(from, to, n)
#endif

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
  if (token_stride == 1) {  // the cells of a run lie one behind the other on both sides
    COPY_RUN(load_row, k_from + k_base + row * k_dim, k_pool + k_offset + cell * k_dim, run[1] * k_dim);
    COPY_RUN(load_row, v_from + v_base + row * v_dim, v_pool + v_offset + cell * v_dim, run[1] * v_dim);
    return;
  }
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
  if (token_stride == 1) {
    COPY_RUN(store_row, k_pool + k_offset + cell * k_dim, k_to + k_base + row * k_dim, run[1] * k_dim);
    COPY_RUN(store_row, v_pool + v_offset + cell * v_dim, v_to + v_base + row * v_dim, run[1] * v_dim);
    return;
  }
  for (int i = 0; i < run[1]; ++i)
    store_row(k_pool + k_offset + (cell + i) * k_dim, k_to + k_base + (row + (ulong)i * token_stride) * k_dim, k_dim);
  for (int i = 0; i < run[1]; ++i)
    store_row(v_pool + v_offset + (cell + i) * v_dim, v_to + v_base + (row + (ulong)i * token_stride) * v_dim, v_dim);
}
