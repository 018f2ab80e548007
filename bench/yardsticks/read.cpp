// How fast two threads can read memory: each adds up its half of an array, eight vectors of sixteen floats at a time,
// and asks for what it needs next a few lines ahead; as one stream, or as several stretches in turns, which processors
// may fetch faster. The yardstick for products with one row. And how fast they can rewrite it: read numbers and put
// what becomes of them elsewhere, as a recurrent layer does with its states.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

namespace {

typedef float Vector __attribute__((vector_size(64)));
constexpr std::size_t kVectors = 8, kAheadBytes = 2048;

// Adds up `count` floats, in turns from each of `streams` stretches of equal length.
float sum_of(const float* numbers, std::size_t count, std::size_t streams) {
  const std::size_t stretch = count / streams;
  Vector sums[kVectors] = {};
  for (std::size_t i = 0; i + kVectors * 16 <= stretch; i += kVectors * 16) {
    for (std::size_t stream = 0; stream < streams; ++stream) {
      const float* from = numbers + stream * stretch + i;
      for (std::size_t v = 0; v < kVectors; ++v) {
        Vector next;
        std::memcpy(&next, from + v * 16, sizeof next);
        __builtin_prefetch(reinterpret_cast<const char*>(from + v * 16) + kAheadBytes);
        sums[v] += next;
      }
    }
  }
  float total = 0.0f;
  for (const Vector& sum : sums)
    for (int i = 0; i < 16; ++i) total += sum[i];
  return total;
}

// Puts `count` floats, each a little changed, to `to`.
void rewrite(const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i + 16 <= count; i += 16) {
    Vector next;
    std::memcpy(&next, from + i, sizeof next);
    __builtin_prefetch(reinterpret_cast<const char*>(from + i) + kAheadBytes);
    next = next * 0.5F + 0.5F;
    std::memcpy(to + i, &next, sizeof next);
  }
}

// Those of each of `count / each` stretches, their first half or their second, to `to` and to `to + each` in turns.
void rewrite_half(const float* from, float* to, std::size_t count, std::size_t each, std::size_t half) {
  const std::size_t begin = half * (each / 2), size = half == 0 ? each / 2 : each - each / 2;
  for (std::size_t at = 0, turn = 0; at + each <= count; at += each, turn ^= 1)
    rewrite(from + at + begin, to + turn * each + begin, size);
}

}  // namespace

// Seconds that two threads take to read `count` floats, each as so many streams; their sum goes to `total`.
extern "C" __attribute__((visibility("default"))) double read_yardstick(const float* numbers, std::size_t count,
                                                                        std::size_t streams, float* total) {
  const auto begin = std::chrono::steady_clock::now();
  float other = 0.0f;
  std::thread second([&] { other = sum_of(numbers + count / 2, count - count / 2, streams); });
  *total = sum_of(numbers, count / 2, streams);
  second.join();
  *total += other;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds that two threads take to rewrite `count` floats in stretches of `each`, which both share, to the 2 * `each`
// at `to`.
extern "C" __attribute__((visibility("default"))) double rewrite_yardstick(const float* from, float* to,
                                                                           std::size_t count, std::size_t each) {
  const auto begin = std::chrono::steady_clock::now();
  std::thread second([&] { rewrite_half(from, to, count, each, 1); });
  rewrite_half(from, to, count, each, 0);
  second.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
