// One tier's order of giving up: exact leaf-first LRU in amortised O(1).
//
// Terms. A *member* is a node that has something to give up in this tier. A child *holds* its parent while it is a
// member or locked. A member's *age* is its latest use, or the age of a child at the moment it stopped holding the
// member, whichever is later: so a branch point is as old as the last use of anything that hung below it.
// The *victim* is the oldest member that is unlocked and not held. Equal ages occur only along one path (a split gives
// both halves one age); the deeper goes first.
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
// What a lock protects: the node in every order; the node's parent, whether or not the node is a member; and each
// ancestor above, as long as the members on the path are consecutive. An owner that keeps the members of a tier
// consecutive on every path, and locks members (or children of members) only, never sees a victim with a locked node
// below it.
//
// Threads: none of its own. Nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtrie {

class Node;
struct OrderSlot;

class VictimOrder {
 public:
  explicit VictimOrder(int index) noexcept : index_(index) {}

  // The latest from now on. REQUIRES: no member, no root.
  void join(Node* node, std::uint64_t now) noexcept;
  // REQUIRES: a member. A locked node goes on holding its parent.
  void leave(Node* node) noexcept;
  // A use of `node`; nothing when it is no member.
  void use(Node* node, std::uint64_t now) noexcept;
  // The node's count of locks went from 0 to 1.
  void lock(Node* node) noexcept;
  // The node's count of locks went from 1 to 0, which is a use.
  void unlock(Node* node, std::uint64_t now) noexcept;
  // `upper` was put between `lower` and its former parent: a member if `lower` is one, with the same age.
  // REQUIRES: `upper` is new and unlocked, and linked in.
  void split(Node* upper, Node* lower) noexcept;
  // `node` is about to vanish into its only child; the later of the two ages stays.
  // REQUIRES: `node` is unlocked; both are members or neither is. Called before the nodes are linked anew.
  void absorb(Node* node, Node* child) noexcept;

  Node* victim() noexcept;  // null when every member is locked or held
  std::size_t members() const noexcept { return members_; }

 private:
  friend class TrieCheck;

  OrderSlot& slot(Node* node) const noexcept;
  bool goes_before(Node* a, Node* b) const noexcept;
  void append(Node* node) noexcept;
  void insert(Node* node, Node* behind) noexcept;
  void unlink(Node* node) noexcept;
  void renew(Node* node, std::uint64_t now) noexcept;
  void release(Node* parent, std::uint64_t age, Node* place) noexcept;

  int index_;
  Node* oldest_ = nullptr;
  Node* latest_ = nullptr;
  std::size_t members_ = 0;
};

}  // namespace kvtrie
