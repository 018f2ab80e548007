#include "prefix_cache/node_places.h"

#include <numeric>

#include "base/error.h"

namespace kvtrie {

void NodePlaces::add(Node* node, Place place) {
  state_of(node).on_device_ = false;
  if (place == Place::kDevice) come(node);
}

void NodePlaces::extend(Node* node, std::uint64_t tokens) {
  ensure(state_of(node).on_device_, "node_places.extend", "a node that is not on the device");
  device_tokens_[node->group()] += tokens;
  settle_cells(node);
  list_all_cells_again(node);
}

void NodePlaces::come(Node* node) {
  NodeState& state = state_of(node);
  ensure(!state.on_device_, "node_places.come", "a node that is on the device");
  trie_.join_order(kDeviceOrder, node);
  state.on_device_ = true;
  device_tokens_[node->group()] += state.length();
  settle_more_cells(node);
}

void NodePlaces::leave(Node* node) {
  NodeState& state = state_of(node);
  ensure(state.on_device_, "node_places.leave", "a node that is not on the device");
  trie_.leave_order(kDeviceOrder, node);
  state.on_device_ = false;
  device_tokens_[node->group()] -= state.length();
  settle(node);
}

void NodePlaces::remove(const Node* node) noexcept {
  if (state_of(node).on_device_) device_tokens_[node->group()] -= state_of(node).length();
}

std::uint64_t NodePlaces::device_tokens() const noexcept {
  return std::accumulate(device_tokens_.begin(), device_tokens_.end(), std::uint64_t{0});
}

void NodePlaces::move_tokens(Group from, Group to, std::uint64_t tokens) noexcept {
  device_tokens_[from] -= tokens;
  device_tokens_[to] += tokens;
}

NodePlaces::Copies NodePlaces::copies_of(const NodeState& state) const {
  Copies copies;
  state.visit_blobs([&](const BlobPtr& blob) {
    copies.in_memory = copies.in_memory || blob->in_memory();
    copies.in_file = copies.in_file || blob->saved() || is_being_written(blob);
  });
  return copies;
}

void NodePlaces::be_member(Node* node, int order, bool member) {
  if (node->in_order(order) == member) return;
  member ? trie_.join_order(order, node) : trie_.leave_order(order, node);
}

void NodePlaces::settle_cells(Node* node) {
  for (std::size_t place = 0; place < orders_.windowed.size(); ++place) {
    be_member(node, orders_.cells(place), !state_of(node).held[orders_.windowed[place]].cells.empty());
  }
}

void NodePlaces::settle(Node* node) {
  const Copies copies = copies_of(state_of(node));
  be_member(node, kHostOrder, copies.in_memory);
  if (orders_.disk) be_member(node, kDiskOrder, copies.in_file);
  settle_cells(node);
}

void NodePlaces::settle_more_cells(Node* node) {
  settle(node);
  list_all_cells_again(node);
}

void NodePlaces::list_all_cells_again(Node* node) {
  for (std::size_t place = 0; place < orders_.windowed.size(); ++place) trie_.relist(orders_.cells(place), node);
}

void NodePlaces::list_cells_again(Node* node, std::size_t place, std::int32_t from) {
  for (; !node->is_root() && node->end() > from; node = node->parent()) trie_.relist(orders_.cells(place), node);
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
  if (orders_.disk && copies.in_file && !node.in_order(kDiskOrder)) report("is in a file but not in its order");
  for (std::size_t place = 0; place < orders_.windowed.size(); ++place) {
    if (!state.held[orders_.windowed[place]].cells.empty() && !node.in_order(orders_.cells(place)))
      report("has cells of a windowed cache but is not in their order");
  }
}

void NodePlaces::check(std::vector<std::string>& findings) const {
  std::vector<std::uint64_t> counted(device_tokens_.size());
  trie_.visit([&](const Node& node) {
    if (node.is_root()) return;
    check_node(node, findings);
    if (state_of(&node).on_device_) counted[node.group()] += state_of(&node).length();
  });
  for (std::size_t group = 0; group < counted.size(); ++group) {
    if (counted[group] != device_tokens_[group]) {
      findings.push_back(
          cat("device tokens of group ", group, ": counted ", counted[group], ", kept ", device_tokens_[group]));
    }
  }
}

}  // namespace kvtrie
