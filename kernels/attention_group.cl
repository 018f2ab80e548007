// Attention over spans, work-group family and general fallback: LANES work-items compute one tile for one query head.
//
// Same data, plan and results as attention.cl (see there for the layouts), for any K_DIM and V_DIM:
//
//   for each row of the tile, for each block of keys:
//     lane i   score of keys i, i + LANES, ...             -> local weights[]
//     all      max and sum over the block (every lane the same sums)
//     lane i   out[d] += weight * v[key][d] for d = i, i + LANES, ...
//
// With LANES 1 it needs no barrier and serves as the general kernel of CPU devices. Every barrier is reached by all
// work-items of a group: all loop bounds come from the plan. Hidden keys are never read, and what other rows of the tile
// see changes no bits: blocks end at multiples of BLOCK, and a split of which a row sees nothing leaves its total
// alone.
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
#ifndef MASKED
#define MASKED 0  // 1: an additive mask [rows][mask_stride] decides what is visible, bounds do not
#endif

#include "attention_total.clh"
#include "cell_format.clh"

#define BLOCK 64
// Numbers of the output that a lane owns, and which they are: whole blocks where values are turned, so that no lane waits
// for another.
#if TURNED(V_FORMAT)
#define OWN_BLOCK CELL_BLOCK(V_FORMAT)
#else
#define OWN_BLOCK 1
#endif
#define OWN ((V_DIM / OWN_BLOCK + LANES - 1) / LANES * OWN_BLOCK)
#define OWN_AT(i) (((i) / OWN_BLOCK * LANES + lane) * OWN_BLOCK + (i) % OWN_BLOCK)

#if LANES > 1
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#else
#define SYNC
#endif

// q times a key, summed in ascending order. `aligned`: the key begins where READ_8_CELLS can read.
float score_of(__local const float* q, __global const K_CELL* key, int aligned) {
  float score = 0.0f;
#if READ_8_BYTES(K_FORMAT) > 0 && K_DIM % 8 == 0
  if (aligned) {
    for (int d = 0; d < K_DIM; d += 8) {
      float k[8];
      READ_8_CELLS(K_FORMAT, key, d, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) score = FMA(q[d + i], k[i], score);
    }
    return score;
  }
#endif
  for (int d = 0; d < K_DIM; ++d) score = FMA(q[d], READ_CELL(K_FORMAT, key, d), score);
  return score;
}

// The `keys` keys of a block that one row sees, from key `used` of segment s on: turns local weights[] into exp(score - max), keeps the
// running max and sum and returns the factor by which what was accumulated before shrinks.
float weigh_block(__local const float* q, __global const K_CELL* k, __global const int* segment, int s, int used, int keys,
                  ulong cell_stride, int aligned, float scale, float softcap, __global const float* mask,
                  __local float* weights, float* max_, float* sum_) {
  const int lane = get_local_id(0);
  SYNC;  // the block before is used up
  for (int key = lane; key < keys; key += LANES) {
    int at = used + key, in = s;
    while (at >= segment[3 * in + 1]) at -= segment[3 * in++ + 1];
    const __global K_CELL* row = k + (ulong)(segment[3 * in] + at) * cell_stride;
    float score = score_of(q, row, aligned) * scale;
    if (softcap > 0.0f) score = softcap * tanh(score / softcap);
#if MASKED
    score = mask[key] == -INFINITY ? -INFINITY : score + mask[key];
#endif
    weights[key] = score;
  }
  SYNC;
  float top = *max_;
  for (int key = 0; key < keys; ++key) top = fmax(top, weights[key]);
  const float base = top == -INFINITY ? 0.0f : top;
  SYNC;  // every lane has read the scores
  for (int key = lane; key < keys; key += LANES) weights[key] = exp_one(weights[key] - base);
  SYNC;
  float sum = 0.0f;
  for (int key = 0; key < keys; ++key) sum += weights[key];
  const float shrink = exp_one(*max_ - base);
  *max_ = top;
  *sum_ = FMA(*sum_, shrink, sum);
  return shrink;
}

// own[] += weight * the value at `row`, of which a lane has every LANES-th number.
void add_value(float* own, float weight, __global const V_CELL* row) {
  const int lane = get_local_id(0);
  for (int i = 0; i < OWN; ++i)
    if (OWN_AT(i) < V_DIM) own[i] = FMA(weight, READ_CELL(V_FORMAT, row, OWN_AT(i)), own[i]);
}

// own[] = own[] * shrink + weighted values of those keys. Of one segment, as most blocks are, eight are asked for together.
void add_values(float* own, float shrink, __global const V_CELL* v, __global const int* segment, int s, int used, int keys,
                ulong cell_stride, __local const float* weights) {
  for (int i = 0; i < OWN; ++i) own[i] *= shrink;
  if (!MASKED && used + keys <= segment[3 * s + 1]) {
    v += (ulong)(segment[3 * s] + used) * cell_stride;
#pragma unroll 8
    for (int key = 0; key < keys; ++key) add_value(own, weights[key], v + key * cell_stride);
    return;
  }
  for (int key = 0, at = used, in = s; key < keys; ++key, ++at) {
    while (at >= segment[3 * in + 1]) at -= segment[3 * in++ + 1];
    const __global V_CELL* row = v + (ulong)(segment[3 * in] + at) * cell_stride;
    const float weight = weights[key];
    if (!MASKED || weight != 0.0f) add_value(own, weight, row);
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
                           __global float* restrict partial_stats) {
  __local float q_row[K_DIM];
  __local float weights[BLOCK];
  const int lane = get_local_id(0), head = get_global_id(2);
#if READ_8_BYTES(K_FORMAT) > 0
  const int aligned = ((k_offset | k_head_stride | k_cell_stride) % (READ_8_BYTES(K_FORMAT) / (int)sizeof(K_CELL))) == 0;
#else
  const int aligned = 0;
#endif
  __global const int* tile = table + tiles_at + 5 * (int)get_global_id(1);
  __global const int* segment = table + segments_at + 3 * tile[2];
  k += k_offset + (ulong)(head / group) * k_head_stride;
  v += v_offset + (ulong)(head / group) * v_head_stride;

  for (int r = 0; r < tile[1]; ++r) {
    const int row = table[row_ids_at + tile[0] + r];
    const int first = table[bounds_at + 2 * row], end = table[bounds_at + 2 * row + 1];
    SYNC;  // the row before is done with q_row
    for (int d = lane; d < K_DIM; d += LANES) q_row[d] = q[q_offset + ((ulong)row * heads + head) * K_DIM + d];
    SYNC;
#if TURNED(K_FORMAT)
    for (int block = lane * CELL_BLOCK(K_FORMAT); block < K_DIM; block += LANES * CELL_BLOCK(K_FORMAT)) {
      float x[CELL_BLOCK(K_FORMAT)];
      for (int i = 0; i < CELL_BLOCK(K_FORMAT); ++i) x[i] = q_row[block + i];
      turn_block(x, TURN_OUT);
      for (int i = 0; i < CELL_BLOCK(K_FORMAT); ++i) q_row[block + i] = x[i];
    }
    SYNC;
#endif
    float total[OWN], own[OWN];
    for (int i = 0; i < OWN; ++i) total[i] = 0.0f, own[i] = 0.0f;
    Total all = {-INFINITY, 0.0f};
    float max_ = -INFINITY, sum = 0.0f;
    int s = 0, used = 0, seen = 0;  // seen: keys of this split
    while (s < tile[3]) {
      const int position = segment[3 * s + 2] + used;
      const int split_end = (position / split + 1) * split;
      const int block_end = min(split_end, (position / BLOCK + 1) * BLOCK);
      int keys = 0, next = s, next_used = used;  // the block runs over [position, block_end) as far as there are keys
      while (next < tile[3] && position + keys < block_end && segment[3 * next + 2] + next_used == position + keys) {
        const int take = min(block_end - position - keys, segment[3 * next + 1] - next_used);
        keys += take;
        next_used += take;
        if (next_used == segment[3 * next + 1]) ++next, next_used = 0;
      }
      const int hidden = MASKED ? 0 : clamp(first - position, 0, keys);
      const int visible = MASKED ? keys : clamp(end - position, 0, keys) - hidden;
      if (visible > 0) {
        const float shrink =
            weigh_block(q_row, k, segment, s, used + hidden, visible, k_cell_stride, aligned, scale, softcap,
                        mask + mask_offset + (ulong)row * mask_stride + position, weights, &max_, &sum);
        add_values(own, shrink, v, segment, s, used + hidden, visible, v_cell_stride, weights);
        seen += visible;
      }
      s = next;
      used = next_used;
      if (s < tile[3] && segment[3 * s + 2] + used < split_end) continue;
      if (tile[4] >= 0) break;  // a tile with partials has one split
      if (seen == 0) continue;
      seen = 0;
      float keep, add;
      join_split(&all, max_, sum, &keep, &add);
      for (int i = 0; i < OWN; ++i) total[i] = FMA(own[i], add, total[i] * keep), own[i] = 0.0f;
      max_ = -INFINITY, sum = 0.0f;
    }

    const ulong at = (ulong)(tile[4] + r) * heads + head;
    if (tile[4] >= 0) {
      for (int i = 0; i < OWN; ++i)
        if (OWN_AT(i) < V_DIM) partial_out[at * V_DIM + OWN_AT(i)] = own[i];
      if (lane == 0) partial_stats[2 * at] = max_, partial_stats[2 * at + 1] = sum;
      continue;
    }
    const float factor = output_factor(all, has_sinks ? sinks[sinks_offset + head] : -INFINITY);
    for (int i = 0; i < OWN; ++i)
      if (OWN_AT(i) < V_DIM)
        out[out_offset + ((ulong)row * heads + head) * V_DIM + OWN_AT(i)] = total[i] * factor;
#if TURNED(V_FORMAT)
    turn_output(out + out_offset + ((ulong)row * heads + head) * V_DIM, V_DIM, lane, LANES);
#endif
  }
}
