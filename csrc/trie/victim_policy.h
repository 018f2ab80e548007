// Which node goes first when room is short.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvtrie {

enum class VictimPolicy : std::uint8_t {
  kLru,   // least recently used
  kSlru,  // segmented: a node used once goes before a node used again; a scan cannot flush the second kind
  kCost,  // least recompute time per byte, aged by what went before it (greedy-dual with frequency)
};

const char* name_of(VictimPolicy policy) noexcept;     // "lru", "slru", "cost"
VictimPolicy policy_from_name(std::string_view name);  // throws kArgument that lists the names

}  // namespace kvtrie
