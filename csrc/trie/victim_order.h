// One tier's order of eviction: which node goes next, leaves first.
//
// Terms. A *member* is a node that has something to evict from this tier. A child *holds* its parent while it is a
// member or locked. A member *could go* while it is unlocked and not held; the *victim* is the first of those in the
// policy's order (victim_policy.h). A member's *age* is its latest use, or the age of a child at the moment it stopped
// holding the member, whichever is later: so a branch point is as old as the last use of anything that hung below it.
// Equal ages occur only along one path (a split gives both halves one age); the deeper goes first.
//
//     policy   first goes                                                              victim           change
//     lru      the oldest                                                              amortised O(1)   O(1)
//     slru     what was used once, oldest first; then what was used again              O(1)             O(log n)
//     cost     the least of: uses times cost, above what went before its last use      O(1)             O(log n)
//
// A *use* is: joining the order; a touch; the last unlock of a member. One stay that begins with the join is one use:
// where a node is locked before anything else is used in the order, its last unlock renews the age but does not count
// again. (A session that publishes a node and stands on it until it ends used it once.) The last unlock of a node that
// is no member renews its parent's age only. Each order counts for itself, from the join on: its uses in another tier
// do not count here. A use counts for the node it ends on, never for what is above it.
//
// Members that left are remembered for a while, by all policies but lru: their uses, under the path to their end
// (ghost_table.h). A node that joins with that path goes on from there. Where only some of what joins was known,
// `Trie::recall` cuts it.
//
// A lock protects the node in every order; the node's parent, whether or not the node is a member; and each ancestor
// above, as long as the members on the path are consecutive. An owner that keeps the members of a tier consecutive on
// every path, and locks members (or children of members) only, never sees a victim with a locked node below it.
//
// That is the shape of the tiers' orders. Others (order_shape.h) take no notice of locks, nor of the nodes above or
// below: their members are things that any node may have, whatever its neighbours have. A search may pass over members
// that have nothing to give at the moment; `park` leaves one out of all searches until its next use or `relist`, which
// makes it the latest used without counting a use.
//
// Groups. A namespace may have orders of its own (Trie::set_group), so that the first of its nodes, and of all others,
// is found without passing over anybody else's. Nothing but the clock is shared between groups: which nodes of one go,
// and in which order, does not depend on what happens in another. slru's bound and what is remembered are each group's
// own.
//
// Two mechanisms: RecencyOrder for lru, RankedOrder for the others. Threads: none of its own. Only `reserve` throws,
// and a search with a question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "trie/order_shape.h"
#include "trie/ranked_order.h"
#include "trie/recency_order.h"
#include "trie/victim_policy.h"

namespace kvtrie {

class VictimOrder {
 public:
  // `now`: logical time of the ranked ones, the same for all groups of an order; it outlives this.
  VictimOrder(int index, VictimPolicy policy, OrderShape shape, std::uint64_t& now)
      : by_rank_(policy != VictimPolicy::kLru),
        shape_(shape),
        recency_(index, shape),
        ranked_(index, policy, shape, now) {}

  OrderShape shape() const noexcept { return shape_; }

  // Makes room for one member more: before `join`, and before `split` of a member. Throws when there is no memory.
  void reserve() {
    if (by_rank_) ranked_.reserve();
  }
  // The latest used from now on. REQUIRES: no member, no root.
  void join(Node* node, std::uint64_t now) noexcept { by_rank_ ? ranked_.join(node) : recency_.join(node, now); }
  // REQUIRES: a member. A locked node goes on holding its parent.
  void leave(Node* node) noexcept { by_rank_ ? ranked_.leave(node) : recency_.leave(node); }
  // A use of `node`; nothing when it is no member.
  void use(Node* node, std::uint64_t now) noexcept { by_rank_ ? ranked_.use(node) : recency_.use(node, now); }
  // The node's count of locks went from 0 to 1.
  void lock(Node* node) noexcept { by_rank_ ? ranked_.lock(node) : recency_.lock(node); }
  // The node's count of locks went from 1 to 0.
  void unlock(Node* node, std::uint64_t now) noexcept { by_rank_ ? ranked_.unlock(node) : recency_.unlock(node, now); }
  // `upper` was put between `lower` and its former parent: a member if `lower` is one, with the same age and uses.
  // REQUIRES: `upper` is new and unlocked, and linked in.
  void split(Node* upper, Node* lower) noexcept {
    by_rank_ ? ranked_.split(upper, lower) : recency_.split(upper, lower);
  }
  // `node` is about to vanish into its only child, which keeps the later of the two ages and the larger count of uses.
  // REQUIRES: `node` is unlocked; both are members or neither is; the child's tokens were appended to those of `node`,
  // and nothing else of the two changed yet.
  void absorb(Node* node, Node* child) noexcept {
    by_rank_ ? ranked_.absorb(node, child) : recency_.absorb(node, child);
  }
  // Whether two members may become one: what is known of their uses is the same.
  bool same_uses(const Node* node, const Node* child) const noexcept {
    return !by_rank_ || ranked_.same_uses(node, child);
  }
  // Whether the stay that began with the join still goes on. Always for lru.
  bool in_first_use(const Node* node) const noexcept { return !by_rank_ || ranked_.in_first_use(node); }
  // The uses that are remembered of a path, 0 when there are none; forgets them.
  std::uint32_t recall(PathHash path) noexcept { return by_rank_ ? ranked_.recall(path) : 0; }
  bool remembers() const noexcept { return by_rank_ && ranked_.remembers(); }
  // A member that came back is credited with `uses` from before. REQUIRES: not lru.
  void credit(Node* node, std::uint32_t uses) noexcept { ranked_.credit(node, uses); }
  // Whether that makes a difference to the policy. REQUIRES: not lru.
  bool differ(std::uint32_t a, std::uint32_t b) const noexcept { return ranked_.differ(a, b); }
  // `more` tokens were appended to `leaf`; not a use.
  void extend(Node* leaf, std::size_t more) noexcept {
    if (by_rank_) ranked_.extend(leaf, more);
  }

  // Null when every member is locked, held or parked.
  Node* victim() noexcept { return by_rank_ ? ranked_.victim() : recency_.victim(); }
  // The first for which `may_go` says yes; it must not change the order. REQUIRES, here and below: not leaf first.
  Node* victim(const std::function<bool(Node*)>& may_go) {
    return by_rank_ ? ranked_.victim(may_go) : recency_.victim(may_go);
  }
  void park(Node* node) noexcept { by_rank_ ? ranked_.park(node) : recency_.park(node); }  // REQUIRES: a member
  void relist(Node* node, std::uint64_t now) noexcept {                                    // nothing unless parked
    by_rank_ ? ranked_.relist(node) : recency_.relist(node, now);
  }
  std::size_t members() const noexcept { return by_rank_ ? ranked_.members() : recency_.members(); }

  // --- between groups: orders of one index and one clock
  // Whether `a` goes before `b`, each of them the first of its own group.
  bool goes_before(Node* a, Node* b) const noexcept {
    return by_rank_ ? ranked_.goes_before(a, b) : recency_.goes_before(a, b);
  }
  void reserve_more(std::size_t members) {
    if (by_rank_) ranked_.reserve_more(members);
  }
  // Members, in the order of `goes_before`, leave this for `to`, as they are. REQUIRES: reserve_more there.
  void hand_over(std::span<Node* const> members, VictimOrder& to) noexcept {
    by_rank_ ? ranked_.hand_over(members, to.ranked_) : recency_.hand_over(members, to.recency_);
  }

 private:
  friend class TrieCheck;

  bool by_rank_;
  OrderShape shape_;
  RecencyOrder recency_;
  RankedOrder ranked_;
};

}  // namespace kvtrie
