// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights: CPU devices, float32 arithmetic, any number of rows.
//
// Layout of w: panels of 16 outputs, [panel][k][16], the panel count rounded up to a multiple of 4 and zero beyond N:
//
//        k = 0            k = 1
//     [w(n0..n15, 0)] [w(n0..n15, 1)] ...     one panel is one stream of memory
//
// One work-item computes ROWS_BLOCK rows x PANELS panels; ROWS rows x PANELS panels are accumulated in registers:
//
//     for each slice of K (stays in cache)  for each group of ROWS rows  for each k
//         acc[r][p] = fma(x[r][k], w[p][k], acc[r][p])
//
// Every y is one chain of fused multiply-adds over ascending k, whatever ROWS and PANELS are, so a row's bits do not
// depend on how many rows are multiplied at once. Rows beyond M repeat the last row and are not written.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // storage of w: 0 float32, 1 float16, 2 bfloat16
#endif
#ifndef ROWS
#define ROWS 8  // rows accumulated at once
#endif
#ifndef PANELS
#define PANELS 2  // panels accumulated at once: 1, 2 or 4
#endif
#ifndef ROWS_BLOCK
#define ROWS_BLOCK 64  // rows of one work-item; they share what the cache holds of w
#endif
#define SLICE 512

#if STORED == 0
#define W float
#define LOAD_W(p) vload16(0, p)
#elif STORED == 1
#define W half
#define LOAD_W(p) vload_half16(0, p)
#else
#define W ushort
#define LOAD_W(p) as_float16(convert_uint16(vload16(0, p)) << 16)
#endif

// Adds k in [begin, end) to the sums of ROWS rows from `row0` on. sums [ROWS_BLOCK][16 * PANELS].
void add_slice(const __global float* x, const __global W* w, float* sums, ulong panel_stride, int row0, int rows,
               int k_size, int begin, int end) {
  float16 acc[ROWS * PANELS];
  const __global float* x_rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    x_rows[r] = x + (ulong)min(row0 + r, rows - 1) * k_size;
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
      acc[r * PANELS + p] = begin == 0 ? (float16)0.0f : vload16((row0 + r) * PANELS + p, sums);
  }
  for (int k = begin; k < end; ++k) {
    float16 wk[PANELS];
#pragma unroll
    for (int p = 0; p < PANELS; ++p) wk[p] = LOAD_W(w + p * panel_stride + (ulong)k * 16);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int p = 0; p < PANELS; ++p) acc[r * PANELS + p] = fma((float16)(x_rows[r][k]), wk[p], acc[r * PANELS + p]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int p = 0; p < PANELS; ++p) vstore16(acc[r * PANELS + p], (row0 + r) * PANELS + p, sums);
}

// Global size (panels / PANELS, ceil(M / ROWS_BLOCK)), local size 1.
__kernel void matmul_packed(__global const float* restrict x, ulong x_offset, __global const W* restrict w,
                            ulong w_offset, __global float* restrict y, ulong y_offset, int m_size, int n_size,
                            int k_size) {
  const int panel = (int)get_global_id(0) * PANELS, first = (int)get_global_id(1) * ROWS_BLOCK;
  const int rows = min(ROWS_BLOCK, m_size - first), columns = min(16 * PANELS, n_size - panel * 16);
  if (columns <= 0) return;
  const ulong panel_stride = (ulong)k_size * 16;
  x += x_offset + (ulong)first * k_size;
  w += w_offset + (ulong)panel * panel_stride;
  y += y_offset + (ulong)first * n_size + panel * 16;
  float sums[ROWS_BLOCK * 16 * PANELS];
  for (int k = 0; k < k_size; k += SLICE)
    for (int row = 0; row < rows; row += ROWS)
      add_slice(x, w, sums, panel_stride, row, rows, k_size, k, min(k + SLICE, k_size));
  for (int row = 0; row < rows; ++row) {
    if (columns == 16 * PANELS)
#pragma unroll
      for (int p = 0; p < PANELS; ++p) vstore16(vload16(row * PANELS + p, sums), p, y + (ulong)row * n_size);
    else
      for (int c = 0; c < columns; ++c) y[(ulong)row * n_size + c] = sums[row * 16 * PANELS + c];
  }
}

// Lays w out in panels. `w` is [N][K], or [K][N] when `transposed` is 0. Global size (panels, ceil(K / 64)), local
// size 1. Elements are copied as words of their storage.
#if STORED == 0
#define WORD uint
#else
#define WORD ushort
#endif
__kernel void pack(__global const WORD* restrict w, ulong w_offset, __global WORD* restrict panels, int n_size,
                   int k_size, int transposed) {
  const int panel = get_global_id(0);
  for (int k = get_global_id(1) * 64; k < min((int)get_global_id(1) * 64 + 64, k_size); ++k)
    for (int i = 0; i < 16; ++i) {
      const int n = panel * 16 + i;
      const ulong from = transposed ? (ulong)n * k_size + k : (ulong)k * n_size + n;
      panels[((ulong)panel * k_size + k) * 16 + i] = n < n_size ? w[w_offset + from] : (WORD)0;
    }
}
