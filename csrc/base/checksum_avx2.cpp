// Compiled for AVX2: all that is called here is private to this file, so no other code of
// the library gets such instructions.
#if defined(__x86_64__)
#define XXH_INLINE_ALL
#define XXH_PREFETCH_DIST 2048  // bytes ahead. An image is larger than the processor's caches, and 512 is too near
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace kvtrie {

std::uint64_t checksum_avx2(const void* bytes, std::size_t count) noexcept;

std::uint64_t checksum_avx2(const void* bytes, std::size_t count) noexcept { return XXH3_64bits(bytes, count); }

}  // namespace kvtrie
#endif
