// xxHash's header has its functions, too: here they are compiled for any processor, in checksum_avx2.cpp for those that
// have AVX2. The value is the same.
#define XXH_INLINE_ALL
#include "base/checksum.h"

#include <xxhash.h>

namespace kvtrie {

#if defined(__x86_64__)
std::uint64_t checksum_avx2(const void* bytes, std::size_t count) noexcept;  // checksum_avx2.cpp
#endif

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return checksum_avx2(bytes.data(), bytes.size());
#endif
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace kvtrie
