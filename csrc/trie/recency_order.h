// Leaf-first least recently used, exact and in amortised O(1): the policy `lru` of a victim order (victim_order.h).
//
// Mechanism. One doubly linked list of members, oldest first. Members are in one of three states:
//
//     listed   on the list, in the order of (age, deeper first); may be held
//     parked   off the list, unlocked and held: the scan for a victim met it at the head
//     locked   off the list; comes back as the latest on its last unlock
//
// When a child stops holding its parent and is the later of the two, the parent takes the child's place, whether listed
// or parked. A parked member that nobody holds any more goes back where its age belongs. A member is parked at most
// once per listing, and each listing is paid for by the use, join, split or departure that made it.
//
//     list   P C1 C2        P is above C1 and C2. victim(): P is parked, C1 is the victim.
//     C1 leaves             list P C2 (P in the place of C1). victim(): P is parked again, C2 is the victim.
//     C2 leaves             list P. victim(): P.
//
// Only a member that leaves while it is held and parked itself (out of turn) has no place to hand on; its parent is
// then placed by a walk from the head.
//
// In an order that is not leaf first (order_shape.h) nothing is held or locked: members are listed, or parked by `park`
// until their next use or `relist`.
//
// Threads: none of its own. Nothing here throws. The meaning and requirements of each call are in victim_order.h; ages
// are the trie's logical time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "trie/order_shape.h"

namespace kvtrie {

class Node;
struct OrderState;
struct RecencyPlace;

class RecencyOrder {
 public:
  RecencyOrder(int index, OrderShape shape) noexcept : index_(index), shape_(shape) {}

  void join(Node* node, std::uint64_t now) noexcept;
  void leave(Node* node) noexcept;
  void use(Node* node, std::uint64_t now) noexcept;
  void lock(Node* node) noexcept;
  void unlock(Node* node, std::uint64_t now) noexcept;
  void split(Node* upper, Node* lower) noexcept;
  void absorb(Node* node, Node* child) noexcept;

  void park(Node* node) noexcept;
  void relist(Node* node, std::uint64_t now) noexcept;

  Node* victim() noexcept;
  // Members, in this order's own order, become members of `to`, at the places that their ages have there.
  void hand_over(std::span<Node* const> members, RecencyOrder& to) noexcept;
  bool goes_before(Node* a, Node* b) const noexcept;  // of any two members, also of orders of other groups
  Node* victim(const std::function<bool(Node*)>& may_go) const;
  std::size_t members() const noexcept { return members_; }

 private:
  friend class TrieCheck;

  bool leaf_first() const noexcept { return shape_ == OrderShape::kLeafFirst; }
  OrderState& state(Node* node) const noexcept;
  RecencyPlace& place(Node* node) const noexcept;
  void link(Node* node, Node* previous, Node* next) noexcept;
  void append(Node* node) noexcept;
  void insert(Node* node, Node* behind) noexcept;
  void unlink(Node* node) noexcept;
  void renew(Node* node, std::uint64_t now) noexcept;
  void release(Node* parent, std::uint64_t age, Node* listed) noexcept;
  void absorb_flat(Node* node, Node* child) noexcept;

  int index_;
  OrderShape shape_;
  Node* oldest_ = nullptr;
  Node* latest_ = nullptr;
  std::size_t members_ = 0;
};

}  // namespace kvtrie
