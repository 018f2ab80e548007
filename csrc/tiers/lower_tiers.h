// Room in host memory and on the disk: which copies outside the device go when, and which nodes with them.
//
// Concept. Bytes outside the device lie in blobs (store/blob.h), in memory, in a file, or in both, and two caps limit
// them: that of the host's budget and that of the disk tier. This class is the only one that lets go of such bytes to
// make room, and the only one that changes the caps and opens and closes the disk. Those who put bytes there
// (host_copies.h, page_in.cpp, what came from a store) ask it for room before.
//
//     a copy that is also ...                        leaves the host by         leaves the disk by
//     on the device                                  being dropped              being dropped
//     in the other of the two, for this node only    dropping its memory        its file going
//     nowhere                                        taking the node along, and what is below it
//
// Which goes first. In each of the two orders (tree_orders.h) the victim of the cache's policy, leaves before what they
// hang below; a node leaves a tier as one. When no victim is left in memory, copies of nodes on the device that
// sessions stand on or that are pinned go, but for those of paths that calls hold, who may be after them. `MayLose`
// says whether state that is nowhere else may go, too; state that may not ends the search.
//
// A saved node has all nodes above it saved, too, and goes leaf first: everything on the disk can always be reached
// from the root, today and after a restart. So nothing goes from the disk for files that are written below it, and
// state on its way to a file cannot be hurried: it is in no file yet, and is not let go of.
//
// Caps. To lower one is to make room and then to take it away. Beyond victims, what pinned nodes have in memory goes
// where it is in files, too, and files of nodes on the device go, leaf first; then marks of users are taken off, the
// oldest first. State that pins hold nowhere else stays: `kept_host_bytes`, `kept_disk_bytes` with all above it.
//
// Invariants (check): the used bytes of a budget are at most its cap, and at least those of the nodes, each memory and
// each file counted once; exactly those while nothing is on its way (`quiet`).
//
// Errors. A function that says no has let go of what it could before, and of nothing that it may not lose. Where there
// is no such tier, nothing that makes room in it may be called. Cost: O(log n) for each victim and its blobs; O(nodes
// on live paths) where no victim is left, and for each file that a lower cap takes from a live path; O(nodes) for
// `check` and `bytes_in_memory`.
// Threads: guarded by the prefix cache's mutex. Units: bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/byte_budget.h"
#include "store/disk_tier.h"
#include "tree/demand.h"
#include "tree/leases.h"
#include "tree/live_sessions.h"
#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/quotas.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "trie/trie.h"

namespace kvtrie {

// Which of what is nowhere else may go from host memory for something else.
enum class MayLose : std::uint8_t {
  kNothing,
  kUnwanted,  // what was asked for too rarely to be written (demand.h) and is not on its way to a file
  kAnything,
};

class LowerTiers {
 public:
  // `host` (may be null: no such tier) is set for good. All outlive this.
  // `quotas`: of namespaces, in both tiers. `demand` (null: all are): which nodes are wanted.
  LowerTiers(Trie& trie, NodePlaces& places, RestorePoints& points, Leases& leases, const LiveSessions& sessions,
             std::shared_ptr<ByteBudget> host, Removal& removal, const Quotas& quotas, const Demand* demand = nullptr)
      : trie_(trie),
        places_(places),
        points_(points),
        leases_(leases),
        sessions_(sessions),
        host_(std::move(host)),
        removal_(removal),
        quotas_(quotas),
        demand_(demand) {}
  LowerTiers(const LowerTiers&) = delete;
  LowerTiers& operator=(const LowerTiers&) = delete;

  void open(std::shared_ptr<DiskTier> disk) { disk_ = std::move(disk); }
  void close_disk() { disk_ = nullptr; }                                    // its folder is free once all files are
  const std::shared_ptr<DiskTier>& disk() const noexcept { return disk_; }  // null: no disk tier, or closed

  // --- host memory
  // So that `bytes` fit; nothing is let go of where what is on its way to files alone is too much.
  // `whose` (null: nobody's): a node of the namespace that gets them, which matters where there are quotas. Nodes
  // that are not wanted stay if they are on the path to it.
  bool make_host_room(std::uint64_t bytes, MayLose may_lose, const Node* whose = nullptr);
  // Whether they fit now, as `make_host_room` would make it.
  bool host_has_room(std::uint64_t bytes, const Node* whose) const;
  // Bytes of memory it had; 0: it is on the device, or some of it is in no file.
  std::uint64_t leave_host_for_disk(Node* node);
  // Memory of nodes whose bytes are in files, too, or on the device, of the next `count` of a walk; whether there was
  // any.
  bool let_go_of_saved_memory(NodeWalk& walk, std::size_t count);
  // Slices and the point's copies whose blob is one of those `which` go. REQUIRES: nothing that is nowhere else; the
  // node's place is settled next.
  void drop_slices(Node* node, const std::function<bool(const BlobPtr&)>& which);
  std::uint64_t bytes_in_memory() const;  // of all nodes, each memory once

  // --- disk
  // Reserves them; nothing on the path to `below` goes. They are of its namespace.
  bool make_disk_room(std::uint64_t bytes, const Node* below);
  // Reserves them, where they are free and no quota is in the way; nothing goes.
  bool reserve_disk(std::uint64_t bytes, const Node* whose);

  std::uint64_t free_disk() const;  // bytes that are not used, or doomed

  // --- caps
  // That no lower cap could make go: of one group of namespaces; of all, with the floors of those that have less.
  std::uint64_t pinned_host_bytes(Group group) const;
  std::uint64_t pinned_disk_bytes(Group group) const;
  std::uint64_t kept_host_bytes() const;
  std::uint64_t kept_disk_bytes() const;
  bool set_host_cap(std::uint64_t cap) { return host_->set_cap(cap); }  // as it is; false: more than that is used
  bool set_disk_cap(std::uint64_t cap) { return disk_->budget().set_cap(cap); }
  // REQUIRES: nothing is on its way. False: more than that stays.
  bool lower_host_cap(std::uint64_t cap);
  bool lower_disk_cap(std::uint64_t cap);
  // State beyond the quotas, as they are now, goes. REQUIRES and False: as above.
  bool settle_host_quota(const Node* root);
  bool settle_disk_quota(const Node* root);

  // `quiet`: nothing is on its way to or from the tiers, and no call has bytes that no node has.
  void check(std::vector<std::string>& findings, bool quiet) const;

 private:
  Node* next_victim(int order, const Trie::Groups* may = nullptr);
  bool make_host_room_for(Group who, std::uint64_t bytes, MayLose may_lose, const Node* whose);
  bool free_disk_for(Group who, std::uint64_t bytes, const Node* below);
  bool host_fits(std::uint64_t bytes, Group who) const;
  bool take_host(MayLose may_lose, const std::function<bool()>& enough, const Trie::Groups& may, const Node* whose);
  bool leave_host(Node* node, MayLose may_lose, const Node* whose = nullptr);
  bool may_go(const Node* node, MayLose may_lose, const Node* whose) const;
  std::vector<Node*> live_nodes(const Trie::Groups* may) const;
  std::unordered_set<const Node*> held_nodes() const;
  bool let_go_of_locked_copies(MayLose may_lose, const Node* whose, const Trie::Groups* may = nullptr);
  bool let_go_of_pinned_memory(const Trie::Groups* may = nullptr);
  bool leave_disk(Node* node);
  bool is_under_way(const NodeState& state) const;
  bool let_go_of_live_files(const Trie::Groups* may = nullptr);

  Trie& trie_;
  NodePlaces& places_;
  RestorePoints& points_;
  Leases& leases_;
  const LiveSessions& sessions_;
  const std::shared_ptr<ByteBudget> host_;
  Removal& removal_;
  const Quotas& quotas_;
  const Demand* const demand_;
  std::shared_ptr<DiskTier> disk_;
};

}  // namespace kvtrie
