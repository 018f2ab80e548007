// Draws one token for each row of logits [rows][dim]. Each row has parameters of its own, in this order:
//
//     edits -> temperature -> min_p -> top_k -> top_p -> the draw          temperature 0: edits -> the likeliest
//
// An edit changes one logit x to (x > 0 ? x / divide : x * divide) + add: a repetition penalty, the other penalties, a
// bias. min_p keeps tokens at least that fraction as probable as the likeliest, top_k the most probable ones, top_p the
// smallest set of the most probable ones that reaches this mass of what is left. One work-group of LANES work-items per
// row.
//
// The kept set is described by a threshold and a number: every token with p > threshold, and the first `equals` tokens
// (in order of index) with p == threshold. Probabilities are positive floats, so their bits order like they do, and
// both limits are found by bisection over 30 bits, without sorting:
//
//     p:  0.30  0.21  0.21  0.13  0.08 ...      top_k 2:  threshold 0.21, equals 1
//
// A row draws u from Philox 4x32-10 (Salmon et al., SC 2011) with its seed as the key and its counter, and takes the
// first kept token at which the mass, summed in order of index, exceeds u times the kept mass. A row without a finite
// largest logit gets -1. `p` is scratch [rows][dim].
//
// `words` (int32), all rows first, then all edits (csrc/ops/sample.cpp writes them):
//
//     row   temperature  top_p  min_p  top_k  seed low  seed high  counter  begin  end    edits [begin, end) are its own
//     edit  token  divide  add                                                            tokens of a row differ
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items per row, a power of two
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "norm.clh"

// Each lane owns one contiguous range of the row, so that ranges and lanes are in order of index.
#define RANGE_BEGIN (int)((long)dim * lane / LANES)
#define RANGE_END (int)((long)dim * (lane + 1) / LANES)

// How many tokens have p >= limit (exact: counts stay below 2^24), or how much mass they hold.
#define SUM_FROM(NAME, OF_VEC, OF1)                                                  \
  float NAME(__global const float* p, float limit, int dim, __local float* shared) { \
    const int lane = get_local_id(0), end = RANGE_END;                               \
    int d = RANGE_BEGIN;                                                             \
    VEC sums = (VEC)0.0f;                                                            \
    for (; d + VW <= end; d += VW) {                                                 \
      const VEC x = LOAD(p + d);                                                     \
      sums += select((VEC)0.0f, OF_VEC, x >= (VEC)limit);                            \
    }                                                                                \
    float sum = sum_lanes(sums);                                                     \
    for (; d < end; ++d) sum += p[d] >= limit ? OF1 : 0.0f;                          \
    return group_sum(sum, shared);                                                   \
  }
SUM_FROM(count_from, (VEC)1.0f, 1.0f)
SUM_FROM(mass_from, x, p[d])

// The number just above a positive float or zero.
float above(float x) { return as_float(as_uint(x) + 1u); }

// The largest threshold whose tokens from it on number at least top_k.
float find_top_k(__global const float* p, int top_k, int dim, __local float* shared) {
  uint low = 0;  // count_from(low) >= top_k holds
  for (uint bit = 1u << 29; bit > 0; bit >>= 1)
    if (count_from(p, as_float(low + bit), dim, shared) >= (float)top_k) low += bit;
  return as_float(low);
}

float find_top_p(__global const float* p, float target, float lowest, int dim, __local float* shared) {
  uint low = as_uint(lowest);  // mass_from(low) >= target holds
  for (uint bit = 1u << 29; bit > 0; bit >>= 1)
    if (mass_from(p, as_float(low + bit), dim, shared) >= target) low += bit;
  return as_float(low);
}

float draw(uint key0, uint key1, uint row) {
  uint4 c = (uint4)(row, 0, 0, 0);
  for (int round = 0; round < 10; ++round) {
    const uint2 a = (uint2)(mul_hi(0xD2511F53u, c.x), 0xD2511F53u * c.x);
    const uint2 b = (uint2)(mul_hi(0xCD9E8D57u, c.z), 0xCD9E8D57u * c.z);
    c = (uint4)(b.x ^ c.y ^ key0, b.y, a.x ^ c.w ^ key1, a.y);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return (float)(c.x >> 8) * 0x1p-24f;
}

#define ROW_WORDS 9
#define EDIT_WORDS 3

// The row with its edits goes to p. Lanes own the tokens that they edit: those of a row differ.
void take_row(__global const float* x, __global float* p, int dim, __global const int* edits, int begin, int end) {
  const int lane = get_local_id(0);
  FOR_VECTORS(d) STORE(LOAD(x + d), p + d);
  FOR_REST(d) p[d] = x[d];
  SYNC;
  for (int i = begin + lane; i < end; i += LANES) {
    __global const int* edit = edits + (long)i * EDIT_WORDS;
    const float logit = p[edit[0]], divide = as_float(edit[1]);
    p[edit[0]] = (logit > 0.0f ? logit / divide : logit * divide) + as_float(edit[2]);
  }
  SYNC;
}

// p becomes each token's probability over the largest one; 0 below min_p.
void weigh(__global float* p, float top, float temperature, float min_p, int dim) {
  const int lane = get_local_id(0);
  FOR_VECTORS(d) {
    const VEC x = exp((LOAD(p + d) - top) / temperature);
    STORE(select((VEC)0.0f, x, x >= (VEC)min_p), p + d);
  }
  FOR_REST(d) {
    const float x = exp((p[d] - top) / temperature);
    p[d] = x >= min_p ? x : 0.0f;
  }
  SYNC;
}

__kernel void sample(__global const float* restrict logits, ulong logits_offset, __global float* restrict p,
                     __global int* restrict y, ulong y_offset, int dim, int rows,
                     __global const int* restrict words) {
  __local float shared[LANES];
  __local float masses[LANES];
  __local int ties[LANES];
  const int row = get_global_id(1), lane = get_local_id(0);
  __global const int* own = words + (ulong)row * ROW_WORDS;
  const float temperature = as_float(own[0]), top_p = as_float(own[1]);
  const int top_k = own[3];
  p += (ulong)row * dim;

  take_row(logits + logits_offset + (ulong)row * dim, p, dim, words + (ulong)rows * ROW_WORDS, own[7], own[8]);
  const float top = row_max(p, dim, shared);
  const bool finite = fabs(top) < INFINITY;
  if (!finite || temperature == 0.0f) {
    const int likeliest = finite ? row_first(p, top, dim, ties) : -1;
    if (lane == 0) y[y_offset + row] = likeliest;
    return;
  }
  weigh(p, top, temperature, as_float(own[2]), dim);

  float threshold = 0.0f;
  int equals = dim;
  if (top_k > 0 && top_k < dim) {
    threshold = find_top_k(p, top_k, dim, shared);
    equals = top_k - (int)count_from(p, above(threshold), dim, shared);
  }
  float over = mass_from(p, above(threshold), dim, shared);
  if (top_p < 1.0f) {
    const float target = top_p * (over + equals * threshold);
    if (over >= target) {
      threshold = find_top_p(p, target, above(threshold), dim, shared);
      over = mass_from(p, above(threshold), dim, shared);
      equals = dim;
    }
    if (threshold > 0.0f) equals = clamp((int)ceil((target - over) / threshold), over > 0.0f ? 0 : 1, equals);
  }

  // This lane's share of the kept mass, and of the tokens that equal the threshold.
  int tied = 0;
  for (int i = RANGE_BEGIN; i < RANGE_END; ++i) tied += p[i] == threshold;
  ties[lane] = tied;
  SYNC;
  int skipped = 0;
  for (int i = 0; i < lane; ++i) skipped += ties[i];
  float mass = 0.0f;
  for (int i = RANGE_BEGIN, tie = skipped; i < RANGE_END; ++i)
    if (p[i] > threshold || (p[i] == threshold && tie++ < equals)) mass += p[i];
  masses[lane] = mass;
  SYNC;
  if (lane != 0) return;
  float total = 0.0f;
  for (int i = 0; i < LANES; ++i) total += masses[i];
  const float target = draw((uint)own[4], (uint)own[5], (uint)own[6]) * total;
  int drawn = 0, tie = 0, chosen = 0;
  float passed = 0.0f;
  while (drawn + 1 < LANES && passed + masses[drawn] <= target) passed += masses[drawn], tie += ties[drawn++];
  for (int i = (int)((long)dim * drawn / LANES); i < dim; ++i) {
    if (!(p[i] > threshold || (p[i] == threshold && tie++ < equals)) || p[i] == 0.0f) continue;
    chosen = i;
    passed += p[i];
    if (passed > target) break;
  }
  y[y_offset + row] = chosen;
}
