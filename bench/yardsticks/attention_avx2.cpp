#include "attention_avx2.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace yardstick {
namespace {

constexpr int kBlock = 32;             // keys
constexpr std::size_t kAhead = 16384;  // bytes between what is read and what is prefetched
constexpr float kLowest = -std::numeric_limits<float>::infinity();

AVX2_INLINE __m256 load(const float* p) { return _mm256_loadu_ps(p); }
AVX2_INLINE __m256 load(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <int kBytes>
AVX2_INLINE void prefetch(const void* p) {
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + kAhead + i, _MM_HINT_T0);
}

// exp(x) for x <= 0.
AVX2_INLINE __m256 exp8(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(-87.0f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | 8);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.38888889e-3f);
  for (const float c : {8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f})
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

AVX2_INLINE __m256 sum_each(const __m256* a) {
  const __m256 b0 = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const __m256 b1 = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(b0, b1, 0x20), _mm256_permute2f128_ps(b0, b1, 0x31));
}

AVX2_INLINE float sum(__m256 x) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

AVX2_INLINE float max(__m256 x) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

// Of kGroup query heads: sums of exponentials and weighted values below their running maxima.
template <int kDim, int kGroup>
struct State {
  float out[kGroup * kDim] = {}, max[kGroup], sum[kGroup] = {};
  State() { std::fill_n(max, kGroup, kLowest); }
};

// Eight dot products at a time: kLines heads x 8 / kLines keys.
template <int kDim, int kGroup, class T>
AVX2 void score(const float* q, const T* k, float* scores) {
  constexpr int kLines = std::min(kGroup, 4), kKeys = 8 / kLines;
  for (int key = 0; key < kBlock; key += kKeys) {
    const T* rows = k + key * kDim;
    prefetch<kKeys * kDim * sizeof(T)>(rows);
    for (int head = 0; head < kGroup; head += kLines) {
      __m256 sums[8];
      for (__m256& each : sums) each = _mm256_setzero_ps();
      for (int d = 0; d < kDim; d += 8) {
        __m256 kv[kKeys];
        for (int j = 0; j < kKeys; ++j) kv[j] = load(rows + j * kDim + d);
        for (int i = 0; i < kLines; ++i) {
          const __m256 qv = _mm256_loadu_ps(q + (head + i) * kDim + d);
          for (int j = 0; j < kKeys; ++j) sums[i * kKeys + j] = _mm256_fmadd_ps(qv, kv[j], sums[i * kKeys + j]);
        }
      }
      alignas(32) float dots[8];
      _mm256_store_ps(dots, sum_each(sums));
      for (int i = 0; i < kLines; ++i) std::copy_n(dots + i * kKeys, kKeys, scores + (head + i) * kBlock + key);
    }
  }
}

// Scores of one head become weights; returns the factor by which what was accumulated before shrinks.
AVX2 inline float weigh(float* scores, int keys, float scale, float& running_max, float& running_sum) {
  for (int i = keys; i < kBlock; ++i) scores[i] = kLowest;
  __m256 x[kBlock / 8], best = _mm256_set1_ps(kLowest), total = _mm256_setzero_ps();
  for (int i = 0; i < kBlock / 8; ++i) {
    x[i] = _mm256_mul_ps(_mm256_loadu_ps(scores + 8 * i), _mm256_set1_ps(scale));
    best = _mm256_max_ps(best, x[i]);
  }
  const float new_max = std::max(running_max, max(best));
  for (int i = 0; i < kBlock / 8; ++i) {
    x[i] = exp8(_mm256_sub_ps(x[i], _mm256_set1_ps(new_max)));
    total = _mm256_add_ps(total, x[i]);
    _mm256_storeu_ps(scores + 8 * i, x[i]);
  }
  const float shrink = running_max == new_max ? 1.0f : std::exp(running_max - new_max);
  running_max = new_max;
  running_sum = running_sum * shrink + sum(total);
  return shrink;
}

template <int kDim, int kGroup, class T>
AVX2 void add_values(const float* weights, const float* shrink, const T* v, int keys, float* out) {
  constexpr int kLines = std::min(kGroup, 4), kChunks = 8 / kLines, kPasses = kDim / (8 * kChunks) * (kGroup / kLines);
  constexpr int kShare = kDim * static_cast<int>(sizeof(T)) / kPasses;  // bytes of each key to prefetch in one pass
  const auto* ahead = reinterpret_cast<const char*>(v);
  for (int head = 0; head < kGroup; head += kLines) {
    for (int d = 0; d < kDim; d += 8 * kChunks, ahead += kBlock * kShare) {
      __m256 acc[8];
      for (int i = 0; i < 8; ++i)
        acc[i] = _mm256_mul_ps(_mm256_loadu_ps(out + (head + i / kChunks) * kDim + d + i % kChunks * 8),
                               _mm256_set1_ps(shrink[head + i / kChunks]));
      for (int key = 0; key < keys; ++key) {
        if (key * kShare % 64 == 0) prefetch<std::max(kShare, 64)>(ahead + key * kShare);
        for (int c = 0; c < kChunks; ++c) {
          const __m256 value = load(v + key * kDim + d + 8 * c);
          for (int i = 0; i < kLines; ++i)
            acc[i * kChunks + c] =
                _mm256_fmadd_ps(_mm256_broadcast_ss(weights + (head + i) * kBlock + key), value, acc[i * kChunks + c]);
        }
      }
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (head + i / kChunks) * kDim + d + i % kChunks * 8, acc[i]);
    }
  }
}

template <int kDim, int kGroup, class T>
AVX2 void attend(const float* q, const T* k, const T* v, std::int64_t keys, State<kDim, kGroup>& state) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  alignas(32) float scores[kGroup * kBlock];
  float shrink[kGroup];
  for (std::int64_t at = 0; at < keys; at += kBlock) {
    const int count = static_cast<int>(std::min<std::int64_t>(kBlock, keys - at));
    // A short last block ends where the keys end and hides nothing: it is scored from a padded copy.
    std::vector<T> padded;
    const T* rows = k + at * kDim;
    if (count < kBlock) {
      padded.assign(kBlock * kDim, T{});
      std::copy_n(rows, count * kDim, padded.data());
      rows = padded.data();
    }
    score<kDim, kGroup>(q, rows, scores);
    for (int g = 0; g < kGroup; ++g) shrink[g] = weigh(scores + g * kBlock, count, scale, state.max[g], state.sum[g]);
    add_values<kDim, kGroup>(scores, shrink, v + at * kDim, count, state.out);
  }
}

// Both threads take half of all (head, key) pairs; a head that both touched is joined afterwards.
template <int kDim, int kGroup, class T>
void decode_as(const Attention& work) {
  std::vector<State<kDim, kGroup>> states(static_cast<std::size_t>(work.kv_heads) * 2);
  const auto *k = static_cast<const T*>(work.k), *v = static_cast<const T*>(work.v);
  const std::int64_t total = work.kv_heads * work.keys, middle = total / 2 / kBlock * kBlock;
  on_two_threads([&](int worker) {
    const std::int64_t end = worker == 0 ? middle : total;
    for (std::int64_t at = worker == 0 ? 0 : middle; at < end;) {
      const std::int64_t head = at / work.keys, key = at % work.keys, count = std::min(work.keys - key, end - at);
      const std::int64_t cell = (head * work.cells + key) * kDim;
      attend<kDim, kGroup>(work.q + head * kGroup * kDim, k + cell, v + cell, count, states[head * 2 + worker]);
      at += count;
    }
  });
  for (std::int64_t head = 0; head < work.kv_heads; ++head) {
    const auto &a = states[head * 2], &b = states[head * 2 + 1];
    for (int g = 0; g < kGroup; ++g) {
      const float top = std::max(a.max[g], b.max[g]), x = std::exp(a.max[g] - top), y = std::exp(b.max[g] - top);
      const float factor = 1.0f / (a.sum[g] * x + b.sum[g] * y);
      for (int d = 0; d < kDim; ++d)
        work.out[(head * kGroup + g) * kDim + d] = (a.out[g * kDim + d] * x + b.out[g * kDim + d] * y) * factor;
    }
  }
}

template <int kDim, int kGroup>
void decode_stored(const Attention& work) {
  work.half ? decode_as<kDim, kGroup, std::uint16_t>(work) : decode_as<kDim, kGroup, float>(work);
}
template <int kDim>
void decode_grouped(const Attention& work) {
  work.group == 1   ? decode_stored<kDim, 1>(work)
  : work.group == 4 ? decode_stored<kDim, 4>(work)
                    : decode_stored<kDim, 8>(work);
}

AVX2 float sum_of(const float* p, std::size_t count) {
  __m256 sums[8];
  for (__m256& each : sums) each = _mm256_setzero_ps();
  for (std::size_t i = 0; i + 64 <= count; i += 64)
    for (int j = 0; j < 8; ++j) sums[j] = _mm256_add_ps(sums[j], _mm256_loadu_ps(p + i + 8 * j));
  for (int j = 1; j < 8; ++j) sums[0] = _mm256_add_ps(sums[0], sums[j]);
  return sum(sums[0]);
}

// Softmax without its division: row becomes exp(scale * row - max), zero from `seen` on; returns the sum.
AVX2 float soften(float* row, std::int64_t seen, std::int64_t end, float scale) {
  for (std::int64_t i = seen; i < end; ++i) row[i] = kLowest;
  __m256 best = _mm256_set1_ps(kLowest), total = _mm256_setzero_ps();
  std::int64_t i = 0;
  for (; i + 8 <= end; i += 8) best = _mm256_max_ps(best, _mm256_loadu_ps(row + i));
  float top = max(best), rest = 0.0f;
  for (std::int64_t j = i; j < end; ++j) top = std::max(top, row[j]);
  for (i = 0; i + 8 <= end; i += 8) {
    const __m256 e =
        exp8(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + i), _mm256_set1_ps(top)), _mm256_set1_ps(scale)));
    _mm256_storeu_ps(row + i, e);
    total = _mm256_add_ps(total, e);
  }
  for (; i < end; ++i) rest += row[i] = std::exp((row[i] - top) * scale);
  for (i = seen; i < end; ++i) row[i] = 0.0f;
  return sum(total) + rest;
}

// One block of rows of one query head.
void prefill_block(const Attention& work, std::int64_t head, std::int64_t row, std::int64_t count, std::int64_t first,
                   Sgemm sgemm, float* scores) {
  constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;
  const std::int64_t heads = std::int64_t{work.kv_heads} * work.group, line = heads * work.dim;
  const std::int64_t seen = first + count, at = head / work.group * work.cells * work.dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(work.dim));
  const float *k = static_cast<const float*>(work.k) + at, *v = static_cast<const float*>(work.v) + at;
  float* out = work.out + row * line + head * work.dim;
  sgemm(kRowMajor, kAsIs, kTransposed, count, seen, work.dim, 1.0f, work.q + row * line + head * work.dim, line, k,
        work.dim, 0.0f, scores, seen);
  std::vector<float> sums(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) sums[i] = soften(scores + i * seen, first + i + 1, seen, scale);
  sgemm(kRowMajor, kAsIs, kAsIs, count, work.dim, seen, 1.0f, scores, seen, v, work.dim, 0.0f, out, line);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t d = 0; d < work.dim; ++d) out[i * line + d] /= sums[i];
}

double number(const Attention& work, const void* values, std::int64_t at) {
  if (!work.half) return static_cast<const float*>(values)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values)[at];
  const double fraction = bits & 0x3ff, sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = bits >> 10 & 31;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25));
}

}  // namespace

bool available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool supports(std::int32_t dim, std::int32_t group) {
  return (dim == 64 || dim == 128 || dim == 256) && (group == 1 || group == 4 || group == 8);
}

void decode(const Attention& work) {
  work.dim == 64 ? decode_grouped<64>(work) : work.dim == 128 ? decode_grouped<128>(work) : decode_grouped<256>(work);
}

void prefill(const Attention& work, std::int64_t rows, Sgemm sgemm) {
  constexpr std::int64_t kRows = 128;
  const std::int64_t heads = std::int64_t{work.kv_heads} * work.group;
  on_two_threads([&](int worker) {
    std::vector<float> scores(static_cast<std::size_t>(kRows * work.keys));
    for (std::int64_t head = worker; head < heads; head += 2)
      for (std::int64_t row = 0; row < rows; row += kRows)
        prefill_block(work, head, row, std::min(kRows, rows - row), work.keys - rows + row, sgemm, scores.data());
  });
}

void read(const void* a, const void* b, std::size_t bytes) {
  float sums[2];
  on_two_threads([&](int worker) { sums[worker] = sum_of(static_cast<const float*>(worker ? b : a), bytes / 4); });
  [[maybe_unused]] volatile float kept = sums[0] + sums[1];
}

void prefill_reference(const Attention& work, std::int64_t rows, std::int64_t row, std::int32_t head, double* out) {
  const std::int64_t seen = work.keys - rows + row + 1, at = head / work.group * work.cells * work.dim;
  const float* q = work.q + (row * work.kv_heads * work.group + head) * work.dim;
  std::vector<double> scores(static_cast<std::size_t>(seen), 0.0);
  for (std::int64_t i = 0; i < seen; ++i) {
    for (std::int64_t d = 0; d < work.dim; ++d) scores[i] += q[d] * number(work, work.k, at + i * work.dim + d);
    scores[i] /= std::sqrt(static_cast<double>(work.dim));
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  std::fill_n(out, work.dim, 0.0);
  for (std::int64_t i = 0; i < seen; ++i) {
    const double weight = std::exp(scores[i] - top);
    total += weight;
    for (std::int64_t d = 0; d < work.dim; ++d) out[d] += weight * number(work, work.v, at + i * work.dim + d);
  }
  for (std::int64_t d = 0; d < work.dim; ++d) out[d] /= total;
}

}  // namespace yardstick
