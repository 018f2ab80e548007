// Element by element over rows of `dim` numbers: y[r][d] = f(a[r][d]) or f(a[r][d], b[r % b_rows][d]).
//
// b_rows below the number of rows repeats b: a bias has one row. One work-item computes `chunk` numbers of one row,
// VW at a time, the rest one by one, so a row's bits do not depend on the other rows.
#pragma OPENCL FP_CONTRACT OFF

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "activation.clh"
#include "work_item.clh"

#define FIND_CHUNK                     \
  const int row = ID(1);               \
  int d = (int)ID(0) * chunk;          \
  const int end = min(d + chunk, dim); \
  a += a_offset + (ulong)row * dim;    \
  y += y_offset + (ulong)row * dim;

#define UNARY(NAME, F)                                                                                               \
  KERNEL void NAME(IDS __global const float* restrict a, ulong a_offset, __global float* restrict y, ulong y_offset, \
                   int dim, int chunk) {                                                                             \
    FIND_CHUNK                                                                                                       \
    for (; d + VW <= end; d += VW) {                                                                                 \
      const VEC x = LOAD(a + d);                                                                                     \
      STORE(F(x, VEC), y + d);                                                                                       \
    }                                                                                                                \
    for (; d < end; ++d) {                                                                                           \
      const float x = a[d];                                                                                          \
      y[d] = F(x, float);                                                                                            \
    }                                                                                                                \
  }

#define BINARY(NAME, F)                                                                                          \
  KERNEL void NAME(IDS __global const float* restrict a, ulong a_offset, __global const float* restrict b,       \
                   ulong b_offset, __global float* restrict y, ulong y_offset, int dim, int chunk, int b_rows) { \
    FIND_CHUNK                                                                                                   \
    b += b_offset + (ulong)(row % b_rows) * dim;                                                                 \
    for (; d + VW <= end; d += VW) {                                                                             \
      const VEC x = LOAD(a + d), z = LOAD(b + d);                                                                \
      STORE(F(x, z, VEC), y + d);                                                                                \
    }                                                                                                            \
    for (; d < end; ++d) {                                                                                       \
      const float x = a[d], z = b[d];                                                                            \
      y[d] = F(x, z, float);                                                                                     \
    }                                                                                                            \
  }

// What is not a number stays so, which fmin and fmax would not leave.
#define CLAMP_SCALED(x, T)                                                                                       \
  ((scale * (x) > (T)high ? (T)high : scale * (x) < (T)low ? (T)low : scale * (x)) + (T)shift)
#define CLAMP(NAME)                                                                                                   \
  KERNEL void NAME(IDS __global const float* restrict a, ulong a_offset, __global float* restrict y, ulong y_offset, \
                   int dim, int chunk, float scale, float low, float high, float shift) {                            \
    FIND_CHUNK                                                                                                       \
    for (; d + VW <= end; d += VW) {                                                                                 \
      const VEC x = LOAD(a + d);                                                                                     \
      STORE(CLAMP_SCALED(x, VEC), y + d);                                                                            \
    }                                                                                                                \
    for (; d < end; ++d) {                                                                                           \
      const float x = a[d];                                                                                          \
      y[d] = CLAMP_SCALED(x, float);                                                                                 \
    }                                                                                                                \
  }

#define ADD(x, z, T) ((x) + (z))
#define MUL(x, z, T) ((x) * (z))
#define SILU_MUL(x, z, T) (SILU(x, T) * (z))
#define GELU_TANH_MUL(x, z, T) (GELU_TANH(x, T) * (z))
#define GELU_EXACT_MUL(x, z, T) (GELU_EXACT(x, T) * (z))

#ifndef OP
#define OP add  // the kernel to compile; each one is a program of its own, since building all takes seconds
#endif
#define IS_silu UNARY(silu, SILU)
#define IS_sigmoid UNARY(sigmoid, SIGMOID)
#define IS_softplus UNARY(softplus, SOFTPLUS)
#define IS_relu_squared UNARY(relu_squared, RELU_SQUARED)
#define IS_signed_root UNARY(signed_root, SIGNED_ROOT)
#define IS_clamp_scaled CLAMP(clamp_scaled)
#define IS_add BINARY(add, ADD)
#define IS_mul BINARY(mul, MUL)
#define IS_silu_mul BINARY(silu_mul, SILU_MUL)
#define IS_gelu_tanh_mul BINARY(gelu_tanh_mul, GELU_TANH_MUL)
#define IS_gelu_exact_mul BINARY(gelu_exact_mul, GELU_EXACT_MUL)
#define MADE_(op) IS_##op
#define MADE(op) MADE_(op)

#ifdef IN_GRAPH
#if WITH_silu
IS_silu
#endif
#if WITH_sigmoid
IS_sigmoid
#endif
#if WITH_softplus
IS_softplus
#endif
#if WITH_relu_squared
IS_relu_squared
#endif
#if WITH_signed_root
IS_signed_root
#endif
#if WITH_clamp_scaled
IS_clamp_scaled
#endif
#if WITH_add
IS_add
#endif
#if WITH_mul
IS_mul
#endif
#if WITH_silu_mul
IS_silu_mul
#endif
#if WITH_gelu_tanh_mul
IS_gelu_tanh_mul
#endif
#if WITH_gelu_exact_mul
IS_gelu_exact_mul
#endif
#else
MADE(OP)
#endif
