// Causal convolution and the gated delta rule over the rows of sequences (csrc/ops/recurrent.h).
//
// table: for each sequence (row, count, from, first write, end of writes), then the writes (rows, slot); writes are
// named by the index of their first number. A slot of -1 to start from is a zero state, and nothing is read.
//
// One work-item goes through all rows of a sequence for its share of the state (some channels; some rows of S) and
// keeps that in private memory, so a write on the way changes no bit of what follows. Slots that are read are not
// written.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STATE
#define STATE 0  // storage of convolution states: 0 float32, 1 float16
#endif
#ifndef WIDTH
#define WIDTH 4  // taps of the convolution
#endif
#ifndef BLOCK
#define BLOCK 16  // channels of one work-item: a multiple of VW for vectors, 1 for neighbouring lanes
#endif
#ifndef K_DIM
#define K_DIM 128
#endif
#ifndef ROWS
#define ROWS 8  // rows of S of one work-item; divides v_dim where LANES is 1
#endif
#ifndef LANES
#define LANES 1  // more: work-items that share each row's k and q through local memory; then ROWS is 1
#endif
#ifndef TILE
#define TILE 8  // rows of k and q in local memory at a time
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "reduce.clh"
#include "storage.clh"

#define TAIL (WIDTH - 1)

// ---- causal convolution ---------------------------------------------------------------------------------------------

// T: the numbers of `c` and its neighbours; `inputs` holds the last WIDTH inputs, oldest first.
#define CONVOLVE(NAME, T, READ, WRITE)                                                                              \
  void NAME(__global const float* x, T* taps, __global const STORAGE(STATE) * in, __global STORAGE(STATE) * out,    \
            __global const int* table, __global const int* run, __global float* y, int dim, int c) {                \
    T inputs[WIDTH];                                                                                                \
    for (int i = 0; i < TAIL; ++i)                                                                                  \
      inputs[i] = run[2] < 0 ? (T)(0.0f) : READ(STATE, in + ((ulong)run[2] * TAIL + i) * dim + c);                  \
    int write = run[3];                                                                                             \
    for (int t = 0; t < run[1]; ++t) {                                                                              \
      const ulong at = (ulong)(run[0] + t) * dim + c;                                                               \
      inputs[TAIL] = READ(0, x + at);                                                                               \
      T sum = taps[0] * inputs[0];                                                                                  \
      for (int j = 1; j < WIDTH; ++j) sum = FMA(taps[j], inputs[j], sum);                                           \
      WRITE(0, sum, y + at);                                                                                        \
      for (int i = 0; i < TAIL; ++i) inputs[i] = inputs[i + 1];                                                     \
      if (write == run[4] || table[write] != t + 1) continue;                                                       \
      for (int i = 0; i < TAIL; ++i) WRITE(STATE, inputs[i], out + ((ulong)table[write + 1] * TAIL + i) * dim + c); \
      write += 2;                                                                                                   \
    }                                                                                                               \
  }
CONVOLVE(convolve_vector, VEC, READ_VEC, WRITE_VEC)
CONVOLVE(convolve_one, float, READ1, WRITE1)

__kernel void causal_conv1d(__global const float* restrict x, ulong x_offset, __global const float* restrict weight,
                            ulong weight_offset, __global const STORAGE(STATE) * in, ulong in_offset,
                            __global STORAGE(STATE) * out, ulong out_offset, __global const int* restrict table,
                            __global float* restrict y, ulong y_offset, int dim) {
  __global const int* run = table + 5 * (int)get_global_id(1);
  int c = BLOCK * (int)get_global_id(0);
  const int end = min(c + BLOCK, dim);
  x += x_offset, weight += weight_offset, in += in_offset, out += out_offset, y += y_offset;
#if BLOCK >= VW
  for (; c + VW <= end; c += VW) {
    VEC taps[WIDTH];
    for (int j = 0; j < WIDTH; ++j) {
      float tap[VW];
      for (int i = 0; i < VW; ++i) tap[i] = weight[(c + i) * WIDTH + j];
      taps[j] = LOAD(tap);
    }
    convolve_vector(x, taps, in, out, table, run, y, dim, c);
  }
#endif
  for (; c < end; ++c) {
    float taps[WIDTH];
    for (int j = 0; j < WIDTH; ++j) taps[j] = weight[c * WIDTH + j];
    convolve_one(x, taps, in, out, table, run, y, dim, c);
  }
}

// ---- gated delta rule -----------------------------------------------------------------------------------------------

#define VECTORS ((K_DIM + VW - 1) / VW)

// Numbers VW i to VW (i + 1) - 1 of a row of K_DIM; zeros beyond it.
VEC load_vector(__global const float* row, int i) {
#if K_DIM % VW == 0
  return LOAD(row + VW * i);
#else
  if (VW * i + VW <= K_DIM) return LOAD(row + VW * i);
  float rest[VW] = {0};
  for (int d = VW * i; d < K_DIM; ++d) rest[d - VW * i] = row[d];
  return LOAD(rest);
#endif
}

void store_vector(VEC x, __global float* row, int i) {
#if K_DIM % VW != 0
  if (VW * i + VW > K_DIM) {
    float rest[VW];
    STORE(x, rest);
    for (int d = VW * i; d < K_DIM; ++d) row[d] = rest[d - VW * i];
    return;
  }
#endif
  STORE(x, row + VW * i);
}

#if LANES > 1
#define SHARED __local
#define ROW_VECTOR(row, i) LOAD(row + VW * i)  // rows in local memory have VW VECTORS numbers, zeros beyond K_DIM
#else
#define SHARED __global
#define ROW_VECTOR(row, i) load_vector(row, i)
#endif

// One row for ROWS rows of S; v and y point at the first of them.
void delta_step(VEC S[ROWS][VECTORS], SHARED const float* k, SHARED const float* q, float decay, float beta,
                __global const float* v, __global float* y) {
  VEC seen[ROWS], sum[ROWS];
  float u[ROWS];
  for (int r = 0; r < ROWS; ++r) seen[r] = sum[r] = (VEC)(0.0f);
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const VEC key = ROW_VECTOR(k, i);
    for (int r = 0; r < ROWS; ++r) seen[r] = FMA(S[r][i], key, seen[r]);
  }
  for (int r = 0; r < ROWS; ++r) u[r] = beta * (v[r] - decay * sum_lanes(seen[r]));
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const VEC key = ROW_VECTOR(k, i), query = ROW_VECTOR(q, i);
    for (int r = 0; r < ROWS; ++r) {
      S[r][i] = FMA((VEC)(u[r]), key, decay * S[r][i]);
      sum[r] = FMA(S[r][i], query, sum[r]);
    }
  }
  for (int r = 0; r < ROWS; ++r) y[r] = sum_lanes(sum[r]);
}

void load_state(VEC S[ROWS][VECTORS], __global const float* in, ulong first_row, int slot) {
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < VECTORS; ++i) S[r][i] = slot < 0 ? (VEC)(0.0f) : load_vector(in + (first_row + r) * K_DIM, i);
}

void store_state(VEC S[ROWS][VECTORS], __global float* out, ulong first_row) {
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < VECTORS; ++i) store_vector(S[r][i], out + (first_row + r) * K_DIM, i);
}

// LANES work-items copy `count` rows of k and q from row `row` to local memory.
#if LANES > 1
void share_rows(__global const float* k, __global const float* q, __local float* keys, __local float* queries,
                ulong stride, int count) {
  SYNC;
  for (int i = get_local_id(0); i < count * VW * VECTORS; i += LANES) {
    const int t = i / (VW * VECTORS), d = i % (VW * VECTORS);
    keys[i] = d < K_DIM ? k[t * stride + d] : 0.0f;
    queries[i] = d < K_DIM ? q[t * stride + d] : 0.0f;
  }
  SYNC;
}
#endif

// Global ids: ROWS rows of S, value head, sequence.
__kernel void gated_delta(__global const float* restrict q, ulong q_offset, __global const float* restrict k,
                          ulong k_offset, __global const float* restrict v, ulong v_offset,
                          __global const float* restrict g, ulong g_offset, __global const float* restrict beta,
                          ulong beta_offset, __global const float* in, ulong in_offset, __global float* out,
                          ulong out_offset, __global const int* restrict table, __global float* restrict y,
                          ulong y_offset, int k_heads, int v_heads, int v_dim) {
  const int first = ROWS * (int)get_global_id(0), head = get_global_id(1);
  __global const int* run = table + 5 * (int)get_global_id(2);
  const ulong stride = (ulong)k_heads * K_DIM;  // between the rows of one key head
  const ulong key_row = run[0] * stride + (ulong)(head * k_heads / v_heads) * K_DIM;
  q += q_offset + key_row, k += k_offset + key_row;
  g += g_offset + (ulong)run[0] * v_heads + head, beta += beta_offset + (ulong)run[0] * v_heads + head;
  v += v_offset + ((ulong)run[0] * v_heads + head) * v_dim + first;
  y += y_offset + ((ulong)run[0] * v_heads + head) * v_dim + first;
  const bool mine = first < v_dim;  // lanes beyond v_dim only help to share
  VEC S[ROWS][VECTORS];
  load_state(S, in + in_offset, ((ulong)run[2] * v_heads + head) * v_dim + first, mine ? run[2] : -1);
  int write = run[3];
#if LANES > 1
  __local float keys[TILE * VW * VECTORS], queries[TILE * VW * VECTORS];
#endif
  for (int tile = 0; tile < run[1]; tile += TILE) {
    const int rows = min(TILE, run[1] - tile);
#if LANES > 1
    share_rows(k + tile * stride, q + tile * stride, keys, queries, stride, rows);
#endif
    for (int i = 0; mine && i < rows; ++i) {
      const int t = tile + i;
      const ulong gate = (ulong)t * v_heads;
#if LANES > 1
      delta_step(S, keys + i * VW * VECTORS, queries + i * VW * VECTORS, exp(g[gate]), beta[gate], v + gate * v_dim,
                 y + gate * v_dim);
#else
      delta_step(S, k + t * stride, q + t * stride, exp(g[gate]), beta[gate], v + gate * v_dim, y + gate * v_dim);
#endif
      if (write == run[4] || table[write] != t + 1) continue;
      store_state(S, out + out_offset, ((ulong)table[write + 1] * v_heads + head) * v_dim + first);
      write += 2;
    }
  }
}
