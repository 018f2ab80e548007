#include "tiers/eviction.h"

#include <vector>

#include "tree/node_bytes.h"

namespace kvtrie {

// ---- who ----------------------------------------------------------------------------------------------------------

Node* Eviction::next_victim(const Trie::Groups* may) {
  while (true) {
    Node* victim = may == nullptr ? of_.trie.victim(kDeviceOrder) : of_.trie.victim_among(kDeviceOrder, *may);
    if (victim != nullptr && of_.leases.hold_back(victim)) continue;
    Node* marked = of_.points.oldest_user(may);
    if (victim != nullptr || marked == nullptr) return victim;
    of_.points.take_off_user(marked);
  }
}

Node* Eviction::outside_victim() {
  return of_.places.oldest_outside([](const Node* leaf) { return leaf->locks() == 0; });
}

// Walks up from the match while there is one child at most and no lock but that of a user point. The unbranched
// continuation of the tokens is the same branch and goes with it; a path that diverges from them is another one.
Node* Eviction::own_tail(std::string_view name_space, std::span<const Token> tokens) const {
  const Match match = of_.trie.match(name_space, tokens);
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

// ---- out of the device --------------------------------------------------------------------------------------------

void Eviction::write(Node* node) {
  ++of_.totals.page_outs;
  if (of_.lower.disk() != nullptr) of_.behind.save_path(node);
}

bool Eviction::page_out_point(Node* node) {
  if (!of_.copies.copy_point(node, MayLose::kAnything)) return false;
  of_.points.leave(node);
  write(node);
  return true;
}

std::uint64_t Eviction::page_out(Node* node) {
  NodeState& state = state_of(node);
  const std::uint64_t bytes = device_bytes_of(of_.caches, state);
  if (bytes == 0 || !of_.copies.copy(node, MayLose::kAnything)) return 0;
  of_.places.make_room_to_leave(node);
  if (state.point().exists() && state.point().on_device && !page_out_point(node)) return 0;
  for (Held& held : state.held) held.cells.clear();
  of_.places.leave(node);
  write(node);
  return bytes;
}

Node* Eviction::split_tail(Node* node, std::uint32_t tokens) {
  if (tokens < state_of(node).length()) of_.trie.split(node, node->end() - static_cast<std::int32_t>(tokens));
  return node;
}

std::uint64_t Eviction::evict(Node* node) {
  const std::uint64_t bytes = device_bytes_of(of_.caches, state_of(node));
  if (page_out(node) > 0) return bytes;
  of_.removal.remove_subtree(node);
  return bytes;
}

void Eviction::evict_point(Node* node) {
  if (!page_out_point(node)) of_.removal.drop_point(node);
}

}  // namespace kvtrie
