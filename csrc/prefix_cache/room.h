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
// Cells of windowed caches are counted per holder, so live sequences keep theirs whatever the tree lets go of. What a
// page-in builds on is kept meanwhile: `keep` (scope: InUseScope, holds.h).
//
// Live paths are marked by walking up from what is live, for there are few of these and the tree may be large.
//
// Errors: kCacheFull with the counts, and nothing has changed; where making room fails otherwise, what went is gone.
// Cost: O(live paths) to count tokens, O(nodes) only while sequences share unpublished cells; O(1) amortised for each
// victim; O(points) for what points hold of one cache.
// Threads: guarded by the prefix cache's mutex. Units: tokens, cells, slots; bytes where the name says so.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "prefix_cache/cache_table.h"
#include "prefix_cache/eviction.h"
#include "prefix_cache/host_copies.h"
#include "prefix_cache/leases.h"
#include "prefix_cache/live_sessions.h"
#include "prefix_cache/node_places.h"
#include "prefix_cache/plan_types.h"
#include "prefix_cache/restore_points.h"
#include "prefix_cache/tree_orders.h"
#include "trie/trie.h"

namespace kvtrie {

// What Room looks at and lets go of. All outlive it.
struct RoomTree {
  const CacheTable& caches;
  const TreeOrders& orders;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  const Leases& leases;
  const LiveSessions& sessions;
  HostCopies& copies;
  Eviction& eviction;
};

class Room {
 public:
  // Leaves go in steps of at least `growth` tokens. `saves_cells`: what windows let go of gets a copy first, where it
  // fits (there is a host tier).
  Room(const RoomTree& of, std::uint32_t growth, bool saves_cells)
      : of_(of), growth_(growth), saves_cells_(saves_cells) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  // --- asked
  // `also` (may be null): a node whose path counts as live, too.
  std::uint64_t freeable_tokens(Node* also = nullptr);  // of full attention, that no live session, pin or call needs
  std::uint64_t freeable_bytes();                       // the same in bytes of all caches
  std::uint64_t freeable_outside_bytes();  // of nodes not on the device. REQUIRES: just after freeable_bytes()
  // Up to where the full attention of `fetch` fits on the device; more than its target when all does.
  std::int32_t fitting_length(const Path& path, const Fetch& fetch);
  bool points_fit(const Needs& needs);    // windows and states
  void require_room(const Needs& needs);  // kCacheFull, unless everything that could go would do

  // --- made
  void make_room(const Needs& needs);  // all or kCacheFull, in which case nothing changed
  // Of one cache that restore points hold state of: units free now, at most `count`; evicts points of kinds up to
  // `most` only.
  std::uint32_t try_free_slots(std::size_t number, std::uint32_t count, PointKind most);

  // --- kept
  void keep(InUse in_use) noexcept { in_use_ = std::move(in_use); }  // not evicted until the next call
  void keep_nothing() noexcept { in_use_ = {}; }

 private:
  std::uint32_t deficit(const Needs& needs) const;  // cells missing in the shortest full cache
  std::uint64_t mark_live(Node* also);              // with a new number; device tokens on live paths
  bool is_live(const Node* node) const { return state_of(node).mark == walks_; }  // REQUIRES: just after mark_live()
  std::uint64_t room_tokens(Node* also);
  std::uint32_t freeable_cells(std::size_t cache) const;                   // of a windowed cache
  std::uint32_t freeable_slots(std::size_t number, std::uint32_t enough);  // counts no further than `enough`
  std::uint32_t freeable_units(std::size_t number, std::uint32_t enough);  // of either
  bool frees_some(const Node* node, std::size_t number) const;             // its restore point, of that cache
  Node* next_point(std::size_t number) const;
  void free_leaves(const Needs& needs);
  void free_cells(std::size_t cache, std::uint32_t count);   // of a windowed cache
  void free_slots(std::size_t number, std::uint32_t count);  // of states
  void let_go_unneeded(std::size_t cache, std::uint32_t count);
  std::vector<Node*> with_unneeded_cells(std::size_t cache, std::uint32_t count);
  std::uint32_t let_go_of(std::size_t cache, Held& held, std::uint32_t count);
  bool may_be_held(const Node* node) const;  // REQUIRES: just after mark_live()

  const RoomTree of_;
  const std::uint32_t growth_;
  const bool saves_cells_;
  std::uint64_t walks_ = 0;  // numbers the walks that mark nodes
  InUse in_use_;
};

}  // namespace kvtrie
