// Checksums of bytes that left the device and come back: 64-bit XXH3, from the xxHash library.
//
// They find damage, not forgery; names that must not collide are made elsewhere. The value of given bytes is fixed for
// good: it is written into files.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtrie {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept;

}  // namespace kvtrie
