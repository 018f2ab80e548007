#include "tree/removal.h"

#include <algorithm>
#include <new>
#include <vector>

#include "tree/node_bytes.h"

namespace kvtrie {

bool Removal::subtree_is_locked(Node* node) const {
  std::vector<Node*> open{node};
  while (!open.empty()) {
    Node* next = open.back();
    open.pop_back();
    if (next->locks() != 0) return true;
    for (Node* child = next->first_child(); child != nullptr; child = child->next_sibling()) open.push_back(child);
  }
  return false;
}

// A join could swallow a node that is being paged out.
bool Removal::remove_unlocked(Node* top) {
  if (subtree_is_locked(top)) return false;
  remove_subtree(top, /*tidy=*/false);
  return true;
}

void Removal::drop_point(Node* node, bool tidy) {
  points_.remove(node);
  ++totals_.dropped_points;
  points_.take_off_user(node);
  if (tidy && !prune(node)) try_join(node);
}

// The point first: one that is no longer marked or pinned would be listed among the others, and that takes memory.
std::uint64_t Removal::remove(Node* leaf) {
  const NodeState& state = state_of(leaf);
  const std::uint64_t bytes = device_bytes_of(caches_, state) + outside_bytes_of(caches_, state);
  totals_.evicted_tokens += state.length();
  totals_.dropped_points += points_.remove(leaf) ? 1 : 0;
  points_.take_off_user(leaf);
  if (state.pins() > 0) leases_.remove_below(leaf);
  if (Node* above = leaf->parent(); !above->is_root())
    state_of(above).last_used_seconds = std::max(state_of(above).last_used_seconds, state.last_used_seconds);
  places_.remove(leaf);
  trie_.remove(leaf);
  return bytes;
}

std::uint64_t Removal::remove_subtree(Node* node, bool tidy) {
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
bool Removal::prune(Node* node) {
  bool removed = false;
  while (caches_.full.empty() && !node->is_root() && node->is_leaf() && node->locks() == 0) {
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
void Removal::try_join(Node* node) noexcept {
  if (node->is_root() || node->locks() != 0 || node->child_count() != 1) return;
  try {
    trie_.join_with_child(node);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace kvtrie
