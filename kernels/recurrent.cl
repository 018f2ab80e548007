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
#define CONV_BLOCK 16  // channels of one work-item: a multiple of VW for vectors, 1 for neighbouring lanes
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
#define DELTA_TILE 8  // rows of k and q in local memory at a time
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "exp.clh"  // each time
#include "reduce.clh"
#include "storage.clh"
#include "work_item.clh"

#define CONV_TAIL (CONV_WIDTH - 1)

// ---- causal convolution ---------------------------------------------------------------------------------------------

// T: the numbers of `c` and its neighbours; `inputs` holds the last CONV_WIDTH inputs, oldest first.
#define CONVOLVE(NAME, T, READ, WRITE)                                                                                \
  void NAME(__global const float* x, T* taps, __global const STORAGE(CONV_STATE) * in,                                \
            __global STORAGE(CONV_STATE) * out, __global const int* table, __global const int* run, __global float* y,\
            int dim, int c) {                                                                                         \
    T inputs[CONV_WIDTH];                                                                                             \
    for (int i = 0; i < CONV_TAIL; ++i)                                                                               \
      inputs[i] = run[2] < 0 ? (T)(0.0f) : READ(CONV_STATE, in + ((ulong)run[2] * CONV_TAIL + i) * dim + c);          \
    int write = run[3];                                                                                               \
    for (int t = 0; t < run[1]; ++t) {                                                                                \
      const ulong at = (ulong)(run[0] + t) * dim + c;                                                                 \
      inputs[CONV_TAIL] = READ(0, x + at);                                                                            \
      T sum = taps[0] * inputs[0];                                                                                    \
      for (int j = 1; j < CONV_WIDTH; ++j) sum = FMA(taps[j], inputs[j], sum);                                        \
      WRITE(0, sum, y + at);                                                                                          \
      for (int i = 0; i < CONV_TAIL; ++i) inputs[i] = inputs[i + 1];                                                  \
      if (write == run[4] || table[write] != t + 1) continue;                                                         \
      for (int i = 0; i < CONV_TAIL; ++i)                                                                             \
        WRITE(CONV_STATE, inputs[i], out + ((ulong)table[write + 1] * CONV_TAIL + i) * dim + c);                      \
      write += 2;                                                                                                     \
    }                                                                                                                 \
  }
CONVOLVE(convolve_vector, VEC, READ_VEC, WRITE_VEC)
CONVOLVE(convolve_one, float, READ1, WRITE1)

KERNEL void causal_conv1d(IDS __global const float* restrict x, ulong x_offset, __global const float* restrict weight,
                          ulong weight_offset, __global const STORAGE(CONV_STATE) * in, ulong in_offset,
                          __global STORAGE(CONV_STATE) * out, ulong out_offset, __global const int* restrict table,
                          __global float* restrict y, ulong y_offset, int dim) {
  __global const int* run = table + 5 * (int)ID(1);
  int c = CONV_BLOCK * (int)ID(0);
  const int end = min(c + CONV_BLOCK, dim);
  x += x_offset, weight += weight_offset, in += in_offset, out += out_offset, y += y_offset;
#if CONV_BLOCK >= VW
  for (; c + VW <= end; c += VW) {
    VEC taps[CONV_WIDTH];
    for (int j = 0; j < CONV_WIDTH; ++j) {
      float tap[VW];
      for (int i = 0; i < VW; ++i) tap[i] = weight[(c + i) * CONV_WIDTH + j];
      taps[j] = LOAD(tap);
    }
    convolve_vector(x, taps, in, out, table, run, y, dim, c);
  }
#endif
  for (; c < end; ++c) {
    float taps[CONV_WIDTH];
    for (int j = 0; j < CONV_WIDTH; ++j) taps[j] = weight[c * CONV_WIDTH + j];
    convolve_one(x, taps, in, out, table, run, y, dim, c);
  }
}

// ---- gated delta rule -----------------------------------------------------------------------------------------------

#define DELTA_VECTORS ((DELTA_DIM + VW - 1) / VW)

// Numbers VW i to VW (i + 1) - 1 of a row of DELTA_DIM; zeros beyond it.
VEC load_vector(__global const float* row, int i) {
#if DELTA_DIM % VW == 0
  return LOAD(row + VW * i);
#else
  if (VW * i + VW <= DELTA_DIM) return LOAD(row + VW * i);
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
  STORE(x, row + VW * i);
}

#if LANES > 1
#define SHARED __local
#define ROW_VECTOR(row, i) LOAD(row + VW * i)  // rows in local memory have VW DELTA_VECTORS numbers, zeros beyond DELTA_DIM
#else
#define SHARED __global
#define ROW_VECTOR(row, i) load_vector(row, i)
#endif

#if DELTA_CHANNELS
#define DECAYS DELTA_DIM  // of a head
#define DECAY __global const float*
#define DECAY_AT(g) (g)
#else
#define DECAYS 1
#define DECAY float
#define DECAY_AT(g) exp(*(g))
#endif

// One row for DELTA_ROWS rows of S; v and y point at the first of them. g: DECAY_AT the logarithms of the head's decays.
void delta_step(VEC S[DELTA_ROWS][DELTA_VECTORS], SHARED const float* k, SHARED const float* q,
                DECAY g, float beta, __global const float* v, __global float* y) {
  VEC seen[DELTA_ROWS], sum[DELTA_ROWS];
  float u[DELTA_ROWS];
  for (int r = 0; r < DELTA_ROWS; ++r) seen[r] = sum[r] = (VEC)(0.0f);
#if DELTA_CHANNELS
  const float decay = 1.0f;  // S has faded when its columns were looked at
#else
  const float decay = g;
#endif
#pragma unroll
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    const VEC key = ROW_VECTOR(k, i);
#if DELTA_CHANNELS
    const VEC fade = JOIN(exp_, VW)(load_vector(g, i));
    for (int r = 0; r < DELTA_ROWS; ++r) S[r][i] = fade * S[r][i];
#endif
    for (int r = 0; r < DELTA_ROWS; ++r) seen[r] = FMA(S[r][i], key, seen[r]);
  }
  for (int r = 0; r < DELTA_ROWS; ++r) u[r] = beta * (v[r] - decay * sum_lanes(seen[r]));
#pragma unroll
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    const VEC key = ROW_VECTOR(k, i), query = ROW_VECTOR(q, i);
    for (int r = 0; r < DELTA_ROWS; ++r) {
      S[r][i] = FMA((VEC)(u[r]), key, decay * S[r][i]);
      sum[r] = FMA(S[r][i], query, sum[r]);
    }
  }
  for (int r = 0; r < DELTA_ROWS; ++r) y[r] = sum_lanes(sum[r]);
}

void load_state(VEC S[DELTA_ROWS][DELTA_VECTORS], __global const float* in, ulong first_row, int slot) {
  for (int r = 0; r < DELTA_ROWS; ++r)
    for (int i = 0; i < DELTA_VECTORS; ++i) S[r][i] = slot < 0 ? (VEC)(0.0f) : load_vector(in + (first_row + r) * DELTA_DIM, i);
}

void store_state(VEC S[DELTA_ROWS][DELTA_VECTORS], __global float* out, ulong first_row) {
  for (int r = 0; r < DELTA_ROWS; ++r)
    for (int i = 0; i < DELTA_VECTORS; ++i) store_vector(S[r][i], out + (first_row + r) * DELTA_DIM, i);
}

// LANES work-items copy `count` rows of k and q from row `row` to local memory.
#if LANES > 1
void share_rows(__global const float* k, __global const float* q, __local float* keys, __local float* queries,
                ulong stride, int count) {
  SYNC;
  for (int i = get_local_id(0); i < count * VW * DELTA_VECTORS; i += LANES) {
    const int t = i / (VW * DELTA_VECTORS), d = i % (VW * DELTA_VECTORS);
    keys[i] = d < DELTA_DIM ? k[t * stride + d] : 0.0f;
    queries[i] = d < DELTA_DIM ? q[t * stride + d] : 0.0f;
  }
  SYNC;
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
  VEC S[DELTA_ROWS][DELTA_VECTORS];
  load_state(S, in + in_offset, ((ulong)run[2] * v_heads + head) * v_dim + first, mine ? run[2] : -1);
  int write = run[3];
#if LANES > 1
  __local float keys[DELTA_TILE * VW * DELTA_VECTORS], queries[DELTA_TILE * VW * DELTA_VECTORS];
#endif
  for (int tile = 0; tile < run[1]; tile += DELTA_TILE) {
    const int rows = min(DELTA_TILE, run[1] - tile);
#if LANES > 1
    share_rows(k + tile * stride, q + tile * stride, keys, queries, stride, rows);
#endif
    for (int i = 0; mine && i < rows; ++i) {
      const int t = tile + i;
      const ulong gate = (ulong)t * v_heads;
#if LANES > 1
      delta_step(S, keys + i * VW * DELTA_VECTORS, queries + i * VW * DELTA_VECTORS, DECAY_AT(g + gate * DECAYS), beta[gate],
                 v + gate * v_dim, y + gate * v_dim);
#else
      delta_step(S, k + t * stride, q + t * stride, DECAY_AT(g + gate * DECAYS), beta[gate], v + gate * v_dim, y + gate * v_dim);
#endif
      if (write == run[4] || table[write] != t + 1) continue;
      store_state(S, out + out_offset, ((ulong)table[write + 1] * v_heads + head) * v_dim + first);
      write += 2;
    }
  }
}

// ---- the scan of Mamba-2 ---------------------------------------------------------------------------------------------

#if LANES > 1
#define SSD_ROWS 1  // S is in registers, which no loop over rows may count through
#else
#define SSD_ROWS DELTA_TILE
#endif

// `count` rows, at most SSD_ROWS, for DELTA_ROWS rows of S. The columns of S go through all of the rows one after the
// other, so that each is read and written once; what a row adds up has the order of columns, however the rows are cut.
// x, y and dt point at the first of them; their rows are `heads` apart, those of b and c `stride`.
void ssd_rows(VEC S[DELTA_ROWS][DELTA_VECTORS], int count, SHARED const float* b, SHARED const float* c, ulong stride,
              __global const float* dt, float least, float most, float a, float skip, __global const float* x,
              __global float* y, int heads, int head_dim) {
  VEC sum[SSD_ROWS][DELTA_ROWS];
  float u[SSD_ROWS][DELTA_ROWS], decay[SSD_ROWS];
  for (int t = 0; t < count; ++t) {
    const float step = fmin(fmax(dt[(ulong)t * heads], least), most);
    decay[t] = exp(step * a);
    for (int r = 0; r < DELTA_ROWS; ++r) {
      sum[t][r] = (VEC)(0.0f);
      u[t][r] = step * x[(ulong)t * heads * head_dim + r];
    }
  }
#if LANES > 1
#pragma unroll
#endif
  for (int i = 0; i < DELTA_VECTORS; ++i) {
    VEC column[DELTA_ROWS];
    for (int r = 0; r < DELTA_ROWS; ++r) column[r] = S[r][i];
    for (int t = 0; t < count; ++t) {
      const VEC key = ROW_VECTOR(b + t * stride, i), query = ROW_VECTOR(c + t * stride, i), fade = (VEC)(decay[t]);
      for (int r = 0; r < DELTA_ROWS; ++r) {
        column[r] = FMA((VEC)(u[t][r]), key, fade * column[r]);
        sum[t][r] = FMA(column[r], query, sum[t][r]);
      }
    }
    for (int r = 0; r < DELTA_ROWS; ++r) S[r][i] = column[r];
  }
  for (int t = 0; t < count; ++t) {
    const ulong row = (ulong)t * heads * head_dim;
    for (int r = 0; r < DELTA_ROWS; ++r) y[row + r] = sum_lanes(sum[t][r]) + skip * x[row + r];
  }
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
  return sum_lanes(sum);
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
#if LANES > 1
  __local float keys[DELTA_TILE * VW * DELTA_VECTORS], queries[DELTA_TILE * VW * DELTA_VECTORS];
#endif
  for (int tile = 0; tile < run[1]; tile += DELTA_TILE) {
    const int rows = min(DELTA_TILE, run[1] - tile);
#if LANES > 1
    share_rows(b + tile * stride, c + tile * stride, keys, queries, stride, rows);
#endif
    for (int done = 0, next; mine && done < rows; done = next) {  // up to where a state is wanted
      next = min(write == run[4] ? rows : min(rows, table[write] - tile), done + SSD_ROWS);
      const ulong at = (ulong)(tile + done) * heads;
#if LANES > 1
      ssd_rows(S, SSD_ROWS, keys + done * VW * DELTA_VECTORS, queries + done * VW * DELTA_VECTORS,
               VW * DELTA_VECTORS, dt + at, least, most, log_decay, skip, x + at * head_dim, y + at * head_dim, heads,
               head_dim);
#else
      ssd_rows(S, next - done, b + (tile + done) * stride, c + (tile + done) * stride, stride, dt + at, least, most,
               log_decay, skip, x + at * head_dim, y + at * head_dim, heads, head_dim);
#endif
      if (write == run[4] || table[write] != tile + next) continue;
      store_state(S, out + out_offset, ((ulong)table[write + 1] * heads + head) * head_dim + first);
      write += 2;
    }
  }
}
