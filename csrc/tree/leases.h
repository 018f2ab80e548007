// Leases: pins of callers, and the paths that calls hold while the mutex is free.
//
// Concept. A lease keeps one path of the tree from being evicted: each node from its end up to the root is locked once
// for it. (A lock protects within one tier, and tiers change above a locked node: were only the end locked, what is
// above it could go from its tier and take the end along.) This class is the only one that changes any of it:
//
//              made by   goes with                              besides
//     pin      pin       unpin, take_expired, remove_below      it counts in `NodeState::pins()` of its end, so that
//                                                               the restore point there stays
//     hold     hold      let_go, in any order                   scopes: PathHold (holds.h). `lose_below`: it ends
//                                                               further up now, and the call that waits is told so
//
//     root --- a --- b --+-- c        a pin at c and a hold at b: a and b are locked twice, c once; b has no pin
//                        '-- d        pinned tokens: those of a, b and c, however many pins share them
//
// Any number of pins may end at one node, each with a time of its own. The cap limits what a further pin may add to the
// pinned tokens; when it is lowered, the pins that are there stay.
//
// Cutting and joining. A node keeps its identity and its locks when it is cut, and becomes the lower half; a locked one
// never vanishes by a join. So a lease ends where it ended, and its path names what was there when it was made. Upper
// halves of what was cut since have no lock of their own: in the tier of the lower ones these hold them, and where they
// are in another one `hold_back` locks them before they go.
//
// Invariants (check): the nodes of each path are in the tree, one above the other, the end first, and have at least the
// locks that leases put there (sessions and marks of users have theirs besides); `NodeState::pins()` is how many pins
// end there, `pins_below()` how many end there or below; pinned tokens are the lengths of nodes with any of those;
// `next_expiry()` is the least time of all pins.
//
// Errors. A call that throws has changed nothing, but for `remove_below`: of its pins some are gone then, the others
// whole. Cost: O(depth) for a lease, and O(pins) where a pin goes; O(1) for pinned tokens.
// Threads: guarded by the prefix cache's mutex. Units: tokens; seconds, as the cache's clock counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "tree/node_state.h"
#include "tree/restore_points.h"
#include "trie/trie.h"

namespace kvtrie {

struct Lease {
  Node* node = nullptr;     // where it ends
  std::vector<Node*> path;  // locked once each: the node and what is above it, the root left out
  bool lost = false;        // it ended further down, in nodes that have gone
};

struct Pin : Lease {
  double until = std::numeric_limits<double>::infinity();  // it is over from then on
};

class Leases {
 public:
  using Hold = std::list<Lease>::const_iterator;  // good until it is let go of

  // `trie` and `points` outlive this.
  Leases(Trie& trie, RestorePoints& points) : trie_(trie), points_(points) {}
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  void pin(Node* node, double until = std::numeric_limits<double>::infinity());  // REQUIRES: not a root
  // Of the pins at that node the one that was made first; whether there was one. The node may join its child next.
  bool unpin(Node* node);
  // Of the pins whose time is over the one that was made first goes: its node, which may join its child next. Null:
  // there is none.
  Node* take_expired(double now);
  void remove_below(const Node* top);  // the pins at `top` and below it

  Hold hold(Node* node);  // of a root: nothing is locked
  void let_go(Hold hold) noexcept;
  // State at `top` and below it has to go whoever waits for it: holds there end above it now.
  void lose_below(const Node* top) noexcept;

  // Whether a lease leads through the node, which was next to go: it is locked for each one from now on.
  bool hold_back(Node* node);

  const std::vector<Pin>& pins() const noexcept { return pins_; }  // as they were made
  const std::list<Lease>& holds() const noexcept { return holds_; }
  // Where each pin and each hold ends.
  template <class Each>
  void visit_nodes(const Each& each) const {
    for (const Pin& pin : pins_) each(pin.node);
    for (const Lease& hold : holds_) each(hold.node);
  }
  double next_expiry() const noexcept { return next_expiry_; }  // infinity: never

  // Of all namespaces without a quota, and of each one with a quota (its group), for its own pins.
  void set_cap(std::uint64_t tokens, Group group = 0);
  std::uint64_t cap(Group group = 0) const noexcept { return group < caps_.size() ? caps_[group] : caps_.front(); }
  std::uint64_t pinned_tokens() const noexcept;
  // Tokens of the match that may be pinned under the cap. REQUIRES: something matched.
  std::int32_t longest_pin(const Match& match) const;

  // The nodes of a namespace change their group next, as RestorePoints says.
  void reserve_groups(std::size_t count) { pinned_tokens_.resize(std::max(count, pinned_tokens_.size())); }
  void move_group(std::span<Node* const> nodes, Group from, Group to) noexcept;

  void check(std::vector<std::string>& findings) const;  // all leases, all nodes

 private:
  void lock(const Lease& lease) noexcept;
  void unlock(const Lease& lease) noexcept;
  void remove(std::vector<Pin>::iterator pin);
  bool take_in(Lease& lease, Node* node);
  void find_next_expiry() noexcept;
  void count_pin(Node* node, bool comes) noexcept;
  void check_tokens(std::vector<std::string>& findings) const;
  void check_nodes(std::vector<std::string>& findings) const;

  Trie& trie_;
  RestorePoints& points_;
  std::vector<Pin> pins_;
  std::list<Lease> holds_;  // the latest first
  double next_expiry_ = std::numeric_limits<double>::infinity();
  std::vector<std::uint64_t> pinned_tokens_{0};                                 // of each group
  std::vector<std::uint64_t> caps_{std::numeric_limits<std::uint64_t>::max()};  // of each group
};

}  // namespace kvtrie
