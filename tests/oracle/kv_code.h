// K and V that say whose they are.
//
// Every K and V value written by the oracle tests is a pure function of (namespace, all tokens up to and including the
// position, layer, K or V, column), so any cell can be checked alone, and a foreign or stale value is recognised.
// The values are small integers, exact in float32 and float16.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtrie::oracle {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  hash *= 0xBF58476D1CE4E5B9ull;
  return hash ^ (hash >> 29);
}

inline std::uint64_t seed_of(std::string_view name_space) {
  std::uint64_t hash = 0xC0FFEE;
  for (const char letter : name_space) hash = mix(hash, static_cast<unsigned char>(letter));
  return hash;
}

// hashes[p]: of the namespace and tokens [0, p].
inline std::vector<std::uint64_t> prefix_hashes(std::string_view name_space, std::span<const std::int32_t> tokens) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = seed_of(name_space);
  for (const std::int32_t token : tokens) hashes.push_back(hash = mix(hash, static_cast<std::uint64_t>(token) + 1));
  return hashes;
}

// In [-1024, 1023]: exact in float16.
inline float kv_value(std::uint64_t prefix_hash, std::uint32_t layer, bool value, std::uint32_t column) {
  const std::uint64_t hash = mix(prefix_hash, (std::uint64_t{layer} << 33) + (std::uint64_t{value} << 32) + column);
  return static_cast<float>(static_cast<std::int32_t>((hash >> 20) & 2047) - 1024);
}

// A number of a row of `dim`: the above, but in blocks of 32 (rows of other formats are shorter) a whole number up to
// 127 and one of 127, so that q8_0 keeps it as it is.
inline float row_value(std::uint64_t prefix_hash, std::uint32_t layer, bool value, std::uint32_t column,
                       std::uint32_t dim) {
  const float any = kv_value(prefix_hash, layer, value, column);
  if (dim % 32 != 0) return any;
  return column % 32 == 31 ? 127.0f : static_cast<float>(static_cast<std::int32_t>(any) % 128);
}

// A number of a row that q4h keeps as it is: whole numbers from -7 to 7 and one -8, times a Hadamard matrix of 32.
inline float turned_value(std::uint64_t prefix_hash, std::uint32_t layer, bool value, std::uint32_t column) {
  float sum = 0.0f;
  for (std::uint32_t i = 0; i < 32; ++i) {
    const float any = kv_value(prefix_hash, layer, value, column / 32 * 32 + i);
    const auto digit = static_cast<float>(i == 31 ? -8 : static_cast<std::int32_t>(any) % 8);
    sum += std::popcount(i & column % 32) % 2 == 1 ? -digit : digit;
  }
  return sum;
}

}  // namespace kvtrie::oracle
