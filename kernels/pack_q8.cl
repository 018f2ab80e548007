// Quantises a weight to q8_0 (kernels/q8.clh) and lays it out in panels for kernels/matmul.cl.
//
// w is [N][K], or [K][N] when `transposed` is 0; its panel i of 16 outputs goes to panel i * step + first. A scale that
// rounds to zero in float16 leaves a block of zeros. `largest` becomes the bits of the largest magnitude in w, of a NaN
// before everything else: the host decides from it whether q8_0 can hold w.
//
// Global size (panels of w, ceil(K / 32)), local size 1: one work-item quantises one block of 16 outputs.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 0  // storage of w: 0 float32, 1 float16, 2 bfloat16
#endif
#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "work_item.clh"
#include "q8.clh"
#include "storage.clh"

// a / b rounded to nearest, whatever the device's own division is: it may be 2.5 units in the last place off (OpenCL
// 1.2, 7.4). Of the numbers around it the one with the least remainder; remainders are exact. REQUIRES: a quotient and
// neighbours that are normal numbers.
#ifndef DIVISION_OFF
#define DIVISION_OFF 0  // units by which tests make the device's division wrong
#endif
float quotient(float a, float b) {
  const int near = as_int(a / b) + DIVISION_OFF;
  float best = as_float(near), least = fabs(fma(best, b, -a));
  for (int off = -3; off <= 3; ++off) {
    const float other = as_float(near + off), rest = fabs(fma(other, b, -a));
    if (rest < least) best = other, least = rest;
  }
  return best;
}

// Scale and integers of x [Q8_BLOCK] for output i of a panel; the magnitude's bits.
uint quantise_block(const float* x, __global char* scales, __global char* numbers, int i) {
  uint most = 0;
  for (int k = 0; k < Q8_BLOCK; ++k) most = max(most, as_uint(fabs(x[k])));
  // Below 2^-30 the scale is zero in float16 (its least is 2^-24) and nothing is divided.
  const float magnitude = as_float(most), d = magnitude < 0x1p-30f ? 0.0f : quotient(magnitude, 127.0f);
  vstore_half_rte(d, i, (__global half*)scales);
  const float inverse = vload_half(i, (const __global half*)scales) > 0.0f ? quotient(1.0f, d) : 0.0f;
  for (int k = 0; k < Q8_BLOCK; ++k) numbers[k * 64 + i] = convert_char_sat(round(x[k] * inverse));
  return most;
}

KERNEL void pack_q8(IDS __global const STORAGE(STORED) * restrict w, ulong w_offset, __global char* restrict panels,
                    __global uint* restrict largest, int n_size, int k_size, int transposed, int step, int first) {
  const int panel = ID(0), to = panel * step + first, begin = (int)ID(1) * Q8_BLOCK;
  __global char* group = panels + to / 4 * q8_group_size(k_size);
  uint most = 0;
  for (int i = 0; i < 16; ++i) {
    const int n = panel * 16 + i;
    float x[Q8_BLOCK];
    for (int j = 0; j < Q8_BLOCK; ++j) {
      const int k = begin + j;
      const ulong from = transposed ? (ulong)n * k_size + k : (ulong)k * n_size + n;
      x[j] = n < n_size && k < k_size ? READ1(STORED, w + w_offset + from) : 0.0f;
    }
    most = max(most, quantise_block(x, group + q8_scales_at(begin) + to % 4 * 32,
                                    group + q8_numbers_at(begin) + to % 4 * 16, i));
  }
  atomic_max(largest, most);
}
