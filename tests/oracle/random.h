// Where a driver's choices come from: a seed, or somebody's bytes.
//
//     Random(seed)    std::mt19937_64: the same numbers everywhere
//     Random(bytes)   what a fuzzer wrote, two bytes a number, little-endian; 0 for ever once they are used up. Whoever
//                     plays asks `used_up` when to stop
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>

namespace kvtrie::oracle {

class Random {
 public:
  using result_type = std::uint64_t;

  explicit Random(std::uint64_t seed) : engine_(seed) {}
  explicit Random(std::span<const std::byte> bytes) : bytes_(bytes), seeded_(false) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  result_type operator()() { return seeded_ ? engine_() : next() | next() << 8; }
  bool used_up() const noexcept { return !seeded_ && bytes_.empty(); }

 private:
  std::uint64_t next() noexcept {
    if (bytes_.empty()) return 0;
    const auto byte = std::to_integer<std::uint64_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  std::mt19937_64 engine_;
  std::span<const std::byte> bytes_;
  bool seeded_ = true;
};

// A number in [0, limit). The same for every standard library, unlike std::uniform_int_distribution.
inline std::size_t below(Random& random, std::size_t limit) { return static_cast<std::size_t>(random() % limit); }
inline bool chance(Random& random, std::size_t percent) { return below(random, 100) < percent; }

}  // namespace kvtrie::oracle
