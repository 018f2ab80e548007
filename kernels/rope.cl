// Rotary position embedding of x [tokens][heads][head_dim]: y is x with each pair of each head rotated by
// angle = position * inverse_frequency, times `factor`; numbers beyond the pairs are copied.
//
//   pair i of P:   rotate-half (x[i], x[i + P])      interleaved (x[2i], x[2i + 1])
//
// One work-group of LANES work-items per token computes each sine and cosine once for all heads, VW pairs at a time.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items that share one token
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "work_item.clh"

// Rotates pair i of every head.
void rotate_one(__global const float* x, __global float* y, int heads, int head_dim, int pairs, int interleaved, int i,
                float cos_, float sin_) {
  const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + pairs;
  for (int at = 0; at < heads * head_dim; at += head_dim) {
    const float u = x[at + a], v = x[at + b];
    y[at + a] = FMA(u, cos_, -(v * sin_));
    y[at + b] = FMA(v, cos_, u * sin_);
  }
}

KERNEL void rope(IDS __global const float* restrict x, ulong x_offset, __global const int* restrict positions,
                 ulong positions_offset, __global const float* restrict inverse_frequencies, __global float* restrict y,
                 ulong y_offset, int heads, int head_dim, int pairs, int interleaved, float factor) {
  const int token = ID(1), lane = LANE_ID;
  const float position = (float)positions[positions_offset + token];
  x += x_offset + (ulong)token * heads * head_dim;
  y += y_offset + (ulong)token * heads * head_dim;
  for (int i = VW * lane; i + VW <= pairs; i += VW * LANES) {
    VEC cos_;
    const VEC sin_ = sincos(position * LOAD(inverse_frequencies + i), &cos_) * factor;
    cos_ *= factor;
    if (interleaved) {
      float c[VW], s[VW];
      STORE(cos_, c);
      STORE(sin_, s);
      for (int j = 0; j < VW; ++j) rotate_one(x, y, heads, head_dim, pairs, 1, i + j, c[j], s[j]);
      continue;
    }
    for (int at = i; at < heads * head_dim; at += head_dim) {
      const VEC u = LOAD(x + at), v = LOAD(x + at + pairs);
      STORE(FMA(u, cos_, -(v * sin_)), y + at);
      STORE(FMA(v, cos_, u * sin_), y + at + pairs);
    }
  }
  for (int i = pairs / VW * VW + lane; i < pairs; i += LANES) {
    float cos_;
    const float sin_ = sincos(position * inverse_frequencies[i], &cos_) * factor;
    rotate_one(x, y, heads, head_dim, pairs, interleaved, i, cos_ * factor, sin_);
  }
  for (int at = 0; at < heads * head_dim; at += head_dim)
    for (int d = 2 * pairs + lane; d < head_dim; d += LANES) y[at + d] = x[at + d];
}
