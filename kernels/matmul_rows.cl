// y[m][n] = sum_k x[m][k] * w(n, k) for weights as they come, [N][K] or [K][N]: no packing, any device.
//
// Storage of w: float32, float16 or bfloat16; arithmetic is float32. One work-item computes up to 4 rows of x by
//   [N][K]  4 outputs, VW k at a time; the lanes of a sum are added pairwise at the end
//   [K][N]  VW neighbouring outputs, one k at a time
// A row's bits do not depend on the other rows. N and K may be anything; what vectors leave over is done one by one.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // storage of w: 0 float32, 1 float16, 2 bfloat16
#endif
#define ROWS 4
#define LANES 1  // no sum is shared

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "reduce.clh"
#include "storage.clh"
#define W STORAGE(STORED)
#define LOAD_W(p) READ_VEC(STORED, p)
#define LOAD1(p) READ1(STORED, p)

// Rows m0 .. m0 + ROWS - 1 of x; rows beyond M repeat the last one and are not written.
#define ROW_POINTERS                           \
  const int m0 = (int)get_global_id(1) * ROWS; \
  __global const float* rows[ROWS];            \
  _Pragma("unroll") for (int r = 0; r < ROWS; ++r) rows[r] = x + x_offset + (ulong)min(m0 + r, m_size - 1) * k_size;

// w [N][K]. Global size (ceil(N / 4), ceil(M / 4)) rounded up to the local size.
__kernel void matmul_nk(__global const float* restrict x, ulong x_offset, __global const W* restrict w, ulong w_offset,
                        __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size) {
  const int n0 = (int)get_global_id(0) * 4;
  if (n0 >= n_size) return;
  ROW_POINTERS
  __global const W* w_rows[4];
  VEC acc[ROWS * 4];
  float rest[ROWS * 4];
#pragma unroll
  for (int n = 0; n < 4; ++n) w_rows[n] = w + w_offset + (ulong)min(n0 + n, n_size - 1) * k_size;
#pragma unroll
  for (int i = 0; i < ROWS * 4; ++i) acc[i] = (VEC)0.0f, rest[i] = 0.0f;
  const int whole = k_size / VW * VW;
  for (int k = 0; k < whole; k += VW) {
    VEC wk[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) wk[n] = LOAD_W(w_rows[n] + k);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const VEC xk = LOAD(rows[r] + k);
#pragma unroll
      for (int n = 0; n < 4; ++n) acc[r * 4 + n] = FMA(xk, wk[n], acc[r * 4 + n]);
    }
  }
  for (int k = whole; k < k_size; ++k)
#pragma unroll
    for (int i = 0; i < ROWS * 4; ++i) rest[i] = FMA(rows[i / 4][k], LOAD1(w_rows[i % 4] + k), rest[i]);
#pragma unroll
  for (int i = 0; i < ROWS * 4; ++i)
    if (m0 + i / 4 < m_size && n0 + i % 4 < n_size)
      y[y_offset + (ulong)(m0 + i / 4) * n_size + n0 + i % 4] = sum_lanes(acc[i]) + rest[i];
}

// w [K][N]. Global size (ceil(N / VW), ceil(M / 4)) rounded up to the local size.
__kernel void matmul_kn(__global const float* restrict x, ulong x_offset, __global const W* restrict w, ulong w_offset,
                        __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size) {
  const int n0 = (int)get_global_id(0) * VW;
  if (n0 >= n_size) return;
  ROW_POINTERS
  w += w_offset + n0;
  if (n0 + VW <= n_size) {
    VEC acc[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) acc[r] = (VEC)0.0f;
    for (int k = 0; k < k_size; ++k) {
      const VEC wk = LOAD_W(w + (ulong)k * n_size);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) acc[r] = FMA((VEC)(rows[r][k]), wk, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (m0 + r < m_size) STORE(acc[r], y + y_offset + (ulong)(m0 + r) * n_size + n0);
    return;
  }
  for (int r = 0; r < ROWS && m0 + r < m_size; ++r)
    for (int n = 0; n0 + n < n_size; ++n) {
      float acc = 0.0f;
      for (int k = 0; k < k_size; ++k) acc = FMA(rows[r][k], LOAD1(w + (ulong)k * n_size + n), acc);
      y[y_offset + (ulong)(m0 + r) * n_size + n0 + n] = acc;
    }
}
