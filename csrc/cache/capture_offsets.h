// The offsets at which prepare_snapshots schedules captures: the same rule for every kind of cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"

namespace kvtrie {

// Throws kArgument unless they ascend, from the present length on.
inline void require_offsets(std::span<const std::int32_t> offsets, std::int32_t length, std::string_view where) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int32_t lowest = i == 0 ? length : offsets[i - 1] + 1;
    require(offsets[i] >= lowest, where, "offsets: got ", offsets[i], " at index ", i, ", allowed ", lowest,
            " or more");
  }
}

}  // namespace kvtrie
