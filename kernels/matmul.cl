// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights: CPU devices, float32 arithmetic, any number of rows.
//
// Layout of w: groups of four panels of 16 outputs, [group][k][4][16], zero beyond N. A group is one stream of memory:
//
//        k = 0                                                              k = 1
//     [w(n0..n15, 0)] [w(n16..n31, 0)] [w(n32..n47, 0)] [w(n48..n63, 0)] [w(n0..n15, 1)] ...
//
// Quantised weights are streams of blocks that hold the scales of 64 outputs before their integers (kernels/q8.clh,
// kernels/quants.clh). The bits are those of the float32 weight that they stand for.
//
// One work-item computes up to ROWS_BLOCK rows x ITEM_PANELS panels; ROWS rows x VECTORS vectors are accumulated in
// registers:
//
//     for each slice of K (stays in cache)  for VECTORS vectors of outputs  for each group of ROWS rows  for each k
//         acc[r][v] = x[r][k] * w[v][k] + acc[r][v]
//
// One row reads several groups in turns, a few k of each: a processor fetches several streams of memory faster than
// one. Weights are asked for before they are needed: AHEAD bytes before, where a slice is passed once or twice; with
// NEXT_SLICE the next slice, a few lines at a time over all passes of this one, so that memory is never idle and never
// asked twice.
//
// With BLOCKED, for many rows, kernels/matmul_blocks.clh does that; with INTEGER, for weights in blocks, the integer
// units of a processor do (kernels/matmul_integer.clh), with sums of their own.
//
// Every y but those is one chain of multiply-adds (FMA in vector.clh) over ascending k, whatever the sizes and the
// vectors are, so a row's bits do not depend on how many rows are multiplied at once. Rows beyond M repeat the last row and are not
// written.
//
// What leaves: y = sum, or sum + add (a residual or a bias), or, for two weights whose panels take turns (GATED),
// y = activation(sum of the even panel) * sum of the odd panel. The bits are those of separate operations.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // how w keeps its numbers: kernels/matmul_stored.clh
#endif
#ifndef MATMUL_VW
#define MATMUL_VW 8  // VW here: floats of a vector
#endif
#ifndef ROWS
#define ROWS 4  // rows accumulated at once
#endif
#ifndef VECTORS_AT_ONCE
#define VECTORS_AT_ONCE 2  // vectors of a row accumulated at once; a divisor of 64 numbers
#endif
#ifndef ITEM_PANELS
#define ITEM_PANELS 4  // panels of one work-item: whole groups, or a part of one, even when GATED
#endif
#ifndef ROWS_BLOCK
#define ROWS_BLOCK 8  // rows of one work-item, a multiple of ROWS; they share what the cache holds of w
#endif
#ifndef BLOCKED
#define BLOCKED 0  // 1: by kernels/matmul_blocks.clh
#endif
#ifndef INTEGER
#define INTEGER 0  // 1, 2: by kernels/matmul_integer.clh
#endif
#ifndef BYTES
#define BYTES 2  // of an integer of x with INTEGER: 1 or 2
#endif
#ifndef NEXT_SLICE
#define NEXT_SLICE 0  // 1: weights are asked for a slice ahead
#endif
#ifndef AHEAD
#define AHEAD 0  // bytes that weights are asked for ahead; 0: they are not
#endif
#ifndef GATED
#define GATED 0  // 1: with matmul_gated and SILU, 2: with GELU_TANH
#endif
#ifndef ROUTED
#define ROUTED 0  // 1: with matmul_routed, and matmul_gated_routed where GATED
#endif
#include "activation.clh"
#include "work_item.clh"
#include "vector.clh"
#undef VW
#define VW MATMUL_VW

#ifndef SLICE
#define SLICE 512  // k summed before the next rows take their turn; a multiple of SCALED
#endif
#define COLUMNS (VECTORS_AT_ONCE * VW)  // outputs accumulated at once

#include "matmul_stored.clh"  // each time

// The sums of a work-item: [groups of ITEM_PANELS][SUM_ROWS][SUMS_STEP].
#define SUMS_STEP (16 * (ITEM_PANELS < 4 ? ITEM_PANELS : 4))
#define SUMS_SIZE (SUM_ROWS * 16 * ITEM_PANELS)
#if BLOCKED && !INTEGER
#define SUM_ROWS (ROWS_BLOCK + 2)  // room for the last four
#else
#define SUM_ROWS ROWS_BLOCK
#endif
// Floats of a row of x as products read it: 16 rows that round_rows made are whole tiles.
#undef ROW_SIZE
#if INTEGER != 2
#define ROW_SIZE(k_size) (k_size)
#endif
// Where those of a row and panel are.
int sums_at(int row, int panel) { return (panel / 4 * SUM_ROWS + row) * SUMS_STEP + panel % 4 * 16; }

#if INTEGER
#include "matmul_integer.clh"  // each time
#elif BLOCKED
#include "matmul_blocks.clh"  // each time
#else

// Nothing that is asked for faults, so it may lie beyond the end.
void ask_ahead(const __global W* w) {
#if AHEAD
  for (int i = 0; i < STEP * (int)sizeof(W); i += 64) FETCH((const __global char*)w + AHEAD + i);
#endif
}

#if NEXT_SLICE
#define PORTION 16  // k between two turns of asking; divides SLICE and SCALED
#else
#define PORTION SCALED
#endif
#define PORTIONS (SLICE / PORTION)

// Adds k in [begin, end) to the sums of ROWS rows from `row0` on, COLUMNS outputs from `column` of the group w on;
// `sums` is that of the item's first row and these outputs. In the meantime asks for `lines` cache lines from `next` on
// every PORTION k.
void add_slice(const __global float* x, const __global W* w, int column, float* sums, int row0, int rows, int k_size,
               int begin, int end, const __global char* next, int lines) {
  VEC acc[ROWS * VECTORS_AT_ONCE];
  const __global float* x_rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    x_rows[r] = x + (ulong)min(row0 + r, rows - 1) * k_size;
#pragma unroll
    for (int v = 0; v < VECTORS_AT_ONCE; ++v)
      acc[r * VECTORS_AT_ONCE + v] = begin == 0 ? (VEC)0.0f : KEPT(sums + (row0 + r) * SUMS_STEP + v * VW);
  }
  for (int block = begin; block < end; block += SCALED) {
    const int block_end = min(block + SCALED, end);
    const __global W* wp = w + NUMBERS_AT(block) + column;
    SCALES scales[VECTORS_AT_ONCE];
#pragma unroll
    for (int v = 0; v < VECTORS_AT_ONCE; ++v) scales[v] = LOAD_SCALES(w, block, column + v * VW);
    for (int portion = block; portion < block_end; portion += PORTION) {
#if NEXT_SLICE
      for (int i = 0; i < lines; ++i, next += 64) FETCH(next);
#endif
      for (int k = portion; k < min(portion + PORTION, block_end); k += K_OF_LINE, wp += STEP) {
        LINE line[VECTORS_AT_ONCE];
        ask_ahead(wp);
#pragma unroll
        for (int v = 0; v < VECTORS_AT_ONCE; ++v) line[v] = LOAD_LINE(wp + v * VW);
#pragma unroll
        for (int s = 0; s < K_OF_LINE; ++s) {
          VEC wk[VECTORS_AT_ONCE];
#pragma unroll
          for (int v = 0; v < VECTORS_AT_ONCE; ++v) wk[v] = NUMBER(line[v], s, k + s - block, scales[v]);
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int v = 0; v < VECTORS_AT_ONCE; ++v)
              acc[r * VECTORS_AT_ONCE + v] = FMA((VEC)(x_rows[r][k + s]), wk[v], acc[r * VECTORS_AT_ONCE + v]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int v = 0; v < VECTORS_AT_ONCE; ++v)
      KEEP(acc[r * VECTORS_AT_ONCE + v], sums + (row0 + r) * SUMS_STEP + v * VW);
}

int first_row(int block, int m_size) { return block * ROWS_BLOCK; }
int rows_of(int block, int m_size) { return min(ROWS_BLOCK, m_size - block * ROWS_BLOCK); }

// Adds up `rows` rows of x times `panels` panels from `panel` on: whole groups, or ITEM_PANELS if a group has more.
void add_panels(const __global float* x, const __global W* w, int panel, int panels, float* sums, int rows,
                int k_size) {
  const __global W* first = w + panel / 4 * GROUP_SIZE(k_size);
  const int groups = (panels + 3) / 4, passes = (rows + ROWS - 1) / ROWS * (SUMS_STEP / COLUMNS);
  const int lines = (SLICE_AT(SLICE) * sizeof(W) / 64 + passes * PORTIONS - 1) / (passes * PORTIONS);
  for (int k = 0; k < k_size; k += SLICE)
    for (int g = 0; g < groups; ++g) {
      const __global W* group = first + g * GROUP_SIZE(k_size);
      const __global char* next = (const __global char*)(group + SLICE_AT(k + SLICE));
      float* own = sums + g * SUM_ROWS * SUMS_STEP;
      for (int column = 0; column < SUMS_STEP; column += COLUMNS)
        for (int row = 0; row < rows; row += ROWS, next += lines * PORTIONS * 64)
          add_slice(x, group, panel % 4 * 16 + column, own + column, row, rows, k_size, k, min(k + SLICE, k_size), next,
                    lines);
    }
}
#endif

// Panels of one row of sums, plus those of `add` where there is one.
void store_sums(const float* sums, int row, int panel, int panels, __global const float* add, int has_add,
                __global float* y, int n_size) {
  for (int p = 0; p < panels; ++p) {
    const float* sum = sums + sums_at(row, p);
    const int n = (panel + p) * 16, columns = min(16, n_size - n);
    __global float* to = y + n;
    __global const float* from = add + n;
    if (columns == 16)
      for (int c = 0; c < 16; c += VW) STORE(has_add ? LOAD(sum + c) + LOAD(from + c) : LOAD(sum + c), to + c);
    else
      for (int c = 0; c < columns; ++c) to[c] = has_add ? sum[c] + from[c] : sum[c];
  }
}

// y = sum + add, or sum where `has_add` is 0. x is [M][K], with INTEGER 2 as round_rows made it. Row m of `add` begins at
// m * add_stride: 0 for a bias. A work-item has `item_panels` panels: ITEM_PANELS, or a multiple of 4 up to that. Rows of
// y are y_stride apart.
// Global size (ceil(panels / item_panels), ceil(M / ROWS_BLOCK)), local size 1.
KERNEL void matmul_packed(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                          ulong w_offset, __global const float* restrict add, ulong add_offset, ulong add_stride,
                          int has_add, __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size,
                          int item_panels, int y_stride) {
  const int panel = (int)ID(0) * item_panels, first = first_row(ID(1), m_size), rows = rows_of(ID(1), m_size);
  const int panels = min(item_panels, (n_size + 63) / 64 * 4 - panel);
  if (panel * 16 >= n_size) return;
  float sums[SUMS_SIZE];
  add_panels(x + x_offset + (ulong)first * ROW_SIZE(k_size), w + w_offset, panel, panels, sums, rows, k_size);
  for (int row = 0; row < rows; ++row)
    store_sums(sums, row, panel, panels, add + add_offset + (ulong)(first + row) * add_stride, has_add,
               y + y_offset + (ulong)(first + row) * y_stride, n_size);
}

#if GATED
#if GATED == 1
#define ACTIVATION SILU
#else
#define ACTIVATION GELU_TANH
#endif
#if MATMUL_VW == 4  // as ROW_VW, so that the bits are those of kernels/elementwise.cl
#define GATE_VW 4
#else
#define GATE_VW 8
#endif
#define GATE_VEC JOIN(float, GATE_VW)

// Pairs of panels of one row of sums as activation(even) * odd, GATE_VW neighbours at a time and the rest one by one, as
// kernels/elementwise.cl does.
void store_gated(const float* sums, int row, int panel, int panels, __global float* y, int n_size) {
  for (int p = 0; p < panels; p += 2) {
    const float *gate = sums + sums_at(row, p), *up = sums + sums_at(row, p + 1);
    const int n = (panel + p) * 8, columns = min(16, n_size - n);
    __global float* to = y + n;
    int c = 0;
    for (; c + GATE_VW <= columns; c += GATE_VW) {
      const GATE_VEC g = JOIN(vload, GATE_VW)(0, gate + c), u = JOIN(vload, GATE_VW)(0, up + c);
      JOIN(vstore, GATE_VW)(ACTIVATION(g, GATE_VEC) * u, 0, to + c);
    }
    for (; c < columns; ++c) {
      const float g = gate[c], u = up[c];
      to[c] = ACTIVATION(g, float) * u;
    }
  }
}

// w holds panel 0 of gate, panel 0 of up, panel 1 of gate and so on; n_size counts the outputs of one of them.
// y = activation(x gate') * (x up'). Global size (ceil(panels / item_panels), ceil(M / ROWS_BLOCK)), local size 1.
KERNEL void matmul_gated(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                         ulong w_offset, __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size,
                         int item_panels) {
  const int panel = (int)ID(0) * item_panels, first = first_row(ID(1), m_size), rows = rows_of(ID(1), m_size);
  const int panels = min(item_panels, (n_size + 31) / 32 * 4 - panel);
  if (panel * 8 >= n_size) return;
  float sums[SUMS_SIZE];
  add_panels(x + x_offset + (ulong)first * ROW_SIZE(k_size), w + w_offset, panel, panels, sums, rows, k_size);
  for (int row = 0; row < rows; ++row)
    store_gated(sums, row, panel, panels, y + y_offset + (ulong)(first + row) * n_size, n_size);
}
#endif

#if ROUTED
// Row r of y: row r / share of x times weight chosen[r] of `count`, which begin w_stride apart; NaN where there is none
// of that number. Global size (ceil(panels / item_panels), rows of y), local size 1.
KERNEL void matmul_routed(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                          ulong w_offset, ulong w_stride, __global const int* restrict chosen, ulong chosen_offset,
                          __global float* restrict y, ulong y_offset, int count, int share, int n_size, int k_size,
                          int item_panels) {
  const int row = ID(1), panel = (int)ID(0) * item_panels, weight = chosen[chosen_offset + row];
  const int panels = min(item_panels, (n_size + 63) / 64 * 4 - panel);
  if (panel * 16 >= n_size) return;
  y += y_offset + (ulong)row * n_size;
  if (weight < 0 || weight >= count) {
    for (int n = panel * 16; n < min((panel + panels) * 16, n_size); ++n) y[n] = NAN;
    return;
  }
  float sums[SUMS_SIZE];
  add_panels(x + x_offset + (ulong)(row / share) * k_size, w + w_offset + weight * w_stride, panel, panels, sums, 1,
             k_size);
  store_sums(sums, 0, panel, panels, x, 0, y, n_size);
}

#if GATED
// The same for pairs, as matmul_gated has them.
KERNEL void matmul_gated_routed(IDS __global const float* restrict x, ulong x_offset, __global const W* restrict w,
                                ulong w_offset, ulong w_stride, __global const int* restrict chosen,
                                ulong chosen_offset, __global float* restrict y, ulong y_offset, int count, int share,
                                int n_size, int k_size, int item_panels) {
  const int row = ID(1), panel = (int)ID(0) * item_panels, weight = chosen[chosen_offset + row];
  const int panels = min(item_panels, (n_size + 31) / 32 * 4 - panel);
  if (panel * 8 >= n_size) return;
  y += y_offset + (ulong)row * n_size;
  if (weight < 0 || weight >= count) {
    for (int n = panel * 8; n < min((panel + panels) * 8, n_size); ++n) y[n] = NAN;
    return;
  }
  float sums[SUMS_SIZE];
  add_panels(x + x_offset + (ulong)(row / share) * k_size, w + w_offset + weight * w_stride, panel, panels, sums, 1,
             k_size);
  store_gated(sums, 0, panel, panels, y, n_size);
}
#endif
#endif

// to[t] = row ids[t] - first of w, its `dim` numbers, for ids from `first` to `first + n_size` of `all`; the first part
// writes NaN for an id that is no output of any. A vector is read for each number.
// Global size (ceil(dim / chunk), tokens), local size 1.
KERNEL void unpack_rows(IDS __global const W* restrict w, ulong w_offset, __global const int* restrict ids,
                        ulong ids_offset, __global float* restrict to, ulong to_offset, int n_size, int dim,
                        int chunk, int first, int all) {
  const int wanted = ids[ids_offset + ID(1)], id = wanted - first, begin = (int)ID(0) * chunk, end = min(begin + chunk, dim);
  to += to_offset + ID(1) * (ulong)dim;
  if (wanted < first || id >= n_size) {
    if (first == 0 && (wanted < 0 || wanted >= all))
      for (int k = begin; k < end; ++k) to[k] = NAN;
    return;
  }
  const __global W* group = w + w_offset + id / 64 * GROUP_SIZE(dim);
  const int column = id % 64 / VW * VW;
  for (int k = begin; k < end; ++k) {
    const int block = k / SCALED * SCALED;
    const SCALES scales = LOAD_SCALES(group, block, column);
    const LINE line = LOAD_LINE(group + NUMBERS_AT(k) + column);
    float lanes[VW];
    KEEP(NUMBER(line, k % K_OF_LINE, k - block, scales), lanes);
    to[k] = lanes[id % VW];
  }
}

#if STORED < 3 && !defined(IN_GRAPH)  // quantised ones are packed by kernels/pack_q8.cl and kernels/pack_blocks.cl
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
