// Norms, softmax and argmax over the last axis: one work-group of LANES work-items per row of `dim` numbers.
//
//   rms_norm    y = x / sqrt(mean(x^2) + eps) * (offset + weight)
//   layer_norm  y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias
//   l2_norm     y = x / sqrt(sum(x^2) + eps)
//   softmax     y = exp(x - max) / sum(exp(x - max))
//   argmax      the lowest index of the largest number
//
// How lanes share a row: norm.clh. Every barrier is reached by all work-items of a group.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items per row, a power of two
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "norm.clh"

float row_sum(__global const float* x, int dim, GROUP_MEM float* shared) {
  const int lane = LANE_ID;
  VEC sums = (VEC)0.0f;
  float rest = 0.0f;
  FOR_VECTORS(d) sums += LOAD(x + d);
  FOR_REST(d) rest += x[d];
  return group_sum(sum_lanes(sums) + rest, shared);
}

#define FIND_ROW                         \
  GROUP_MEM float shared[LANES];         \
  const int row = ID(1), lane = LANE_ID; \
  x += x_offset + (ulong)row * dim;      \
  y += y_offset + (ulong)row * dim;

KERNEL void rms_norm(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict weight,
                     ulong weight_offset, __global float* restrict y, ulong y_offset, int dim, float eps,
                     float offset) {
  FIND_ROW
  weight += weight_offset;
  const float scale = 1.0f / sqrt(row_squares(x, 0.0f, dim, shared) / dim + eps);
  FOR_VECTORS(d) STORE(LOAD(x + d) * scale * (offset + LOAD(weight + d)), y + d);
  FOR_REST(d) y[d] = x[d] * scale * (offset + weight[d]);
}

KERNEL void layer_norm(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict weight,
                       ulong weight_offset, __global const float* restrict bias, ulong bias_offset, int has_bias,
                       __global float* restrict y, ulong y_offset, int dim, float eps) {
  FIND_ROW
  weight += weight_offset;
  bias += bias_offset;
  const float mean = row_sum(x, dim, shared) / dim;
  const float scale = 1.0f / sqrt(row_squares(x, mean, dim, shared) / dim + eps);
  FOR_VECTORS(d) {
    const VEC shift = has_bias ? LOAD(bias + d) : (VEC)0.0f;
    STORE((LOAD(x + d) - mean) * scale * LOAD(weight + d) + shift, y + d);
  }
  FOR_REST(d) y[d] = (x[d] - mean) * scale * weight[d] + (has_bias ? bias[d] : 0.0f);
}

KERNEL void l2_norm(IDS __global const float* restrict x, ulong x_offset, __global float* restrict y, ulong y_offset,
                    int dim, float eps) {
  FIND_ROW
  const float scale = 1.0f / sqrt(row_squares(x, 0.0f, dim, shared) + eps);
  FOR_VECTORS(d) STORE(LOAD(x + d) * scale, y + d);
  FOR_REST(d) y[d] = x[d] * scale;
}

KERNEL void softmax(IDS __global const float* restrict x, ulong x_offset, __global float* restrict y, ulong y_offset,
                    int dim) {
  FIND_ROW
  const float top = row_max(x, dim, shared);
  VEC sums = (VEC)0.0f;
  float rest = 0.0f;
  FOR_VECTORS(d) {
    const VEC e = exp(LOAD(x + d) - top);
    STORE(e, y + d);
    sums += e;
  }
  FOR_REST(d) {
    y[d] = exp(x[d] - top);
    rest += y[d];
  }
  const float factor = 1.0f / group_sum(sum_lanes(sums) + rest, shared);
  FOR_VECTORS(d) STORE(LOAD(y + d) * factor, y + d);
  FOR_REST(d) y[d] *= factor;
}

// y: int32, one per row.
KERNEL void argmax(IDS __global const float* restrict x, ulong x_offset, __global int* restrict y, ulong y_offset,
                   int dim) {
  GROUP_MEM float shared[LANES];
  const int row = ID(1), lane = LANE_ID;
  x += x_offset + (ulong)row * dim;
  GROUP_MEM int lowest[LANES];
  const int found = row_first(x, row_max(x, dim, shared), dim, lowest);
  if (lane == 0) y[y_offset + row] = found < dim ? found : 0;
}
