#include "prefix_cache/node_places.h"

#include "base/error.h"

namespace kvtrie {

void NodePlaces::add(Node* node, Place place) {
  state_of(node).on_device_ = false;
  if (place == Place::kDevice) come(node);
}

void NodePlaces::extend(Node* node, std::uint64_t tokens) {
  ensure(state_of(node).on_device_, "node_places.extend", "a node that is not on the device");
  device_tokens_ += tokens;
}

void NodePlaces::come(Node* node) {
  NodeState& state = state_of(node);
  ensure(!state.on_device_, "node_places.come", "a node that is on the device");
  trie_.join_order(kDeviceOrder, node);
  state.on_device_ = true;
  device_tokens_ += state.length();
  settle(node);
}

void NodePlaces::leave(Node* node) {
  NodeState& state = state_of(node);
  ensure(state.on_device_, "node_places.leave", "a node that is not on the device");
  trie_.leave_order(kDeviceOrder, node);
  state.on_device_ = false;
  device_tokens_ -= state.length();
  settle(node);
}

void NodePlaces::remove(const Node* node) noexcept {
  if (state_of(node).on_device_) device_tokens_ -= state_of(node).length();
}

NodePlaces::Copies NodePlaces::copies_of(const NodeState& state) const {
  Copies copies;
  state.visit_blobs([&](const BlobPtr& blob) {
    copies.in_memory = copies.in_memory || blob->in_memory();
    copies.in_file = copies.in_file || blob->saved() || is_being_written(blob);
  });
  return copies;
}

void NodePlaces::settle(Node* node) {
  const Copies copies = copies_of(state_of(node));
  const auto be_member = [&](int order, bool member) {
    if (node->in_order(order) == member) return;
    member ? trie_.join_order(order, node) : trie_.leave_order(order, node);
  };
  be_member(kHostOrder, copies.in_memory);
  if (trie_.orders() > kDiskOrder) be_member(kDiskOrder, copies.in_file);
}

void NodePlaces::check_node(const Node& node, std::vector<std::string>& findings) const {
  const NodeState& state = state_of(&node);
  const auto report = [&](const char* what) {
    findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ", what));
  };
  if (node.in_order(kDeviceOrder) != state.on_device_) report("not in the order of its tier");
  if (state.on_device_ && !node.parent()->is_root() && !state_of(node.parent()).on_device_)
    report("on the device below a node that is not");
  const Copies copies = copies_of(state);
  if (copies.in_memory && !node.in_order(kHostOrder)) report("has host memory but is not in its order");
  if (trie_.orders() <= kDiskOrder) return;
  if (copies.in_file && !node.in_order(kDiskOrder)) report("is in a file but not in its order");
}

void NodePlaces::check(std::vector<std::string>& findings) const {
  std::uint64_t counted = 0;
  trie_.visit([&](const Node& node) {
    if (node.is_root()) return;
    check_node(node, findings);
    if (state_of(&node).on_device_) counted += state_of(&node).length();
  });
  if (counted != device_tokens_) findings.push_back(cat("device tokens: counted ", counted, ", kept ", device_tokens_));
}

}  // namespace kvtrie
