// Around a mixture of experts (csrc/ops/experts.h): which experts a row goes to, and what comes of their results.
//
//   route          scores [rows][experts]                           ->  chosen [rows][k], factors [rows][k]
//   route_biased   the same, bias [experts] or none                 ->  the same, with ranks [rows][experts] between
//   scale_rows     x [rows][dim], factors [rows][k]                 ->  y [rows][k][dim]
//   weighted_sum   x [rows][k][dim], factors [rows][k] or none      ->  y [rows][dim]
//
// The products between them: matmul_routed and matmul_gated_routed in matmul.cl. A row's numbers do not depend on the
// rows beside it; sums run over ascending experts or choices, rounded at each step.
#pragma OPENCL FP_CONTRACT OFF

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "activation.clh"
#include "work_item.clh"

// As the enum Weighting in csrc/ops/experts.h.
#define WEIGHTING_SIGMOID 0
#define WEIGHTING_SOFTMAX 1
#define WEIGHTING_NORMED 2
#define WEIGHTING_SIGMOID_NORMED 3

// The k largest scores of a row, largest first, the lower index first among equals; one that is not a number comes last,
// and makes all factors of the row NaN. One work-item for each row.
KERNEL void route(IDS __global const float* restrict scores, ulong scores_offset, __global int* restrict chosen,
                  ulong chosen_offset, __global float* restrict factors, ulong factors_offset, int rows, int experts,
                  int k, int weighting) {
  const int row = ID(0);
  if (row >= rows) return;
  scores += scores_offset + (ulong)row * experts;
  chosen += chosen_offset + (ulong)row * k;
  factors += factors_offset + (ulong)row * k;
  float last = INFINITY;  // the one chosen before
  int last_at = -1;
  for (int j = 0; j < k; ++j) {
    float top = -INFINITY;
    int best = -1;
    for (int e = 0; e < experts; ++e) {
      const float score = isnan(scores[e]) ? -INFINITY : scores[e];
      const bool comes_later = score < last || (score == last && e > last_at);
      if (comes_later && (best < 0 || score > top)) best = e, top = score;
    }
    chosen[j] = best, factors[j] = top;
    last = top, last_at = best;
  }
  const float most = factors[0];
  float sum = 0.0f, poison = 0.0f;
  for (int e = 0; e < experts; ++e) {
    if (isnan(scores[e])) poison = NAN;
    if (weighting == WEIGHTING_SOFTMAX) sum += exp(scores[e] - most);
  }
  for (int j = 0; j < k; ++j) {
    const float score = factors[j];
    factors[j] = weighting == WEIGHTING_SIGMOID ? LOGISTIC(score) : exp(score - most);
    if (weighting == WEIGHTING_NORMED) sum += factors[j];
  }
  for (int j = 0; j < k; ++j)
    factors[j] = (weighting == WEIGHTING_SIGMOID ? factors[j] : factors[j] / sum) + poison;
}

// What the `best` best of `count` ranks add up to, one or two of them.
INLINE float sum_best(__global const float* ranks, int count, int best) {
  float first = -INFINITY, second = -INFINITY;
  for (int e = 0; e < count; ++e) {
    const float rank = ranks[e];
    if (rank > first)
      second = first, first = rank;
    else if (rank > second)
      second = rank;
  }
  return best == 1 ? first : first + second;
}

// Ranks of all groups but the `kept` best become -inf, the lower one first among equals.
INLINE void keep_groups(__global float* ranks, int size, int groups, int kept, int summed) {
  float last = INFINITY;
  int last_at = -1;
  for (int j = 0; j < kept; ++j) {
    float top = -INFINITY;
    int best = -1;
    for (int g = 0; g < groups; ++g) {
      const float sum = sum_best(ranks + g * size, size, summed);
      const bool comes_later = sum < last || (sum == last && g > last_at);
      if (comes_later && (best < 0 || sum > top)) best = g, top = sum;
    }
    last = top, last_at = best;
  }
  for (int g = 0; g < groups; ++g) {
    const float sum = sum_best(ranks + g * size, size, summed);
    if (sum > last || (sum == last && g <= last_at)) continue;
    for (int e = 0; e < size; ++e) ranks[g * size + e] = -INFINITY;
  }
}

// The k best by rank, which is an expert's share (its sigmoid, or its part of the softmax) and its bias; factors are made
// of shares alone. Only experts of the `kept` groups whose `summed` best ranks (one or two) add up to most are taken. A
// score that is no number comes last, and makes all factors of the row NaN. One work-item for each row.
KERNEL void route_biased(IDS __global const float* restrict scores, ulong scores_offset,
                         __global const float* restrict bias, ulong bias_offset, int has_bias,
                         __global float* restrict ranks, ulong ranks_offset, __global int* restrict chosen,
                         ulong chosen_offset, __global float* restrict factors, ulong factors_offset, int rows,
                         int experts, int k, int weighting, int groups, int kept, int summed) {
  const int row = ID(0);
  if (row >= rows) return;
  scores += scores_offset + (ulong)row * experts;
  ranks += ranks_offset + (ulong)row * experts;
  bias += bias_offset;
  chosen += chosen_offset + (ulong)row * k;
  factors += factors_offset + (ulong)row * k;
  const bool logistic = weighting == WEIGHTING_SIGMOID || weighting == WEIGHTING_SIGMOID_NORMED;
  const bool normed = weighting == WEIGHTING_NORMED || weighting == WEIGHTING_SIGMOID_NORMED;
  float most = -INFINITY, all = 0.0f, poison = 0.0f;
  for (int e = 0; e < experts; ++e) {
    if (isnan(scores[e])) poison = NAN;
    most = fmax(most, scores[e]);
  }
  for (int e = 0; e < experts; ++e) all += exp(scores[e] - most);
#define SHARE(e) (logistic ? LOGISTIC(scores[e]) : exp(scores[e] - most) / all)
  for (int e = 0; e < experts; ++e) {
    const float rank = SHARE(e) + (has_bias ? bias[e] : 0.0f);
    ranks[e] = isnan(rank) ? -INFINITY : rank;
  }
  if (kept < groups) keep_groups(ranks, experts / groups, groups, kept, summed);
  float last = INFINITY, sum = 0.0f;
  int last_at = -1;
  for (int j = 0; j < k; ++j) {
    float top = -INFINITY;
    int best = -1;
    for (int e = 0; e < experts; ++e) {
      const bool comes_later = ranks[e] < last || (ranks[e] == last && e > last_at);
      if (comes_later && (best < 0 || ranks[e] > top)) best = e, top = ranks[e];
    }
    chosen[j] = best, factors[j] = SHARE(best);
    sum += factors[j];
    last = top, last_at = best;
  }
  for (int j = 0; j < k; ++j) factors[j] = (normed ? factors[j] / sum : factors[j]) + poison;
}

// Global size (ceil(dim / chunk), rows * k).
KERNEL void scale_rows(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict factors,
                       ulong factors_offset, __global float* restrict y, ulong y_offset, int dim, int chunk, int k) {
  int d = (int)ID(0) * chunk;
  const int end = min(d + chunk, dim);
  const float factor = factors[factors_offset + ID(1)];
  x += x_offset + ID(1) / k * (ulong)dim;
  y += y_offset + ID(1) * (ulong)dim;
  for (; d + VW <= end; d += VW) STORE(LOAD(x + d) * factor, y + d);
  for (; d < end; ++d) y[d] = x[d] * factor;
}

// Without factors: the sum. Global size (ceil(dim / chunk), rows).
KERNEL void weighted_sum(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict factors,
                         ulong factors_offset, int has_factors, __global float* restrict y, ulong y_offset, int dim,
                         int chunk, int k) {
  int d = (int)ID(0) * chunk;
  const int end = min(d + chunk, dim);
  x += x_offset + ID(1) * (ulong)k * dim;
  factors += factors_offset + ID(1) * (ulong)k;
  y += y_offset + ID(1) * (ulong)dim;
#define FACTOR(j) (has_factors ? factors[j] : 1.0f)
  for (; d + VW <= end; d += VW) {
    VEC sum = LOAD(x + d) * FACTOR(0);
    for (int j = 1; j < k; ++j) sum += LOAD(x + (ulong)j * dim + d) * FACTOR(j);
    STORE(sum, y + d);
  }
  for (; d < end; ++d) {
    float sum = x[d] * FACTOR(0);
    for (int j = 1; j < k; ++j) sum += x[(ulong)j * dim + d] * FACTOR(j);
    y[d] = sum;
  }
}
