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
#define LINEAR 0  // linear memory: CELL_FORMAT for rows as in the pool, else numbers: 0 float32, 1 float16, 2 bfloat16
#endif
#ifndef LANES
#define LANES 1  // work-items that share one run and head
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "cell_format.clh"

#if CELL_FORMAT == LINEAR
#define POOL_T CELL_RAW
#define LINEAR_T CELL_RAW
#define LINEAR_WORDS(dim) CELL_WORDS(dim)
#else
#define POOL_T CELL
#define LINEAR_T STORAGE(LINEAR)
#define LINEAR_WORDS(dim) (dim)
#endif

#if CELL_FORMAT == LINEAR && LANES == 1
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

// LANES work-items copy one row of `dim` numbers, or several that lie one behind the other.
#if CELL_FORMAT == LINEAR
void copy_row(__global const CELL_RAW* from, __global CELL_RAW* to, int dim) {
  const int words = CELL_WORDS(dim);
  int i = VW * (int)LANE_ID;
  for (; i + VW <= words; i += VW * LANES) STORE(LOAD(from + i), to + i);
  for (int j = i; j < min(i + VW, words); ++j) to[j] = from[j];
}
#define load_row copy_row
#define store_row copy_row
#else
void load_row(__global const LINEAR_T* from, __global CELL* to, int dim) {
#define VECTOR_FROM(d) READ_VEC(LINEAR, from + (d))
#define NUMBER_FROM(d) READ1(LINEAR, from + (d))
  WRITE_CELL_ROW(to, dim, VECTOR_FROM, NUMBER_FROM);
}

void store_row(__global const CELL* from, __global LINEAR_T* to, int dim) {
  int d = VW * (int)LANE_ID;
  for (; d + VW <= dim; d += VW * LANES) WRITE_VEC(LINEAR, READ_CELLS(from, d, 0), to + d);
  for (int i = d; i < min(d + VW, dim); ++i) WRITE1(LINEAR, READ_CELL(from, i), to + i);
}
#endif

#ifdef STREAM
#define COPY_RUN(row_wise, from, to, n) \
  stream((__global const uchar*)(from), (__global uchar*)(to), (ulong)CELL_WORDS(n) * sizeof(CELL_RAW))
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
    COPY_RUN(load_row, k_from + k_base + row * LINEAR_WORDS(k_dim),
             k_pool + k_offset + cell * CELL_WORDS(k_dim), run[1] * k_dim);
    COPY_RUN(load_row, v_from + v_base + row * LINEAR_WORDS(v_dim),
             v_pool + v_offset + cell * CELL_WORDS(v_dim), run[1] * v_dim);
    return;
  }
  for (int i = 0; i < run[1]; ++i)
    load_row(k_from + k_base + (row + (ulong)i * token_stride) * LINEAR_WORDS(k_dim),
             k_pool + k_offset + (cell + i) * CELL_WORDS(k_dim), k_dim);
  for (int i = 0; i < run[1]; ++i)
    load_row(v_from + v_base + (row + (ulong)i * token_stride) * LINEAR_WORDS(v_dim),
             v_pool + v_offset + (cell + i) * CELL_WORDS(v_dim), v_dim);
}

__kernel void store_cells(__global const POOL_T* restrict k_pool, ulong k_offset,
                          __global const POOL_T* restrict v_pool, ulong v_offset, __global LINEAR_T* restrict k_to,
                          ulong k_base, __global LINEAR_T* restrict v_to, ulong v_base,
                          __global const int* restrict table, int token_stride, ulong cells, int k_dim, int v_dim) {
  FIND_RUN
  if (token_stride == 1) {
    COPY_RUN(store_row, k_pool + k_offset + cell * CELL_WORDS(k_dim),
             k_to + k_base + row * LINEAR_WORDS(k_dim), run[1] * k_dim);
    COPY_RUN(store_row, v_pool + v_offset + cell * CELL_WORDS(v_dim),
             v_to + v_base + row * LINEAR_WORDS(v_dim), run[1] * v_dim);
    return;
  }
  for (int i = 0; i < run[1]; ++i)
    store_row(k_pool + k_offset + (cell + i) * CELL_WORDS(k_dim),
              k_to + k_base + (row + (ulong)i * token_stride) * LINEAR_WORDS(k_dim), k_dim);
  for (int i = 0; i < run[1]; ++i)
    store_row(v_pool + v_offset + (cell + i) * CELL_WORDS(v_dim),
              v_to + v_base + (row + (ulong)i * token_stride) * LINEAR_WORDS(v_dim), v_dim);
}
