#include "tree/expiry.h"

#include <algorithm>

#include "tree/node_state.h"

namespace kvtrie {
namespace {

bool may_go(const Node* node) { return node->is_leaf() && node->locks() == (state_of(node).user() ? 1u : 0u); }

}  // namespace

double Expiry::next_expiry(const Leases& leases) const noexcept {
  return ttl_ ? std::min(leases.next_expiry(), next_) : leases.next_expiry();
}

// A parent that was met before its last child has gone goes with it.
void Expiry::look_at(Node* node, double now, const std::function<void(Node* leaf)>& remove) {
  const auto in_use = [&](const Node* each) { return now - state_of(each).last_used_seconds < *ttl_; };
  if (in_use(node)) oldest_ = std::min(oldest_, state_of(node).last_used_seconds);
  for (bool top = false; !top && !in_use(node) && may_go(node);) {
    Node* above = node->parent();
    top = above->is_root();  // which may go with it
    remove(node);
    node = above;
  }
}

bool Expiry::sweep_some(double now, std::size_t count, const std::function<void(Node* leaf)>& remove) {
  try {
    trie_.visit_some(walk_, count, [&](Node& node) { look_at(&node, now, remove); });
  } catch (...) {
    walk_ = {};
    oldest_ = std::numeric_limits<double>::infinity();
    throw;
  }
  if (!walk_.over) return false;
  next_ = std::max(std::min(oldest_, now) + *ttl_, now + *ttl_ / 64);
  walk_ = {};
  oldest_ = std::numeric_limits<double>::infinity();
  return true;
}

}  // namespace kvtrie
