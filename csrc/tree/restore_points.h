// Restore points: which nodes have one, where it is, and which goes first.
//
// Concept. A restore point is the state that the caches need to go on from exactly one node's end: for each windowed
// cache all cells that a query there sees (they may begin above the node), for each recurrent one a state. It is kept
// and goes as one. This class is the only one that changes any of it:
//
//              put    +-----------+    leave    +---------+
//     (none) -------->| on device |------------>| outside |----> remove
//        |            |           |<------------|         |
//        |            +-----------+     come    +---------+       add_copies, drop_copies: bytes outside of one that
//        '-----------------------------------------^              is on the device
//                          put_outside
//
// The point of node `b` for a window of 30 and a recurrent cache holds cells that lie in two nodes, and one slot:
//
//     path      root --- a [0, 70) ----------------- b [70, 90)
//     window                         [60 ===========|========= 90)     held once more: the nodes may let go of them
//     state                                                    (90)    one slot
//
// Which goes first. A point on the device that nobody pins takes room of some resources (tree_orders.h). The points
// that take some of a given one go in this order:
//
//     1  spaced points that nobody went back to, and ends that were superseded: the least of L + 2^n, where n is how
//        often 2 divides the number of the point's place in its conversation, and L the greatest value of one that left
//        before it was made. So their distance doubles with the distance from the end of the conversation, and
//        conversations that are not used any more thin out. (Greedy-dual with the gap that a point would leave in the
//        grid as its cost: Cao and Irani, USITS 1997.) A message's end (message_ends.h) is numbered among those of its
//        prompt instead, an end that was superseded among the ends of its path.
//     2  all others, in an order of the tree: under the cache's policy, by the uses of their nodes
//     3  those a user asked for (`checkpoint`), the one marked longest ago first
//
// An end is superseded when its conversation ends further on: the next prompt goes on from the new one, and only an
// edit or another answer goes back to the old one. If a session does, it is an end again, until the next one; the
// second time for good. One that the new end follows within kNear tokens stays what it is: it serves both prompts.
//
//     path      root ---- e1 ---- e2 ---- e3        e1 and e2 are superseded, and go before the last end of any other
//                          `----- e4                 conversation. A session goes back to e1 and ends at e4: so is e1.
//
// Each group of namespaces (trie/victim_order.h) has its own L and its own points, so that what goes of one does not
// depend on the others.
//
// Marks of users are kept here, too, also where no cache needs a restore point: a mark locks its node.
//
// Cost: O(log n) for a change, O(1) for the first one; a search adds O(log n) for each one that it passes over, with
// lru O(1). Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/tree_orders.h"
#include "trie/trie.h"

namespace kvtrie {

class RestorePoints {
 public:
  using Frees = std::function<bool(const Node*)>;
  static constexpr std::int32_t kNear = 16;

  // `every`: how far apart spaced points are. `trie` and `places` outlive this.
  RestorePoints(Trie& trie, NodePlaces& places, TreeOrders orders, std::int64_t every);

  // In place of the one that is there, whose kind stays when it is wanted more. `worth`: of a spaced one, in gaps of
  // the grid; 0: what its place on the grid says.
  void put(Node* node, PointKind kind, std::vector<HeldState> held, double worth = 0);
  void put_outside(Node* node, PointKind kind, std::vector<BlobSlice> copies);
  void add_copies(Node* node, std::vector<BlobSlice> copies);
  void drop_copies(Node* node);
  // `keep_copies`: what it has outside stays.
  void come(Node* node, std::vector<HeldState> held, bool keep_copies);
  void leave(Node* node);       // REQUIRES: it has copies, or has no bytes
  bool remove(Node* node);      // wherever it is; whether there was one
  void go_back_to(Node* node);  // a session does; nothing where there is none

  void mark_user(Node* node);                                  // as the latest
  bool take_off_user(Node* node);                              // whether it was marked
  Node* oldest_user(const Trie::Groups* may = nullptr) const;  // null when none is; of these groups
  std::vector<Node*> users() const                             // oldest first
  {
    return {users_.begin(), users_.end()};
  }

  void settle(Node* node);  // after its pins changed, by Leases (leases.h)

  // The first of kinds up to `most` that takes room of `resource`, and for which `frees` says yes; null when there is
  // none. `frees` may pass over all but few: the cost is above.
  // `may` (null: all): groups of namespaces whose points may go. Of several the first by value, or by the policy.
  Node* victim(std::size_t resource, PointKind most, const Frees& frees, const Trie::Groups* may = nullptr);

  // The nodes of a namespace change their group next (Trie::set_group): reserve_groups throws, move_group does not.
  void reserve_groups(std::size_t count);
  void move_group(std::span<Node* const> nodes, Group from, Group to) noexcept;

  std::size_t count() const noexcept { return count_; }
  std::size_t user_count() const noexcept { return users_.size(); }
  void check(std::vector<std::string>& findings) const;

 private:
  enum class Rank : std::uint8_t { kNone, kSpaced, kOrdered, kUser };
  using Spaced = std::set<std::tuple<double, std::uint64_t, Node*>>;  // value, number, node

  static RestorePoint& point_of(Node* node) { return state_of(node).point_; }
  static Rank rank_of(const NodeState& state) noexcept;
  bool takes(const RestorePoint& point, std::size_t resource) const noexcept;
  static Spaced::value_type key_of(Node* node);
  bool in_spaced(const Node* node, std::size_t resource) const;
  double gap_of(const Node* node) const noexcept;
  static Node* end_above(const Node* node) noexcept;
  static std::uint32_t ordinal_behind(const Node* end) noexcept;  // of the next end; null: of the first
  void supersede(Node* node);
  void supersede_above(const Node* node, Node* end) noexcept;  // `end` and those above
  void take_out(Node* node);
  void take_out_of_spaced(Node* node);
  void release(Node* node);
  Node* spaced_victim(std::size_t resource, const Frees& frees, const Trie::Groups* may) const;
  Node* ordered_victim(std::size_t resource, const Frees& frees, const Trie::Groups* may);
  double& floor_of(const Node* node) noexcept { return floors_[node->group()]; }
  Spaced& spaced_of(const Node* node, std::size_t resource) { return spaced_[node->group()][resource]; }
  void check_node(Node* node, std::vector<std::string>& findings) const;

  Trie& trie_;
  NodePlaces& places_;
  TreeOrders orders_;
  std::int64_t every_;
  std::vector<std::vector<Spaced>> spaced_;  // of each group and resource
  std::list<Node*> users_;                   // each locked once; oldest first
  std::vector<double> floors_{0};            // L, of each group
  std::uint64_t made_ = 0;                   // numbers the points
  std::size_t count_ = 0;
};

}  // namespace kvtrie
