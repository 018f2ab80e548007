// Nodes evicted: which one is next, its tail, its subtree, and what holds it back.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

Node* PrefixCacheState::next_victim() {
  while (true) {
    Node* victim = trie.victim(kDeviceOrder);
    Node* marked = points.oldest_user();
    if (victim != nullptr || marked == nullptr) return victim;
    points.take_off_user(marked);
  }
}

Node* PrefixCacheState::outside_victim() const {
  Node* oldest = nullptr;
  trie.visit([&](Node& node) {
    if (node.is_root() || state_of(&node).on_device() || !node.is_leaf() || node.locks() > 0) return;
    if (oldest == nullptr || node.last_used() < oldest->last_used()) oldest = &node;
  });
  return oldest;
}

Node* PrefixCacheState::split_tail(Node* node, std::uint32_t tokens) {
  if (tokens < state_of(node).length()) trie.split(node, node->end() - static_cast<std::int32_t>(tokens));
  return node;
}

std::uint64_t PrefixCacheState::evict(Node* node) {
  const std::uint64_t bytes = device_bytes_of(state_of(node));
  if (page_out(node) > 0) return bytes;
  remove_subtree(node);
  return bytes;
}

bool PrefixCacheState::subtree_is_locked(Node* node) const {
  std::vector<Node*> open{node};
  while (!open.empty()) {
    Node* next = open.back();
    open.pop_back();
    if (next->locks() != 0) return true;
    for (Node* child = next->first_child(); child != nullptr; child = child->next_sibling()) open.push_back(child);
  }
  return false;
}

std::uint64_t PrefixCacheState::remove_subtree(Node* node, bool tidy) {
  take_off_marks(node);
  Node* parent = node->parent();
  const bool below_root = parent->is_root();  // a root may go with its last child
  std::uint64_t bytes = 0;
  for (Node* leaf = node; leaf != parent;) {
    while (leaf->first_child() != nullptr) leaf = leaf->first_child();
    Node* above = leaf->parent();
    const bool last = leaf == node;
    const NodeState& state = state_of(leaf);
    bytes += device_bytes_of(state) + outside_bytes_of(state);
    totals.evicted_tokens += state.length();
    totals.dropped_points += points.remove(leaf) ? 1 : 0;
    if (!above->is_root())  // as old as its last child's last use
      state_of(above).last_used_seconds = std::max(state_of(above).last_used_seconds, state.last_used_seconds);
    places.remove(leaf);
    trie.remove(leaf);
    leaf = last ? parent : above;
  }
  if (tidy && !below_root) try_join(parent);
  return bytes;
}

bool PrefixCacheState::remove_unlocked(Node* top) {
  mutex.assert_held();  // as LowerTiers says
  if (subtree_is_locked(top)) return false;
  remove_subtree(top, /*tidy=*/false);  // a join could swallow the node that is being paged out
  return true;
}

void PrefixCacheState::forget_point(Node* node) {
  mutex.assert_held();
  drop_point(node, /*tidy=*/false);
}

std::uint64_t PrefixCacheState::bytes_under_way() const { return writer == nullptr ? 0 : writer->pending_bytes(); }

void PrefixCacheState::take_off_marks(Node* top) {
  for (Node* node : points.users()) {
    if (is_at_or_below(node, top)) points.take_off_user(node);
  }
  leases.remove_below(top);
}

// The node where the tail of `tokens` that nobody else uses begins: walks up from the match while there is one child at
// most and no lock but that of a user point. What follows the tokens in a single line is the same branch and goes with
// it; what diverges from them is another one. Null: nothing.
Node* PrefixCacheState::own_tail(std::string_view name_space, std::span<const Token> tokens) const {
  const Match match = trie.match(name_space, tokens);
  if (match.node == nullptr || match.length == 0) return nullptr;
  const bool diverges = match.length < static_cast<std::int32_t>(tokens.size());
  if (diverges && (match.node->end() > match.length || !match.node->is_leaf())) return nullptr;
  const auto in_use = [](Node* node) {
    return node->child_count() > 1 || node->locks() > (state_of(node).user() ? 1u : 0u);
  };
  for (Node* node = match.node; node != nullptr; node = node->first_child()) {
    if (in_use(node)) return nullptr;
  }
  Node* top = match.node;
  for (Node* above = top->parent(); above != nullptr && !above->is_root() && !in_use(above); above = above->parent()) {
    top = above;
  }
  return top;
}

}  // namespace kvtrie
