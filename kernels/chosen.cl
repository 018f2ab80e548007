// Attention over chosen keys: an index scores the keys that a row sees, the best are chosen, and those alone are read.
//
//     score_keys      scores[row][key] = sum over heads of w[row][head] * max(0, q[row][head] . k[key])
//     choose_keys     chosen[row][..] = the `count` keys of the largest scores in ascending order, the earlier of a tie;
//                     -1 behind the last, where a row sees fewer
//     place_chosen    writes chosen[row] into a plan of attention (csrc/ops/attention_plan.h), whose kernels read them
//
// Or blocks of `ratio` tokens are chosen, whose index keys are made of those of their tokens (Qwen4-Exp):
//
//     mean_keys       k[block] = norm(mean of the keys of its tokens), rotated to the block's first position
//     score_keys, choose_keys           of these
//     spread_blocks   chosen[row][..] = the keys of the tokens of its blocks, then of those in no complete block
//
// A key whose mask is -inf is never read. A row's result depends on the keys that it sees and their order, not on what
// else lies between them, nor on other rows: each score is a sum of its own, and attention goes along the list. Source:
// DeepSeek-AI 2025, DeepSeek-V3.2-Exp (the lightning indexer and token selection); the Hugging Face model of Qwen4-Exp.
//
// Keys are rows of DIM numbers of a pool, all of them in order or those of a list of cells, in KEPT_AS (storage.clh: 0
// float32, 1 float16, 2 bfloat16), those that means are taken of in POOL_AS, all else float32; sizes in elements.
#pragma OPENCL FP_CONTRACT OFF

#ifndef LANES
#define LANES 1  // work-items of a group, a power of two
#endif
#ifndef KEPT_AS
#define KEPT_AS 0
#endif
#ifndef POOL_AS
#define POOL_AS 0
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
#include "norm.clh"

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

// Rows of a pool; key i is row cells[i] of it, or row i where there is no list.
typedef struct {
  __global const STORAGE(KEPT_AS)* pool;
  __global const int* cells;
} Keys;

__global const STORAGE(KEPT_AS)* key_at(Keys keys, int i) {
  return keys.pool + (ulong)(keys.cells == 0 ? i : keys.cells[i]) * DIM;
}

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
bool turn_keys(Keys keys, __global const float* mask, int begin, int count, float* numbers) {
  int any = -1;
  for (int i = 0; i < count; ++i) any = mask[i] == -INFINITY ? any : i;
  if (any < 0) return false;
  for (int first = 0; first < KEYS; first += SQUARE) {
    __global const STORAGE(KEPT_AS)* own[SQUARE];
    for (int i = 0; i < SQUARE; ++i) {
      const int key = first + i < count && mask[first + i] != -INFINITY ? first + i : any;
      own[i] = key_at(keys, begin + key);
    }
    for (int d = 0; d < DIM; d += SQUARE) {
      numbers_of_key square[SQUARE];
#pragma unroll
      for (int i = 0; i < SQUARE; ++i) square[i] = READ_NUMBERS(own[i] + d);
      turn_square(square, numbers + d * KEYS + first);
    }
  }
  return true;
}

void score_some(__global const float* q, Keys keys, __global const float* w, __global const float* mask,
                __global float* scores, int heads, int begin, int count) {
  float numbers[DIM * KEYS] __attribute__((aligned(64)));
  KEY_VEC sum = (KEY_VEC)0.0f;
  if (turn_keys(keys, mask, begin, count, numbers)) {
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

void score_some(__global const float* q, Keys keys, __global const float* w, __global const float* mask,
                __global float* scores, int heads, int begin, int count) {
  for (int key = 0; key < count; ++key) {
    float sum = mask[key];
    if (sum != -INFINITY) {
      PART own[DIM / WIDE];  // converted once for all heads
      __global const STORAGE(KEPT_AS)* k = key_at(keys, begin + key);
      for (int d = 0; d < DIM; d += WIDE) own[d / WIDE] = READ_KEPT(k + d);
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

// Global size (keys / KEYS, rounded up to LANES; rows), local size (LANES, 1). Up to `count` keys all are chosen, so none
// is read: the mask orders them as well as scores would. Rows have weights of their own where w_stride is not 0.
KERNEL void score_keys(IDS __global const float* restrict q, ulong q_offset, __global const STORAGE(KEPT_AS)* restrict k,
                       ulong k_offset, __global const int* restrict cells, ulong cells_offset, int listed,
                       __global const float* restrict w, ulong w_offset, int w_stride,
                       __global const float* restrict mask, ulong mask_offset, __global float* restrict scores, int heads,
                       int n, int count) {
  const int row = ID(1), begin = (int)ID(0) * KEYS;
  if (begin >= n) return;
  const ulong line = (ulong)row * n + begin;
  mask += mask_offset + line;
  scores += line;
  const int some = min(KEYS, n - begin);
  if (n <= count) {
    for (int i = 0; i < some; ++i) scores[i] = mask[i];
    return;
  }
  const Keys keys = {k + k_offset, listed ? cells + cells_offset : 0};
  score_some(q + q_offset + (ulong)row * heads * DIM, keys, w + w_offset + (ulong)row * w_stride, mask, scores, heads,
             begin, some);
}

// A number that orders as the float does; both zeros are one.
uint order_of(float x) {
  const uint bits = as_uint(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int sum_of_lanes(int mine, GROUP_MEM int* shared) {
  SYNC;
  shared[LANE_ID] = mine;
  SYNC;
  int sum = 0;
  for (int i = 0; i < LANES; ++i) sum += shared[i];
  return sum;
}

// Which keys of a row are chosen: those whose order exceeds the limit, and the first `ties` of those at it.
typedef struct {
  uint limit;
  int ties;
} Limit;

// The order of the `count`th largest of n scores; hidden keys are never at the limit. REQUIRES: 1 <= count.
#if LANES == 1
// By bisection over the bits of an order: the largest that at least `count` keys reach. 32 passes in whole vectors take
// a processor less time than three that count digits one by one.
Limit limit_of(__global const float* scores, int n, int count) {
  int seen = 0;
  for (int i = 0; i < n; ++i) seen += order_of(scores[i]) > HIDDEN;
  Limit found = {HIDDEN, 0};
  if (seen <= count) return found;
  found.limit = 0;
  for (uint bit = 1u << 31; bit > 0; bit >>= 1) {
    int reach = 0;
    for (int i = 0; i < n; ++i) reach += order_of(scores[i]) >= (found.limit | bit);
    if (reach >= count) found.limit |= bit;
  }
  found.ties = count;
  for (int i = 0; i < n; ++i) found.ties -= order_of(scores[i]) > found.limit;
  return found;
}
#else
#define DIGIT 5  // bits of an order that one pass over a row's scores settles

// Digit by digit from the highest, each lane counting in a column of its own; every lane gets the same:
//
//     keys with the digits found so far, counted by the next one   [ 0: 7 | 1: 0 | .. | 30: 4 | 31: 2 ]
//     the 5th of them from above                                                      ^ has this digit, and is the 3rd
//
// `counts` holds LANES << DIGIT numbers, `sums` 1 << DIGIT.
Limit limit_of(__global const float* scores, int n, int count, __local int* counts, __local int* sums) {
  if (n <= count) return (Limit){HIDDEN, 0};
  const int lane = get_local_id(0);
  Limit found = {0, count};
  for (int left = 32; left > 0; left -= min(left, DIGIT)) {
    const int shift = left - min(left, DIGIT), digits = 1 << (left - shift);
    for (int digit = 0; digit < digits; ++digit) counts[digit * LANES + lane] = 0;
    for (int i = lane; i < n; i += LANES) {
      const uint order = order_of(scores[i]);
      if (left == 32 || order >> left == found.limit) ++counts[((order >> shift) & (digits - 1)) * LANES + lane];
    }
    SYNC;
    for (int digit = lane; digit < digits; digit += LANES) {
      sums[digit] = 0;
      for (int i = 0; i < LANES; ++i) sums[digit] += counts[digit * LANES + (lane + i) % LANES];
    }
    SYNC;
    int digit = digits - 1;
    for (; sums[digit] < found.ties; --digit) found.ties -= sums[digit];
    found.limit = found.limit << (left - shift) | digit;
  }
  return found.limit > HIDDEN ? found : (Limit){HIDDEN, 0};
}
#endif

// Global size (LANES, rows), local size (LANES, 1). Each lane has one contiguous range of the row to choose from.
KERNEL void choose_keys(IDS __global const float* restrict scores, __global int* restrict chosen, ulong chosen_offset,
                        int n, int count) {
  const int row = ID(1), lane = LANE_ID;
  const int begin = (int)((long)n * lane / LANES), end = (int)((long)n * (lane + 1) / LANES);
  scores += (ulong)row * n;
  chosen += chosen_offset + (ulong)row * count;
  int at = 0, tie = 0;
#if LANES == 1
  const Limit found = limit_of(scores, n, count);
#else
  __local int counts[LANES << DIGIT], sums[1 << DIGIT], above[LANES], equals[LANES];
  const Limit found = limit_of(scores, n, count, counts, sums);
  int more = 0, same = 0;
  for (int i = begin; i < end; ++i) {
    const uint order = order_of(scores[i]);
    more += order > found.limit;
    same += order == found.limit;
  }
  equals[lane] = same;
  const int all = sum_of_lanes(more, above) + found.ties;
  for (int i = 0; i < lane; ++i) at += above[i], tie += equals[i];
  at += min(tie, found.ties);
#endif
  for (int i = begin; i < end; ++i) {
    const uint order = order_of(scores[i]);
    if (order > found.limit || (order == found.limit && tie++ < found.ties)) chosen[at++] = i;
  }
#if LANES == 1
  const int all = at;
#endif
  for (int i = all + lane; i < count; i += LANES) chosen[i] = -1;
}

// The cells of the keys of each row into the segments of a plan, (cell, 1, rank), and how many they are into its bounds,
// (0, number). What is no key's is left out; segments behind the last key name cell 0, which nobody sees.
// Global size (LANES, rows), local size (LANES, 1). Each lane has one contiguous range of the list.
KERNEL void place_chosen(IDS __global const int* restrict chosen, ulong chosen_offset, int n, int count,
                         __global const int* restrict cells, ulong cells_offset, int listed, __global int* restrict table,
                         int bounds_at, int segments_at) {
  GROUP_MEM int shared[LANES];
  const int row = ID(1), lane = LANE_ID;
  const int begin = (int)((long)count * lane / LANES), end = (int)((long)count * (lane + 1) / LANES);
  chosen += chosen_offset + (ulong)row * count;
  __global int* segments = table + segments_at + 3 * (ulong)row * count;
  int mine = 0;
  for (int i = begin; i < end; ++i) mine += chosen[i] >= 0 && chosen[i] < n;
  const int all = sum_of_lanes(mine, shared);
  int at = 0;
  for (int i = 0; i < lane; ++i) at += shared[i];
  for (int i = begin; i < end; ++i)
    if (chosen[i] >= 0 && chosen[i] < n) segments[3 * at++] = listed ? cells[cells_offset + chosen[i]] : chosen[i];
  for (int i = all + lane; i < count; i += LANES) segments[3 * i] = 0;
  if (lane == 0) table[bounds_at + 2 * row + 1] = all;
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

// Pairs of a head in place, at an angle of position * inverse frequency each, times `factor` (rope.cl).
INLINE void rotate_mean(__global float* x, float position, __global const float* inverse_frequencies, int pairs,
                        int interleaved, float factor) {
  const int lane = LANE_ID, whole = interleaved ? 0 : pairs / VW * VW;
  for (int i = VW * lane; i < whole; i += VW * LANES) {
    VEC c;
    const VEC s = sincos(position * LOAD(inverse_frequencies + i), &c) * factor, u = LOAD(x + i), v = LOAD(x + i + pairs);
    c *= factor;
    STORE(FMA(u, c, -(v * s)), x + i);
    STORE(FMA(v, c, u * s), x + i + pairs);
  }
  for (int i = whole + lane; i < pairs; i += LANES) {
    float c;
    const float s = sincos(position * inverse_frequencies[i], &c) * factor;
    const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + pairs;
    const float u = x[a], v = x[b];
    c *= factor;
    x[a] = FMA(u, c, -(v * s));
    x[b] = FMA(v, c, u * s);
  }
}

// Keys of `tokens` [ratio], numbers of keys; `mean` [DIM].
INLINE void mean_of(__global const STORAGE(POOL_AS)* pool, __global const int* cells, __global const int* tokens,
                    int ratio, __global float* mean) {
  const int lane = LANE_ID, dim = DIM;
  const float share = 1.0f / ratio;
  FOR_VECTORS(d) {
    VEC sum = (VEC)0.0f;
    for (int i = 0; i < ratio; ++i) {
      const ulong cell = cells == 0 ? tokens[i] : cells[tokens[i]];
      sum += READ_VEC(POOL_AS, pool + cell * DIM + d);
    }
    STORE(sum * share, mean + d);
  }
  FOR_REST(d) {
    float sum = 0.0f;
    for (int i = 0; i < ratio; ++i) {
      const ulong cell = cells == 0 ? tokens[i] : cells[tokens[i]];
      sum += READ1(POOL_AS, pool + cell * DIM + d);
    }
    mean[d] = sum * share;
  }
}

// means [n][DIM], of KEYS blocks by a group. Where all blocks are chosen, nobody reads them.
// Global size (LANES, blocks / KEYS rounded up), local size (LANES, 1).
KERNEL void mean_keys(IDS __global const STORAGE(POOL_AS)* restrict pool, ulong pool_offset,
                      __global const int* restrict cells, ulong cells_offset, int listed,
                      __global const int* restrict tokens, ulong tokens_offset, __global const int* restrict starts,
                      ulong starts_offset, __global const float* restrict weight, ulong weight_offset,
                      __global const float* restrict inverse_frequencies, int pairs, int interleaved, float factor,
                      float eps, float offset, int ratio, __global float* restrict means, int n, int count) {
  GROUP_MEM float shared[LANES];
  const int lane = LANE_ID, dim = DIM, begin = (int)ID(1) * KEYS;
  if (n <= count) return;
  for (int block = begin; block < min(n, begin + KEYS); ++block) {
    __global float* mean = means + (ulong)block * DIM;
    mean_of(pool + pool_offset, listed ? cells + cells_offset : 0, tokens + tokens_offset + (ulong)block * ratio, ratio,
            mean);  // each lane sums up what it wrote
    const float scale = 1.0f / sqrt(row_squares(mean, 0.0f, dim, shared) / dim + eps);
    FOR_VECTORS(d) STORE(LOAD(mean + d) * scale * (offset + LOAD(weight + weight_offset + d)), mean + d);
    FOR_REST(d) mean[d] = mean[d] * scale * (offset + weight[weight_offset + d]);
    SYNC;
    rotate_mean(mean, (float)starts[starts_offset + block], inverse_frequencies, pairs, interleaved, factor);
  }
}

// best [rows][count], blocks or -1 -> chosen [rows][count * ratio + ratio - 1], keys or -1.
// Global size (LANES, rows), local size (LANES, 1).
KERNEL void spread_blocks(IDS __global const int* restrict best, ulong best_offset, __global const int* restrict tokens,
                          ulong tokens_offset, __global const int* restrict tails, ulong tails_offset,
                          __global int* restrict chosen, ulong chosen_offset, int n, int count, int ratio) {
  const int row = ID(1), lane = LANE_ID, inside = count * ratio;
  best += best_offset + (ulong)row * count;
  tails += tails_offset + (ulong)row * (ratio - 1);
  chosen += chosen_offset + (ulong)row * (inside + ratio - 1);
  for (int i = lane; i < inside; i += LANES) {
    const int block = best[i / ratio];
    chosen[i] = block >= 0 && block < n ? tokens[tokens_offset + (ulong)block * ratio + i % ratio] : -1;
  }
  for (int i = lane; i < ratio - 1; i += LANES) chosen[inside + i] = tails[i];
}
