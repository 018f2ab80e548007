// y[m][n] = sum_k x[m][k] * w[n][k] for packed weights by NVIDIA's matrix instructions. k is a multiple of 32.
//
// Weights are read as they are packed (matmul_tensor_stored.clh): float16, q8_0 or blocks of 2 to 6 bits, all of which
// halves hold exactly. A number of x becomes two halves, `high` + `low`, after its row was multiplied by a power of two
// (row_exponent), so two multiplications have 22 of float32's 24 bits, whatever the row's size. With one of TERMS it is
// `high` alone, 11 bits. Weights of bfloat16, which has float32's range and 8 bits, stay what they are: x becomes three of
// bfloat16 there, 24 bits, or with one of TERMS two, 16 bits.
//
// One order of sums for any number of rows, so that a row's bits do not depend on the rows beside it:
//
//     block   32 k     one chain of the matrix unit: all terms of the first 16 k, then of the others, from 0;
//                      CHAINED, from the sum of the slice's blocks before it
//     slice   a quarter of the blocks: ascending float32 sums of its blocks, scaled where the type has scales
//     y       (((0 + p_0) + p_1) + p_2) + p_3, divided by the row's power of two, plus `add`
//
//   tensor_few      up to 8 rows. A warp takes a slice of 32 outputs, and waits for no other's:
//
//                       | block 7: w, x | block 8: w, x | block 9 ..      on their way into a ring of its own
//                       lane 4 g + t makes terms of k 4 t .. 4 t + 3 of row g, as it needs them
//
//   tensor_split, tensor_many, tensor_join   more rows: matmul_tensor_many.cl
//
// NORMED: what is multiplied is rms_norm of x, whose weight comes as one more row of each block
// (matmul_tensor_norm.clh). QKV: y are q, k and v, which are rotated and stored (matmul_tensor_qkv.clh).
//
// GATED as in kernels/matmul_group.cl: of each 64 packed outputs 16 of the gate and 16 of the other take turns.
#pragma OPENCL FP_CONTRACT OFF

#ifndef ROWS
#define ROWS 8  // of a group: 1 or 8
#endif

#ifndef NORMED
#define NORMED 0
#endif

#include "matmul_tensor.clh"  // each time
#include "matmul_tensor_norm.clh"  // each time
#include "work_group.clh"

#ifndef QKV
#define QKV 0
#endif
#if QKV
#include "matmul_tensor_qkv.clh"  // each time
#endif

#define FEW_LANES 128  // a warp for each slice
#define X_ROWS (ROWS + NORMED)
#define X_CHUNKS (X_ROWS * 8)  // of 16 bytes
#define FEW_X_BYTES (X_ROWS * UNIT_K * 4)
#define FEW_BYTES (UNIT_BYTES + FEW_X_BYTES)                   // of a block
#define AT_ONCE (RING_BYTES / SLICES / FEW_BYTES < 4 ? 1 : 2)  // blocks of a stage
#define FEW_STAGES (RING_BYTES / SLICES / (AT_ONCE * FEW_BYTES))
#define FEW_RING (FEW_STAGES * AT_ONCE * FEW_BYTES)  // of a warp
#define FEW_X_LOADS ((X_CHUNKS + WARP - 1) / WARP)
#define FEW_LOADS ((UNIT_CHUNKS + WARP - 1) / WARP)

// What x of a lane's row is multiplied by before it is split; `norm` where NORMED.
typedef struct {
  float factor;
  Norm norm;
} Scaling;

// Adds `count` blocks that are there, x beside the units: two at a time hide what one waits for.
INLINE void multiply_blocks(int count, uint at, __local const uchar* here, int l, int g, Scaling by, float sums[][4]) {
  const int x_at = UNIT_BYTES + g * 128 + l % 4 * 16, swap = g % 2 * 64;
  const int norm_at = UNIT_BYTES + ROWS * 128 + l % 4 * 16;
  Rows8 x[2];
  uint raw[2][RAW];
#pragma unroll
  for (int b = 0; b < count; ++b) {
    read_unit(at + b * FEW_BYTES, l, raw[b]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float4 four = *(const __local float4*)(here + b * FEW_BYTES + x_at + (64 * h ^ swap));
#if NORMED
      four = normed(four, *(const __local float4*)(here + b * FEW_BYTES + norm_at + 64 * h), by.norm);
#endif
      split_4(four, by.factor, x[b].terms[0] + 2 * h, 4);
    }
  }
#pragma unroll
  for (int b = 0; b < count; ++b) {
    uint a[2][8];
    Factors factors[2][2];
    float all[4];
#if HAS_SHIFT
    add_rows(x + b, all);
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = i / 2, h = i % 2;
      fragment(raw[b], here + b * FEW_BYTES, tile, h, l / 4, a[tile] + 4 * h);
#if HAS_FACTORS
      if (h < SUBS) factors[tile][h] = factors_of(here + b * FEW_BYTES, tile, h, l / 4);
#endif
    }
    add_products(2, a, factors, x + b, all, sums);
  }
}

// Global size (128 * units of 32 packed outputs, ceil(M / ROWS)), local size (128, 1).
GROUP_KERNEL(FEW_LANES) void tensor_few(
    GROUP_IDS __global const float* ALONE x, ulong x_offset, __global const uchar* ALONE w, ulong w_offset,
    __global const float* ALONE add, ulong add_offset, ulong add_stride, int has_add, __global float* ALONE y,
    ulong y_offset, int m_size, int n_size, int k_size, int y_stride
#if NORMED || defined(IN_GROUPS)
    ,
    __global const float* ALONE weight, ulong weight_offset, float eps, float offset
#endif
#if QKV || defined(IN_GROUPS)
    ,
    __global const int* ALONE table, __global const float* ALONE inverse_frequencies, float factor, int outputs_from,
    int heads, int kv_heads, int k_dim, int v_dim, int pairs, int interleaved,
    __global STORAGE(CELL_FORMAT) * ALONE k_pool, ulong k_offset, __global STORAGE(V_FORMAT) * ALONE v_pool,
    ulong v_offset, ulong cells
#endif
) {
  LOCAL_BYTES(rings, SLICES * FEW_RING, 0);
  LOCAL_ARRAY(float, tops, TOPS * ROWS, SLICES * FEW_RING);
#if NORMED
  LOCAL_ARRAY(float, scales, ROWS, SLICES * FEW_RING + 4 * TOPS * ROWS);
  weight += weight_offset;
#endif
  const int lane = get_local_id(0), l = lane % WARP, warp = lane / WARP, m0 = GROUP_ID(1) * ROWS;
  const int unit_at = GROUP_ID(0), blocks = k_size / UNIT_K;
  const int begin = slice_begin(warp, blocks), end = slice_begin(warp + 1, blocks);
  const __global uchar* group = w + w_offset + unit_at / 2 * GROUP_BYTES(k_size);
  __local uchar* ring = rings + warp * FEW_RING;
  const uint ring_at = ADDRESS(ring);
  x += x_offset;
  Chunk chunks[FEW_LOADS];
#pragma unroll
  for (int j = 0; j < FEW_LOADS; ++j) chunks[j] = chunk_of(min(l + j * WARP, UNIT_CHUNKS - 1), unit_at % 2);
#if QKV
  const Heads of = {outputs_from, heads, kv_heads, k_dim, v_dim, pairs, interleaved};
  const int2 tiles = tiles_of(unit_at, of);
#pragma unroll
  for (int j = 0; j < FEW_LOADS; ++j)
    chunks[j].from += moved_by(min(l + j * WARP, UNIT_CHUNKS - 1), unit_at, tiles, outputs_from, k_size);
#endif
  const __global float* rows[FEW_X_LOADS];  // 16 bytes of a row: those of rows r and r + 1 lie in other banks
  uint rows_to[FEW_X_LOADS];
#pragma unroll
  for (int j = 0; j < FEW_X_LOADS; ++j) {
    const int i = (l + j * WARP) % X_CHUNKS, r = i / 8, c = i % 8;
    rows[j] = x + (ulong)min(m0 + r, m_size - 1) * k_size + c * 4;
    rows_to[j] = UNIT_BYTES + r * 128 + (c ^ r % 2 * 4) * 16;
#if NORMED
    if (r == ROWS) {
      rows[j] = weight + c * 4;
      rows_to[j] = UNIT_BYTES + r * 128 + c * 16;
    }
#endif
  }
#define FEW_BRING(stage, block, with_rows, with_weights)                                         \
  _Pragma("unroll") for (int b_ = 0; b_ < AT_ONCE; ++b_) {                                       \
    if ((block) + b_ < end) {                                                                    \
      const uint to_ = ring_at + ((stage)*AT_ONCE + b_) * FEW_BYTES;                             \
      if (with_rows) {                                                                           \
        _Pragma("unroll") for (int j_ = 0; j_ < FEW_X_LOADS; ++j_) {                             \
          COPY_16_IF((j_ + 1) * WARP <= X_CHUNKS || l + j_ * WARP < X_CHUNKS, to_ + rows_to[j_], \
                     rows[j_] + ((block) + b_) * UNIT_K);                                        \
        }                                                                                        \
      }                                                                                          \
      if (with_weights) bring_unit(chunks, FEW_LOADS, group, (block) + b_, to_, l, WARP);        \
    }                                                                                            \
  }
#ifdef IN_GROUPS  // weights depend on nothing: all that fit are on their way while x is waited for
#define WEIGHTS_APART 1
#pragma unroll
  for (int s = 0; s < FEW_STAGES - 1; ++s) FEW_BRING(s, begin + AT_ONCE * s, 0, 1);
  AWAIT();
#else
#define WEIGHTS_APART 0
#endif
#pragma unroll
  for (int s = 0; s < FEW_STAGES - 1; ++s) {
    FEW_BRING(s, begin + AT_ONCE * s, 1, !WEIGHTS_APART);
    COMMIT();
  }
#if QKV  // one pair for each lane
  const int r = lane / 16, m = min(m0 + r, m_size - 1);
  const Pair pair = pair_of(lane % 16, tiles, of, (float)table[2 * m], inverse_frequencies, factor);
#endif
#if NORMED
  find_norms(x, m0, m_size, k_size, weight, eps, offset, lane, scales, tops);
#else
  find_tops(x, m0, m_size, k_size, lane, tops);
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  const int g = ROWS > 1 ? l / 4 : 0;
  Scaling by = {power_of_two(exponent_of(tops, g)), {1.0f, 0.0f}};
#if NORMED
  by.norm.scale = scales[g];
  by.norm.offset = offset;
#endif
  float sums[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
  int stage = 0;
  for (int block = begin; block < end; block += AT_ONCE) {
    ARRIVED(FEW_STAGES - 2);
    SYNC_WARP();  // the blocks are there, and nobody reads those before them any more
    const int to = stage == 0 ? FEW_STAGES - 1 : stage - 1;
    FEW_BRING(to, block + AT_ONCE * (FEW_STAGES - 1), 1, 1);
    COMMIT();
    const int at = stage * AT_ONCE * FEW_BYTES;
    if (AT_ONCE == 2 && block + 1 < end)
      multiply_blocks(2, ring_at + at, ring + at, l, g, by, sums);
    else
      multiply_blocks(1, ring_at + at, ring + at, l, g, by, sums);
    if (++stage == FEW_STAGES) stage = 0;
  }
  ARRIVED(0);
  SYNC_WARP();
  __local float* parts = (__local float*)rings;  // [slice], a ring apart: [ROWS][32]
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int r = l % 4 * 2 + c % 2;
      if (r < ROWS) parts[warp * FEW_RING / 4 + r * UNIT_OUTPUTS + tile * 16 + OUTPUT_OF(l / 4, c / 2)] = sums[tile][c];
    }
  barrier(CLK_LOCAL_MEM_FENCE);
#define TOTAL(to, r, output)                                                                                      \
  float to = 0.0f;                                                                                                \
  _Pragma("unroll") for (int s = 0; s < SLICES; ++s) to += parts[s * FEW_RING / 4 + (r)*UNIT_OUTPUTS + (output)]; \
  to *= power_of_two(-exponent_of(tops, r))
#if QKV
  if (r >= ROWS || m0 + r >= m_size) return;
  TOTAL(u, r, pair.first);
  TOTAL(v, r, pair.second);
  const Place to = {y + y_offset + (ulong)m * y_stride, k_pool + k_offset, v_pool + v_offset, cells, table[2 * m + 1]};
  put_pair(u, v, pair, has_add ? add + add_offset - outputs_from : 0, outputs_from + n_size, of, to);
#else
  for (int i = lane; i < ROWS * UNIT_OUTPUTS; i += FEW_LANES) {
    const int r = i / UNIT_OUTPUTS, output = i % UNIT_OUTPUTS, m = m0 + r;
    if (m >= m_size || (GATED && output >= 16)) continue;
    TOTAL(sum, r, output);
#if GATED
    TOTAL(up, r, output + 16);
#else
    const float up = 0.0f;
#endif
    finish(sum, up, unit_at * UNIT_OUTPUTS + output, add + add_offset + (ulong)m * add_stride, has_add,
           y + y_offset + (ulong)m * y_stride, n_size);
  }
#endif
}
