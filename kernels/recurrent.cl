// Causal convolution, the gated delta rule and Mamba-2's scan over the rows of sequences (csrc/ops/recurrent.h).
//
// table: for each sequence (row, count, from, first write, end of writes), then the writes (rows, slot); writes are
// named by the index of their first number. A slot of -1 to start from is a zero state, and nothing is read.
//
// One work-item goes through all rows of a sequence for its share of the state (some channels; some rows of S) and
// keeps that in private memory, so a write on the way changes no bit of what follows. Slots that are read are not
// written.
#pragma OPENCL FP_CONTRACT OFF

#ifndef CONV_STATE
#define CONV_STATE 0  // storage of convolution states: 0 float32, 1 float16
#endif
#ifndef CONV_WIDTH
#define CONV_WIDTH 4  // taps of the convolution
#endif
#ifndef CONV_BLOCK
#define CONV_BLOCK 256  // channels of one work-item: a multiple of VW for vectors, 1 for neighbouring lanes
#endif
#ifndef CONV_ROWS
#define CONV_ROWS 8  // rows of all its channels that it goes through at a time
#endif
#ifndef CONV_AHEAD
#define CONV_AHEAD 1024  // bytes that inputs of one row alone are asked for ahead
#endif
#ifndef DELTA_DIM
#define DELTA_DIM 128
#endif
#ifndef DELTA_CHANNELS
#define DELTA_CHANNELS 0  // 1: a decay for each number of k, else for each head
#endif
#ifndef DELTA_ROWS
#define DELTA_ROWS 8  // rows of S of one work-item; divides v_dim where LANES is 1
#endif
#ifndef LANES
#define LANES 1  // more: work-items that share each row's k and q through local memory; then DELTA_ROWS is 1
#endif
#ifndef DELTA_TILE
#define DELTA_TILE 8  // rows of k and q beside each other at a time
#endif
#ifndef DELTA_VW
#define DELTA_VW ROW_VW  // floats of the vectors of states: ROW_VW, or twice as many
#endif
#ifndef HELD
#define HELD DELTA_ROWS  // rows of S in registers at a time; divides DELTA_ROWS
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "exp.clh"  // each time
#include "reduce.clh"
#include "storage.clh"
#include "work_item.clh"

#include "recurrent_conv.clh"

// ---- gated delta rule -----------------------------------------------------------------------------------------------

#undef VW
#define VW DELTA_VW
#include "exp.clh"  // each time
#define DELTA_VECTORS ((DELTA_DIM + VW - 1) / VW)

// sum_lanes of a vector of VW.
#if DELTA_VW > ROW_VW
#define sum_state(x) sum_lanes((x).lo + (x).hi)
#else
#define sum_state(x) sum_lanes(x)
#endif

#define KEEP_ALL(to, from)                              \
  _Pragma("unroll") for (int r = 0; r < HELD; ++r)      \
    _Pragma("unroll") for (int i = 0; i < DELTA_VECTORS; ++i) to[r][i] = from[r][i]

#if LANES == 1
#define TAKE(p) KEPT_GLOBAL(p)
#define PUT(x, p) KEEP_GLOBAL(x, p)
#else
#define TAKE(p) LOAD(p)
#define PUT(x, p) STORE(x, p)
#endif

// Numbers VW i to VW (i + 1) - 1 of a row of DELTA_DIM; zeros beyond it.
VEC load_vector(__global const float* row, int i) {
#if DELTA_DIM % VW == 0
  return TAKE(row + VW * i);
#else
  if (VW * i + VW <= DELTA_DIM) return TAKE(row + VW * i);
  float rest[VW] = {0};
  for (int d = VW * i; d < DELTA_DIM; ++d) rest[d - VW * i] = row[d];
  return LOAD(rest);
#endif
}

void store_vector(VEC x, __global float* row, int i) {
#if DELTA_DIM % VW != 0
  if (VW * i + VW > DELTA_DIM) {
    float rest[VW];
    STORE(x, rest);
    for (int d = VW * i; d < DELTA_DIM; ++d) row[d] = rest[d - VW * i];
    return;
  }
#endif
  PUT(x, row + VW * i);
}

#if DELTA_CHANNELS
#define DECAYS DELTA_DIM  // of a head
#else
#define DECAYS 1
#endif

// Rows of a sequence that go through S before it is put back, and rows of k and q that lie beside each other meanwhile,
// of WIDTH numbers with zeros beyond DELTA_DIM. Where they come from, the rows of one head may be a multiple of the
// distance at which a cache keeps lines in the same few places.
#define WIDTH (VW * DELTA_VECTORS)
#if LANES > 1
#define SHARED __local
#define TOGETHER 1  // of a tile: arrays that a loop counts through would not be in registers
#define COUNT(done, next) 1
#else
#define SHARED __private
#define TOGETHER DELTA_TILE
#define COUNT(done, next) ((next) - (done))
#endif

// LANES work-items copy `count` rows of k and q, `stride` numbers apart.
void share_rows(__global const float* k, __global const float* q, SHARED float* keys, SHARED float* queries,
                ulong stride, int count) {
#if LANES > 1
  SYNC;
  for (int i = get_local_id(0); i < count * WIDTH; i += LANES) {
    const int t = i / WIDTH, d = i % WIDTH;
    keys[i] = d < DELTA_DIM ? k[t * stride + d] : 0.0f;
    queries[i] = d < DELTA_DIM ? q[t * stride + d] : 0.0f;
  }
  SYNC;
#else
  for (int t = 0; t < count; ++t) {
    for (int i = 0; i < DELTA_VECTORS; ++i) {
      STORE(load_vector(k + t * stride, i), keys + t * WIDTH + VW * i);
      STORE(load_vector(q + t * stride, i), queries + t * WIDTH + VW * i);
    }
  }
#endif
}

// Where the rows of a tile that go through S at once end: at the next state that is wanted, or with the tile.
int end_of_rows(__global const int* table, int write, int end_of_writes, int tile, int done, int rows) {
  return min(write == end_of_writes ? rows : min(rows, table[write] - tile), done + TOGETHER);
}

void load_state(VEC S[DELTA_ROWS][DELTA_VECTORS], __global const float* in, ulong first_row, int slot) {
  for (int r = 0; r < DELTA_ROWS; ++r)
    for (int i = 0; i < DELTA_VECTORS; ++i) S[r][i] = slot < 0 ? (VEC)(0.0f) : load_vector(in + (first_row + r) * DELTA_DIM, i);
}

void store_state(VEC S[DELTA_ROWS][DELTA_VECTORS], __global float* out, ulong first_row) {
  for (int r = 0; r < DELTA_ROWS; ++r)
    for (int i = 0; i < DELTA_VECTORS; ++i) store_vector(S[r][i], out + (first_row + r) * DELTA_DIM, i);
}

// What S is multiplied by before each of `count` rows: a number, or one for each column.
#if DELTA_CHANNELS && LANES > 1
#define FADES __global const float*
#define FADE(fades, t, i) JOIN(exp_, VW)(load_vector(fades, i))
#elif DELTA_CHANNELS
#define FADES VEC*
#define FADE(fades, t, i) fades[(t) * DELTA_VECTORS + (i)]
#else
#define FADES float*
#endif

// `count` rows for HELD rows of S; v and y point at the first of them, those of the next row are `heads` * `v_dim` on.
void delta_rows(VEC S[HELD][DELTA_VECTORS], int count, SHARED const float* keys, SHARED const float* queries, FADES fades,
                __global const float* beta, __global const float* v, __global float* y, int heads, int v_dim) {
  VEC held[HELD][DELTA_VECTORS];
  KEEP_ALL(held, S);
  for (int t = 0; t < count; ++t) {
    SHARED const float *k = keys + t * WIDTH, *q = queries + t * WIDTH;
    const ulong row = (ulong)t * heads * v_dim;
    VEC seen[HELD], sum[HELD];
    float u[HELD];
#pragma unroll
    for (int r = 0; r < HELD; ++r) seen[r] = sum[r] = (VEC)(0.0f);
#if DELTA_CHANNELS
    const float decay = 1.0f;  // S has faded when its columns were looked at
#else
    const float decay = fades[t];
#endif
#pragma unroll
    for (int i = 0; i < DELTA_VECTORS; ++i) {
      const VEC key = LOAD(k + VW * i);
#if DELTA_CHANNELS
      const VEC fade = FADE(fades, t, i);
#pragma unroll
      for (int r = 0; r < HELD; ++r) held[r][i] = fade * held[r][i];
#endif
#pragma unroll
      for (int r = 0; r < HELD; ++r) seen[r] = FMA(held[r][i], key, seen[r]);
    }
#pragma unroll
    for (int r = 0; r < HELD; ++r) u[r] = beta[(ulong)t * heads] * (v[row + r] - decay * sum_state(seen[r]));
#pragma unroll
    for (int i = 0; i < DELTA_VECTORS; ++i) {
      const VEC key = LOAD(k + VW * i), query = LOAD(q + VW * i);
#pragma unroll
      for (int r = 0; r < HELD; ++r) {
        held[r][i] = FMA((VEC)(u[r]), key, decay * held[r][i]);
        sum[r] = FMA(held[r][i], query, sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < HELD; ++r) y[row + r] = sum_state(sum[r]);
  }
  KEEP_ALL(S, held);
}

#if LANES == 1
// One row alone, as in a decode step, for one row of S: it goes from one slot to another, read a second time from the
// first cache, and is kept nowhere between. The same bits as delta_rows. `from` and `to` are read and written where
// `reads` and `writes`, constants; `fades`: where each column has one, else 0, and all have `decay`.
INLINE float delta_alone(__global const float* from, __global float* to, int reads, int writes, __global const float* k,
                         __global const float* q, const VEC* fades, float decay, float beta, float v) {
  VEC seen = (VEC)(0.0f), sum = (VEC)(0.0f);
#pragma unroll
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    const VEC before = reads ? load_vector(from, i) : (VEC)(0.0f);
    seen = FMA(fades == 0 ? before : fades[i] * before, load_vector(k, i), seen);
  }
  const float u = beta * (v - decay * sum_state(seen));
#pragma unroll
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    const VEC before = reads ? load_vector(from, i) : (VEC)(0.0f);
    const VEC column = FMA((VEC)(u), load_vector(k, i), (fades == 0 ? (VEC)(decay) : fades[i]) * before);
    sum = FMA(column, load_vector(q, i), sum);
    if (writes) store_vector(column, to, i);
  }
  return sum_state(sum);
}
#endif

// Global ids: DELTA_ROWS rows of S, value head, sequence.
KERNEL void gated_delta(IDS __global const float* restrict q, ulong q_offset, __global const float* restrict k,
                        ulong k_offset, __global const float* restrict v, ulong v_offset,
                        __global const float* restrict g, ulong g_offset, __global const float* restrict beta,
                        ulong beta_offset, __global const float* in, ulong in_offset, __global float* out,
                        ulong out_offset, __global const int* restrict table, __global float* restrict y,
                        ulong y_offset, int k_heads, int v_heads, int v_dim) {
  const int first = DELTA_ROWS * (int)ID(0), head = ID(1);
  __global const int* run = table + 5 * (int)ID(2);
  const ulong stride = (ulong)k_heads * DELTA_DIM;  // between the rows of one key head
  const ulong key_row = run[0] * stride + (ulong)(head * k_heads / v_heads) * DELTA_DIM;
  q += q_offset + key_row, k += k_offset + key_row;
  g += g_offset + ((ulong)run[0] * v_heads + head) * DECAYS, beta += beta_offset + (ulong)run[0] * v_heads + head;
  v += v_offset + ((ulong)run[0] * v_heads + head) * v_dim + first;
  y += y_offset + ((ulong)run[0] * v_heads + head) * v_dim + first;
  const bool mine = first < v_dim;  // lanes beyond v_dim only help to share
#if LANES == 1
  if (run[1] == 1) {
    in += in_offset + (((ulong)max(run[2], 0) * v_heads + head) * v_dim + first) * DELTA_DIM;
    const int to = run[3] == run[4] ? -1 : table[run[3] + 1];
    out += out_offset + (((ulong)max(to, 0) * v_heads + head) * v_dim + first) * DELTA_DIM;
#if DELTA_CHANNELS
    VEC fades[DELTA_VECTORS];
    for (int i = 0; i < DELTA_VECTORS; ++i) fades[i] = JOIN(exp_, VW)(load_vector(g, i));
    const float decay = 1.0f;
#else
    const VEC* fades = 0;
    const float decay = exp(g[0]);
#endif
#define ALONE(reads, writes)                 \
  for (int r = 0; r < DELTA_ROWS; ++r) y[r] = \
      delta_alone(in + r * DELTA_DIM, out + r * DELTA_DIM, reads, writes, k, q, fades, decay, beta[0], v[r])
    if (run[2] >= 0 && to >= 0)
      ALONE(1, 1);
    else if (run[2] >= 0)
      ALONE(1, 0);
    else
      ALONE(0, to >= 0);
    return;
  }
#endif
  VEC S[DELTA_ROWS][DELTA_VECTORS];
  load_state(S, in + in_offset, ((ulong)run[2] * v_heads + head) * v_dim + first, mine ? run[2] : -1);
  int write = run[3];
  SHARED float keys[DELTA_TILE * WIDTH], queries[DELTA_TILE * WIDTH];
  for (int tile = 0; tile < run[1]; tile += DELTA_TILE) {
    const int rows = min(DELTA_TILE, run[1] - tile);
    share_rows(k + tile * stride, q + tile * stride, keys, queries, stride, rows);
    for (int done = 0, next; mine && done < rows; done = next) {
      next = end_of_rows(table, write, run[4], tile, done, rows);
      const ulong at = (ulong)(tile + done) * v_heads;
      __global const float* own = g + at * DECAYS;
#if DELTA_CHANNELS && LANES > 1
      FADES fades = own;
#elif DELTA_CHANNELS
      VEC fades[TOGETHER * DELTA_VECTORS];
      for (int t = 0; t < COUNT(done, next); ++t)
        for (int i = 0; i < DELTA_VECTORS; ++i)
          fades[t * DELTA_VECTORS + i] = JOIN(exp_, VW)(load_vector(own + (ulong)t * v_heads * DECAYS, i));
#else
      float fades[TOGETHER];
      for (int t = 0; t < COUNT(done, next); ++t) fades[t] = exp(own[(ulong)t * v_heads]);
#endif
      for (int r = 0; r < DELTA_ROWS; r += HELD)
        delta_rows(S + r, COUNT(done, next), keys + done * WIDTH, queries + done * WIDTH, fades, beta + at,
                   v + at * v_dim + r, y + at * v_dim + r, v_heads, v_dim);
      if (write == run[4] || table[write] != tile + next) continue;
      store_state(S, out + out_offset, ((ulong)table[write + 1] * v_heads + head) * v_dim + first);
      write += 2;
    }
  }
}

// ---- the scan of Mamba-2 ---------------------------------------------------------------------------------------------

// `count` rows for HELD rows of S; x and y point at the first of them, those of the next row are `heads` * `head_dim` on.
void ssd_rows(VEC S[HELD][DELTA_VECTORS], int count, SHARED const float* keys, SHARED const float* queries,
              const float* steps, const float* fades, float skip, __global const float* x, __global float* y, int heads,
              int head_dim) {
  VEC held[HELD][DELTA_VECTORS];
  KEEP_ALL(held, S);
  for (int t = 0; t < count; ++t) {
    SHARED const float *b = keys + t * WIDTH, *c = queries + t * WIDTH;
    const ulong row = (ulong)t * heads * head_dim;
    VEC sum[HELD];
    float u[HELD];
#pragma unroll
    for (int r = 0; r < HELD; ++r) sum[r] = (VEC)(0.0f), u[r] = steps[t] * x[row + r];
#pragma unroll
    for (int i = 0; i < DELTA_VECTORS; ++i) {
      const VEC key = LOAD(b + VW * i), query = LOAD(c + VW * i), fade = (VEC)(fades[t]);
#pragma unroll
      for (int r = 0; r < HELD; ++r) {
        held[r][i] = FMA((VEC)(u[r]), key, fade * held[r][i]);
        sum[r] = FMA(held[r][i], query, sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < HELD; ++r) y[row + r] = sum_state(sum[r]) + skip * x[row + r];
  }
  KEEP_ALL(S, held);
}

// One row alone, as in a decode step, for one row of S: it goes from one slot to another and is kept nowhere between.
// The same bits as ssd_rows. `from`: 0 for zeros; `to`: 0 where nobody wants the state.
float ssd_alone(__global const float* from, __global float* to, __global const float* b, __global const float* c,
                float u, float decay) {
  VEC sum = (VEC)(0.0f);
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    const VEC before = from == 0 ? (VEC)(0.0f) : load_vector(from, i);
    const VEC column = FMA((VEC)(u), load_vector(b, i), (VEC)(decay) * before);
    sum = FMA(column, load_vector(c, i), sum);
    if (to != 0) store_vector(column, to, i);
  }
  return sum_state(sum);
}

// Global ids: DELTA_ROWS rows of S, head, sequence.
KERNEL void ssd(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict dt,
                ulong dt_offset, __global const float* restrict a, ulong a_offset, __global const float* restrict b,
                ulong b_offset, __global const float* restrict c, ulong c_offset, __global const float* restrict d,
                ulong d_offset, __global const float* in, ulong in_offset, __global float* out, ulong out_offset,
                __global const int* restrict table, __global float* restrict y, ulong y_offset, int groups, int heads,
                int head_dim, float least, float most) {
  const int first = DELTA_ROWS * (int)ID(0), head = ID(1);
  __global const int* run = table + 5 * (int)ID(2);
  const ulong stride = (ulong)groups * DELTA_DIM;  // between the rows of one group
  const ulong group_row = run[0] * stride + (ulong)(head * groups / heads) * DELTA_DIM;
  b += b_offset + group_row, c += c_offset + group_row;
  dt += dt_offset + (ulong)run[0] * heads + head;
  x += x_offset + ((ulong)run[0] * heads + head) * head_dim + first;
  y += y_offset + ((ulong)run[0] * heads + head) * head_dim + first;
  const float log_decay = a[a_offset + head], skip = d[d_offset + head];
  const bool mine = first < head_dim;  // lanes beyond head_dim only help to share
  int write = run[3];
#if LANES == 1
  if (run[1] == 1) {
    const float step = fmin(fmax(dt[0], least), most), decay = exp(step * log_decay);
    in += in_offset + (((ulong)max(run[2], 0) * heads + head) * head_dim + first) * DELTA_DIM;
    const int to = write == run[4] ? -1 : table[write + 1];
    out += out_offset + (((ulong)max(to, 0) * heads + head) * head_dim + first) * DELTA_DIM;
    for (int r = 0; r < DELTA_ROWS; ++r) {
      y[r] = ssd_alone(run[2] < 0 ? 0 : in + r * DELTA_DIM, to < 0 ? 0 : out + r * DELTA_DIM, b, c, step * x[r], decay) +
             skip * x[r];
    }
    return;
  }
#endif
  VEC S[DELTA_ROWS][DELTA_VECTORS];
  load_state(S, in + in_offset, ((ulong)run[2] * heads + head) * head_dim + first, mine ? run[2] : -1);
  SHARED float keys[DELTA_TILE * WIDTH], queries[DELTA_TILE * WIDTH];
  for (int tile = 0; tile < run[1]; tile += DELTA_TILE) {
    const int rows = min(DELTA_TILE, run[1] - tile);
    share_rows(b + tile * stride, c + tile * stride, keys, queries, stride, rows);
    for (int done = 0, next; mine && done < rows; done = next) {
      next = end_of_rows(table, write, run[4], tile, done, rows);
      const ulong at = (ulong)(tile + done) * heads;
      float steps[TOGETHER], fades[TOGETHER];
      for (int t = 0; t < COUNT(done, next); ++t) {
        steps[t] = fmin(fmax(dt[at + (ulong)t * heads], least), most);
        fades[t] = exp(steps[t] * log_decay);
      }
      for (int r = 0; r < DELTA_ROWS; r += HELD)
        ssd_rows(S + r, COUNT(done, next), keys + done * WIDTH, queries + done * WIDTH, steps, fades, skip,
                 x + at * head_dim + r, y + at * head_dim + r, heads, head_dim);
      if (write == run[4] || table[write] != tile + next) continue;
      store_state(S, out + out_offset, ((ulong)table[write + 1] * heads + head) * head_dim + first);
      write += 2;
    }
  }
}
