// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights by matrix units that are not NVIDIA's (matrix_unit.clh), or by
// their emulation. k is a multiple of 32.
//
// Weights are read as they are packed (matmul_stored.clh): float16, q8_0 or blocks of 2 to 6 bits, whose integers halves
// hold exactly. A number of x becomes halves, `high` + `low` of a row that was multiplied by a power of two
// (matmul_halves.clh), 22 bits, or with one of TERMS `high` alone, 11: in the product's launch where rows are FEW, else by
// matrix_split before it. Weights of bfloat16, which has float32's range and 8 bits, stay what they are: x becomes three of
// bfloat16 there, 24 bits, or with one of TERMS two, 16 bits.
//
// One order of sums for any number of rows, so that a row's bits do not depend on the rows beside it:
//
//     block   32 k     for each k that share scales, one chain of the unit from 0: all terms of 16 k, then of the others
//     slice   a quarter of the blocks: ascending float32 sums of its blocks, scaled where the type has scales
//     y       (((0 + p_0) + p_1) + p_2) + p_3, divided by the row's power of two, plus `add`
//
// Where a type has a shift, the sum of x that it is multiplied by is a product of the unit, too: by ones.
//
//   FEW 1   up to TILE rows: a group has 32 outputs, and a wave for each slice
//   FEW 0   64 rows x 64 outputs; a wave has ROW_TILES tiles of rows x 32 outputs
//
// A block of both comes to local memory as words of two k, STEP words to a row, so that 8 neighbouring rows of 16 bytes
// lie in different banks. Where AHEAD, the next one is on its way in registers while it is multiplied.
//
// GATED as in kernels/matmul_group.cl: of each 32 packed outputs 16 of the gate and 16 of the other.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 1  // kernels/matmul_stored.clh: 1 to 11
#endif
#ifndef FEW
#define FEW 1
#endif
#ifndef TERMS
#define TERMS 2
#endif
#ifndef LANES
#define LANES 64  // of matrix_split
#endif

#define BFLOATS (STORED == 2)
#define X_TERMS (TERMS + BFLOATS)  // of a number of x

#include "matrix_unit.clh"
#undef VW
#define VW 4
#define SLICE 512             // for matmul_stored.clh alone
#include "matmul_halves.clh"
#include "matmul_stored.clh"  // each time
#include "matmul_lines.clh"
#include "reduce.clh"

#if STORED < 3
#define HAS_SCALES 0
#else
#define HAS_SCALES 1
#endif
#if STORED >= 4 && !defined(Q_ZERO)
#define HAS_SHIFT 1
#else
#define HAS_SHIFT 0
#endif
#define BLOCK_K 32
#define SUBS (SCALED < BLOCK_K ? BLOCK_K / SCALED : 1)  // of a block: k that share scales
#define WAVE_OUTPUTS 32
#define OUTPUT_TILES (WAVE_OUTPUTS / TILE)
#define ROW_TILES (FEW || UNIT != 2 ? 1 : 2)
#define AT_ONCE (FEW ? SLICES : 1)  // slices
#define GROUP_OUTPUTS (FEW ? WAVE_OUTPUTS : 64)
#define GROUP_ROWS (FEW ? TILE : 64)
#define OUTPUT_WAVES (GROUP_OUTPUTS / WAVE_OUTPUTS)
#define ROW_WAVES (GROUP_ROWS / (TILE * ROW_TILES))
#define WAVES (AT_ONCE * OUTPUT_WAVES * ROW_WAVES)
#define GROUP_LANES (WAVES * WAVE)
#define STEP_WORDS 20
#ifndef AHEAD
#define AHEAD (UNIT != 3)  // 8 lanes have no registers for it
#endif

// What lanes bring of a block in pieces: 2 k of 4 outputs (4 where they share a byte), k of a row, 4 scales.
#define PIECE_K (K_OF_LINE < 2 ? 2 : K_OF_LINE)
#define PIECE_LINES (PIECE_K / K_OF_LINE)
#define PIECES_OF_K (BLOCK_K / PIECE_K)
#define W_PIECES (AT_ONCE * PIECES_OF_K * GROUP_OUTPUTS / 4)
#define W_LOADS ((W_PIECES + GROUP_LANES - 1) / GROUP_LANES)
#define SCALE_PIECES (HAS_SCALES * AT_ONCE * SUBS * GROUP_OUTPUTS / 4)
#define SCALE_LOADS ((SCALE_PIECES + GROUP_LANES - 1) / GROUP_LANES)

// Local memory of a block; before the first, of find_exponents.
#define W_WORDS_OF_BLOCK (AT_ONCE * GROUP_OUTPUTS * STEP_WORDS)
#define BLOCK_WORDS (W_WORDS_OF_BLOCK + AT_ONCE * X_TERMS * GROUP_ROWS * STEP_WORDS)
#define LOCAL_WORDS (FEW && GROUP_ROWS * (GROUP_LANES + 4) > BLOCK_WORDS ? GROUP_ROWS * (GROUP_LANES + 4) : BLOCK_WORDS)

#if EMULATED
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

#include "matmul_matrix_blocks.clh"

// ---- one wave ------------------------------------------------------------------------------------------------------

typedef struct {
  int wave, l, slice, outputs, rows;  // of the group: its slice, where its outputs and its rows begin
} Wave;

INLINE void x_words(const __local uint* xs, const Wave* own, int tile, int half_, int term, uint* words) {
  const int first = (own->slice * X_TERMS + term) * GROUP_ROWS + own->rows + tile * TILE;
  UNROLL
  for (int j = 0; j < X_WORDS; ++j)
    words[j] = xs[(first + X_ROW(own->l, j)) * STEP_WORDS + half_ * 8 + X_PAIR(own->l, j)];
}
INLINE void w_words(const __local uint* ws, const Wave* own, int tile, int half_, uint* words) {
  const int first = own->slice * GROUP_OUTPUTS + own->outputs + tile * TILE;
  UNROLL
  for (int j = 0; j < W_WORDS; ++j)
    words[j] = ws[(first + W_OUTPUT(own->l, j)) * STEP_WORDS + half_ * 8 + W_PAIR(own->l, j)];
}

// part += half of a block of x, all its terms, times `w`.
#define MULTIPLY_TERMS(part, row_tile, half_, w)                           \
  UNROLL for (int term = 0; term < X_TERMS; ++term) {                      \
    uint x_[X_WORDS];                                                      \
    x_words(xs, own, row_tile, half_, term, x_);                           \
    MULTIPLY(part, x_, w, own->wave, own->l);                              \
  }

#if EMULATED
#define EXCHANGED , __local uint *fragments
#define EXCHANGE , fragments
#else
#define EXCHANGED
#define EXCHANGE
#endif

// sums [ROW_TILES][OUTPUT_TILES] += a block.
INLINE void multiply_block(const __local uint* xs, const __local uint* ws, const __local float* scales,
                           const __local float* shifts, const Wave* own, SUM_VEC* sums EXCHANGED) {
  UNROLL
  for (int m = 0; m < ROW_TILES; ++m) {
#if HAS_SHIFT
    SUM_VEC all[SUBS];
    uint ones[W_WORDS];
    UNROLL
    for (int j = 0; j < W_WORDS; ++j) ones[j] = 0x3c003c00u;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (h % (3 - SUBS) == 0) all[h % SUBS] = (SUM_VEC)0.0f;
      MULTIPLY_TERMS(all[h % SUBS], m, h, ones)
    }
#endif
    UNROLL
    for (int t = 0; t < OUTPUT_TILES; ++t) {
      SUM_VEC part = (SUM_VEC)0.0f;
      UNROLL
      for (int h = 0; h < 2; ++h) {
        uint w[W_WORDS];
        w_words(ws, own, t, h, w);
        MULTIPLY_TERMS(part, m, h, w)
        if (h < 2 - SUBS) continue;  // scales are for both halves
        SUM_VEC* to = sums + m * OUTPUT_TILES + t;
#if HAS_SCALES
        const int at = (own->slice * SUBS + h % SUBS) * GROUP_OUTPUTS + own->outputs + t * TILE + SUM_OUTPUT(own->l);
#if HAS_SHIFT
        *to = FMA((SUM_VEC)shifts[at], all[h % SUBS], *to);
#endif
        *to = FMA((SUM_VEC)scales[at], part, *to);
#else
        *to += part;
#endif
        part = (SUM_VEC)0.0f;
      }
    }
  }
}

// ---- kernels -------------------------------------------------------------------------------------------------------

// x in terms, [term][M][k_size]; back[r] is what the sums of row r are multiplied by.
// Global size (LANES, M), local size (LANES, 1).
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void matrix_split(
    __global const float* restrict x, ulong x_offset, __global uint* restrict terms, ulong terms_offset,
    __global float* restrict back, ulong back_offset, int m_size, int k_size) {
  __local float shared[LANES];
  const int lane = get_local_id(0), row = get_global_id(1);
  x += x_offset + (ulong)row * k_size;
  terms += (terms_offset + (ulong)row * k_size) / 2;
  float top = 0.0f;
  for (int k = lane * 4; k < k_size; k += LANES * 4)
    top = fmax(top, largest_of_4(*(const __global float4*)(x + k)));
  const int exponent = row_exponent(group_max(top, shared));
  if (lane == 0) back[back_offset + row] = power_of_two(-exponent);
  for (int k = lane * 4; k < k_size; k += LANES * 4) {
    Four four;
    split_4(*(const __global float4*)(x + k) * power_of_two(exponent), &four);
    UNROLL
    for (int term = 0; term < X_TERMS; ++term)
      *(__global uint2*)(terms + ((ulong)term * m_size * k_size + k) / 2) = four.terms[term];
  }
}

// x: float32 where rows are FEW, and `back` is not read; else its terms. Global size (GROUP_LANES * ceil(packed outputs /
// GROUP_OUTPUTS), ceil(M / GROUP_ROWS)), local size (GROUP_LANES, 1).
__kernel WAVE_KERNEL __attribute__((reqd_work_group_size(GROUP_LANES, 1, 1))) void matrix_products(
    __global const X* restrict x, ulong x_offset, __global const float* restrict back, ulong back_offset,
    __global const W* restrict w, ulong w_offset, __global const float* restrict add, ulong add_offset,
    ulong add_stride, int has_add, __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size,
    int y_stride) {
  __local uint blocks_of[LOCAL_WORDS] __attribute__((aligned(16)));
  __local uint *ws = blocks_of, *xs = blocks_of + W_WORDS_OF_BLOCK;
  __local int exponents[GROUP_ROWS];
  __local float scales[HAS_SCALES ? AT_ONCE * SUBS * GROUP_OUTPUTS : 1];
  __local float shifts[HAS_SHIFT ? AT_ONCE * SUBS * GROUP_OUTPUTS : 1];
  FRAGMENTS(WAVES);
  const int lane = get_local_id(0), m0 = (int)get_group_id(1) * GROUP_ROWS;
  const int first = (int)get_group_id(0) * GROUP_OUTPUTS, blocks = k_size / BLOCK_K;
  const Given of = {w + w_offset + first / 64 * GROUP_SIZE(k_size),
                    x + x_offset + (ulong)m0 * k_size,
                    (ulong)m_size * k_size,
                    first % 64,
                    min(m_size - m0, GROUP_ROWS),
                    k_size,
                    blocks,
                    slice_begin(1, blocks)};
  const int wave = lane / WAVE;
  const Wave own = {wave, lane % WAVE, wave % AT_ONCE, wave / AT_ONCE % OUTPUT_WAVES * WAVE_OUTPUTS,
                    wave / (AT_ONCE * OUTPUT_WAVES) * TILE * ROW_TILES};
  SUM_VEC sums[ROW_TILES * OUTPUT_TILES], totals[ROW_TILES * OUTPUT_TILES];
  UNROLL
  for (int i = 0; i < ROW_TILES * OUTPUT_TILES; ++i) sums[i] = totals[i] = (SUM_VEC)0.0f;
  Weights coming[W_LOADS];
  X_PIECE coming_x[X_LOADS];
#define FETCH_ALL(step)                                                                                       \
  UNROLL for (int j = 0; j < W_LOADS; ++j) fetch_w(&of, lane + j * GROUP_LANES, step, coming + j);            \
  UNROLL for (int j = 0; j < X_LOADS; ++j) coming_x[j] = fetch_x(&of, lane + j * GROUP_LANES, step)
  const int steps = FEW ? of.slice : blocks;
#if FEW
  if (lane < GROUP_ROWS) exponents[lane] = 0;  // of rows that are not there
  find_exponents(of.x, of.rows, k_size, lane, (__local float*)blocks_of, exponents);
#endif
  if (AHEAD) {
    FETCH_ALL(0);
  }
  int left = of.slice;
  for (int step = 0; step < steps; ++step) {
    UNROLL
    for (int j = 0; j < W_LOADS; ++j) {
      if (!AHEAD) fetch_w(&of, lane + j * GROUP_LANES, step, coming + j);
      keep_w(coming + j, lane + j * GROUP_LANES, ws);
    }
    UNROLL
    for (int j = 0; j < X_LOADS; ++j)
      keep_x(AHEAD ? coming_x[j] : fetch_x(&of, lane + j * GROUP_LANES, step), lane + j * GROUP_LANES, xs,
             exponents);
    UNROLL
    for (int j = 0; j < SCALE_LOADS; ++j) bring_scales(&of, lane + j * GROUP_LANES, step, scales, shifts);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (AHEAD && step + 1 < steps) {
      FETCH_ALL(step + 1);
    }
    multiply_block(xs, ws, scales, shifts, &own, sums EXCHANGE);
    if (!FEW && (--left == 0 || step + 1 == steps)) {
      left = of.slice;
      UNROLL
      for (int i = 0; i < ROW_TILES * OUTPUT_TILES; ++i) totals[i] += sums[i], sums[i] = (SUM_VEC)0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  y += y_offset;
#if FEW
  __local float* parts = (__local float*)ws;  // [slice][row][output]
  UNROLL
  for (int t = 0; t < OUTPUT_TILES; ++t) {
    float one[SUMS];
    JOIN(vstore, SUMS)(sums[t], 0, one);
    UNROLL
    for (int i = 0; i < SUMS; ++i)
      parts[(own.slice * TILE + SUM_ROW(own.l, i)) * WAVE_OUTPUTS + t * TILE + SUM_OUTPUT(own.l)] = one[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = lane; i < TILE * WAVE_OUTPUTS; i += GROUP_LANES) {
    const int r = i / WAVE_OUTPUTS, output = i % WAVE_OUTPUTS, m = m0 + r;
    if (m >= m_size || (GATED && output >= 16)) continue;
    const float by = power_of_two(-exponents[r]);
    float sum = 0.0f, up = 0.0f;
    for (int s = 0; s < SLICES; ++s) {
      sum += parts[s * TILE * WAVE_OUTPUTS + i];
      if (GATED) up += parts[s * TILE * WAVE_OUTPUTS + i + 16];
    }
    finish(sum * by, up * by, first + output, add + add_offset + (ulong)m * add_stride, has_add,
           y + (ulong)m * y_stride, n_size);
  }
#else
  UNROLL
  for (int m_tile = 0; m_tile < ROW_TILES; ++m_tile) {
    UNROLL
    for (int t = 0; t < (GATED ? OUTPUT_TILES / 2 : OUTPUT_TILES); ++t) {
      float one[SUMS], other[SUMS];
      JOIN(vstore, SUMS)(totals[m_tile * OUTPUT_TILES + t], 0, one);
      JOIN(vstore, SUMS)(totals[m_tile * OUTPUT_TILES + (GATED ? t + OUTPUT_TILES / 2 : t)], 0, other);
      UNROLL
      for (int i = 0; i < SUMS; ++i) {
        const int m = m0 + own.rows + m_tile * TILE + SUM_ROW(own.l, i);
        if (m >= m_size) continue;
        const float by = back[back_offset + m];
        finish(one[i] * by, other[i] * by, first + own.outputs + t * TILE + SUM_OUTPUT(own.l),
               add + add_offset + (ulong)m * add_stride, has_add, y + (ulong)m * y_stride, n_size);
      }
    }
  }
#endif
}
