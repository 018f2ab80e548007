// Evicting: state leaves the device for the host where it fits, and the tree where it does not.
//
// Concept. This class is the only one that takes state off the device or out of the tree because its room is wanted or
// its time is over. Which node goes first is the policy's to say (tree_orders.h), how much has to go is Room's.
//
//     on the device --evict--> copies in host memory, and files behind them        fits: bytes come back
//            |                                                                     later as they were
//            '------evict--> out of the tree, and all below it with it             does not fit: recomputed
//
// Leaves go first, so what stays can be reached from the root. User marks hold a node back only while something else is
// left: `next_victim` takes the oldest mark off then. Pins, and paths of live sessions and calls, hold it back always.
//
// Tidying up. What is left of a path may hang together by nodes nobody needs: a parent with one child joins it, a node
// that holds nothing in any tier goes. A join takes a node away, so it waits (`tidy = false`) where the caller still
// looks at the nodes around.
//
// Invariants: a parent is as old as the last use of its last child; nothing that goes is locked but by marks. Errors:
// `page_out` and `page_out_point` do all of it or nothing. Cost: O(1) amortised for the next victim; O(log n) for
// `outside_victim`, and O(1) for each older leaf that is locked; O(size) for a subtree, and O(pins) for each pin in it.
// Threads: guarded by the prefix cache's mutex. Units: bytes of all caches, tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "prefix_cache/cache_table.h"
#include "prefix_cache/host_copies.h"
#include "prefix_cache/leases.h"
#include "prefix_cache/lower_tiers.h"
#include "prefix_cache/node_places.h"
#include "prefix_cache/restore_points.h"
#include "prefix_cache/write_behind.h"
#include "trie/trie.h"

namespace kvtrie {

struct PrefixCacheStats;

// What keeps each fact that changes when something goes. All outlive the Eviction.
struct EvictionTree {
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  Leases& leases;
  LowerTiers& lower;
  HostCopies& copies;
  WriteBehind& behind;
  PrefixCacheStats& totals;
};

class Eviction final : public LowerTiers::Tree {
 public:
  explicit Eviction(const EvictionTree& of) : of_(of) {}
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  // --- who
  // Null when everything left is live or pinned. `may` (null: all): groups of namespaces whose nodes may go.
  Node* next_victim(const Trie::Groups* may = nullptr);
  Node* outside_victim();  // the same among nodes that are not on the device, by their last use
  // The node where the tail of `tokens` begins that nobody else uses; null: there is none.
  Node* own_tail(std::string_view name_space, std::span<const Token> tokens) const;
  bool subtree_is_locked(Node* node) const;

  // --- nodes
  Node* split_tail(Node* node, std::uint32_t tokens);  // the lower half, of `tokens` tokens, to go alone
  std::uint64_t evict(Node* node);                     // to the host, else away; device bytes freed
  std::uint64_t page_out(Node* node);                  // device bytes freed; 0: did not fit
  // Device and host bytes freed. REQUIRES: nothing in it is locked but by pins and user points. `tidy`: the parent may
  // join its last child.
  std::uint64_t remove_subtree(Node* node, bool tidy = true);
  // Removes it, and what is above it, while it holds nothing in any tier; whether it did.
  bool prune(Node* node);
  void try_join(Node* node) noexcept;  // with its only child, when nobody holds it

  // --- restore points
  void evict_point(Node* node);     // to the host, else away
  bool page_out_point(Node* node);  // windows and states; false: did not fit
  // Wherever it is. `tidy`: the node may go, or join its only child.
  void drop_point(Node* node, bool tidy = true);

  // --- for the lower tiers
  bool remove_unlocked(Node* top) override;
  void forget_point(Node* node) override;
  std::uint64_t bytes_under_way() const override;

 private:
  std::uint64_t remove(Node* leaf);
  void write(Node* node);

  const EvictionTree of_;
};

}  // namespace kvtrie
