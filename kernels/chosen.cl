// Attention over chosen keys: an index scores the keys that a row sees, the best are chosen, and those alone are read.
//
//     score_keys      scores[row][key] = sum over heads of w[row][head] * max(0, q[row][head] . k[key])
//     choose_keys     chosen[row][..] = the `count` keys of the largest scores in ascending order, the earlier of a tie;
//                     -1 behind the last, where a row sees fewer
//     place_chosen    writes chosen[row] into a plan of attention (csrc/ops/attention_plan.h), whose kernels read them
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
#ifndef INDEX_VW
#define INDEX_VW 8  // 4, 8 or 16: keys in a vector, where LANES is 1
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "storage.clh"
#include "reduce.clh"

#define HIDDEN 0x007fffffu  // order_of(-INFINITY)

// What numbers are read in: whole vectors where rows are made of them.
#if DIM % ROW_VW == 0
#define PART VEC
#define WIDE VW
#define READ_KEPT(p) READ_VEC(KEPT_AS, p)
#define READ_PART(p) LOAD(p)
#define SUM_OF(x) sum_lanes(x)
#else
#define PART float
#define WIDE 1
#define READ_KEPT(p) READ1(KEPT_AS, p)
#define READ_PART(p) (*(p))
#define SUM_OF(x) (x)
#endif

#if LANES == 1
// A work-item of a processor scores INDEX_VW keys at once, each in a number of its own of every vector, so that no vector
// is summed up:
//
//     numbers[d]   k0[d] k1[d] k2[d] ...      turned round once for all heads; HEADS_AT_ONCE sums wait for each other
//     sum         += w[head] * max(0, sum over d of q[head][d] * numbers[d])
#define KEYS INDEX_VW
#define HEADS_AT_ONCE 8
#define KEY_VEC JOIN(float, INDEX_VW)
#define KEY_LOAD(p) JOIN(vload, INDEX_VW)(0, p)

// Keys whose numbers are whole vectors of 4 are turned round in squares of 4.
#if DIM % 4 == 0
typedef float4 numbers_of_key;
#define SQUARE 4
#define READ_NUMBERS(p) JOIN(READ_FOUR_, KEPT_AS)(p)
#define READ_FOUR_0(p) vload4(0, p)
#define READ_FOUR_1(p) vload_half4(0, p)
#define READ_FOUR_2(p) as_float4(convert_uint4(vload4(0, p)) << 16)

void turn_square(const float4* from, float* to) {
  vstore4((float4)(from[0].x, from[1].x, from[2].x, from[3].x), 0, to);
  vstore4((float4)(from[0].y, from[1].y, from[2].y, from[3].y), 0, to + KEYS);
  vstore4((float4)(from[0].z, from[1].z, from[2].z, from[3].z), 0, to + 2 * KEYS);
  vstore4((float4)(from[0].w, from[1].w, from[2].w, from[3].w), 0, to + 3 * KEYS);
}
#else
typedef float numbers_of_key;
#define SQUARE 1
#define READ_NUMBERS(p) READ1(KEPT_AS, p)

void turn_square(const float* from, float* to) { to[0] = from[0]; }
#endif

// False where all are hidden. In the place of what is hidden, and of what follows the last key, stands another key.
bool turn_keys(__global const STORAGE(KEPT_AS)* k, __global const float* mask, int count, float* numbers) {
  int any = -1;
  for (int i = 0; i < count; ++i) any = mask[i] == -INFINITY ? any : i;
  if (any < 0) return false;
  for (int first = 0; first < KEYS; first += SQUARE) {
    __global const STORAGE(KEPT_AS)* keys[SQUARE];
    for (int i = 0; i < SQUARE; ++i) {
      const int key = first + i < count && mask[first + i] != -INFINITY ? first + i : any;
      keys[i] = k + key * DIM;
    }
    for (int d = 0; d < DIM; d += SQUARE) {
      numbers_of_key square[SQUARE];
#pragma unroll
      for (int i = 0; i < SQUARE; ++i) square[i] = READ_NUMBERS(keys[i] + d);
      turn_square(square, numbers + d * KEYS + first);
    }
  }
  return true;
}

void score_some(__global const float* q, __global const STORAGE(KEPT_AS)* k, __global const float* w,
                __global const float* mask, __global float* scores, int heads, int count) {
  float numbers[DIM * KEYS] __attribute__((aligned(64)));
  KEY_VEC sum = (KEY_VEC)0.0f;
  if (turn_keys(k, mask, count, numbers)) {
    for (int head = 0; head < heads; head += HEADS_AT_ONCE) {
      KEY_VEC dots[HEADS_AT_ONCE];
      __global const float* lines[HEADS_AT_ONCE];  // what follows the last head repeats it
      for (int i = 0; i < HEADS_AT_ONCE; ++i) dots[i] = (KEY_VEC)0.0f, lines[i] = q + min(head + i, heads - 1) * DIM;
      for (int d = 0; d < DIM; ++d) {
        const KEY_VEC own = KEY_LOAD(numbers + d * KEYS);
#pragma unroll
        for (int i = 0; i < HEADS_AT_ONCE; ++i) dots[i] = FMA((KEY_VEC)lines[i][d], own, dots[i]);
      }
      for (int i = 0; i < min(HEADS_AT_ONCE, heads - head); ++i)
        sum = FMA((KEY_VEC)w[head + i], fmax(dots[i], (KEY_VEC)0.0f), sum);
    }
  }
  float own[KEYS];
  JOIN(vstore, INDEX_VW)(sum, 0, own);
  for (int i = 0; i < count; ++i) scores[i] = mask[i] == -INFINITY ? -INFINITY : own[i];
}
#else
#define KEYS 16          // that a work-item scores
#define HEADS_AT_ONCE 4  // whose sums are made at a time, so that none waits for itself

void score_some(__global const float* q, __global const STORAGE(KEPT_AS)* k, __global const float* w,
                __global const float* mask, __global float* scores, int heads, int count) {
  for (int key = 0; key < count; ++key) {
    float sum = mask[key];
    if (sum != -INFINITY) {
      PART own[DIM / WIDE];  // converted once for all heads
      for (int d = 0; d < DIM; d += WIDE) own[d / WIDE] = READ_KEPT(k + (ulong)key * DIM + d);
      sum = 0.0f;
      for (int head = 0; head < heads; head += HEADS_AT_ONCE) {
        PART dots[HEADS_AT_ONCE];
        for (int i = 0; i < HEADS_AT_ONCE; ++i) dots[i] = (PART)0.0f;
        __global const float* lines[HEADS_AT_ONCE];  // what follows the last head repeats it
        for (int i = 0; i < HEADS_AT_ONCE; ++i) lines[i] = q + min(head + i, heads - 1) * DIM;
        for (int d = 0; d < DIM; d += WIDE) {
#pragma unroll
          for (int i = 0; i < HEADS_AT_ONCE; ++i) dots[i] = FMA(READ_PART(lines[i] + d), own[d / WIDE], dots[i]);
        }
        for (int i = 0; i < min(HEADS_AT_ONCE, heads - head); ++i)
          sum = FMA(w[head + i], fmax(SUM_OF(dots[i]), 0.0f), sum);
      }
    }
    scores[key] = sum;
  }
}
#endif

// Global size (keys / KEYS, rounded up to LANES; rows), local size (LANES, 1).
__kernel void score_keys(__global const float* restrict q, ulong q_offset, __global const STORAGE(KEPT_AS)* restrict k,
                         ulong k_offset, __global const float* restrict w, ulong w_offset,
                         __global const float* restrict mask, ulong mask_offset, __global float* restrict scores,
                         int heads, int n) {
  const int row = get_global_id(1), begin = (int)get_global_id(0) * KEYS;
  if (begin >= n) return;
  const ulong line = (ulong)row * n + begin;
  score_some(q + q_offset + (ulong)row * heads * DIM, k + k_offset + (ulong)begin * DIM, w + w_offset + (ulong)row * heads,
             mask + mask_offset + line, scores + line, heads, min(KEYS, n - begin));
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

// The numbers of the keys of each row into the segments of a plan, (cell, 1, rank), and how many they are into its
// bounds, (0, number). What is no key's is left out; segments behind the last key name key 0, which nobody sees.
// Global size (LANES, rows), local size (LANES, 1). Each lane has one contiguous range of the list.
__kernel void place_chosen(__global const int* restrict chosen, ulong chosen_offset, int n, int count,
                           __global int* restrict table, int bounds_at, int segments_at) {
  __local int shared[LANES];
  const int row = get_global_id(1), lane = get_local_id(0);
  const int begin = (int)((long)count * lane / LANES), end = (int)((long)count * (lane + 1) / LANES);
  chosen += chosen_offset + (ulong)row * count;
  __global int* segments = table + segments_at + 3 * (ulong)row * count;
  int mine = 0;
  for (int i = begin; i < end; ++i) mine += chosen[i] >= 0 && chosen[i] < n;
  const int all = sum_of_lanes(mine, shared);
  int at = 0;
  for (int i = 0; i < lane; ++i) at += shared[i];
  for (int i = begin; i < end; ++i)
    if (chosen[i] >= 0 && chosen[i] < n) segments[3 * at++] = chosen[i];
  for (int i = all + lane; i < count; i += LANES) segments[3 * i] = 0;
  if (lane == 0) table[bounds_at + 2 * row + 1] = all;
}
