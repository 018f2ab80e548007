// Attention over spans, work-group family and general fallback: LANES work-items compute LINES lines of a tile.
//
// A line is one query head of one row. The lines of a group belong to one K/V head, so each key and each value is read
// once for all of them. Same data, plan and results as attention.cl (see there for the layouts), for any K_DIM and V_DIM:
//
//   for each block of 64 positions, from multiples of 64 on:
//     lane i   scores of key i, i + LANES, ... for every line                     -> weights[line][key]
//     lane i   eighths of a line i, i + LANES, ...: the largest score, then exp(score - max) and their sum
//     lane i   own[line][d] += weights[line][key] * v[key][d] for d = i, i + LANES, ...
//
// A line's sums run over absolute positions in one order, and what it does not see is never multiplied in: so its bits
// do not depend on LINES, on the other lines, or on how its history lies in cells. A tile has `parts` groups, each with
// LINES of its lines.
//
// With LANES 1 it needs no barrier and serves as the general kernel of CPU devices. Every barrier is reached by all
// work-items of a group, as all loop bounds come from the plan, and none is in a branch: PoCL then makes endless loops.
#pragma OPENCL FP_CONTRACT OFF

#ifndef K_DIM
#define K_DIM 64  // numbers per key
#endif
#ifndef V_DIM
#define V_DIM K_DIM  // numbers per value
#endif
#ifndef LANES
#define LANES 64  // work-items of a group
#endif
#ifndef LINES
#define LINES 1  // lines of a group
#endif
#ifndef MASKED
#define MASKED 0  // 1: an additive mask [rows][mask_stride] decides what is visible, bounds do not
#endif

#include "attention_total.clh"
#include "cell_format.clh"

#define BLOCK 64
#define EIGHTH (BLOCK / 8)
#define APART (BLOCK + EIGHTH)  // floats between lines: lanes that read eighths then meet no bank twice
#define OWN ((V_DIM + LANES - 1) / LANES)  // numbers of the output that a lane owns
#define OWN_AT(i) ((i) * LANES + lane)
#define AT_ONCE (OWN <= 2 ? 8 : 4)  // values that are asked for together

#if LANES > 1
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#else
#define SYNC
#endif

// What the lanes of a group share. Lines behind the tile's last one have row -1 and see nothing.
typedef struct {
  float weights[LINES * APART] __attribute__((aligned(16)));  // of a block: scores first
  float queries[LINES * K_DIM] __attribute__((aligned(16)));
  float eighths[LINES * 8];  // of a block: largest scores, then sums
  float max_[LINES], sum[LINES], shrink[LINES];  // of this split; what was added before the block shrinks
  int row[LINES], first[LINES], end[LINES];      // the positions that a line sees
  int cells[BLOCK];                              // where the keys of a block are
} Shared;

// A run of keys without a gap inside a block: positions [from, to) behind `base`.
typedef struct {
  int base, from, to;
} Block;

// Queries of the lines, and what they see. The barrier before the first scores is the caller's.
void read_lines(__local Shared* shared, __global const float* q, __global const int* table, int bounds_at,
                __global const int* ids, int rows, int line0, int heads, int group, int head0) {
  const int lane = get_local_id(0);
  for (int line = lane; line < LINES; line += LANES) {
    const int row = (line0 + line) / group < rows ? ids[(line0 + line) / group] : -1;
    shared->row[line] = row;
    shared->first[line] = row < 0 || MASKED ? 0 : table[bounds_at + 2 * row];
    shared->end[line] = row < 0 ? 0 : MASKED ? INT_MAX : table[bounds_at + 2 * row + 1];
    shared->max_[line] = -INFINITY;
    shared->sum[line] = 0.0f;
  }
  SYNC;
  for (int line = 0; line < LINES; ++line) {
    const int row = shared->row[line];
    const ulong at = ((ulong)max(row, 0) * heads + head0 + (line0 + line) % group) * K_DIM;
    for (int d = lane; d < K_DIM; d += LANES) shared->queries[line * K_DIM + d] = row < 0 ? 0.0f : q[at + d];
  }
#if TURNED(K_FORMAT)
  SYNC;
  for (int block = lane; block < LINES * K_DIM / CELL_BLOCK(K_FORMAT); block += LANES) {
    float x[CELL_BLOCK(K_FORMAT)];
    __local float* at = shared->queries + block * CELL_BLOCK(K_FORMAT);
    for (int i = 0; i < CELL_BLOCK(K_FORMAT); ++i) x[i] = at[i];
    turn_block(x, TURN_OUT);
    for (int i = 0; i < CELL_BLOCK(K_FORMAT); ++i) at[i] = x[i];
  }
#endif
}

// scores[line] = queries[line] . key, each summed in ascending order. `aligned`: the key begins where READ_8_CELLS can
// read.
void score_key(__local const float* queries, __global const K_CELL* key, int aligned, float* scores) {
#pragma unroll
  for (int line = 0; line < LINES; ++line) scores[line] = 0.0f;
#if READ_8_BYTES(K_FORMAT) > 0 && K_DIM % 8 == 0
  if (aligned) {
    for (int d = 0; d < K_DIM; d += 8) {
      float k[8];
      READ_8_CELLS(K_FORMAT, key, d, k);
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const __local float4* x = (const __local float4*)(queries + line * K_DIM + d);
        const float4 low = x[0], high = x[1];
        float score = scores[line];
        score = FMA(low.x, k[0], score);
        score = FMA(low.y, k[1], score);
        score = FMA(low.z, k[2], score);
        score = FMA(low.w, k[3], score);
        score = FMA(high.x, k[4], score);
        score = FMA(high.y, k[5], score);
        score = FMA(high.z, k[6], score);
        scores[line] = FMA(high.w, k[7], score);
      }
    }
    return;
  }
#endif
  for (int d = 0; d < K_DIM; ++d) {
    const float k = READ_CELL(K_FORMAT, key, d);
#pragma unroll
    for (int line = 0; line < LINES; ++line) scores[line] = FMA(queries[line * K_DIM + d], k, scores[line]);
  }
}

// The block's cells, from number `used` of segment s on.
void find_cells(__local Shared* shared, __global const int* segment, int s, int used, Block block) {
  for (int key = block.from + (int)get_local_id(0); key < block.to; key += LANES) {
    int at = used + key - block.from, in = s;
    while (at >= segment[3 * in + 1]) at -= segment[3 * in++ + 1];
    shared->cells[key] = segment[3 * in] + at;
  }
}

// Scores of the block's keys; -INFINITY for what a line does not see.
void score_block(__local Shared* shared, __global const K_CELL* k, ulong cell_stride, int aligned, Block block, float scale,
                 float softcap, __global const float* mask, ulong mask_stride) {
  for (int key = get_local_id(0); key < BLOCK; key += LANES) {
    const int position = block.base + key, is_key = key >= block.from && key < block.to;
    float scores[LINES];
    if (is_key) score_key(shared->queries, k + (ulong)shared->cells[key] * cell_stride, aligned, scores);
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      float score = -INFINITY;
      if (is_key && position >= shared->first[line] && position < shared->end[line]) {
        score = scores[line] * scale;
        if (softcap > 0.0f) score = softcap * tanh(score / softcap);
#if MASKED
        const float added = mask[(ulong)shared->row[line] * mask_stride + position];
        score = added == -INFINITY ? -INFINITY : score + added;
#endif
      }
      shared->weights[line * APART + key] = score;
    }
  }
}

// Turns scores into weights exp(score - max), keeps the running max and the sums of eighths. `begins`: the split does.
void weigh_block(__local Shared* shared, int begins) {
  const int lane = get_local_id(0);
  for (int i = lane; i < LINES * 8; i += LANES) {
    __local const float* scores = shared->weights + i / 8 * APART + i % 8 * EIGHTH;
    float top = scores[0];
    for (int key = 1; key < EIGHTH; ++key) top = fmax(top, scores[(key + i) % EIGHTH]);
    shared->eighths[i] = fmax(top, scores[i % EIGHTH]);
  }
  SYNC;
  for (int line = lane; line < LINES; line += LANES) {
    const float before = begins ? -INFINITY : shared->max_[line];
    float top = before;
    for (int i = 0; i < 8; ++i) top = fmax(top, shared->eighths[8 * line + i]);
    shared->shrink[line] = exp_one(before - (top == -INFINITY ? 0.0f : top));
    shared->max_[line] = top;
  }
  SYNC;
  for (int i = lane; i < LINES * 8; i += LANES) {
    __local float* weights = shared->weights + i / 8 * APART + i % 8 * EIGHTH;
    const float top = shared->max_[i / 8], base = top == -INFINITY ? 0.0f : top;
    float sum = 0.0f;
    for (int key = 0; key < EIGHTH; ++key) {  // an eighth begins at its own number, so that banks differ
      const int at = (key + i) % EIGHTH;
      weights[at] = exp_one(weights[at] - base);
      sum += weights[at];
    }
    shared->eighths[i] = sum;
  }
  SYNC;
}

void add_sums(__local Shared* shared, int begins) {
  for (int line = get_local_id(0); line < LINES; line += LANES) {
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += shared->eighths[8 * line + i];
    shared->sum[line] = begins ? sum : FMA(shared->sum[line], shared->shrink[line], sum);
  }
}

// Numbers of a value that a lane owns; 0 for those that it has not.
INLINE void read_value(__global const V_CELL* row, float* to) {
  const int lane = get_local_id(0);
#pragma unroll
  for (int i = 0; i < OWN; ++i) to[i] = OWN_AT(i) < V_DIM ? READ_CELL(V_FORMAT, row, OWN_AT(i)) : 0.0f;
}

// own[line][] += weights * values of keys [from, to), in ascending order; all lines see them.
void add_seen(float (*own)[OWN], __local const Shared* shared, __global const V_CELL* v, ulong cell_stride, int from, int to) {
  int key = from;
  while (key < to) {
    const int many = key % AT_ONCE == 0 && key + AT_ONCE <= to;
    float values[AT_ONCE][OWN];
    if (many) {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) read_value(v + (ulong)shared->cells[key + j] * cell_stride, values[j]);
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const __local float4* weights = (const __local float4*)(shared->weights + line * APART + key);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j += 4) {
          const float4 weight = weights[j / 4];
#pragma unroll
          for (int i = 0; i < OWN; ++i) {
            float sum = FMA(weight.x, values[j][i], own[line][i]);
            sum = FMA(weight.y, values[j + 1][i], sum);
            sum = FMA(weight.z, values[j + 2][i], sum);
            own[line][i] = FMA(weight.w, values[j + 3][i], sum);
          }
        }
      }
      key += AT_ONCE;
    } else {
      read_value(v + (ulong)shared->cells[key] * cell_stride, values[0]);
#pragma unroll
      for (int line = 0; line < LINES; ++line)
#pragma unroll
        for (int i = 0; i < OWN; ++i) own[line][i] = FMA(shared->weights[line * APART + key], values[0][i], own[line][i]);
      ++key;
    }
  }
}

// The same where lines see different keys.
void add_chosen(float (*own)[OWN], __local const Shared* shared, __global const V_CELL* v, ulong cell_stride, Block block) {
  for (int key = block.from; key < block.to; ++key) {
    const int position = block.base + key;
    float value[OWN];
    read_value(v + (ulong)shared->cells[key] * cell_stride, value);
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const float weight = shared->weights[line * APART + key];
      if (MASKED ? weight == 0.0f : position < shared->first[line] || position >= shared->end[line]) continue;
#pragma unroll
      for (int i = 0; i < OWN; ++i) own[line][i] = FMA(weight, value[i], own[line][i]);
    }
  }
}

// The run of keys that begins at number `*used` of segment `*s`, of `count`: it ends with a block, a split or the keys,
// and what no line sees, before `first` and from `end` on, is left out at both ends. Moves *s and *used behind it. No
// struct is returned: oclgrind knows nothing of what a compiler makes of that.
INLINE void next_run(__global const int* segment, int count, int split_end, int first, int end, int* s, int* used,
                     Block* run) {
  const int position = segment[3 * *s + 2] + *used, base = position / BLOCK * BLOCK;
  const int limit = min(split_end, base + BLOCK);
  int to = position;
  while (*s < count && to < limit && segment[3 * *s + 2] + *used == to) {
    const int take = min(limit - to, segment[3 * *s + 1] - *used);
    to += take;
    *used += take;
    if (*used == segment[3 * *s + 1]) ++*s, *used = 0;
  }
  run->base = base;
  run->from = max(position, first) - base;
  run->to = min(to, end) - base;
}

// The lines of a group among those of a step.
typedef struct {
  __local const Shared* shared;
  int heads, head0, line0, group;  // of all K/V heads; the first of this one; the tile's line that is the group's first
} Lines;

INLINE int head_of(const Lines* lines, int line) { return lines->head0 + (lines->line0 + line) % lines->group; }
INLINE ulong output_at(const Lines* lines, int line) {
  return ((ulong)lines->shared->row[line] * lines->heads + head_of(lines, line)) * V_DIM;
}

void write_partials(const Lines* lines, float (*own)[OWN], int partial, __global float* partial_out,
                    __global float* partial_stats) {
  const int lane = get_local_id(0);
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    if (lines->shared->row[line] < 0) continue;
    const ulong row = partial + (lines->line0 + line) / lines->group, at = row * lines->heads + head_of(lines, line);
    for (int i = 0; i < OWN; ++i)
      if (OWN_AT(i) < V_DIM) partial_out[at * V_DIM + OWN_AT(i)] = own[line][i];
    if (lane > 0) continue;
    partial_stats[2 * at] = lines->shared->max_[line];
    partial_stats[2 * at + 1] = lines->shared->sum[line];
  }
}

// `sinks`: a logit of each head, or 0 for none.
void write_output(const Lines* lines, const Total* all, float (*total)[OWN], __global const float* sinks,
                  __global float* out) {
  const int lane = get_local_id(0);
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    if (lines->shared->row[line] < 0) continue;
    const float factor = output_factor(all[line], sinks ? sinks[head_of(lines, line)] : -INFINITY);
    __global float* to = out + output_at(lines, line);
    for (int i = 0; i < OWN; ++i)
      if (OWN_AT(i) < V_DIM) to[OWN_AT(i)] = total[line][i] * factor;
  }
}

__kernel void attend_tiles(__global const float* restrict q, ulong q_offset, __global const K_CELL* restrict k,
                           ulong k_offset, __global const V_CELL* restrict v, ulong v_offset, ulong k_head_stride,
                           ulong k_cell_stride, ulong v_head_stride, ulong v_cell_stride,
                           __global const int* restrict table, int bounds_at, int row_ids_at, int segments_at,
                           int tiles_at, int split, int heads, int group, float scale, float softcap,
                           __global const float* restrict mask, ulong mask_offset, ulong mask_stride,
                           __global const float* restrict sinks, ulong sinks_offset, int has_sinks,
                           __global float* restrict out, ulong out_offset, __global float* restrict partial_out,
                           __global float* restrict partial_stats, int parts) {
  __local Shared shared;
  const int lane = get_local_id(0), kv_head = get_global_id(2), head0 = kv_head * group;
  __global const int* tile = table + tiles_at + 5 * ((int)get_global_id(1) / parts);
  __global const int* segment = table + segments_at + 3 * tile[2];
  __global const int* ids = table + row_ids_at + tile[0];
  const int line0 = (int)get_global_id(1) % parts * LINES;
  const int segments = line0 < tile[1] * group ? tile[3] : 0;
#if READ_8_BYTES(K_FORMAT) > 0
  const int aligned = ((k_offset | k_head_stride | k_cell_stride) % (READ_8_BYTES(K_FORMAT) / (int)sizeof(K_CELL))) == 0;
#else
  const int aligned = 0;
#endif
  k += k_offset + (ulong)kv_head * k_head_stride;
  v += v_offset + (ulong)kv_head * v_head_stride;

  read_lines(&shared, q + q_offset, table, bounds_at, ids, tile[1], line0, heads, group, head0);
  int first = INT_MAX, end = 0, all_first = 0, all_end = INT_MAX;  // what some and what all lines see
  for (int line = 0; line < LINES; ++line) {
    if (shared.row[line] < 0) continue;
    first = min(first, shared.first[line]);
    end = max(end, shared.end[line]);
    all_first = max(all_first, shared.first[line]);
    all_end = min(all_end, shared.end[line]);
  }
  float total[LINES][OWN], own[LINES][OWN];
  Total all[LINES];
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    all[line].max_ = -INFINITY, all[line].sum = 0.0f;
    for (int i = 0; i < OWN; ++i) total[line][i] = own[line][i] = 0.0f;
  }
  int s = 0, used = 0, begins = 1;  // begins: nothing of this split was added yet
  while (s < segments) {
    const int split_end = ((segment[3 * s + 2] + used) / split + 1) * split;
    int begun_in, begun_at, position, closes;
    Block run;
    do {  // runs that no line sees are passed over
      begun_in = s, begun_at = used, position = segment[3 * s + 2] + used;
      next_run(segment, segments, split_end, first, end, &s, &used, &run);
      closes = s == segments || segment[3 * s + 2] + used >= split_end;
    } while (run.from >= run.to && !closes);
    find_cells(&shared, segment, begun_in, begun_at + run.base + run.from - position, run);
    SYNC;
    score_block(&shared, k, k_cell_stride, aligned, run, scale, softcap, mask + mask_offset, mask_stride);
    SYNC;
    weigh_block(&shared, begins);
    add_sums(&shared, begins);
#pragma unroll
    for (int line = 0; line < LINES; ++line)
      for (int i = 0; i < OWN; ++i) own[line][i] *= shared.shrink[line];
    if (!MASKED && run.base + run.from >= all_first && run.base + run.to <= all_end) {
      add_seen(own, &shared, v, v_cell_stride, run.from, run.to);
    } else {
      add_chosen(own, &shared, v, v_cell_stride, run);
    }
    SYNC;  // the block is used up, and its sums are added
    begins = closes;
    if (closes && tile[4] < 0) {
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        float keep, add;
        join_split(&all[line], shared.max_[line], shared.sum[line], &keep, &add);
        for (int i = 0; i < OWN; ++i)
          total[line][i] = FMA(own[line][i], add, total[line][i] * keep), own[line][i] = 0.0f;
      }
    }
  }

  const Lines lines = {&shared, heads, head0, line0, group};
  if (tile[4] >= 0) {
    write_partials(&lines, own, tile[4], partial_out, partial_stats);
  } else {
    write_output(&lines, all, total, has_sinks ? sinks + sinks_offset : 0, out + out_offset);
  }
#if TURNED(V_FORMAT)
#if LANES > 1
  barrier(CLK_GLOBAL_MEM_FENCE);  // a block of the output has numbers of several lanes
#endif
  for (int line = 0; line < LINES; ++line)
    if (tile[4] < 0 && shared.row[line] >= 0) turn_output(out + out_offset + output_at(&lines, line), V_DIM, lane, LANES);
#endif
}
