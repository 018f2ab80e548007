// How fast two threads can read memory: each adds up its half of an array, eight vectors of sixteen floats at a time,
// and asks for what it needs next a few lines ahead. The yardstick for products with one row.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

namespace {

typedef float Vector __attribute__((vector_size(64)));
constexpr std::size_t kVectors = 8, kAheadBytes = 2048;

float sum_of(const float* numbers, std::size_t count) {
  Vector sums[kVectors] = {};
  for (std::size_t i = 0; i + kVectors * 16 <= count; i += kVectors * 16) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Vector next;
      std::memcpy(&next, numbers + i + v * 16, sizeof next);
      __builtin_prefetch(reinterpret_cast<const char*>(numbers + i + v * 16) + kAheadBytes);
      sums[v] += next;
    }
  }
  float total = 0.0f;
  for (const Vector& sum : sums)
    for (int i = 0; i < 16; ++i) total += sum[i];
  return total;
}

}  // namespace

// Seconds that two threads take to read `count` floats; their sum goes to `total`.
extern "C" __attribute__((visibility("default"))) double read_yardstick(const float* numbers, std::size_t count,
                                                                        float* total) {
  const auto begin = std::chrono::steady_clock::now();
  float other = 0.0f;
  std::thread second([&] { other = sum_of(numbers + count / 2, count - count / 2); });
  *total = sum_of(numbers, count / 2);
  second.join();
  *total += other;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
