#include "base/checksum.h"

#include <xxhash.h>

namespace kvtrie {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace kvtrie
