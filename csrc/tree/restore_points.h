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
// Which goes first. A point on the device that nobody pins takes room of some resources (tree_orders.h). Of those that
// take some of a given one, the one that is worth least goes first, as sessions have shown (point_worth.h). Of one sort
// the oldest is worth least, so only that one of each is compared. Those a user asked for (`checkpoint`) go when there
// is nothing else, the one marked longest ago first.
//
// An end is superseded when its conversation ends further on: the next prompt goes on from the new one, and only an
// edit or another answer goes back to the old one. If a session does, it is an end again, until the next one; the
// second time for good. One that the new end follows within kNear tokens stays what it is: it serves both prompts.
//
//     path      root ---- e1 ---- e2 ---- e3        e1 and e2 are superseded: another sort. A session goes back to e1
//                          `----- e4                 and ends at e4: so is e1.
//
// Each group of namespaces (trie/victim_order.h) learns from its own sessions and has its own points, so that what goes
// of one does not depend on the others.
//
// Marks of users are kept here, too, also where no cache needs a restore point: a mark locks its node.
//
// Cost: O(log n) for a change; for the first one O(1) for each sort and one that it passes over. Threads: guarded by
// the prefix cache's mutex. Units: tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/point_worth.h"
#include "tree/tree_orders.h"
#include "trie/trie.h"

namespace kvtrie {

class RestorePoints {
 public:
  using Frees = std::function<bool(const Node*)>;
  static constexpr std::int32_t kNear = 16;

  // `every`: how far apart spaced points are. `trie` and `places` outlive this.
  RestorePoints(Trie& trie, NodePlaces& places, TreeOrders orders, std::int64_t every);

  // A session begins, in a namespace of this group.
  void session_begins(Group group) noexcept { kept_[group].worth.session_begins(); }

  // What a spaced one below `node` is worth at that length, in gaps (point_worth.h); `gap` and `behind` as of put().
  double worth_of_new(const Node* node, std::int32_t length, double gap, std::int32_t behind) const;

  // In place of the one that is there, whose kind stays when it is wanted more. `gap`: that it would leave if its
  // neighbours were gone, 1, 2, 4 ..., in gaps of the grid; 0: what its place on the grid says. `behind`: tokens of its
  // prompt behind it.
  void put(Node* node, PointKind kind, std::vector<HeldState> held, double gap = 0, std::int32_t behind = 0);
  void put_outside(Node* node, PointKind kind, std::vector<BlobSlice> copies);
  void add_copies(Node* node, std::vector<BlobSlice> copies);
  void drop_copies(Node* node);
  // `keep_copies`: what it has outside stays.
  void come(Node* node, std::vector<HeldState> held, bool keep_copies);
  void leave(Node* node);   // REQUIRES: it has copies, or has no bytes
  bool remove(Node* node);  // wherever it is; whether there was one
  // A session does, whose tokens are known up to `matched`; nothing where there is none.
  void go_back_to(Node* node, std::int32_t matched) noexcept;

  void mark_user(Node* node);                                  // as the latest
  bool take_off_user(Node* node);                              // whether it was marked
  Node* oldest_user(const Trie::Groups* may = nullptr) const;  // null when none is; of these groups
  std::vector<Node*> users() const                             // oldest first
  {
    return {users_.begin(), users_.end()};
  }

  void settle(Node* node) noexcept;  // after its pins changed, by Leases (leases.h)

  // The first that takes room of `resource`, is worth less than `below`, and for which `frees` says yes; with no
  // `below` one that a user marked, too. Null when there is none. `frees` may pass over all but few: the cost is above.
  // `may` (null: all): groups of namespaces whose points may go.
  Node* victim(std::size_t resource, std::optional<double> below, const Frees& frees,
               const Trie::Groups* may = nullptr);

  // The nodes of a namespace change their group next (Trie::set_group): reserve_groups throws, move_group does not.
  void reserve_groups(std::size_t count);
  void move_group(std::span<Node* const> nodes, Group from, Group to) noexcept;

  std::size_t count() const noexcept { return count_; }
  std::size_t user_count() const noexcept { return users_.size(); }
  void check(std::vector<std::string>& findings) const;

 private:
  using Oldest = std::set<std::tuple<std::int64_t, std::uint64_t, Node*>>;  // since, number, node
  // Of one group. The points of each resource by sort; behind those of all sorts the ones that are pinned or marked.
  struct Kept {
    PointWorth worth;
    std::vector<std::array<Oldest, PointSort::kCount + 1>> lists;
  };
  static constexpr int kHeld = PointSort::kCount;

  static RestorePoint& point_of(Node* node) { return state_of(node).point_; }
  static Oldest::value_type key_of(Node* node);
  static PointSort sort_of(const RestorePoint& point) noexcept;
  static int list_of(const NodeState& state) noexcept;
  bool takes(const RestorePoint& point, std::size_t resource) const noexcept;
  PointWorth& worth_for(const Node* node) noexcept { return kept_[node->group()].worth; }
  double tail_of(std::int32_t behind) const noexcept;
  double saved_by(const Node* node, std::int32_t matched) const noexcept;
  static Node* end_above(const Node* node) noexcept;
  void supersede(Node* node) noexcept;
  void supersede_above(const Node* node, Node* end) noexcept;  // `end` and those above
  void enter(Node* node);
  void take_out(Node* node) noexcept;
  void move(Node* node, std::int64_t since) noexcept;
  void move(Node* node, Kept& from, Kept& to, std::int64_t since) noexcept;
  void release(Node* node);
  Node* least_worth(std::size_t resource, double below, const Frees& frees, const Trie::Groups* may) const;
  Node* oldest_user_that(std::size_t resource, const Frees& frees, const Trie::Groups* may) const;
  void check_node(Node* node, std::vector<std::string>& findings) const;

  Trie& trie_;
  NodePlaces& places_;
  TreeOrders orders_;
  std::int64_t every_;
  std::vector<Kept> kept_;  // of each group
  std::list<Node*> users_;  // each locked once; oldest first
  std::uint64_t made_ = 0;  // numbers the points
  std::size_t count_ = 0;
};

}  // namespace kvtrie
