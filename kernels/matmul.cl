// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights: CPU devices, float32 arithmetic, any number of rows.
//
// Layout of w: groups of four panels of 16 outputs, [group][k][4][16], zero beyond N. A group is one stream of memory:
//
//        k = 0                                                              k = 1
//     [w(n0..n15, 0)] [w(n16..n31, 0)] [w(n32..n47, 0)] [w(n48..n63, 0)] [w(n0..n15, 1)] ...
//
// q8_0 (kernels/q8.clh) puts the 64 scales of each 32 k before their integers; a product of both is exact in float32, so
// the bits are those of the float32 weight that it stands for.
//
// One work-item computes ROWS_BLOCK rows x ITEM_PANELS panels; ROWS rows x PANELS panels are accumulated in registers:
//
//     for each slice of K (stays in cache)  for each group of PANELS panels  for each group of ROWS rows  for each k
//         acc[r][p] = fma(x[r][k], w[p][k], acc[r][p])
//
// Every y is one chain of fused multiply-adds over ascending k, whatever the sizes are, so a row's bits do not depend
// on how many rows are multiplied at once. Rows beyond M repeat the last row and are not written.
//
// What leaves: y = sum, or sum + add (a residual or a bias), or, for two weights whose panels take turns (GATED),
// y = activation(sum of the even panel) * sum of the odd panel. The bits are those of separate operations.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // storage of w: 0 float32, 1 float16, 2 bfloat16, 3 q8_0
#endif
#ifndef ROWS
#define ROWS 8  // rows accumulated at once
#endif
#ifndef PANELS
#define PANELS 2  // panels accumulated at once: 1, 2 or 4
#endif
#ifndef ITEM_PANELS
#define ITEM_PANELS PANELS  // panels of one work-item, of one group: 1, 2 or 4, a multiple of PANELS; even when GATED
#endif
#ifndef ROWS_BLOCK
#define ROWS_BLOCK 64  // rows of one work-item, a multiple of ROWS; they share what the cache holds of w
#endif
#include "piece.clh"

#define SLICE 512  // k summed before the next rows take their turn
#define STEP 64    // numbers of w from k to k + 1

#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
// LOAD_W: 16 neighbours of one k, to be multiplied by the scale that SCALED k of an output share. Where numbers are
// stored as they are there is none, and a slice is one block.
#if STORED == 3
#include "q8.clh"
#define W char
#define LOAD_W(p) convert_float16(vload16(0, p))
#define SCALED Q8_BLOCK
#define NUMBERS_AT(k) q8_numbers_at(k)
#define GROUP_SIZE(k_size) q8_group_size(k_size)
#define LOAD_SCALE(w, k, p) vload_half16(p, (const __global half*)((w) + q8_scales_at(k)))
#define TIMES_SCALE(x, scale) ((x) * (scale))
#else
#define SCALED SLICE
#define NUMBERS_AT(k) ((ulong)(k) * STEP)
#define GROUP_SIZE(k_size) ((ulong)(k_size) * STEP)
#define LOAD_SCALE(w, k, p) 1.0f
#define TIMES_SCALE(x, scale) (x)
#if STORED == 0
#define W float
#define LOAD_W(p) vload16(0, p)
#elif STORED == 2
#define W ushort
#define LOAD_W(p) as_float16(convert_uint16(vload16(0, p)) << 16)
#else
#define W half
#if defined(WIDE) && defined(__AVX512F__) && __has_builtin(__builtin_convertvector)
// One conversion of 16; vload_half16 becomes two of 8 and a shuffle.
typedef __fp16 half_vector __attribute__((ext_vector_type(16), aligned(2)));
#define LOAD_W(p) __builtin_convertvector(*(const __global half_vector*)(p), float16)
#else
#define LOAD_W(p) vload_half16(0, p)
#endif
#endif
#endif

// AHEAD: bytes of w to ask for before they are needed, where that helps. Never faults, so it may pass the end.
#if defined(AHEAD) && __has_builtin(__builtin_prefetch)
void prefetch_step(const __global W* w) {
  for (int i = 0; i < STEP * (int)sizeof(W); i += 64) __builtin_prefetch((const __global char*)w + AHEAD + i);
}
#else
#define prefetch_step(w)
#endif

// Adds k in [begin, end) to the sums of ROWS rows from `row0` on, PANELS panels from `first` of the group w on. sums
// [ROWS_BLOCK][16 * PANELS].
void add_slice(const __global float* x, const __global W* w, int first, float* sums, int row0, int rows, int k_size,
               int begin, int end) {
  float16 acc[ROWS * PANELS];
  const __global float* x_rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    x_rows[r] = x + (ulong)min(row0 + r, rows - 1) * k_size;
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
      acc[r * PANELS + p] = begin == 0 ? (float16)0.0f : vload16((row0 + r) * PANELS + p, sums);
  }
  for (int block = begin; block < end; block += SCALED) {
    const __global W* wp = w + NUMBERS_AT(block) + first * 16;
    float16 scale[PANELS];
#pragma unroll
    for (int p = 0; p < PANELS; ++p) scale[p] = LOAD_SCALE(w, block, first + p);
    for (int k = block; k < min(block + SCALED, end); ++k, wp += STEP) {
      float16 wk[PANELS];
      prefetch_step(wp);
#pragma unroll
      for (int p = 0; p < PANELS; ++p) wk[p] = TIMES_SCALE(LOAD_W(wp + p * 16), scale[p]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int p = 0; p < PANELS; ++p) acc[r * PANELS + p] = fma((float16)(x_rows[r][k]), wk[p], acc[r * PANELS + p]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int p = 0; p < PANELS; ++p) vstore16(acc[r * PANELS + p], (row0 + r) * PANELS + p, sums);
}

// Adds up `rows` rows of x times ITEM_PANELS panels from `panel` on. sums [ITEM_PANELS / PANELS][ROWS_BLOCK][PANELS][16].
void add_panels(const __global float* x, const __global W* w, int panel, float* sums, int rows, int k_size) {
  const __global W* group = w + panel / 4 * GROUP_SIZE(k_size);
  for (int k = 0; k < k_size; k += SLICE)
    for (int p = 0; p < ITEM_PANELS; p += PANELS)
      for (int row = 0; row < rows; row += ROWS)
        add_slice(x, group, panel % 4 + p, sums + p * ROWS_BLOCK * 16, row, rows, k_size, k, min(k + SLICE, k_size));
}
// Where the 16 sums of a row and panel are.
int sums_at(int row, int panel) { return ((panel / PANELS * ROWS_BLOCK + row) * PANELS + panel % PANELS) * 16; }

// y = sum + add, or sum where `has_add` is 0. Row m of `add` begins at m * add_stride: 0 for a bias.
// Global size (panels / ITEM_PANELS, ceil(M / ROWS_BLOCK)), local size 1.
KERNEL void matmul_packed(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                          ulong w_offset, __global const float* restrict add, ulong add_offset, ulong add_stride,
                          int has_add, __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size) {
  const int panel = (int)ID(0) * ITEM_PANELS, first = (int)ID(1) * ROWS_BLOCK;
  const int rows = min(ROWS_BLOCK, m_size - first);
  if (panel * 16 >= n_size) return;
  float sums[ROWS_BLOCK * 16 * ITEM_PANELS];
  add_panels(x + x_offset + (ulong)first * k_size, w + w_offset, panel, sums, rows, k_size);
  for (int row = 0; row < rows; ++row)
    for (int p = 0; p < ITEM_PANELS; ++p) {
      const float* sum = sums + sums_at(row, p);
      const int n = (panel + p) * 16, columns = min(16, n_size - n);
      __global float* to = y + y_offset + (ulong)(first + row) * n_size + n;
      __global const float* from = add + add_offset + (ulong)(first + row) * add_stride + n;
      if (columns == 16)
        vstore16(has_add ? vload16(0, sum) + vload16(0, from) : vload16(0, sum), 0, to);
      else
        for (int c = 0; c < columns; ++c) to[c] = has_add ? sum[c] + from[c] : sum[c];
    }
}

#ifdef GATED  // 1: SILU, 2: GELU_TANH
#include "activation.clh"
#if GATED == 1
#define ACTIVATION SILU
#else
#define ACTIVATION GELU_TANH
#endif

// w holds panel 0 of gate, panel 0 of up, panel 1 of gate and so on; n_size counts the outputs of one of them.
// y = activation(x gate') * (x up'), eight neighbours at a time and the rest one by one, as kernels/elementwise.cl
// does. Global size (panels / ITEM_PANELS, ceil(M / ROWS_BLOCK)), local size 1.
KERNEL void matmul_gated(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                         ulong w_offset, __global float* restrict y, ulong y_offset, int m_size, int n_size,
                         int k_size) {
  const int panel = (int)ID(0) * ITEM_PANELS, first = (int)ID(1) * ROWS_BLOCK;
  const int rows = min(ROWS_BLOCK, m_size - first);
  if (panel * 8 >= n_size) return;
  float sums[ROWS_BLOCK * 16 * ITEM_PANELS];
  add_panels(x + x_offset + (ulong)first * k_size, w + w_offset, panel, sums, rows, k_size);
  for (int row = 0; row < rows; ++row)
    for (int p = 0; p < ITEM_PANELS; p += 2) {
      const float *gate = sums + sums_at(row, p), *up = sums + sums_at(row, p + 1);
      const int n = (panel + p) * 8, columns = min(16, n_size - n);
      __global float* to = y + y_offset + (ulong)(first + row) * n_size + n;
      int c = 0;
      for (; c + 8 <= columns; c += 8) {
        const float8 g = vload8(0, gate + c), u = vload8(0, up + c);
        vstore8(ACTIVATION(g, float8) * u, 0, to + c);
      }
      for (; c < columns; ++c) {
        const float g = gate[c], u = up[c];
        to[c] = ACTIVATION(g, float) * u;
      }
    }
}
#endif

#if STORED != 3  // that is packed by kernels/pack_q8.cl
// Lays w out in panels. `w` is [N][K], or [K][N] when `transposed` is 0. Its panel i goes to panel i * step + first.
// Global size (panels of w, ceil(K / 64)), local size 1. Elements are copied as words of their storage.
#if STORED == 0
#define WORD uint
#else
#define WORD ushort
#endif
KERNEL void pack(IDS __global const WORD* restrict w, ulong w_offset, __global WORD* restrict panels, int n_size,
                 int k_size, int transposed, int step, int first) {
  const int panel = ID(0), to = panel * step + first;
  for (int k = ID(1) * 64; k < min((int)ID(1) * 64 + 64, k_size); ++k)
    for (int i = 0; i < 16; ++i) {
      const int n = panel * 16 + i;
      const ulong from = transposed ? (ulong)n * k_size + k : (ulong)k * n_size + n;
      panels[to / 4 * GROUP_SIZE(k_size) + NUMBERS_AT(k) + to % 4 * 16 + i] = n < n_size ? w[w_offset + from] : (WORD)0;
    }
}
#endif
