// Where nodes are: on the device, outside it, or both, and the victim orders and counts that follow from that.
//
// Concept. This class is the only one that changes any of it. The full attention of a node is on the device or not;
// besides, the node may have bytes in host memory and in files, as copies or for good:
//
//                add(device)   +-----------+    leave    +---------+
//     (new) ------------------>| on device |------------>| outside |---> remove
//       |                      |           |<------------|         |
//       |                      +-----------+     come    +---------+
//       '------------------------------------------------------^   add(outside): found in a folder or a store
//
//     kDeviceOrder   nodes on the device            the top of the tree: leaves leave first, and come back last
//     kHostOrder     nodes with bytes in memory     settle(node) after whatever changed its blobs
//     kDiskOrder     nodes with bytes in files, or on their way to one (only where there is a disk tier)
//     cells(i)       nodes with cells of the i-th windowed cache, whatever their neighbours have: settle(node), too
//
// State on its way to a file counts as being there: the nodes above it must not leave the disk before it.
//
// Outside leaves. `evict` takes from the lower tiers the leaf whose last use is the oldest, whatever the policy and the
// tier: they are kept by their last use. A use does not move a leaf; one that turns out to have been used since is put
// where it belongs when it is met.
//
// Cells of windowed caches are held by their users, too: live sessions and restore points. A node of whose cells
// nobody could get one free is parked, so that it is looked at again only when a window of a restore point goes that
// may have been why. A node that was cut may stay a member without any, until it is met.
//
// Invariants (check): membership in the tiers' orders is what the node's state says, and who has cells of a windowed
// cache is a member of their order; below a node that is not on the device
// none is; `device_tokens` is the sum of the lengths of the nodes on the device, for each group of namespaces; the
// outside leaves are the leaves that are not on the device, each at a time that is not after its last use. Cutting and
// joining nodes keeps all of them: the trie passes membership on, NodeState the place.
//
// Cost: O(log n) for a node that comes, leaves or goes, beside its orders. Threads: guarded by the prefix cache's
// mutex. Units: tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tree/node_state.h"
#include "tree/tree_orders.h"
#include "trie/trie.h"

namespace kvtrie {

class NodePlaces {
 public:
  enum class Place : std::uint8_t { kDevice, kOutside };

  // `trie` outlives this and has these orders.
  NodePlaces(Trie& trie, TreeOrders orders) : trie_(trie), orders_(std::move(orders)) {}

  void add(Node* node, Place place);              // it is new in the tree
  void extend(Node* node, std::uint64_t tokens);  // the node on the device grew by so many
  // So that what follows for this node, or for a new one below it, takes no memory until another node has its turn.
  void make_room(const Node* node) { trie_.make_room_in_orders(node); }
  // The same for a node that is about to leave the device.
  void make_room_to_leave(const Node* node);
  void come(Node* node);               // its cells of full attention are there now
  void leave(Node* node);              // REQUIRES: it holds no cell any more
  void remove(Node* leaf) noexcept;    // it leaves the tree next
  void settle(Node* node);             // after its blobs changed, or cells of windowed caches went
  void settle_more_cells(Node* node);  // the same, or such cells came: what is parked is listed again

  void begin_writing(const BlobPtr& blob) {
    bytes_being_written_ += being_written_.insert(blob).second ? blob->bytes() : 0;
  }
  void end_writing(const BlobPtr& blob) { bytes_being_written_ -= being_written_.erase(blob) * blob->bytes(); }
  bool is_being_written(const BlobPtr& blob) const { return being_written_.count(blob) != 0; }
  std::uint64_t bytes_being_written() const noexcept { return bytes_being_written_; }

  // Cells of the windowed cache at `place` (tree_orders.h): the first node of the group for which `gives` says yes,
  // null when there is none.
  Node* first_with_cells(Group group, std::size_t place, const std::function<bool(Node*)>& gives) {
    return trie_.victim_of(group, orders_.cells(place), gives);
  }
  void park_cells(Node* node, std::size_t place) { trie_.park(orders_.cells(place), node); }
  // The parked part of the path to `node` from position `from` on.
  void list_cells_again(Node* node, std::size_t place, std::int32_t from);

  // Leaves that are not on the device, the one used longest ago first, until `may_go` says yes: that one; null: there
  // is none. It must not change the tree. O(log n) for each that was used since it was last met, O(1) for each that
  // may not go.
  Node* oldest_outside(const std::function<bool(Node*)>& may_go);

  std::uint64_t device_tokens() const noexcept;
  std::uint64_t device_tokens(Group group) const noexcept {
    return group < device_tokens_.size() ? device_tokens_[group] : 0;
  }
  // The nodes of a namespace change their group next (Trie::set_group). Throws before anything changed.
  void reserve_groups(std::size_t count) { device_tokens_.resize(std::max(count, device_tokens_.size())); }
  void move_tokens(Group from, Group to, std::uint64_t tokens) noexcept;

  void check(std::vector<std::string>& findings) const;  // all nodes

 private:
  struct Copies {
    bool in_memory = false, in_file = false;
  };
  Copies copies_of(const NodeState& state) const;
  void be_member(Node* node, int order, bool member);
  void settle_cells(Node* node);
  void list_all_cells_again(Node* node);
  void check_node(const Node& node, std::vector<std::string>& findings) const;
  void check_outside(const Node& node, std::vector<std::string>& findings) const;

  using OutsideLeaves = std::set<std::pair<std::uint64_t, Node*>>;  // the last use that is known of, and the leaf
  OutsideLeaves::node_type new_place();
  OutsideLeaves::node_type take_outside(Node* node) noexcept;  // empty when it is none of them
  void put_outside(OutsideLeaves::node_type place, Node* leaf) noexcept;

  Trie& trie_;
  TreeOrders orders_;
  OutsideLeaves outside_leaves_;
  OutsideLeaves::node_type spare_;               // for the next leaf that leaves the device
  std::set<BlobPtr> being_written_;              // queued for the disk
  std::uint64_t bytes_being_written_ = 0;        // of those
  std::vector<std::uint64_t> device_tokens_{0};  // of each group
};

}  // namespace kvtrie
