// How much each pool, host memory, the disk and pins may hold, and how these caps change at run time.
//
// Concept. Lowering a cap is making room as a claim does, only that the room is then taken away: what goes, goes in the
// usual order, and what may not go is counted first, so that a refusal changes nothing.
//
//     device    held <= limit of each pool      needs: what has to be free under the old limit for the new one to hold
//     host      what pinned nodes have nowhere else stays
//     disk      what pinned nodes have nowhere else stays, with all above it
//
// The disk comes first, then the host, then the pools: what leaves a pool finds the host's new cap in force. Pins may
// hold a fraction of the smallest pool of attention.
//
// Errors: kArgument, kNotSupported for caps that cannot be; kCacheFull for what has to stay, nothing has changed then.
// A device or the memory may fail on the way: then the caps are the old ones, as far as the held bytes allow it.
// Threads: guarded by the prefix cache's mutex. Host memory and files can only be let go of when nothing is on its way
// between the tiers, which is the caller's to wait for (limits.cpp). Units: cells, slots, bytes, tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tiers/device_budget.h"
#include "tiers/lower_tiers.h"
#include "tree/cache_table.h"
#include "tree/caps.h"
#include "tree/leases.h"

namespace kvtrie {

class Capacity {
 public:
  // `host` may be null: no such tier. `most_pinned`: of the smallest pool, 0 to 1. All outlive this.
  // `quotas`: floors of namespaces, which no cap may be below.
  Capacity(const CacheTable& caches, std::shared_ptr<ByteBudget> host, LowerTiers& lower, Leases& leases,
           DeviceBudget& device_budget, double most_pinned, const Quotas& quotas)
      : caches_(caches),
        host_(std::move(host)),
        lower_(lower),
        leases_(leases),
        device_budget_(device_budget),
        most_pinned_(most_pinned),
        quotas_(quotas) {}
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

  Caps caps() const;
  // As `limits` wants them; `aside`: bytes of host memory that are not the host tier's.
  Caps caps_for(const Limits& limits, std::uint64_t aside) const;
  bool shrinks(const Caps& wanted) const;  // something has to leave host memory or the disk
  // The budgets that quotas of namespaces may share out: `limits` as amounts, where it names none those of `others`.
  Caps quota_for(const Limits& limits, const Caps& others) const;
  void require_reachable(const Caps& wanted);
  // All or nothing. REQUIRES: require_reachable; where it shrinks, nothing is on its way between the tiers.
  void apply(const Caps& wanted);
  void set_pin_cap();                               // under the present limits
  void set_pin_cap(Group group, const Caps& most);  // for the pins of one namespace

 private:
  Needs needs_for(const Caps& wanted) const;
  void change(const Caps& wanted);
  void require_floors(const Caps& wanted) const;

  const CacheTable& caches_;
  const std::shared_ptr<ByteBudget> host_;
  LowerTiers& lower_;
  Leases& leases_;
  DeviceBudget& device_budget_;
  const double most_pinned_;
  const Quotas& quotas_;
};

}  // namespace kvtrie
