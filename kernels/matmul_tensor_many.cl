// Products of more than 8 rows by NVIDIA's matrix instructions: the arithmetic of matmul_tensor.cl, in the same order.
//
//   tensor_many     rows whose terms tensor_split made before. A warp has 64 outputs x WARP_ROWS rows, a group
//                   WARPS_M x WARPS_N warps; blocks of both come to local memory some stages ahead. Where groups would
//                   be few, SPLIT: each takes one slice, and tensor_join adds them.
//   tensor_split    rows to terms, in the order of place_of; and what their products are multiplied by.
//   tensor_join     adds the slices of SPLIT.
#pragma OPENCL FP_CONTRACT OFF

#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef SAVE_LOCALLY
#define SAVE_LOCALLY 1  // 1: tensor_many keeps the sums of earlier slices in local memory, 0: in registers
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 32  // of a warp of tensor_many: 32 or 64
#endif
#ifndef SPLIT
#define SPLIT 0
#endif

#include "matmul_tensor.clh"

#define ROW_LANES 128  // of tensor_split and tensor_join

// Row r of x as X_TERMS terms, [term][M][k_size], 16 k in the order of place_of; back[r] is what sums are multiplied by.
// Global size (128, M), local size (128, 1).
__kernel __attribute__((reqd_work_group_size(ROW_LANES, 1, 1))) void tensor_split(
    __global const float* restrict x, ulong x_offset, __global uint* restrict terms, ulong terms_offset,
    __global float* restrict back, ulong back_offset, int m_size, int k_size) {
  __local float tops[SLICES];
  const int lane = get_local_id(0), row = get_global_id(1);
  x += x_offset + (ulong)row * k_size;
  terms += (terms_offset + (ulong)row * k_size) / 2;
  float top = 0.0f;
  for (int k = lane * 4; k < k_size; k += ROW_LANES * 4)
    top = fmax(top, largest_of_4(*(const __global float4*)(x + k)));
  top = largest_of_warp(top);
  if (lane % WARP == 0) tops[lane / WARP] = top;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int exponent = row_exponent(fmax(fmax(tops[0], tops[1]), fmax(tops[2], tops[3])));
  if (lane == 0) back[back_offset + row] = power_of_two(-exponent);
  for (int k = lane * 4; k < k_size; k += ROW_LANES * 4) {
    uint own[X_TERMS][2];
    split_4(*(const __global float4*)(x + k), power_of_two(exponent), own[0], 2);
    __global uint* to = terms + k / 16 * 8 + k % 16 / 4;
#pragma unroll
    for (int i = 0; i < X_TERMS; ++i, to += (ulong)m_size * k_size / 2) to[0] = own[i][0], to[4] = own[i][1];
  }
}

#define WARPS (WARPS_M * WARPS_N)
#define MANY_LANES (WARP * WARPS)
#define UNITS (2 * WARPS_M)  // of a group
#define BLOCK_ROWS (WARP_ROWS * WARPS_N)
#define ROWS8 (WARP_ROWS / 8)  // of a warp: multiplied by one instruction each
#define SUMS (ROWS8 * 16)      // of a lane
#define X_BYTES (BLOCK_ROWS * 64)  // of each term
#define STAGE_BYTES (UNITS * UNIT_BYTES + X_TERMS * X_BYTES)
#define MANY_STAGES_FIT (RING_BYTES / STAGE_BYTES)
#define MANY_STAGES (MANY_STAGES_FIT < 2 ? 2 : MANY_STAGES_FIT > 4 ? 4 : MANY_STAGES_FIT)
#define UNIT_LANES (MANY_LANES / UNITS)  // that bring one unit
#define MANY_LOADS ((UNIT_CHUNKS + UNIT_LANES - 1) / UNIT_LANES)
#define X_LOADS (BLOCK_ROWS * 4 / MANY_LANES)  // of each term

// 8 rows of a block, of which lane l names one: row r of the group.
INLINE void load_rows(uint x_at, int r, int l, Rows8* x) {
  const uint at = x_at + r * 64 + (l / 8 ^ r / 2 % 4) * 16;
  LOAD_4(x->terms[0], at);
  if (X_TERMS > 1) LOAD_4(x->terms[1], at + X_BYTES);
  if (X_TERMS > 2) LOAD_4(x->terms[2], at + 2 * X_BYTES);
}

// Global size (lanes * ceil(M / BLOCK_ROWS), ceil(packed outputs / (64 WARPS_M)), SPLIT: 4), local size (lanes, 1, 1).
// SPLIT: y is [slice][M][packed outputs], of `y_stride` in all, and nothing is divided, added or activated.
__kernel __attribute__((reqd_work_group_size(MANY_LANES, 1, 1))) void tensor_many(
    __global const ushort* restrict terms, ulong terms_offset, __global const float* restrict back, ulong back_offset,
    __global const uchar* restrict w, ulong w_offset, __global const float* restrict add, ulong add_offset,
    ulong add_stride, int has_add, __global float* restrict y, ulong y_offset, int m_size, int n_size, int k_size,
    int y_stride, int groups) {
  __local uchar ring[MANY_STAGES * STAGE_BYTES] __attribute__((aligned(128)));
  const int lane = get_local_id(0), l = lane % WARP, warp = lane / WARP, warp_m = warp % WARPS_M,
            warp_n = warp / WARPS_M;
  const int m0 = (int)get_group_id(0) * BLOCK_ROWS, group0 = (int)get_group_id(1) * WARPS_M, blocks = k_size / UNIT_K;
  const uint ring_at = ADDRESS(ring);
  const int own_unit = lane / UNIT_LANES, unit_lane = lane % UNIT_LANES;
  const __global uchar* group = w + w_offset + min(group0 + own_unit / 2, groups - 1) * GROUP_BYTES(k_size);
  Chunk chunks[MANY_LOADS];
#pragma unroll
  for (int j = 0; j < MANY_LOADS; ++j)
    chunks[j] = chunk_of(min(unit_lane + j * UNIT_LANES, UNIT_CHUNKS - 1), own_unit % 2);
  const __global ushort* rows[X_LOADS];
  uint rows_to[X_LOADS];
#pragma unroll
  for (int j = 0; j < X_LOADS; ++j) {
    const int i = lane + j * MANY_LANES, r = i / 4, c = i % 4;
    rows[j] = terms + terms_offset + (ulong)min(m0 + r, m_size - 1) * k_size + c * 8;
    rows_to[j] = UNITS * UNIT_BYTES + r * 64 + (c ^ r / 2 % 4) * 16;
  }
  const ulong term_size = (ulong)m_size * k_size;
#define BRING(stage, block)                                                                           \
  do {                                                                                                \
    const uint to_ = ring_at + (stage)*STAGE_BYTES;                                                   \
    bring_unit(chunks, MANY_LOADS, group, block, to_ + own_unit * UNIT_BYTES, unit_lane, UNIT_LANES); \
    _Pragma("unroll") for (int j_ = 0; j_ < X_LOADS; ++j_) {                                          \
      COPY_16(to_ + rows_to[j_], rows[j_] + (block)*UNIT_K);                                          \
      if (X_TERMS > 1) COPY_16(to_ + rows_to[j_] + X_BYTES, rows[j_] + term_size + (block)*UNIT_K);   \
      if (X_TERMS > 2)                                                                                \
        COPY_16(to_ + rows_to[j_] + 2 * X_BYTES, rows[j_] + 2 * term_size + (block)*UNIT_K);          \
    }                                                                                                 \
  } while (0)
  const int first = SPLIT ? slice_begin(get_group_id(2), blocks) : 0;
  const int last = SPLIT ? slice_begin(get_group_id(2) + 1, blocks) : blocks, slice = slice_begin(1, blocks);
#pragma unroll
  for (int s = 0; s < MANY_STAGES - 1; ++s) {
    if (first + s < last) BRING(s, first + s);
    COMMIT();
  }
  float sums[ROWS8][4][4];  // [8 rows][tile of 16 outputs][as MULTIPLY has them]
#if SAVE_LOCALLY
  __local float saved[SUMS * MANY_LANES];
#define SAVED(i) saved[(i)*MANY_LANES + lane]
#else
  float saved[SUMS];
#define SAVED(i) saved[i]
#endif
#pragma unroll
  for (int i = 0; i < SUMS; ++i) SAVED(i) = sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
  int stage = 0, left = slice;
  for (int block = first; block < last; ++block) {
    ARRIVED(MANY_STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int next = block + MANY_STAGES - 1, to = stage == 0 ? MANY_STAGES - 1 : stage - 1;
    if (next < last) BRING(to, next);
    COMMIT();
    const uint x_at = ring_at + stage * STAGE_BYTES + UNITS * UNIT_BYTES;
    uint a[4][8];
    Factors factors[4][2];
    Rows8 x[2];
    load_rows(x_at, warp_n * WARP_ROWS + l % 8, l, x);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int at = stage * STAGE_BYTES + (2 * warp_m + u) * UNIT_BYTES;
      uint raw[RAW];
      read_unit(ring_at + at, l, raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = i / 2, h = i % 2;
        fragment(raw, ring + at, tile, h, l / 4, a[2 * u + tile] + 4 * h);
#if HAS_FACTORS
        if (h < SUBS) factors[2 * u + tile][h] = factors_of(ring + at, tile, h, l / 4);
#endif
      }
    }
#pragma unroll
    for (int j = 0; j < ROWS8; ++j) {
      if (j + 1 < ROWS8) load_rows(x_at, warp_n * WARP_ROWS + (j + 1) * 8 + l % 8, l, x + (j + 1) % 2);
      float all[4];
#if HAS_SHIFT
      add_rows(x + j % 2, all);
#endif
      add_products(4, a, factors, x + j % 2, all, sums[j]);
    }
    if (++stage == MANY_STAGES) stage = 0;
    if (--left == 0 || block + 1 == last) {
      left = slice;
#pragma unroll
      for (int i = 0; i < SUMS; ++i) {
        SAVED(i) += sums[i / 16][i / 4 % 4][i % 4];
        sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < ROWS8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int m = m0 + warp_n * WARP_ROWS + j * 8 + l % 4 * 2 + c % 2;
      if (m >= m_size) continue;
      const int output = (group0 + warp_m) * 64 + OUTPUT_OF(l / 4, c / 2);
#if SPLIT
      __global float* to = y + y_offset + ((ulong)get_group_id(2) * m_size + m) * y_stride;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (group0 + warp_m < groups) to[output + 16 * i] = SAVED(16 * j + 4 * i + c);
#else
      const float by = back[back_offset + m];
#pragma unroll
      for (int i = 0; i < 4; i += 1 + (GATED > 0))
        finish(SAVED(16 * j + 4 * i + c) * by, GATED ? SAVED(16 * j + 4 * (i + (GATED > 0)) + c) * by : 0.0f,
               output + 16 * i, add + add_offset + (ulong)m * add_stride, has_add, y + y_offset + (ulong)m * y_stride,
               n_size);
#endif
    }
}

// Adds the slices of SPLIT: parts [4][M][packed]. Global size (outputs rounded up to 128, M), local size (128, 1).
__kernel __attribute__((reqd_work_group_size(ROW_LANES, 1, 1))) void tensor_join(
    __global const float* restrict parts, ulong parts_offset, __global const float* restrict back, ulong back_offset,
    __global const float* restrict add, ulong add_offset, ulong add_stride, int has_add, __global float* restrict y,
    ulong y_offset, int m_size, int n_size, int packed, int y_stride) {
  const int n = get_global_id(0), m = get_global_id(1);
  if (n >= n_size) return;
  const int output = GATED ? n / 16 * 32 + n % 16 : n;
  float sum = 0.0f, up = 0.0f;
#pragma unroll
  for (int s = 0; s < SLICES; ++s) {
    const __global float* part = parts + parts_offset + ((ulong)s * m_size + m) * packed + output;
    sum += part[0];
#if GATED
    up += part[16];
#endif
  }
  const float by = back[back_offset + m];
  finish(sum * by, up * by, output, add + add_offset + (ulong)m * add_stride, has_add,
         y + y_offset + (ulong)m * y_stride, n_size);
}
