#include "tree/node_places.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace kvtrie {

// Everything that may throw comes before the changes.
void NodePlaces::add(Node* node, Place place) {
  state_of(node).on_device_ = false;
  if (place == Place::kDevice) return come(node);
  OutsideLeaves::node_type free = node->parent()->is_root() ? OutsideLeaves::node_type() : take_outside(node->parent());
  put_outside(free.empty() ? new_place() : std::move(free), node);
}

// ---- leaves outside the device ------------------------------------------------------------------------------------

NodePlaces::OutsideLeaves::node_type NodePlaces::new_place() {
  return outside_leaves_.extract(outside_leaves_.emplace(0, nullptr).first);
}

NodePlaces::OutsideLeaves::node_type NodePlaces::take_outside(Node* node) noexcept {
  NodeState& state = state_of(node);
  if (!std::exchange(state.listed_outside_, false)) return {};
  return outside_leaves_.extract({state.listed_at_, node});
}

void NodePlaces::put_outside(OutsideLeaves::node_type place, Node* leaf) noexcept {
  NodeState& state = state_of(leaf);
  state.listed_outside_ = true;
  state.listed_at_ = leaf->last_used();
  place.value() = {leaf->last_used(), leaf};
  outside_leaves_.insert(std::move(place));
}

void NodePlaces::make_room_to_leave(const Node* node) {
  if (node->is_leaf() && spare_.empty()) spare_ = new_place();
}

Node* NodePlaces::oldest_outside(const std::function<bool(Node*)>& may_go) {
  for (auto next = outside_leaves_.begin(); next != outside_leaves_.end();) {
    const auto [listed_at, leaf] = *next;
    if (leaf->last_used() == listed_at) {
      if (may_go(leaf)) return leaf;
      ++next;
      continue;
    }
    const auto met = next++;
    put_outside(outside_leaves_.extract(met), leaf);
    const bool is_next = next == outside_leaves_.end() || leaf->last_used() < next->first;
    if (is_next) next = outside_leaves_.find({leaf->last_used(), leaf});
  }
  return nullptr;
}

// ---- on the device ------------------------------------------------------------------------------------------------

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
  take_outside(node);
  state.on_device_ = true;
  device_tokens_[node->group()] += state.length();
  settle_more_cells(node);
}

void NodePlaces::leave(Node* node) {
  NodeState& state = state_of(node);
  ensure(state.on_device_, "node_places.leave", "a node that is not on the device");
  make_room_to_leave(node);
  if (node->is_leaf()) put_outside(std::move(spare_), node);
  trie_.leave_order(kDeviceOrder, node);
  state.on_device_ = false;
  device_tokens_[node->group()] -= state.length();
  settle(node);
}

// A parent outside the device is the next leaf, in the place of this one.
void NodePlaces::remove(Node* leaf) noexcept {
  if (state_of(leaf).on_device_) {
    device_tokens_[leaf->group()] -= state_of(leaf).length();
    return;
  }
  OutsideLeaves::node_type free = take_outside(leaf);
  Node* above = leaf->parent();
  if (above->is_root() || above->child_count() > 1 || state_of(above).on_device_) return;
  put_outside(std::move(free), above);
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

void NodePlaces::check_outside(const Node& node, std::vector<std::string>& findings) const {
  const NodeState& state = state_of(&node);
  const bool found = outside_leaves_.contains({state.listed_at_, const_cast<Node*>(&node)});
  const bool is_one = node.is_leaf() && !state.on_device_;
  if (state.listed_outside_ == is_one && found == is_one && (!found || state.listed_at_ <= node.last_used())) return;
  findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(),
                         "': not where it belongs among the leaves outside the device"));
}

void NodePlaces::check_node(const Node& node, std::vector<std::string>& findings) const {
  const NodeState& state = state_of(&node);
  const auto report = [&](const char* what) {
    findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ", what));
  };
  if (node.in_order(kDeviceOrder) != state.on_device_) report("not in the order of its tier");
  if (state.on_device_ && !node.parent()->is_root() && !state_of(node.parent()).on_device_)
    report("on the device below a node that is not");
  check_outside(node, findings);
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
  std::size_t outside = 0;
  trie_.visit([&](const Node& node) {
    if (node.is_root()) return;
    check_node(node, findings);
    outside += node.is_leaf() && !state_of(&node).on_device_;
    if (state_of(&node).on_device_) counted[node.group()] += state_of(&node).length();
  });
  if (outside != outside_leaves_.size())
    findings.push_back(cat("leaves outside the device: counted ", outside, ", kept ", outside_leaves_.size()));
  for (std::size_t group = 0; group < counted.size(); ++group) {
    if (counted[group] != device_tokens_[group]) {
      findings.push_back(
          cat("device tokens of group ", group, ": counted ", counted[group], ", kept ", device_tokens_[group]));
    }
  }
}

}  // namespace kvtrie
