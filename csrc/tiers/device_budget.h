// Room on the device: what may be evicted, in which order, and how much that would come to.
//
// Concept. A claim needs units of each cache (`Needs`). The pools give back unused reservations by themselves; then
// goes, until it fits:
//
//     1  cells of windows that no restore point or live sequence needs      oldest first
//     2  restore points                                                     by kind, then by the policy
//     3  leaves on no live path                                             by the policy, tail first
//     4  the same with marks of users on them                               oldest mark first
//     -  pins, and paths of live sessions and of calls                      never
//
// First everything that could go is counted, and a claim that would not fit even then is refused with nothing changed.
// Cells of windowed caches are counted per holder, so live sequences keep theirs whatever the tree lets go of. A
// page-in keeps the state that it builds on meanwhile: `keep` (scope: InUseScope, holds.h).
//
// A claim says whose it is, and evicts in two rounds (quotas.h): first the units that the claiming namespace has beyond
// its most, then the missing ones, from any that is above its floor. Namespaces without a quota are one group that has
// neither.
//
//     device_budget.cpp         what is idle, how much that comes to, refusals
//     device_budget_rounds.cpp    the rounds
//     device_budget_cells.cpp   cells of windowed caches, which go one by one
//
// Live paths are marked by walking up from what is live, for there are few of these and the tree may be large.
//
// Errors: kCacheFull with the counts, and nothing has changed; where making room fails otherwise, what went is gone.
// Cost: O(live paths) to count tokens, and bytes where no cache has restore points; O(nodes) for tokens while sequences
// share unpublished cells, and for bytes of restore points; O(1) amortised for each victim; O(points) for what points
// hold of one cache.
// Threads: guarded by the prefix cache's mutex. Units: tokens, cells, slots; bytes where the name says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan_types.h"
#include "tiers/eviction.h"
#include "tiers/host_copies.h"
#include "tree/cache_table.h"
#include "tree/leases.h"
#include "tree/live_sessions.h"
#include "tree/node_places.h"
#include "tree/quotas.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "tree/tree_orders.h"
#include "trie/trie.h"

namespace kvtrie {

// The collaborators of DeviceBudget. All outlive it.
struct DeviceBudgetTree {
  const CacheTable& caches;
  const TreeOrders& orders;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  const Leases& leases;
  const LiveSessions& sessions;
  HostCopies& copies;
  Eviction& eviction;
  Removal& removal;
  const Quotas& quotas;
};

class DeviceBudget {
 public:
  // Leaves go in steps of at least `growth` tokens. `saves_cells`: what windows let go of gets a copy first, where it
  // fits (there is a host tier).
  DeviceBudget(const DeviceBudgetTree& of, std::uint32_t growth, bool saves_cells)
      : of_(of), growth_(growth), saves_cells_(saves_cells) {}
  DeviceBudget(const DeviceBudget&) = delete;
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  // --- asked
  // `also` (may be null): a node whose path counts as live, too.
  std::uint64_t freeable_tokens(Node* also = nullptr);  // of full attention, that no live session, pin or call needs
  std::uint64_t freeable_bytes();                       // the same in bytes of all caches
  std::uint64_t freeable_outside_bytes();               // of nodes that are not on the device
  // The next `count` nodes of a walk that counts either; bytes of those. REQUIRES: caches with restore points, else
  // there is nothing to walk over.
  std::uint64_t freeable_bytes_of_some(NodeWalk& walk, std::size_t count, bool outside);
  // Up to where the full attention of `fetch` fits on the device; more than its target when all does.
  std::int32_t fitting_length(const Path& path, const Fetch& fetch);
  bool points_fit(const Needs& needs, Group who = 0);    // windows and states
  void require_room(const Needs& needs, Group who = 0);  // kCacheFull, unless everything that could go would do
  void require_room(std::span<const Claim> claims);      // the same of several namespaces at once

  // --- made
  // All or kCacheFull, in which case nothing changed.
  void make_room(const Needs& needs, Group who = 0);
  void make_room(std::span<const Claim> claims);
  // Of one cache that restore points hold state of: units free now for each claim, at most what it needs; evicts only
  // points that are worth less than `below`. The claims are what they were afterwards.
  std::vector<std::uint32_t> try_free_slots(std::size_t number, std::span<Claim> claims, double below);

  // --- kept
  void keep(InUse in_use) noexcept { in_use_ = std::move(in_use); }  // not evicted until the next call
  void keep_nothing() noexcept { in_use_ = {}; }

 private:
  // With a new number; device tokens on live paths. `idle` (may be null): loses them, by group.
  std::uint64_t mark_live(Node* also, std::vector<std::uint64_t>* idle = nullptr);
  bool is_live(const Node* node) const { return state_of(node).mark == walks_; }  // REQUIRES: just after mark_live()
  template <class Each>
  void visit_groups(const Each& each) const {  // 0 and those with a quota
    for (std::size_t group = 0; group < of_.quotas.groups(); ++group) {
      if (group == 0 || of_.quotas.find(static_cast<Group>(group)) != nullptr) each(static_cast<Group>(group));
    }
  }

  // --- what is idle, and how much that comes to
  std::vector<std::uint64_t> idle_tokens(Node* also);  // of each group
  std::vector<const SpanList*> pinned_cells(std::size_t cache, std::optional<Group> group) const;
  std::uint32_t freeable_cells(std::size_t cache) const;  // of a windowed cache
  // Counts no further than `enough`. `may`: groups whose points count.
  std::uint32_t freeable_slots(std::size_t number, std::uint32_t enough, const Trie::Groups& may);
  std::uint32_t idle_cells(std::size_t cache, Group group) const;
  std::uint32_t idle_units(std::size_t number, Group group, std::uint32_t enough);
  std::uint64_t tokens_of_others(const std::vector<std::uint64_t>& idle, const Allotment& allotment) const;
  std::uint64_t tokens_for(Group who, Node* also);
  std::uint64_t units_for(Group who, std::size_t number, std::uint32_t enough);
  std::uint64_t takeable_units(const Allotment& allotment, std::size_t number, std::uint32_t enough);
  void require_tokens(const Allotment& allotment);
  void require_units(const Allotment& allotment, std::size_t number);

  // --- the rounds. Of one: what is missing yet, and how much a group may give now.
  struct Round {
    const DeviceBudget& budget;
    const Allotment& allotment;
    std::optional<Group> own;           // of what this group has beyond its most; none: of all, what is missing
    std::optional<std::size_t> number;  // of one cache; none: of tokens, which take cells of all full caches along
    std::uint32_t missing() const;
    std::uint32_t may_give(Group group) const;
    Trie::Groups open() const {
      return [this](Group group) { return may_give(group) > 0; };
    }
  };
  std::uint32_t missing_units(const Allotment& allotment, std::size_t number) const;
  std::uint32_t missing_in_full(const Allotment& allotment) const;  // in the shortest of the full caches
  std::uint32_t over_in_full(const Allotment& allotment, Group who) const;
  std::uint32_t tokens_from(const Allotment& allotment, Group group) const;
  bool frees_some(const Node* node, std::size_t number) const;  // its restore point, of that cache
  void take_slots(const Round& round);
  void take_wanted_slots(const Round& round, double below);
  void take_cells(const Round& round);
  void take_units(const Round& round);  // of either
  void take_leaves(const Round& round);
  void make_units(const Allotment& allotment, std::size_t number);
  void make_tokens(const Allotment& allotment);

  // --- cells of windowed caches
  bool may_be_held(const Node* node) const;  // REQUIRES: just after mark_live()
  std::vector<Node*> with_unneeded_cells(std::size_t cache, std::uint32_t count, Group group);
  std::optional<BlobSlice> copy_of(const Node* node, std::size_t cache, const SpanList& cells);
  std::uint32_t let_go_of(std::size_t cache, Node* node, std::uint32_t count);
  void let_go_of(std::size_t cache, Node* node, const CellSpan& span);  // of positions: all or nothing
  std::uint32_t let_go_in(Group group, std::size_t cache, std::uint32_t count);
  bool let_go_among(const Round& round);

  const DeviceBudgetTree of_;
  const std::uint32_t growth_;
  const bool saves_cells_;
  std::uint64_t walks_ = 0;         // numbers the walks that mark nodes
  std::uint64_t live_outside_ = 0;  // tokens on the paths of the last one that are not on the device
  InUse in_use_;
};

}  // namespace kvtrie
