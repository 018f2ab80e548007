// A victim order's memory of members that left: their uses, under a hash of their whole path.
//
// Bounded: as many entries as it has room for, the oldest goes first. A path is known by 64 bits alone; where two
// collide, a node is credited with the uses of another one and a victim is misjudged, which costs time and nothing
// else. Entries lie in a ring in the order in which they came; an open table of places in it finds them.
//
// Path hashes. `step_path` takes the hash of a path to that of the path with one token more, `step_path_back` undoes
// it: the tokens that were appended last need no more than themselves to be gone over again.
//
// Threads: none of its own. Only `reserve` throws. Cost: O(1); 24 bytes an entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "trie/edge.h"

namespace kvtrie {

using PathHash = std::uint64_t;

namespace path_hash {

// Odd, so that each product can be undone; kBack * kStep == 1 (mod 2^64). kMix takes a token to all 64 bits.
inline constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15U, kBack = 0xf1de83e19937733dU, kMix = 0xd6e8feb86659fd93U;
static_assert(kStep * kBack == 1);

}  // namespace path_hash

PathHash path_of_root(std::string_view name_space) noexcept;

inline PathHash step_path(PathHash path, Token token) noexcept {
  return (path ^ (static_cast<std::uint32_t>(token) * path_hash::kMix)) * path_hash::kStep;
}
inline PathHash step_path_back(PathHash path, Token last) noexcept {
  return (path * path_hash::kBack) ^ (static_cast<std::uint32_t>(last) * path_hash::kMix);
}

class GhostTable {
 public:
  static constexpr std::size_t kLeast = 1024;  // entries

  // Room for twice as many entries as there are members, rounded up to a power of two, and for `kLeast`. Never shrinks.
  void reserve(std::size_t members);
  // The newest entry from now on; in place of what was known of that path. REQUIRES: reserved, uses > 0.
  void remember(PathHash path, std::uint32_t uses) noexcept;
  // The uses of that path, which is forgotten; 0 when it is not known.
  std::uint32_t recall(PathHash path) noexcept;

  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return ring_.size(); }

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  struct Entry {
    PathHash path = 0;
    std::uint32_t uses = 0;  // 0: forgotten
  };

  std::size_t home_of(PathHash path) const noexcept;
  std::size_t find(PathHash path) const noexcept;  // in places_: where it is, or the free place where it would be
  void forget(std::size_t place) noexcept;

  std::vector<Entry> ring_;            // a power of two
  std::vector<std::uint32_t> places_;  // twice as many: indices into the ring, kFree
  std::size_t next_ = 0;               // in the ring: where the oldest is, and the next one goes
  std::size_t size_ = 0;
};

}  // namespace kvtrie
