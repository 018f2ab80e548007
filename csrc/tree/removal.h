// Final removal from the tree: nodes, restore points, and the tidying behind them.
//
// Concept. State whose room is wanted, whose time is over, or which is damaged goes here, whatever tier it lies in;
// nobody above (eviction.h, lower_tiers.h, sessions) removes a node himself.
//
//     remove_subtree   leaves first: the point, pins, the place, the node
//     drop_point       the point alone, with a user's mark
//     tidying          a parent with one child joins it; a node that holds nothing in any tier goes
//
// A join takes a node away, so it waits (`tidy = false`) where the caller still looks at the nodes around.
//
// Invariants: a parent is as old as the last use of its last child; nothing that goes is locked but by marks and pins.
// Cost: O(size) for a subtree, and O(pins) for each pin in it.
// Threads: guarded by the prefix cache's mutex. Units: bytes of all caches, tokens.
#pragma once

#include <cstdint>

#include "tree/cache_table.h"
#include "tree/leases.h"
#include "tree/node_places.h"
#include "tree/restore_points.h"
#include "tree/stats.h"
#include "trie/trie.h"

namespace kvtrie {

class Removal {
 public:
  // All outlive this.
  Removal(const CacheTable& caches, Trie& trie, NodePlaces& places, RestorePoints& points, Leases& leases,
          PrefixCacheStats& totals)
      : caches_(caches), trie_(trie), places_(places), points_(points), leases_(leases), totals_(totals) {}
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

  // Device and host bytes freed. REQUIRES: nothing in it is locked but by pins and user points. `tidy`: the parent may
  // join its last child.
  std::uint64_t remove_subtree(Node* node, bool tidy = true);
  bool remove_unlocked(Node* top);  // the same, and nothing joins; false: some of it is locked
  bool subtree_is_locked(Node* node) const;
  // A restore point, wherever it is. `tidy`: the node may go, or join its only child.
  void drop_point(Node* node, bool tidy = true);
  // Removes the node, and what is above it, while it holds nothing in any tier; whether it did.
  bool prune(Node* node);
  void try_join(Node* node) noexcept;  // with its only child, when nobody holds it

 private:
  std::uint64_t remove(Node* leaf);

  const CacheTable& caches_;
  Trie& trie_;
  NodePlaces& places_;
  RestorePoints& points_;
  Leases& leases_;
  PrefixCacheStats& totals_;
};

}  // namespace kvtrie
