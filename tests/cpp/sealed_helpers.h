// Keys for tests: the same in every run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "store/key_ring.h"

namespace kvtrie::testing {

inline SecretKey key_number(unsigned number) {
  std::array<std::byte, SecretKey::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number * 37 + i);
  return SecretKey(bytes);
}

// Other numbers each time, from a seed.
inline KeyRing::Random seeded_random(std::uint64_t seed = 1) {
  return [random = std::make_shared<std::mt19937_64>(seed)](std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)());
    return true;
  };
}

inline KeyRingPtr one_key(unsigned number, std::uint64_t seed = 1) {
  return std::make_shared<KeyRing>(KeyRing::Keys{key_number(number)}, seeded_random(seed));
}
inline KeyRingPtr keys_for(const std::map<std::string, KeyRing::Keys>& keys, std::uint64_t seed = 1) {
  return std::make_shared<KeyRing>(keys, seeded_random(seed));
}

inline bool contains(std::span<const std::byte> bytes, std::span<const std::byte> part) {
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

}  // namespace kvtrie::testing
