// Evicting: state leaves the device for the host where it fits, and the tree where it does not.
//
// Concept. This class is the only one that takes state off the device because its room is wanted. Which node goes first
// is the policy's to say (tree_orders.h), how much has to go is DeviceBudget's.
//
//     on the device --evict--> copies in host memory, and files behind them        fits: bytes come back
//            |                                                                     later as they were
//            '------evict--> out of the tree (removal.h), and all below it         does not fit: recomputed
//
// A page-out of one leaf `b`, step by step. No step waits for the device: the gather and the next use of the freed
// cells are in one queue.
//
//     before      root --- a {cells} --- b {cells, point}           a, b: members of the device's order
//     1 copy      b's cells --gather--> blob [unsealed]             its room in host memory was made before
//     2 point     its windows and states --gather--> blobs          else, if they do not fit, b stays
//     3 let go    b's cells are free; b leaves the device's order   root --- a {cells} --- b {blobs}
//     4 write     b's path is queued for files, root first          write_behind.h
//
// Leaves go first, so what stays can be reached from the root. User marks hold a node back only while something else is
// left: `next_victim` takes the oldest mark off then. Pins, and paths of live sessions and calls, hold it back always.
//
// Errors: `page_out` and `page_out_point` do all of it or nothing. Cost: O(1) amortised for the next victim; O(log n)
// for `outside_victim`, and O(1) for each older leaf that is locked.
// Threads: guarded by the prefix cache's mutex. Units: bytes of all caches, tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tiers/host_copies.h"
#include "tiers/lower_tiers.h"
#include "tiers/write_behind.h"
#include "tree/cache_table.h"
#include "tree/leases.h"
#include "tree/node_places.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "tree/stats.h"
#include "trie/trie.h"

namespace kvtrie {

// The owners of all facts that change when something goes. All outlive the Eviction.
struct EvictionTree {
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  Leases& leases;
  LowerTiers& lower;
  HostCopies& copies;
  WriteBehind& behind;
  Removal& removal;
  PrefixCacheStats& totals;
};

class Eviction {
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

  // --- nodes
  Node* split_tail(Node* node, std::uint32_t tokens);  // the lower half, of `tokens` tokens, to go alone
  std::uint64_t evict(Node* node);                     // to the host, else away; device bytes freed
  std::uint64_t page_out(Node* node);                  // device bytes freed; 0: did not fit

  // --- restore points
  void evict_point(Node* node);     // to the host, else away
  bool page_out_point(Node* node);  // windows and states; false: did not fit

 private:
  void write(Node* node);

  const EvictionTree of_;
};

}  // namespace kvtrie
