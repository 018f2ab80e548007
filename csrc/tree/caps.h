// How much of each pool and each tier there may be of something: of everything, or of one namespace.
//
// Threads: a value. Units: cells and slots of the caches, bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvtrie {

struct Caps {
  std::vector<std::uint32_t> units;  // of each cache
  std::uint64_t host = 0, disk = 0;  // 0 where there is no such tier
};

// Caps to change; what is not named stays as it is. An empty list names nothing, else it has one entry for each cache.
// Pools are sized at creation, and a cap below that hides the rest: 0, or more than the capacity, means the capacity.
struct Limits {
  std::vector<std::optional<std::uint32_t>> held_cells;  // the most cells held, of each attention cache
  std::vector<std::optional<std::uint32_t>> held_slots;  // the most slots held, of each recurrent cache
  std::optional<std::uint64_t> host_bytes, disk_bytes;   // of tiers that there are
};

}  // namespace kvtrie
