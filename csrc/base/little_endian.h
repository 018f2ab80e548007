// Numbers as bytes, least significant first, on every machine: for files, keys and digests.
//
// Threads: pure.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvtrie {

// Writes sizeof(T) bytes to `to`.
template <std::integral T>
void store_little_endian(T value, std::byte* to) noexcept {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(std::uint64_t{bits} >> (8 * i));
}

// Reads sizeof(T) bytes from `from`.
template <std::integral T>
T load_little_endian(const std::byte* from) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) bits |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(bits));
}

}  // namespace kvtrie
