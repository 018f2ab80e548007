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
//     order 0   nodes on the device            the top of the tree: leaves leave first, and come back last
//     order 1   nodes with bytes in memory     settle(node) after whatever changed its blobs
//     order 2   nodes with bytes in files, or on their way to one (only where there is a disk tier)
//
// What is on its way to a file counts as being there: what it goes on from must not leave the disk before it.
//
// Invariants (check): membership in the orders is what the node's state says; below a node that is not on the device
// none is; `device_tokens` is the sum of the lengths of the nodes on the device. Cutting and joining nodes keeps all of
// them: the trie passes membership on, NodeState the place.
//
// Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "prefix_cache/node_state.h"
#include "trie/trie.h"

namespace kvtrie {

inline constexpr int kDeviceOrder = 0;
inline constexpr int kHostOrder = 1;
inline constexpr int kDiskOrder = 2;  // only where there is a disk tier

class NodePlaces {
 public:
  enum class Place : std::uint8_t { kDevice, kOutside };

  // `trie` outlives this and has an order for each tier.
  explicit NodePlaces(Trie& trie) : trie_(trie) {}

  void add(Node* node, Place place);              // it is new in the tree
  void extend(Node* node, std::uint64_t tokens);  // the node on the device grew by so many
  void come(Node* node);                          // its cells of full attention are there now
  void leave(Node* node);                         // REQUIRES: it holds no cell any more
  void remove(const Node* node) noexcept;         // it leaves the tree next
  void settle(Node* node);                        // after its blobs changed: the orders of the lower tiers

  void begin_writing(const BlobPtr& blob) { being_written_.insert(blob); }
  void end_writing(const BlobPtr& blob) { being_written_.erase(blob); }
  bool is_being_written(const BlobPtr& blob) const { return being_written_.count(blob) != 0; }

  std::uint64_t device_tokens() const noexcept { return device_tokens_; }

  void check(std::vector<std::string>& findings) const;  // all nodes

 private:
  struct Copies {
    bool in_memory = false, in_file = false;
  };
  Copies copies_of(const NodeState& state) const;
  void check_node(const Node& node, std::vector<std::string>& findings) const;

  Trie& trie_;
  std::set<BlobPtr> being_written_;  // queued for the disk
  std::uint64_t device_tokens_ = 0;
};

}  // namespace kvtrie
