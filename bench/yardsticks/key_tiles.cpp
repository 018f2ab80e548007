// Scores of keys in q8_0 by AMX tiles of integers, beside floats: what bench_key_tiles.py loads. An experiment, apart
// from the kernels: docs/cell_formats.md says what came of it.
//
// Heads of 128 numbers. Per 32 keys and `lines` query heads, 4 or 8:
//
//   floats   as kernels/attention_block.clh: integers become floats, times their scale, times each line's query
//   tiles    queries as 16-bit integers, each 32 numbers with a step of their own, in two bytes: a product of tiles is
//   16
//            keys, as they lie in memory, times 8 lines x (high, low). Sums of a block are exact; times step and scale
//   values   the multiplications that values take in between, on registers
//
// Processors take a while to begin with tiles again after vectors: so `blocks` of 32 keys are scored one after another
// before their values. Linux on x86-64 only. Threads: one.
#include "key_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#ifndef __clang__  // GCC 12 takes what its own intrinsics leave undefined on purpose for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")))

namespace {

constexpr int kDim = 128, kBlocks = kDim / 32, kBlockBytes = 34, kRow = kBlocks * kBlockBytes, kKeys = 32,
              kTogether = 8;

struct Queries {
  alignas(64) float q[kTogether][kDim];
  alignas(64) std::int8_t bytes[kBlocks][8][16][4];  // numbers 4 i .. 4 i + 3 of high bytes of 8 lines, then low bytes
  alignas(64) float steps[kBlocks][16];
};

void round_queries(Queries& to) {
  for (int line = 0; line < kTogether; ++line)
    for (int b = 0; b < kBlocks; ++b) {
      float most = 0.0f;
      for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(to.q[line][32 * b + i]));
      const float step = most / 32639.0f;
      to.steps[b][line] = 256.0f * step;
      to.steps[b][kTogether + line] = step;
      for (int i = 0; i < 32; ++i) {
        const int whole = static_cast<int>(std::nearbyint(to.q[line][32 * b + i] / step)), high = (whole + 128) >> 8;
        to.bytes[b][i / 4][line][i % 4] = static_cast<std::int8_t>(high);
        to.bytes[b][i / 4][kTogether + line][i % 4] = static_cast<std::int8_t>(whole - 256 * high);
      }
    }
}

AVX512 inline __m512 even(__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, 0x88); }
AVX512 inline __m512 odd(__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, 0xdd); }
AVX512 inline __m512 low_quarters(__m512 a, __m512 b) { return _mm512_shuffle_f32x4(a, b, 0x88); }
AVX512 inline __m512 high_quarters(__m512 a, __m512 b) { return _mm512_shuffle_f32x4(a, b, 0xdd); }

// Lane i: the sum of the lanes of a[i], as attention_lanes.clh has it.
AVX512 inline __m512 sum_each(__m512* a) {
  for (int i = 0; i < 8; ++i) a[i] = even(a[2 * i], a[2 * i + 1]) + odd(a[2 * i], a[2 * i + 1]);
  for (int i = 0; i < 4; ++i) a[i] = even(a[2 * i], a[2 * i + 1]) + odd(a[2 * i], a[2 * i + 1]);
  for (int i = 0; i < 2; ++i) a[i] = low_quarters(a[2 * i], a[2 * i + 1]) + high_quarters(a[2 * i], a[2 * i + 1]);
  return low_quarters(a[0], a[1]) + high_quarters(a[0], a[1]);
}

// Of a block's keys, those of each 32 numbers beside each other.
struct Scales {
  alignas(64) float of[kBlocks][kKeys];
  const float* operator[](int block) const { return of[block]; }
};
AVX512 inline void read_scales(const char* k, Scales& to) {
  alignas(64) std::uint16_t bits[kBlocks][kKeys];
  for (int key = 0; key < kKeys; ++key)
    for (int b = 0; b < kBlocks; ++b) std::memcpy(&bits[b][key], k + key * kRow + b * kBlockBytes, 2);
  for (int i = 0; i < kBlocks * kKeys; i += 16) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(&bits[i / kKeys][i % kKeys]));
    _mm512_store_ps(&to.of[i / kKeys][i % kKeys], _mm512_cvtph_ps(halves));
  }
}

template <int LINES>
AVX512 void by_floats(const Queries& queries, const char* k, float* scores) {
  constexpr int kAtOnce = 16 / LINES;
  Scales scales;
  read_scales(k, scales);
  for (int key = 0; key < kKeys; key += kAtOnce) {
    __m512 sums[16] = {};
    for (int b = 0; b < kBlocks; ++b) {
      __m512 scale[kAtOnce];
      for (int j = 0; j < kAtOnce; ++j) scale[j] = _mm512_set1_ps(scales[b][key + j]);
      for (int part = 0; part < 2; ++part) {
        __m512 numbers[kAtOnce];
        for (int j = 0; j < kAtOnce; ++j) {
          const char* at = k + (key + j) * kRow + b * kBlockBytes + 2 + 16 * part;
          const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
          numbers[j] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)) * scale[j];
        }
        for (int line = 0; line < LINES; ++line) {
          const __m512 q = _mm512_load_ps(queries.q[line] + 32 * b + 16 * part);
          for (int j = 0; j < kAtOnce; ++j)
            sums[line * kAtOnce + j] = _mm512_fmadd_ps(q, numbers[j], sums[line * kAtOnce + j]);
        }
      }
    }
    alignas(64) float dots[16];
    _mm512_store_ps(dots, sum_each(sums));
    for (int line = 0; line < LINES; ++line)
      for (int j = 0; j < kAtOnce; ++j) scores[line * kKeys + key + j] = dots[line * kAtOnce + j];
  }
}

// 0 to 3: sums; 4, 5: 16 keys; 6, 7: queries (ldtilecfg: Intel's manual, volume 1, chapter 18).
void begin_tiles() {
  alignas(64) std::uint8_t config[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = tile / 2 == 2 ? 32 : 64;
    config[48 + tile] = tile / 2 == 3 ? 8 : 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
void end_tiles() { __asm__ volatile("tilerelease"); }

// Blocks b and b + 1 of 32 keys: sums[block][half of the keys][16][16].
inline void multiply_two_blocks(const char* k, const std::int8_t* q, std::int32_t* sums) {
  __asm__ volatile(
      "tileloadd (%2, %5, 1), %%tmm6\n\ttileloadd (%0, %4, 1), %%tmm4\n\ttilezero %%tmm0\n\t"
      "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\ttileloadd (%1, %4, 1), %%tmm5\n\ttilezero %%tmm1\n\t"
      "tdpbssd %%tmm6, %%tmm5, %%tmm1\n\t"
      "tileloadd 512(%2, %5, 1), %%tmm7\n\ttileloadd 34(%0, %4, 1), %%tmm4\n\ttilezero %%tmm2\n\t"
      "tdpbssd %%tmm7, %%tmm4, %%tmm2\n\ttileloadd 34(%1, %4, 1), %%tmm5\n\ttilezero %%tmm3\n\t"
      "tdpbssd %%tmm7, %%tmm5, %%tmm3\n\t"
      "tilestored %%tmm0, (%3, %5, 1)\n\ttilestored %%tmm1, 1024(%3, %5, 1)\n\t"
      "tilestored %%tmm2, 2048(%3, %5, 1)\n\ttilestored %%tmm3, 3072(%3, %5, 1)"
      :
      : "r"(k), "r"(k + 16 * kRow), "r"(q), "r"(sums), "r"(long{kRow}), "r"(64L)
      : "memory");
}

// [key][high of 8 lines, low of 8 lines] of 16 keys: their sums, as scores[line][key].
AVX512 inline void turn_scores(const __m512* sums, float* scores) {
  __m512 a[8], b[8];
  for (int i = 0; i < 8; ++i)
    a[i] = _mm512_shuffle_f32x4(sums[i], sums[i + 8], 0x44) + _mm512_shuffle_f32x4(sums[i], sums[i + 8], 0xee);
  for (int i = 0; i < 8; i += 4) {
    const __m512 even0 = even(a[i], a[i + 1]), even1 = even(a[i + 2], a[i + 3]);
    const __m512 odd0 = odd(a[i], a[i + 1]), odd1 = odd(a[i + 2], a[i + 3]);
    b[i] = even(even0, even1), b[i + 1] = even(odd0, odd1);
    b[i + 2] = odd(even0, even1), b[i + 3] = odd(odd0, odd1);
  }
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  for (int line = 0; line < 4; ++line) {
    _mm512_storeu_ps(scores + line * kKeys, _mm512_permutex2var_ps(b[line], first, b[line + 4]));
    _mm512_storeu_ps(scores + (line + 4) * kKeys, _mm512_permutex2var_ps(b[line], second, b[line + 4]));
  }
}

AVX512 void by_tiles(const Queries& queries, const char* k, float* scores) {
  alignas(64) std::int32_t parts[kBlocks][kKeys][16];
  Scales scales;
  for (int b = 0; b < kBlocks; b += 2)
    multiply_two_blocks(k + b * kBlockBytes + 2, &queries.bytes[b][0][0][0], &parts[b][0][0]);
  read_scales(k, scales);
  for (int half = 0; half < kKeys; half += 16) {
    __m512 sums[16] = {};
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 step = _mm512_load_ps(queries.steps[b]);
      for (int key = 0; key < 16; ++key)
        sums[key] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(parts[b][half + key])) * step,
                                    _mm512_set1_ps(scales[b][half + key]), sums[key]);
    }
    turn_scores(sums, scores + half);
  }
}

// Multiplications of the values of 32 keys, and what makes floats of them: three instructions for 16 numbers.
AVX512 void values(int lines) {
  const int turns = kKeys * kDim / 16 * (lines + 3) / 8;
  __m512 sums[8] = {};
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int i = 0; i < turns; ++i)
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(one, one, sum);
      __asm__ volatile("" : "+v"(sum));
    }
}

Queries shared_queries;

}  // namespace

int key_tiles_available() {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) return 0;
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr long kRequest = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
  return (d >> 24 & 3) == 3 && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

void key_tiles_queries(const float* q) {
  std::memcpy(shared_queries.q, q, sizeof shared_queries.q);
  round_queries(shared_queries);
}

void key_tiles_run(int side, const char* k, int keys, int lines, int blocks, float* scores) {
  if (side == kTiles) begin_tiles();
  for (int key = 0; key < keys; key += blocks * kKeys) {
    for (int b = 0; b < blocks && side != kValues; ++b) {
      const char* rows = k + static_cast<long>(key + b * kKeys) * kRow;
      float* to = scores + static_cast<long>(b) * kTogether * kKeys;
      if (side == kTiles) by_tiles(shared_queries, rows, to);
      if (side == kFloats && lines == 4) by_floats<4>(shared_queries, rows, to);
      if (side == kFloats && lines == 8) by_floats<8>(shared_queries, rows, to);
    }
    for (int b = 0; b < blocks; ++b) values(lines);
  }
  if (side == kTiles) end_tiles();
}

#else
int key_tiles_available() { return 0; }
void key_tiles_queries(const float*) {}
void key_tiles_run(int, const char*, int, int, int, float*) {}
#endif
