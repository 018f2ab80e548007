#include "prefix_cache/eviction.h"

#include <algorithm>
#include <new>
#include <vector>

#include "prefix_cache/node_bytes.h"
#include "prefix_cache/prefix_cache.h"

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

bool Eviction::subtree_is_locked(Node* node) const {
  std::vector<Node*> open{node};
  while (!open.empty()) {
    Node* next = open.back();
    open.pop_back();
    if (next->locks() != 0) return true;
    for (Node* child = next->first_child(); child != nullptr; child = child->next_sibling()) open.push_back(child);
  }
  return false;
}

// Walks up from the match while there is one child at most and no lock but that of a user point. What follows the
// tokens in a single line is the same branch and goes with it; what diverges from them is another one.
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
  remove_subtree(node);
  return bytes;
}

void Eviction::evict_point(Node* node) {
  if (!page_out_point(node)) drop_point(node);
}

// ---- out of the tree ----------------------------------------------------------------------------------------------

void Eviction::drop_point(Node* node, bool tidy) {
  of_.points.remove(node);
  ++of_.totals.dropped_points;
  of_.points.take_off_user(node);
  if (tidy && !prune(node)) try_join(node);
}

// The point first: one that is no longer marked or pinned would be listed among the others, and that takes memory.
std::uint64_t Eviction::remove(Node* leaf) {
  const NodeState& state = state_of(leaf);
  const std::uint64_t bytes = device_bytes_of(of_.caches, state) + outside_bytes_of(of_.caches, state);
  of_.totals.evicted_tokens += state.length();
  of_.totals.dropped_points += of_.points.remove(leaf) ? 1 : 0;
  of_.points.take_off_user(leaf);
  if (state.pins() > 0) of_.leases.remove_below(leaf);
  if (Node* above = leaf->parent(); !above->is_root())
    state_of(above).last_used_seconds = std::max(state_of(above).last_used_seconds, state.last_used_seconds);
  of_.places.remove(leaf);
  of_.trie.remove(leaf);
  return bytes;
}

std::uint64_t Eviction::remove_subtree(Node* node, bool tidy) {
  Node* parent = node->parent();
  const bool below_root = parent->is_root();  // a root may go with its last child
  std::uint64_t bytes = 0;
  for (Node* leaf = node; leaf != parent;) {
    while (leaf->first_child() != nullptr) leaf = leaf->first_child();
    Node* next = leaf == node ? parent : leaf->parent();
    bytes += remove(leaf);
    leaf = next;
  }
  if (tidy && !below_root) try_join(parent);
  return bytes;
}

// Where there is full attention every node holds some.
bool Eviction::prune(Node* node) {
  bool removed = false;
  while (of_.caches.full.empty() && !node->is_root() && node->is_leaf() && node->locks() == 0) {
    const NodeState& state = state_of(node);
    const auto holds = [](const Held& held) { return !held.cells.empty() || !held.slices.empty(); };
    if (state.point().exists() || std::any_of(state.held.begin(), state.held.end(), holds)) break;
    Node* parent = node->parent();
    const bool last = parent->is_root() && parent->child_count() == 1;
    remove_subtree(node, /*tidy=*/false);  // a join would take away a node that a caller still looks at
    removed = true;
    if (last) break;  // the root may have gone, too
    node = parent;
  }
  return removed;
}

// Two nodes do as well as one where there is no memory.
void Eviction::try_join(Node* node) noexcept {
  if (node->is_root() || node->locks() != 0 || node->child_count() != 1) return;
  try {
    of_.trie.join_with_child(node);
  } catch (const std::bad_alloc&) {
  }
}

// ---- what the lower tiers ask for ---------------------------------------------------------------------------------

// A join could swallow the node that is being paged out.
bool Eviction::remove_unlocked(Node* top) {
  if (subtree_is_locked(top)) return false;
  remove_subtree(top, /*tidy=*/false);
  return true;
}

void Eviction::forget_point(Node* node) { drop_point(node, /*tidy=*/false); }

std::uint64_t Eviction::bytes_under_way() const { return of_.behind.pending_bytes(); }

}  // namespace kvtrie
