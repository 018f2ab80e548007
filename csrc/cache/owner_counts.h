// How many units of a pool are held for each owner.
//
// Concept. Units are claimed for an owner and free when their last holder lets go; in between their owner is the one
// they were claimed for. (Labels of cell_owners.h say whose *bytes* a unit has, and those of a device that failed are
// nobody's; what is held is counted all the same.) A run that is let go of at once was claimed for one owner.
//
// Invariant: `of` is the number of units that are held and were claimed for that owner (the pools' checks recount).
//
// Errors: `prepare` throws when there is no memory, and nothing else does. Cost: O(length of the run), to note whose it
// is. Threads: none of its own; the pool's mutex. Units: cells or slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "cache/cell_owners.h"

namespace kvtrie {

class OwnerCounts {
 public:
  OwnerCounts(std::size_t units, std::uint32_t held) : owners_(units, kOwnCallers) {  // what is held is nobody's
    if (held > 0) counts_[kOwnCallers] = held;
  }

  void prepare(Owner owner) { counts_[owner] += 0; }  // before `claimed`, so that it cannot fail
  void claimed(std::uint32_t first, std::uint32_t length, Owner owner) noexcept {
    std::fill_n(owners_.begin() + first, length, owner);
    counts_.find(owner)->second += length;
  }
  void freed(std::uint32_t first, std::uint32_t length) noexcept {
    const auto found = counts_.find(owners_[first]);
    found->second -= length;
    if (found->second == 0) counts_.erase(found);
  }
  void moved(std::uint32_t from, std::uint32_t to, std::uint32_t length) noexcept {  // REQUIRES: to < from, or the same
    std::copy_n(owners_.begin() + from, length, owners_.begin() + to);
  }

  std::uint32_t of(Owner owner) const noexcept {
    const auto found = counts_.find(owner);
    return found == counts_.end() ? 0 : found->second;
  }
  Owner owner_of(std::uint32_t unit) const noexcept { return owners_[unit]; }

  // `counted`: of what is held, as somebody recounted it.
  void check(const std::unordered_map<Owner, std::uint32_t>& counted, std::vector<std::string>& faults) const {
    for (const auto& [owner, count] : counts_) {
      const auto found = counted.find(owner);
      const std::uint32_t held = found == counted.end() ? 0 : found->second;
      if (held != count) faults.push_back(cat("pool: owner ", owner, " holds ", held, " units, believed ", count));
    }
    for (const auto& [owner, count] : counted) {
      if (count > 0 && !counts_.contains(owner))
        faults.push_back(cat("pool: owner ", owner, " holds ", count, " units, believed 0"));
    }
  }

 private:
  std::vector<Owner> owners_;  // of each unit, the last one that claimed it
  std::unordered_map<Owner, std::uint32_t> counts_;
};

}  // namespace kvtrie
