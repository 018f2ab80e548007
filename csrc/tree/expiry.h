// State that goes because nobody used it for as long as the time to live says.
//
// Concept. Every node has the time of its last use (`NodeState::last_used_seconds`). A *sweep* looks at all nodes, in
// pieces, and gives the leaves that were not used for `ttl`, and that nothing holds, to the caller, who removes them.
// Their parents may be leaves then, and go in the same sweep:
//
//     ttl 10, now 25     root --- a (3) --+-- b (4) --- e (5)          in brackets: last used
//                                         '-- c (12) --- d (20)
//                        e goes, then b. a and c were not used for longer than 10 either, but d stands on them.
//
// When. A call begins with one comparison (`next_expiry`). Of the nodes that a sweep finds in use, the oldest says when
// the next one is due, though there are at most 64 sweeps in one ttl: so what is unused may stay for one 64th longer.
// State that something held during a sweep is met again by the next one. Victim orders are no help, for only that of
// `lru` is by use.
//
// Two kinds of state do not expire: pinned state, and state on the path of a live session or of a call that waits.
// State that a user asked to keep (`checkpoint`) does: its mark is the only lock that a node may have. A node whose
// children have gone is as old as the last use of any of them: the code that removes a leaf sees to that. State from
// files counts as used when they were opened. Without a ttl nothing is ever due. Pins have times of their own
// (leases.h).
//
// Invariants: after a sweep each leaf that was not used for `ttl` is held, or became one by what others did between two
// pieces, unless `remove` threw. A sweep that began is due until it is over; a call meanwhile goes on with it.
//
// Errors: what `remove` throws ends a sweep, and the next call sweeps again. Cost: O(nodes) for a sweep. Threads:
// guarded by the prefix cache's mutex. Units: seconds, as the cache's clock counts.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>

#include "tree/leases.h"
#include "trie/trie.h"

namespace kvtrie {

class Expiry {
 public:
  // Nothing: what is unused stays. `trie` outlives this.
  Expiry(const Trie& trie, std::optional<double> ttl) : trie_(trie), ttl_(ttl) {}
  Expiry(const Expiry&) = delete;
  Expiry& operator=(const Expiry&) = delete;

  bool due(double now) const noexcept { return ttl_ && now >= next_; }
  // Nothing expires before, neither pins nor what is unused; infinity: never.
  double next_expiry(const Leases& leases) const noexcept;

  // The next piece of a sweep: `count` nodes, and those above them that go. Whether the sweep is over. REQUIRES: due.
  // `remove` takes the leaf that it gets out of the tree, and no other node.
  bool sweep_some(double now, std::size_t count, const std::function<void(Node* leaf)>& remove);

 private:
  void look_at(Node* node, double now, const std::function<void(Node* leaf)>& remove);

  const Trie& trie_;
  const std::optional<double> ttl_;
  NodeWalk walk_;                                            // of the sweep that is under way
  double oldest_ = std::numeric_limits<double>::infinity();  // of what it found in use
  double next_ = 0;                                          // when to look again
};

}  // namespace kvtrie
