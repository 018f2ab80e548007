// The most that namespaces may hold, and the least that others cannot take from them.
//
// Concept. A namespace may have a quota in each pool and tier: the most that it holds there, live state included, and a
// floor, the least that others leave it. Both are room:
//
//     pool   |== A ==|.. A's floor ..|=== B ===|===== others =====|....... free .......|
//                     '- nobody else claims this, though it is free
//
//     beyond its most     a claim first lets go of the namespace's own idle state; what is live is refused
//     at its floor        its idle state is no victim for claims of others, and what it does not use of its floor is
//                         free for nobody else. For its own claims, a ttl and calls of users it goes like any other
//
// The allotment of a claim (Allotment). `used` are the units that a namespace holds, `n` those that it claims now:
//
//     over   (used + n) - most                  has to go from its own idle state first
//     excess (used + n) - least                 goes for anybody's claim, as far as it is idle
//     free units wanted: all n, and of each namespace what it does not use of its floor: least - (used + n)
//
// An eviction below a floor frees a unit and owes one, so floors need no other rule: there are always at least as many
// free units as floors lack (invariant, `check`). Cells go one by one; a restore point, a copy in memory and a file go
// whole, and may take their namespace below its floor by less than their own size. The subtree of a leaf goes with it,
// also where its namespace is at the floor in that pool. The room stays its own in any case.
//
// Whose is what. A unit of a pool was claimed for one namespace, and nothing is shared across namespaces, so counting
// is exact: pools count by owner (cache/owner_counts.h), host memory and files lie in budgets of their namespaces
// (namespaces.h). Only caches that were made for quotas count; all namespaces then, so that any may get one.
//
// The next victim. A namespace with a quota is a group of the trie (trie/victim_order.h), and so has victim orders,
// restore points and device tokens of its own: the first that may go is found in each group as ever, and the one
// that goes is the first of those. So a search costs O(groups) more, never a pass over protected nodes; and the
// eviction of a namespace does not depend on the others. The namespace's root is locked, so that it keeps its numbers.
//
// Errors: a call that throws has changed nothing. Threads: guarded by the prefix cache's mutex; budgets and pools count
// by themselves. Units: units of the pools; bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tree/cache_table.h"
#include "tree/caps.h"
#include "tree/namespaces.h"
#include "trie/trie.h"

namespace kvtrie {

// The claim of one namespace, or of all that have no quota (group 0), on the pools.
struct Claim {
  Group who = 0;
  Needs needs;
};

// The bytes of a namespace in a tier below the device.
struct TierShare {
  std::uint64_t used = 0, least = 0, most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t excess(std::uint64_t more = 0) const noexcept {
    return used + more - (used + more < least ? used + more : least);
  }
  std::uint64_t unfilled(std::uint64_t more = 0) const noexcept {
    return used + more < least ? least - used - more : 0;
  }
};

class Quotas {
 public:
  static constexpr std::size_t kMost = 1000;  // namespaces that have one

  struct Quota {
    std::string name;
    Node* root = nullptr;              // locked
    const Namespace* space = nullptr;  // its record, which stays while the root does
    Caps most, least;
  };

  // All outlive this.
  Quotas(const CacheTable& caches, Trie& trie, Namespaces& namespaces)
      : caches_(caches), trie_(trie), namespaces_(namespaces) {}
  Quotas(const Quotas&) = delete;
  Quotas& operator=(const Quotas&) = delete;

  bool counted() const noexcept { return namespaces_.counted(); }  // there may be some
  bool any() const noexcept { return count_ > 0; }
  std::size_t groups() const noexcept { return quotas_.size() + 1; }  // numbers up to here; some may be unused
  const Quota* find(Group group) const noexcept { return group == 0 ? nullptr : quotas_[group - 1U].get(); }
  const Quota* find(std::string_view name_space) const noexcept;

  // Amounts of one that has none, or others than it has. The caller sees to it that they hold: nothing goes here.
  // Its group, which its nodes are to be moved to where it is new.
  Group set(std::string_view name_space, Caps most, Caps least);
  void remove(Group group) noexcept;  // REQUIRES: its nodes are in no group of their own any more
  // Of all floors, in one pool or tier; without those of `but`.
  std::uint64_t floor_units(std::size_t cache, Group but = 0) const;
  std::uint64_t floor_host(Group but = 0) const;
  std::uint64_t floor_disk(Group but = 0) const;

  // --- how much it has
  std::uint32_t used(Group group, std::size_t cache) const;  // REQUIRES: it has a quota
  TierShare host(Group group) const;                         // of group 0: no limits, and not counted
  TierShare disk(Group group) const;
  // Bytes that the floors of namespaces lack when `who` gets `more`.
  std::uint64_t unfilled_host(Group who, std::uint64_t more) const;
  std::uint64_t unfilled_disk(Group who, std::uint64_t more) const;

  std::uint64_t writing(Group group) const noexcept;  // bytes on their way to files. REQUIRES: it has a quota

  struct Usage {
    std::vector<std::uint32_t> units;
    std::uint64_t host = 0, disk = 0;
  };
  Usage usage(std::string_view name_space);  // REQUIRES: counted

  // `free_disk`: bytes that the disk tier has left.
  void check(std::vector<std::string>& findings, std::uint64_t free_disk) const;

 private:
  template <class Each>
  std::uint64_t sum(const Each& each, Group but) const;

  const CacheTable& caches_;
  Trie& trie_;
  Namespaces& namespaces_;
  std::vector<std::unique_ptr<Quota>> quotas_;  // from group 1 on; null: unused
  std::size_t count_ = 0;
};

// The most that claims may take of the pools, as things are now.
class Allotment {
 public:
  static constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();

  Allotment(const Quotas& quotas, std::span<const Claim> claims) : quotas_(quotas), claims_(claims) {}

  std::span<const Claim> claims() const noexcept { return claims_; }
  bool claims_any(Group group) const noexcept;
  std::uint32_t need(Group group, std::size_t cache) const noexcept;
  std::uint32_t over(Group group, std::size_t cache) const { return group == 0 ? 0 : over_most(group, cache); }
  std::uint32_t excess(Group group, std::size_t cache) const;  // kAll for group 0
  std::uint64_t wanted(std::size_t cache) const {              // units that have to be free
    std::uint64_t units = unfilled(cache);
    for (const Claim& claim : claims_) units += claim.needs[cache];
    return units;
  }
  // The same of floors alone, and without that of `but`.
  std::uint64_t unfilled(std::size_t cache, Group but = 0) const { return quotas_.any() ? lacking(cache, but) : 0; }

 private:
  std::uint32_t over_most(Group group, std::size_t cache) const;
  std::uint64_t lacking(std::size_t cache, Group but) const;

  const Quotas& quotas_;
  const std::span<const Claim> claims_;
};

}  // namespace kvtrie
