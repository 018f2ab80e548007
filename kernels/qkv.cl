// What lies between the projections and attention, in one launch: each head of q and k is normed (RMS, where there is a
// weight) and rotated (RoPE, where there are pairs), q goes to a tensor of its own, k and v go into the step's cells.
//
//   qkv [rows][heads * K_DIM | kv_heads * K_DIM | kv_heads * v_dim]  ->  q [rows][heads][K_DIM]
//                                                                        K [kv_heads][cells], V likewise: cell_format.clh
//   table [rows][2] = (position, cell); cell -1: nothing of the row is stored
//
// One work-group of LANES work-items handles one (row, KV head) with its query heads. The arithmetic is that of
// rows.cl (rms_norm), rope.cl and cells.cl, number by number, so the bits are those of the separate launches; v takes
// no detour. Every barrier is reached by all work-items of a group.
#pragma OPENCL FP_CONTRACT OFF

#ifndef K_DIM
#define K_DIM 64  // numbers per head of q and k
#endif
#ifndef LANES
#define LANES 1  // work-items of a group, a power of two
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "norm.clh"
#include "cell_format.clh"

// Numbers of a weight of one head; `weight` is not read where `present` is 0.
typedef struct {
  __global const float* weight;
  int present;
  float eps, offset;
} Norm;

// Pairs of a head and how they turn at this row's position.
typedef struct {
  GROUP_MEM const float *cos_, *sin_;
  int pairs, interleaved;
} Turn;

// Sines and cosines of one position, VW pairs at a time and the rest one by one.
void find_turn(float position, __global const float* inverse_frequencies, int pairs, float factor,
               GROUP_MEM float* cos_, GROUP_MEM float* sin_) {
  const int lane = LANE_ID;
  for (int i = VW * lane; i + VW <= pairs; i += VW * LANES) {
    VEC c;
    const VEC s = sincos(position * LOAD(inverse_frequencies + i), &c) * factor;
    STORE(c * factor, cos_ + i);
    STORE(s, sin_ + i);
  }
  for (int i = pairs / VW * VW + lane; i < pairs; i += LANES) {
    float c;
    const float s = sincos(position * inverse_frequencies[i], &c) * factor;
    cos_[i] = c * factor;
    sin_[i] = s;
  }
  SYNC;
}

// One head, normed and rotated, in `head` [K_DIM].
void prepare_head(__global const float* x, Norm norm, Turn turn, GROUP_MEM float* head, GROUP_MEM float* shared) {
  const int lane = LANE_ID, dim = K_DIM;
#if LANES > 1  // no barrier in a branch, though it is uniform: PoCL 3.1 then gets what is left over of a head wrong
  const float squares = row_squares(x, 0.0f, dim, shared);
#else
  const float squares = norm.present ? row_squares(x, 0.0f, dim, shared) : 0.0f;
#endif
  if (norm.present) {
    const float scale = 1.0f / sqrt(squares / dim + norm.eps);
    FOR_VECTORS(d) STORE(LOAD(x + d) * scale * (norm.offset + LOAD(norm.weight + d)), head + d);
    FOR_REST(d) head[d] = x[d] * scale * (norm.offset + norm.weight[d]);
  } else {
    FOR_VECTORS(d) STORE(LOAD(x + d), head + d);
    FOR_REST(d) head[d] = x[d];
  }
  SYNC;
  const int pairs = turn.pairs, whole = turn.interleaved ? 0 : pairs / VW * VW;
  for (int i = VW * lane; i < whole; i += VW * LANES) {
    const VEC u = LOAD(head + i), v = LOAD(head + i + pairs);
    const VEC c = LOAD(turn.cos_ + i), s = LOAD(turn.sin_ + i);
    STORE(FMA(u, c, -(v * s)), head + i);
    STORE(FMA(v, c, u * s), head + i + pairs);
  }
  for (int i = whole + lane; i < pairs; i += LANES) {
    const int a = turn.interleaved ? 2 * i : i, b = turn.interleaved ? 2 * i + 1 : i + pairs;
    const float u = head[a], v = head[b];
    head[a] = FMA(u, turn.cos_[i], -(v * turn.sin_[i]));
    head[b] = FMA(v, turn.cos_[i], u * turn.sin_[i]);
  }
  SYNC;
}

// Global size (LANES, rows, kv_heads), local size (LANES, 1, 1).
KERNEL void put_qkv(IDS __global const float* restrict qkv, ulong qkv_offset, __global const int* restrict table,
                    __global const float* restrict inverse_frequencies, int pairs, int interleaved, float factor,
                    __global const float* restrict q_norm, ulong q_norm_offset, int has_q_norm,
                    __global const float* restrict k_norm, ulong k_norm_offset, int has_k_norm, float eps, float offset,
                    __global float* restrict q, ulong q_offset, __global K_CELL* restrict k_pool,
                    ulong k_offset, __global V_CELL* restrict v_pool, ulong v_offset, ulong cells, int heads,
                    int kv_heads, int v_dim) {
  GROUP_MEM float shared[LANES], head[K_DIM], cos_[K_DIM / 2 + 1], sin_[K_DIM / 2 + 1];
  const int row = ID(1), group = ID(2), lane = LANE_ID, dim = K_DIM;
  const int each = heads / kv_heads, cell = table[2 * row + 1];
  find_turn((float)table[2 * row], inverse_frequencies, pairs, factor, cos_, sin_);
  const Turn turn = {cos_, sin_, pairs, interleaved};
  const Norm of_q = {q_norm + q_norm_offset, has_q_norm, eps, offset};
  const Norm of_k = {k_norm + k_norm_offset, has_k_norm, eps, offset};
  qkv += qkv_offset + (ulong)row * ((ulong)(heads + kv_heads) * dim + (ulong)kv_heads * v_dim);
  q += q_offset + (ulong)row * heads * dim;
  for (int h = group * each; h < (group + 1) * each; ++h) {
    prepare_head(qkv + h * dim, of_q, turn, head, shared);
    FOR_VECTORS(d) STORE(LOAD(head + d), q + h * dim + d);
    FOR_REST(d) q[h * dim + d] = head[d];
    SYNC;
  }
  prepare_head(qkv + (heads + group) * dim, of_k, turn, head, shared);
  if (cell < 0) return;
  k_pool += k_offset + ((ulong)group * cells + cell) * CELL_WORDS(K_FORMAT, dim);
#define K_VECTOR(d) LOAD(head + (d))
#define K_NUMBER(d) head[d]
  WRITE_CELL_ROW(K_FORMAT, k_pool, dim, K_VECTOR, K_NUMBER);
  qkv += (heads + kv_heads) * dim + group * v_dim;
  v_pool += v_offset + ((ulong)group * cells + cell) * CELL_WORDS(V_FORMAT, v_dim);
#define V_VECTOR(d) LOAD(qkv + (d))
#define V_NUMBER(d) qkv[d]
  WRITE_CELL_ROW(V_FORMAT, v_pool, v_dim, V_VECTOR, V_NUMBER);
}
