// Rotary position embedding of x [tokens][heads][head_dim]: y is x with each pair of each head rotated by
// angle = position * inverse_frequency, times `factor`; numbers beyond the pairs are copied.
//
//   pair i of P:   rotate-half (x[i], x[i + P])      interleaved (x[2i], x[2i + 1])
//
// One work-group of LANES work-items per token computes each sine and cosine once for all heads, eight pairs at a time.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items that share one token
#endif

// Rotates pair i of every head.
void rotate_one(__global const float* x, __global float* y, int heads, int head_dim, int pairs, int interleaved, int i,
                float cos_, float sin_) {
  const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + pairs;
  for (int at = 0; at < heads * head_dim; at += head_dim) {
    const float u = x[at + a], v = x[at + b];
    y[at + a] = fma(u, cos_, -(v * sin_));
    y[at + b] = fma(v, cos_, u * sin_);
  }
}

__kernel void rope(__global const float* restrict x, ulong x_offset, __global const int* restrict positions,
                   ulong positions_offset, __global const float* restrict inverse_frequencies,
                   __global float* restrict y, ulong y_offset, int heads, int head_dim, int pairs, int interleaved,
                   float factor) {
  const int token = get_global_id(1), lane = get_local_id(0);
  const float position = (float)positions[positions_offset + token];
  x += x_offset + (ulong)token * heads * head_dim;
  y += y_offset + (ulong)token * heads * head_dim;
  for (int i = 8 * lane; i + 8 <= pairs; i += 8 * LANES) {
    float8 cos_;
    const float8 sin_ = sincos(position * vload8(0, inverse_frequencies + i), &cos_) * factor;
    cos_ *= factor;
    if (interleaved) {
      float c[8], s[8];
      vstore8(cos_, 0, c);
      vstore8(sin_, 0, s);
      for (int j = 0; j < 8; ++j) rotate_one(x, y, heads, head_dim, pairs, 1, i + j, c[j], s[j]);
      continue;
    }
    for (int at = i; at < heads * head_dim; at += head_dim) {
      const float8 u = vload8(0, x + at), v = vload8(0, x + at + pairs);
      vstore8(fma(u, cos_, -(v * sin_)), 0, y + at);
      vstore8(fma(v, cos_, u * sin_), 0, y + at + pairs);
    }
  }
  for (int i = pairs / 8 * 8 + lane; i < pairs; i += LANES) {
    float cos_;
    const float sin_ = sincos(position * inverse_frequencies[i], &cos_) * factor;
    rotate_one(x, y, heads, head_dim, pairs, interleaved, i, cos_ * factor, sin_);
  }
  for (int at = 0; at < heads * head_dim; at += head_dim)
    for (int d = 2 * pairs + lane; d < head_dim; d += LANES) y[at + d] = x[at + d];
}
