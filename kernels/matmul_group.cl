// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights where a work-group shares the work: GPUs. float32 arithmetic.
//
// The layout is that of kernels/matmul.cl: a line of 64 neighbouring outputs for each k (two k of 4 bits, four of 2),
// so lanes that are neighbours read what lies side by side: 64 bytes of 8 bits, 128 of float16. Nothing is packed anew.
//
// A sum over k is cut into slices of `slice` k, at most SLICES of them, wherever and with however many rows it is taken:
//
//     p_s = one chain of multiply-adds over ascending k of slice s, from 0          y = ((0 + p_0) + p_1) + p_2 ...
//
// so a row's bits do not depend on the rows beside it, nor on the variant, lanes or device limits.
//
//   matmul_few    up to 8 rows: memory is the limit. A group has COLUMNS outputs; its lanes are LINE_LANES to a line, each
//                 reading LANE_BYTES of it, times slices side by side:
//
//                     lane   0 1 | 2 3 | 4 5 | ...      outputs 0-15, 16-31 of each line (8 bits, COLUMNS 32)
//                     slice   0     1     2             16 k at once: 256 bytes of each lane are on their way
//
//                 Partial sums meet in local memory, row by row.
//   matmul_many   more rows: LANES / 2 rows x 64 outputs, BLOCK_K k at a time through local memory, weights widened to
//                 float32 on the way there and the next block on its way in registers; a lane has 4 rows x 8 outputs.
//   embed         the numbers of some outputs, a lane for each k; in a graph nothing else.
//
// GATED as in kernels/matmul.cl: a lane has 4 outputs of the gate and the same of the other in its registers, or finds
// them in local memory. What is added or activated has the bits of separate operations over vectors of 4.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // kernels/matmul_stored.clh
#endif
#ifndef LANES
#define LANES 128  // of a group: a power of two, 32 or more
#endif
#ifndef ROWS
#define ROWS 1  // rows of a group of matmul_few
#endif
#ifndef COLUMNS
#define COLUMNS 32  // outputs of a group of matmul_few: 32, or 64 with 64 lanes or more
#endif
#ifndef X4
#define X4 0  // 1: rows of x begin at multiples of 16 bytes
#endif
#ifndef GATED
#define GATED 0  // 1: SILU, 2: GELU_TANH
#endif
#include "vector.clh"
#include "activation.clh"
#include "work_item.clh"
#undef VW
#define VW 4
#define SLICE 512  // for matmul_stored.clh alone
#include "matmul_stored.clh"  // each time

#include "matmul_lines.clh"

#ifndef IN_GRAPH

INLINE float4 load_x4(const __global float* x) {
#if X4
  return *(const __global float4*)x;
#else
  return vload4(0, x);
#endif
}

#if GATED == 1
#define ACTIVATION SILU
#elif GATED == 2
#define ACTIVATION GELU_TANH
#endif

// y[n .. n + 3] of a row: sums, or with GATED what `gate` and `up` make, as far as there are outputs.
INLINE void finish4(float4 sums, float4 up, const __global float* add, int has_add, __global float* y, int n,
                    int n_size) {
  if (n + 4 <= n_size) {
#if GATED
    vstore4(ACTIVATION(sums, float4) * up, 0, y + n);
#else
    vstore4(has_add ? sums + vload4(0, add + n) : sums, 0, y + n);
#endif
    return;
  }
  const float ones[4] = {sums.x, sums.y, sums.z, sums.w};
#if GATED
  const float ups[4] = {up.x, up.y, up.z, up.w};
#endif
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (n + c < n_size) {
      const float one = ones[c];
#if GATED
      y[n + c] = ACTIVATION(one, float) * ups[c];
#else
      y[n + c] = has_add ? one + add[n + c] : one;
#endif
    }
}

// ---- few rows ------------------------------------------------------------------------------------------------------

#define OUTPUTS_16 (16 / WORDS)                                    // of a lane that reads 16 bytes of a line
#define OUTPUTS (ROWS > 4 && OUTPUTS_16 > 8 ? 8 : OUTPUTS_16)      // 8 rows of 16 outputs would not fit registers
#define VECTORS (OUTPUTS / 4)
#define LANE_WORDS (VECTORS * WORDS)
#define LINE_LANES (COLUMNS / OUTPUTS)
#define AT_ONCE (LANES / LINE_LANES)  // slices that a group sums side by side
#define UNIT (ROWS == 1 ? 16 : 8)     // k of a lane at once; divides slice and the numbers that share scales
#define LINES (UNIT / K_OF_LINE)

// Adds k in [from, to) of ROWS rows times OUTPUTS outputs from `column` of the group on.
INLINE void add_few(const __global float* const* x, const __global W* w, int column, int from, int to, VEC* acc) {
  for (int begin = from; begin < to; begin += UNIT) {
    uint words[LINES * LANE_WORDS];
#pragma unroll
    for (int l = 0; l < LINES; ++l)
      load_words(w + NUMBERS_AT(min(begin + l * K_OF_LINE, to - 1)) + column, LANE_WORDS, words + l * LANE_WORDS);
    SCALES scales[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) scales[v] = LOAD_SCALES(w, begin, column + v * VW);
    float xs[ROWS * UNIT];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (begin + UNIT <= to) {
#pragma unroll
        for (int i = 0; i < UNIT; i += 4) vstore4(load_x4(x[r] + begin + i), 0, xs + r * UNIT + i);
      } else {
#pragma unroll
        for (int i = 0; i < UNIT; ++i) xs[r * UNIT + i] = begin + i < to ? x[r][begin + i] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < UNIT; ++i)
      if (begin + i < to) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
          const LINE line = line_of(words + i / K_OF_LINE * LANE_WORDS + v * WORDS);
          const VEC wk = NUMBER(line, i % K_OF_LINE, (begin + i) % SCALED, scales[v]);
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
            acc[r * VECTORS + v] = FMA((VEC)(xs[r * UNIT + i]), wk, acc[r * VECTORS + v]);
        }
      }
  }
}

// y = sum + add as in kernels/matmul.cl, or the gated product. Global size (LANES * ceil(outputs / COLUMNS), ceil(M /
// ROWS)), outputs those of both weights where GATED; local size (LANES, 1).
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void matmul_few(
    __global const float* restrict x, ulong x_offset, __global const W* restrict w, ulong w_offset,
    __global const float* restrict add, ulong add_offset, ulong add_stride, int has_add, __global float* restrict y,
    ulong y_offset, int m_size, int n_size, int k_size, int slice, int y_stride) {
  __local float shared[AT_ONCE * COLUMNS];
  const int lane = get_local_id(0), m0 = (int)get_group_id(1) * ROWS, first = (int)get_group_id(0) * COLUMNS;
  const int own_slice = lane / LINE_LANES, own_column = lane % LINE_LANES * OUTPUTS;
  const __global W* group = w + w_offset + first / 64 * GROUP_SIZE(k_size);
  const int slices = (k_size + slice - 1) / slice;
  const __global float* rows[ROWS];
  float totals[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    rows[r] = x + x_offset + (ulong)min(m0 + r, m_size - 1) * k_size;
    totals[r] = 0.0f;
  }
  for (int begin = 0; begin < slices; begin += AT_ONCE) {
    VEC acc[ROWS * VECTORS];
#pragma unroll
    for (int i = 0; i < ROWS * VECTORS; ++i) acc[i] = (VEC)0.0f;
    const int from = min((begin + own_slice) * slice, k_size), count = min(AT_ONCE, slices - begin);
    add_few(rows, group, first % 64 + own_column, from, min(from + slice, k_size), acc);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v)
        vstore4(acc[r * VECTORS + v], 0, shared + own_slice * COLUMNS + own_column + v * VW);
      barrier(CLK_LOCAL_MEM_FENCE);
      if (lane < COLUMNS)
        for (int s = 0; s < count; ++s) totals[r] += shared[s * COLUMNS + lane];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (lane < COLUMNS) shared[lane] = totals[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int m = m0 + r;
#if GATED
    const int at = lane / 4 * 32 + lane % 4 * 4, n = first / 2 + lane * 4;  // 16 of the gate, 16 of the other
    if (m < m_size && lane < COLUMNS / 8 && n < n_size)
      finish4(vload4(0, shared + at), vload4(0, shared + at + 16), x, 0, y + y_offset + (ulong)m * y_stride, n, n_size);
#else
    const int n = first + lane * 4;
    if (m < m_size && lane < COLUMNS / 4 && n < n_size)
      finish4(vload4(0, shared + lane * 4), (VEC)0.0f, add + add_offset + (ulong)m * add_stride, has_add,
              y + y_offset + (ulong)m * y_stride, n, n_size);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

// ---- many rows -----------------------------------------------------------------------------------------------------

#define BLOCK_K 16
#define BLOCK_ROWS (LANES / 2)
#define XS_STEP (BLOCK_ROWS + 4)  // banks: 4 lanes of a row write 16 banks apart
#define X_LOADS 2                 // BLOCK_ROWS * BLOCK_K / 4 / LANES
#define BLOCK_LINES (BLOCK_K / K_OF_LINE)
#define W_LOADS ((BLOCK_LINES * 16 + LANES - 1) / LANES)

// 4 outputs of one line on their way: its words and scales.
typedef struct {
  uint words[WORDS];
  SCALES scales;
  int k, column;  // k < 0: none
} Coming;

INLINE void fetch_w(const __global W* group, int lane, int begin, int k_size, Coming* coming) {
#pragma unroll
  for (int j = 0; j < W_LOADS; ++j) {
    const int i = lane + j * LANES, k = begin + i / 16 * K_OF_LINE;
    coming[j].column = i % 16 * 4;
    coming[j].k = i < BLOCK_LINES * 16 ? k : -1;
    if (i < BLOCK_LINES * 16 && k < k_size) {
      load_words(group + NUMBERS_AT(k) + coming[j].column, WORDS, coming[j].words);
      coming[j].scales = LOAD_SCALES(group, k, coming[j].column);
    }
  }
}

// To ws [BLOCK_K][2][2][16]: of each 32 outputs the first 16, then the others, so that 8 lanes read 32 banks.
INLINE void keep_w(const Coming* coming, int begin, int k_size, __local float* ws) {
#pragma unroll
  for (int j = 0; j < W_LOADS; ++j)
    if (coming[j].k >= 0) {
      const int column = coming[j].column, at = column / 16 % 2 * 32 + column / 32 * 16 + column % 16;
#pragma unroll
      for (int s = 0; s < K_OF_LINE; ++s) {
        const int k = coming[j].k + s;
        VEC wk = (VEC)0.0f;
        if (k < k_size) wk = NUMBER(line_of(coming[j].words), s, k % SCALED, coming[j].scales);
        vstore4(wk, 0, ws + (k - begin) * 64 + at);
      }
    }
}

INLINE void fetch_x(const __global float* x, int lane, int begin, int last_row, int k_size, float4* coming) {
#pragma unroll
  for (int j = 0; j < X_LOADS; ++j) {
    const int i = lane + j * LANES, k = begin + i % 4 * 4;
    const __global float* row = x + (ulong)min(i / 4, last_row) * k_size;
    if (k + 4 <= k_size)
      coming[j] = load_x4(row + k);
    else
      coming[j] = (float4)(k < k_size ? row[k] : 0.0f, k + 1 < k_size ? row[k + 1] : 0.0f,
                           k + 2 < k_size ? row[k + 2] : 0.0f, 0.0f);
  }
}

INLINE void keep_x(const float4* coming, int lane, __local float* xs) {
#pragma unroll
  for (int j = 0; j < X_LOADS; ++j) {
    const int i = lane + j * LANES, row = i / 4, k = i % 4 * 4;
    xs[(k + 0) * XS_STEP + row] = coming[j].x;
    xs[(k + 1) * XS_STEP + row] = coming[j].y;
    xs[(k + 2) * XS_STEP + row] = coming[j].z;
    xs[(k + 3) * XS_STEP + row] = coming[j].w;
  }
}

// Global size (LANES * groups of 64 outputs, ceil(M / BLOCK_ROWS)), local size (LANES, 1).
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void matmul_many(
    __global const float* restrict x, ulong x_offset, __global const W* restrict w, ulong w_offset,
    __global const float* restrict add, ulong add_offset, ulong add_stride, int has_add, __global float* restrict y,
    ulong y_offset, int m_size, int n_size, int k_size, int slice, int y_stride) {
  __local float xs[BLOCK_K * XS_STEP], ws[BLOCK_K * 64];
  const int lane = get_local_id(0), tx = lane % 8, ty = lane / 8, m0 = (int)get_group_id(1) * BLOCK_ROWS;
  const __global W* group = w + w_offset + get_group_id(0) * GROUP_SIZE(k_size);
  x += x_offset + (ulong)m0 * k_size;
  const int last_row = m_size - 1 - m0;
  VEC acc[8], totals[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] = totals[i] = (VEC)0.0f;
  Coming coming[W_LOADS];
  float4 coming_x[X_LOADS];
  fetch_w(group, lane, 0, k_size, coming);
  fetch_x(x, lane, 0, last_row, k_size, coming_x);
  int left = slice;
  for (int begin = 0; begin < k_size; begin += BLOCK_K) {
    keep_w(coming, begin, k_size, ws);
    keep_x(coming_x, lane, xs);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (begin + BLOCK_K < k_size) {
      fetch_w(group, lane, begin + BLOCK_K, k_size, coming);
      fetch_x(x, lane, begin + BLOCK_K, last_row, k_size, coming_x);
    }
    for (int half_ = 0; half_ < BLOCK_K; half_ += UNIT) {
#pragma unroll
      for (int k = half_; k < half_ + UNIT; ++k) {
        const VEC first = vload4(0, ws + k * 64 + tx * 4), second = vload4(0, ws + k * 64 + 32 + tx * 4);
        const float4 own = vload4(0, xs + k * XS_STEP + ty * 4);
        const float factors[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          acc[2 * r] = FMA((VEC)(factors[r]), first, acc[2 * r]);
          acc[2 * r + 1] = FMA((VEC)(factors[r]), second, acc[2 * r + 1]);
        }
      }
      left -= UNIT;
      if (left == 0) {
        left = slice;
#pragma unroll
        for (int i = 0; i < 8; ++i) totals[i] += acc[i], acc[i] = (VEC)0.0f;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int m = m0 + ty * 4 + r;
    const VEC first = totals[2 * r] + acc[2 * r], second = totals[2 * r + 1] + acc[2 * r + 1];
    __global float* to = y + y_offset + (ulong)m * y_stride;
    if (m < m_size) {
#if GATED
      const int n = (int)get_group_id(0) * 32 + tx * 4;
      if (n < n_size) finish4(first, second, x, 0, to, n, n_size);
#else
      const int n = (int)get_group_id(0) * 64 + tx / 4 * 32 + tx % 4 * 4;
      const __global float* from = add + add_offset + (ulong)m * add_stride;
      if (n < n_size) finish4(first, (VEC)0.0f, from, has_add, to, n, n_size);
      if (n + 16 < n_size) finish4(second, (VEC)0.0f, from, has_add, to, n + 16, n_size);
#endif
    }
  }
}

#endif

// to[t] = row ids[t] - first of w, its `dim` numbers, for ids from `first` to `first + n_size` of `all`; the first part
// writes NaN for an id that is no output of any. Global size (dim rounded up to whole
// groups, tokens), local size (LANES, 1).
KERNEL void embed(IDS __global const W* restrict w, ulong w_offset, __global const int* restrict ids, ulong ids_offset,
                  __global float* restrict to, ulong to_offset, int n_size, int dim, int first, int all) {
  const int k = ID(0), wanted = ids[ids_offset + ID(1)], id = wanted - first;
  if (k >= dim) return;
  to += to_offset + ID(1) * (ulong)dim + k;
  if (wanted < first || id >= n_size) {
    if (first == 0 && (wanted < 0 || wanted >= all)) *to = NAN;
    return;
  }
  const __global W* group = w + w_offset + id / 64 * GROUP_SIZE(dim);
  const int column = id % 64 / 4 * 4;
  uint words[WORDS];
  load_words(group + NUMBERS_AT(k) + column, WORDS, words);
  const SCALES scales = LOAD_SCALES(group, k, column);
  float lanes[4];
  vstore4(NUMBER(line_of(words), k % K_OF_LINE, k % SCALED, scales), 0, lanes);
  *to = lanes[id % 4];
}
