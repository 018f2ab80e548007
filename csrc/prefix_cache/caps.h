// How much of each pool and each tier there may be of something: of everything, or of one namespace.
//
// Threads: a value. Units: cells and slots of the caches, bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace kvtrie {

struct Caps {
  std::vector<std::uint32_t> units;  // of each cache
  std::uint64_t host = 0, disk = 0;  // 0 where there is no such tier
};

}  // namespace kvtrie
