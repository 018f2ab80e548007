// Lays GGML's blocks out in panels for kernels/matmul.cl: the same numbers, in the order of kernels/quants.clh or
// q8.clh.
//
// raw [N][K / block] holds blocks as GGML defines them (ggml/src/ggml-common.h), bytes of each:
//
//     q8_0   d 2                       q 32
//     q4_0   d 2                       q 16      byte j of q: number j below, number j + 16 above
//     q4_1   d 2 m 2                   q 16
//     q5_0   d 2      high 4           q 16      bit k of high: bit 4 of number k
//     q5_1   d 2 m 2  high 4           q 16
//     q4_K   d 2 m 2  s, t 12          q 128     of each 64 numbers 32 bytes: the first 32 below, the others above
//     q5_K   d 2 m 2  s, t 12 high 32  q 128     bit k / 32 of byte k % 32 of high: bit 4 of number k
//     q6_K   q 128  high 64  s 16  d 2           of each 128 numbers 64 bytes of q, 32 of high
//     q2_K   s, t 16  q 64  d 2 m 2              s below t; of each 128 numbers 32 bytes, the first 32 lowest
//
// Panel i of raw, 16 outputs, goes to panel i * step + first; outputs beyond N are zero.
// Global size (panels of raw, K / super-block), local size 1: one work-item packs a super-block of 16 outputs.
#pragma OPENCL FP_CONTRACT OFF

#ifndef STORED
#define STORED 4  // kernels/matmul_stored.clh
#endif
#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "work_item.clh"

#if STORED == 3
#include "q8.clh"
#define BLOCK_BYTES 34
#define PACKED_K Q8_BLOCK
#define GROUP_BYTES(k_size) q8_group_size(k_size)

void pack_block(const __global uchar* raw, __global uchar* group, int begin, int column) {
  __global uchar* scales = group + q8_scales_at(begin) + 2 * column;
  scales[0] = raw[0], scales[1] = raw[1];
  for (int k = 0; k < Q8_BLOCK; ++k) group[q8_numbers_at(begin + k) + column] = raw[2 + k];
}
void clear_block(__global uchar* group, int begin, int column) {
  __global uchar* scales = group + q8_scales_at(begin) + 2 * column;
  scales[0] = scales[1] = 0;
  for (int k = 0; k < Q8_BLOCK; ++k) group[q8_numbers_at(begin + k) + column] = 0;
}

#else
#include "quants.clh"
#define PACKED_K Q_SUPER
#define GROUP_BYTES(k_size) Q_GROUP_SIZE(k_size)

// Where a block's members are, and its numbers of 0 to 63.
#if STORED == 10
#define D_AT 208
#define BLOCK_BYTES 210
int raw_number(const __global uchar* raw, int k) {
  const int half_ = k / 128, l = k % 32, quarter = k % 128 / 32;
  const int low = raw[half_ * 64 + quarter % 2 * 32 + l] >> quarter / 2 * 4 & 15;
  return low | (raw[128 + half_ * 32 + l] >> 2 * quarter & 3) << 4;
}
int raw_factor(const __global uchar* raw, int sub) { return raw[192 + sub]; }
#elif STORED == 11
#define D_AT 80
#define BLOCK_BYTES 84
int raw_number(const __global uchar* raw, int k) { return raw[16 + k / 128 * 32 + k % 32] >> k % 128 / 32 * 2 & 3; }
int raw_factor(const __global uchar* raw, int sub) { return raw[sub]; }  // and the minimum
#elif Q_SUPER == 256
#define D_AT 0
#define HIGH_AT 16
#define NUMBERS_FROM (HIGH_AT + 32 * Q_HIGH)
#define BLOCK_BYTES (NUMBERS_FROM + 128)
int raw_number(const __global uchar* raw, int k) {
  const int low = raw[NUMBERS_FROM + k / 64 * 32 + k % 32] >> k % 64 / 32 * 4 & 15;
  return low | (Q_HIGH > 0 ? (raw[HIGH_AT + k % 32] >> k / 32 & 1) << 4 : 0);
}
// Eight s and eight t of 6 bits in 12 bytes: the first four of each below, the upper bits of the others above them.
int raw_factor(const __global uchar* raw, int sub) {
  const __global uchar* s = raw + 4;
  return sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4;
}
int raw_minimum(const __global uchar* raw, int sub) {
  const __global uchar* s = raw + 4;
  return sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | (s[sub] >> 6) << 4;
}
#else
#define D_AT 0
#define HIGH_AT (Q_HALVES / 32)
#define NUMBERS_FROM (HIGH_AT + 4 * Q_HIGH)
#define BLOCK_BYTES (NUMBERS_FROM + 16)
int raw_number(const __global uchar* raw, int k) {
  const int low = raw[NUMBERS_FROM + k % 16] >> k / 16 * 4 & 15;
  return low | (Q_HIGH > 0 ? (raw[HIGH_AT + k / 8] >> k % 8 & 1) << 4 : 0);
}
#endif

// Factors, and the numbers of a byte, with the bits above 4 in words of their own.
void pack_sub_block(const __global uchar* raw, __global uchar* group, int k, int begin, int column) {
  __global uchar* sub = group + Q_SUB_AT(begin);
#if Q_SUPER == 256
  sub[column] = raw_factor(raw, k / Q_SUB);
#if Q_FACTORS == 128
  sub[64 + column] = raw_minimum(raw, k / Q_SUB);
#endif
#endif
  uint high = 0;
  for (int i = 0; i < Q_SUB; i += Q_LINE) {
    int together = 0;
    for (int j = 0; j < Q_LINE; ++j) {
      const int number = raw_number(raw, k + i + j);
      together |= (number & 15) << 8 / Q_LINE * j;
#if Q_HIGH > 0
      high |= (uint)(number >> 4) << Q_HIGH * (i + j);
#endif
    }
    group[Q_NUMBERS_AT(begin + i) + column] = together;
  }
#if Q_HIGH > 0
  ((__global uint*)(sub + Q_FACTORS))[column] = high;
#endif
}

void pack_block(const __global uchar* raw, __global uchar* group, int begin, int column) {
  __global uchar* head = group + Q_SUPER_AT(begin) + 2 * column;
  head[0] = raw[D_AT], head[1] = raw[D_AT + 1];
#ifndef Q_ZERO
  head[128] = raw[D_AT + 2], head[129] = raw[D_AT + 3];
#endif
  for (int k = 0; k < Q_SUPER; k += Q_SUB) pack_sub_block(raw, group, k, begin + k, column);
}
// Scales of zero are numbers of zero; the rest is cleared so that what is packed depends on `raw` alone.
void clear_block(__global uchar* group, int begin, int column) {
  __global uchar* head = group + Q_SUPER_AT(begin) + 2 * column;
  head[0] = head[1] = 0;
#ifndef Q_ZERO
  head[128] = head[129] = 0;
#endif
  for (int k = begin; k < begin + Q_SUPER; k += Q_SUB) {
    __global uchar* sub = group + Q_SUB_AT(k);
    for (int at = 0; at < Q_FACTORS; at += 64) sub[at + column] = 0;
    for (int at = 0; at < Q_WORDS; at += 256) ((__global uint*)(sub + Q_FACTORS + at))[column] = 0;
    for (int i = 0; i < Q_SUB; i += Q_LINE) group[Q_NUMBERS_AT(k + i) + column] = 0;
  }
}
#endif

KERNEL void pack_blocks(IDS __global const uchar* restrict raw, ulong raw_offset, __global uchar* restrict panels,
                        int n_size, int k_size, int step, int first) {
  const int panel = ID(0), to = panel * step + first, begin = (int)ID(1) * PACKED_K;
  __global uchar* group = panels + to / 4 * GROUP_BYTES(k_size);
  const ulong row_bytes = (ulong)(k_size / PACKED_K) * BLOCK_BYTES;
  for (int i = 0; i < 16; ++i) {
    const int n = panel * 16 + i, column = to % 4 * 16 + i;
    if (n < n_size)
      pack_block(raw + raw_offset + n * row_bytes + (ulong)ID(1) * BLOCK_BYTES, group, begin, column);
    else
      clear_block(group, begin, column);
  }
}
