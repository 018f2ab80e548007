// Attention over chosen keys: an index scores the keys that a row sees, the best are chosen, and those alone are read.
//
//     score_keys      scores[row][key] = sum over heads of w[row][head] * max(0, q[row][head] . k[key])
//     choose_keys     chosen[row][..] = the `count` keys of the largest scores in ascending order, the earlier of a tie;
//                     -1 behind the last, where a row sees fewer
//     attend_chosen   out[row][head] = sum of softmax(scale * q . k) * v over chosen[row], v the end of k
//
// A key whose mask is -inf is never read. A row's result depends on the keys that it sees and their order, not on what
// else lies between them, nor on other rows: each score is a sum of its own, and attention goes along the list. Source:
// DeepSeek-AI 2025, DeepSeek-V3.2-Exp (the lightning indexer and token selection).
//
// Keys [n][DIM] in KEPT_AS (storage.clh: 0 float32, 1 float16, 2 bfloat16), all else float32; sizes in elements.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items of a group, a power of two
#endif
#ifndef KEPT_AS
#define KEPT_AS 0
#endif
#ifndef DIM
#define DIM 64  // numbers of a key
#endif
#ifndef V_DIM
#define V_DIM DIM  // its last ones, which are its value
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "exp.clh"
#include "storage.clh"
#include "reduce.clh"

#define KEYS 16    // that a work-item scores
#define AT_ONCE 4  // heads whose sums are made at a time, so that none waits for itself
#define BLOCK 64  // keys that are weighed together
#define HIDDEN 0x007fffffu  // order_of(-INFINITY)

// What numbers are read in: whole vectors where rows are made of them.
#if DIM % ROW_VW == 0 && V_DIM % ROW_VW == 0
#define PART VEC
#define WIDE VW
#define READ_KEPT(p) READ_VEC(KEPT_AS, p)
#define READ_PART(p) LOAD(p)
#define SUM_OF(x) sum_lanes(x)
#define WRITE_PART(x, p) STORE(x, p)
#else
#define PART float
#define WIDE 1
#define READ_KEPT(p) READ1(KEPT_AS, p)
#define READ_PART(p) (*(p))
#define SUM_OF(x) (x)
#define WRITE_PART(x, p) (*(p) = (x))
#endif
#define OWN ((V_DIM / WIDE + LANES - 1) / LANES)  // parts of the output that a lane has

// Global size (keys / KEYS, rounded up to LANES; rows), local size (LANES, 1).
__kernel void score_keys(__global const float* restrict q, ulong q_offset, __global const STORAGE(KEPT_AS)* restrict k,
                         ulong k_offset, __global const float* restrict w, ulong w_offset,
                         __global const float* restrict mask, ulong mask_offset, __global float* restrict scores,
                         int heads, int n) {
  const int row = get_global_id(1), begin = (int)get_global_id(0) * KEYS;
  q += q_offset + (ulong)row * heads * DIM;
  w += w_offset + (ulong)row * heads;
  mask += mask_offset + (ulong)row * n;
  for (int key = begin; key < min(begin + KEYS, n); ++key) {
    float sum = mask[key];
    if (sum != -INFINITY) {
      PART own[DIM / WIDE];  // converted once for all heads
      for (int d = 0; d < DIM; d += WIDE) own[d / WIDE] = READ_KEPT(k + k_offset + (ulong)key * DIM + d);
      sum = 0.0f;
      for (int head = 0; head < heads; head += AT_ONCE) {
        PART dots[AT_ONCE];
        for (int i = 0; i < AT_ONCE; ++i) dots[i] = (PART)0.0f;
        __global const float* lines[AT_ONCE];  // what follows the last head repeats it
        for (int i = 0; i < AT_ONCE; ++i) lines[i] = q + min(head + i, heads - 1) * DIM;
        for (int d = 0; d < DIM; d += WIDE) {
#pragma unroll
          for (int i = 0; i < AT_ONCE; ++i) dots[i] = FMA(READ_PART(lines[i] + d), own[d / WIDE], dots[i]);
        }
        for (int i = 0; i < min(AT_ONCE, heads - head); ++i)
          sum = FMA(w[head + i], fmax(SUM_OF(dots[i]), 0.0f), sum);
      }
    }
    scores[(ulong)row * n + key] = sum;
  }
}

// A number that orders as the float does; both zeros are one.
uint order_of(float x) {
  const uint bits = as_uint(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int sum_of_lanes(int mine, __local int* shared) {
  SYNC;
  shared[get_local_id(0)] = mine;
  SYNC;
  int sum = 0;
  for (int i = 0; i < LANES; ++i) sum += shared[i];
  return sum;
}

// Global size (LANES, rows), local size (LANES, 1). Each lane has one contiguous range of the row. The limit is found by
// bisection over the bits of an order: the largest that at least `count` keys reach.
__kernel void choose_keys(__global const float* restrict scores, ulong scores_offset, __global int* restrict chosen,
                          ulong chosen_offset, int n, int count) {
  __local int shared[LANES], equals[LANES];
  const int row = get_global_id(1), lane = get_local_id(0);
  const int begin = (int)((long)n * lane / LANES), end = (int)((long)n * (lane + 1) / LANES);
  scores += scores_offset + (ulong)row * n;
  chosen += chosen_offset + (ulong)row * count;

  int mine = 0;
  for (int i = begin; i < end; ++i) mine += order_of(scores[i]) > HIDDEN;
  uint limit = HIDDEN;
  if (sum_of_lanes(mine, shared) > count) {
    limit = 0;
    for (uint bit = 1u << 31; bit > 0; bit >>= 1) {
      mine = 0;
      for (int i = begin; i < end; ++i) mine += order_of(scores[i]) >= (limit | bit);
      if (sum_of_lanes(mine, shared) >= count) limit |= bit;
    }
  }
  int tied = 0;
  mine = 0;
  for (int i = begin; i < end; ++i) {
    const uint order = order_of(scores[i]);
    mine += order > limit;
    tied += order == limit;
  }
  const int above = sum_of_lanes(mine, shared);
  equals[lane] = tied;
  SYNC;
  const int wanted = limit > HIDDEN ? count - above : 0;  // of those at the limit
  int at = 0, tie = 0, all = 0;
  for (int i = 0; i < lane; ++i) at += shared[i], tie += equals[i];
  for (int i = 0; i < LANES; ++i) all += equals[i];
  at += min(tie, wanted);
  for (int i = begin; i < end; ++i) {
    const uint order = order_of(scores[i]);
    if (order > limit || (order == limit && tie++ < wanted)) chosen[at++] = i;
  }
  for (int i = above + min(all, wanted) + lane; i < count; i += LANES) chosen[i] = -1;
}

// Global size (LANES, rows, heads), local size (LANES, 1, 1). A number that is no key's ends nothing and adds nothing.
__kernel void attend_chosen(__global const float* restrict q, ulong q_offset,
                            __global const STORAGE(KEPT_AS)* restrict k, ulong k_offset,
                            __global const int* restrict chosen, ulong chosen_offset, int n, int count, int heads,
                            float scale, __global float* restrict out, ulong out_offset) {
  __local float weights[BLOCK];
  const int lane = get_local_id(0), row = get_global_id(1);
  const ulong line = (ulong)row * heads + get_global_id(2);
  q += q_offset + line * DIM;
  k += k_offset;
  chosen += chosen_offset + (ulong)row * count;
  PART own[OWN];
  for (int i = 0; i < OWN; ++i) own[i] = (PART)0.0f;
  float top = -INFINITY, total = 0.0f;
  for (int first = 0; first < count; first += BLOCK) {
    const int keys = min(BLOCK, count - first);
    SYNC;  // the block before is used up
    for (int i = lane; i < keys; i += LANES) {
      const int key = chosen[first + i];
      float score = -INFINITY;
      if (key >= 0 && key < n) {
        PART dots = (PART)0.0f;
        for (int d = 0; d < DIM; d += WIDE) dots = FMA(READ_PART(q + d), READ_KEPT(k + (ulong)key * DIM + d), dots);
        score = SUM_OF(dots) * scale;
      }
      weights[i] = score;
    }
    SYNC;
    float now = top;
    for (int i = 0; i < keys; ++i) now = fmax(now, weights[i]);
    const float base = now == -INFINITY ? 0.0f : now, shrink = exp_one(top - base);
    top = now;
    total *= shrink;
    for (int i = 0; i < OWN; ++i) own[i] *= (PART)shrink;
    for (int i = 0; i < keys; ++i) {
      const int key = chosen[first + i];
      if (key < 0 || key >= n) continue;
      const float weight = exp_one(weights[i] - base);
      total += weight;
      __global const STORAGE(KEPT_AS)* value = k + (ulong)key * DIM + DIM - V_DIM;
      for (int j = 0; j < OWN; ++j) {
        const int d = (j * LANES + lane) * WIDE;
        if (d < V_DIM) own[j] = FMA((PART)weight, READ_KEPT(value + d), own[j]);
      }
    }
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int j = 0; j < OWN; ++j) {
    const int d = (j * LANES + lane) * WIDE;
    if (d < V_DIM) WRITE_PART(own[j] * (PART)factor, out + out_offset + line * V_DIM + d);
  }
}
