// Room of a given size, made because a caller asks for it: state goes out of the device, or away.
//
// Leaves of the device first, in the policy's order, each cut to what is still to be freed; leaves of lower tiers, by
// their last use, when nothing is left on the device. The bytes that could go are counted first, so that a call that
// cannot free enough changes nothing; between pieces others may take or let go of some of it.
//
// Errors: kCacheFull, with nothing changed, for more than could be freed. Threads: called with the prefix cache's mutex
// held, which it lets go of. Units: bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "paging/gate.h"
#include "tiers/device_budget.h"
#include "tiers/eviction.h"
#include "tree/cache_table.h"
#include "tree/removal.h"

namespace kvtrie {

std::vector<Node*> children_first(Node* top);  // nodes of the subtree, each behind those below it

class PageOut {
 public:
  // All outlive this.
  PageOut(const CacheTable& caches, DeviceBudget& device_budget, Eviction& eviction, Removal& removal)
      : caches_(caches), device_budget_(device_budget), eviction_(eviction), removal_(removal) {}
  PageOut(const PageOut&) = delete;
  PageOut& operator=(const PageOut&) = delete;

  // At least `nbytes` of the device, to the host where they fit; bytes freed. `most`: what is allowed at a time.
  // `leaving` is told of each node before it goes.
  std::uint64_t page_out(std::uint64_t nbytes, std::uint64_t most, const std::function<void(Node*)>& leaving,
                         Call& call);
  std::uint64_t page_out(Node* top);  // what it and those below it have on the device, as far as it fits; bytes freed
  std::uint64_t evict(std::uint64_t nbytes, Call& call);  // for good, from any tier

 private:
  std::uint64_t freeable(std::uint64_t enough, bool outside, Pieces& pieces);
  Node* tail_worth(Node* victim, std::uint64_t bytes);

  const CacheTable& caches_;
  DeviceBudget& device_budget_;
  Eviction& eviction_;
  Removal& removal_;
};

}  // namespace kvtrie
