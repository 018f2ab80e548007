// Leaf-first eviction by rank: the policies `slru` and `cost` of a victim order (victim_order.h).
//
// Each member has a priority; the least one goes first, among equals the oldest.
//
//     slru   none (0): age alone decides, in two segments. A member joins on *probation*; its next use makes it
//            *protected*. Probation goes first. Before a victim is named, the oldest protected member is demoted, to
//            be the latest on probation, while more than 4/5 of the members' tokens are protected, and while nothing
//            on probation could go but something protected could.
//     cost   L + uses * cost, worked out at each use. `cost` is what the payload says recomputing would take per byte
//            (Payload::recompute_cost); L is the greatest priority of a member that left as the victim, 0 at first. So
//            what is not used any more is overtaken by what comes: the ageing of greedy-dual with frequency.
//
// The bound of slru is taken when something has to go, since only then is what there is as much as there can be: with
// room to spare nothing loses its protection. Held and locked members count and are demoted like others: a path that is
// not used any more is demoted as a whole, and its end takes it along.
//
// Members that left are remembered in a GhostTable, as many paths as twice the members: a node that joins with a path
// that is known there starts with those uses and one more (slru: protected). Without that, most nodes that were used
// often are new again each time they come back, wherever the members are fewer than the nodes in use.
//
// Mechanism. One heap of the members that could go and are not protected; slru has a second one with all that are
// protected, whether they could go or not. A member is *listed* (could go), *parked* (held) or *locked*; unlike in
// RecencyOrder, nothing held is ever listed.
//
//     P above C1, C2          could go    protected
//                             C1          C2           victim(): C1
//     C1 leaves                           C2
//     victim()                C2                       C2 is demoted, since nothing on probation could go: C2
//     C2 leaves               P                        victim(): P
//
// In an order that is not leaf first (order_shape.h) nothing is held or locked: members are listed, or parked by `park`
// until their next use or `relist`. A member of an order of ends counts as one token.
//
// Logical time goes on with each use and each demotion, in all groups of an order. Halves of a split share uses,
// priority, age and segment; a join keeps the larger of each. Threads: none of its own. Only `reserve` throws. Units:
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "trie/ghost_table.h"
#include "trie/node.h"
#include "trie/order_shape.h"
#include "trie/ranked_heap.h"
#include "trie/victim_policy.h"

namespace kvtrie {

struct RankPlace;

class RankedOrder {
 public:
  // `now` is of all groups, and outlives this.
  RankedOrder(int index, VictimPolicy policy, OrderShape shape, std::uint64_t& now) noexcept
      : index_(index), policy_(policy), shape_(shape), now_(&now), candidates_(index), protected_(index) {}

  void reserve();
  void join(Node* node) noexcept;
  void leave(Node* node) noexcept;
  void use(Node* node) noexcept;
  void lock(Node* node) noexcept;
  void unlock(Node* node) noexcept;
  void split(Node* upper, Node* lower) noexcept;
  void absorb(Node* node, Node* child) noexcept;
  void extend(Node* leaf, std::size_t more) noexcept;

  bool same_uses(const Node* node, const Node* child) const noexcept;
  bool in_first_use(const Node* node) const noexcept;
  bool remembers() const noexcept { return ghosts_.size() > 0; }
  std::uint32_t recall(PathHash path) noexcept { return ghosts_.recall(path); }
  void credit(Node* node, std::uint32_t uses) noexcept;
  bool differ(std::uint32_t a, std::uint32_t b) const noexcept;

  void park(Node* node) noexcept;
  void relist(Node* node) noexcept;

  Node* victim() noexcept;
  Node* victim(const std::function<bool(Node*)>& may_go);  // throws what `may_go` throws, or when there is no memory
  std::size_t members() const noexcept { return members_; }
  // As in RecencyOrder. The memory of paths stays here. REQUIRES: `to` has reserved room for them.
  void hand_over(std::span<Node* const> members, RankedOrder& to) noexcept;
  void reserve_more(std::size_t members);
  bool goes_before(const Node* a, const Node* b) const noexcept;

 private:
  friend class TrieCheck;

  // One token in so many is on probation, at least.
  static constexpr std::uint64_t kShares = 5;

  bool leaf_first() const noexcept { return shape_ == OrderShape::kLeafFirst; }
  OrderState& state(Node* node) const noexcept;
  RankPlace& place(Node* node) const noexcept;
  OrderState::State state_in(const Node* node) const noexcept;
  void put_in(Node* node) noexcept;
  void take_out(Node* node) noexcept;
  void hold(Node* parent) noexcept;
  void release(Node* parent, std::uint64_t age) noexcept;
  void renew(Node* node) noexcept;
  void count_use(Node* node) noexcept;
  void set_priority(Node* node) noexcept;
  void join_parked(Node* child) noexcept;
  std::uint64_t joined_age(OrderState upper, OrderState lower, std::uint64_t upper_age,
                           std::uint64_t lower_age) const noexcept;
  void protect(Node* node) noexcept;
  void demote_oldest() noexcept;

  int index_;
  VictimPolicy policy_;
  OrderShape shape_;
  std::uint64_t* now_;
  double floor_ = 0;                   // L of the policy `cost`
  const Node* just_joined_ = nullptr;  // while nothing was used since it joined
  RankedHeap candidates_;              // could go, not protected
  RankedHeap protected_;               // all that are protected
  GhostTable ghosts_;                  // what left
  std::size_t protected_free_ = 0;     // of those, the ones that could go
  std::uint64_t tokens_ = 0;           // of all members
  std::uint64_t protected_tokens_ = 0;
  std::size_t members_ = 0;
};

}  // namespace kvtrie
