#include "prefix_cache/expiry.h"

#include <algorithm>
#include <vector>

#include "prefix_cache/node_state.h"

namespace kvtrie {
namespace {

bool may_go(const Node* node) { return node->is_leaf() && node->locks() == (state_of(node).user() ? 1u : 0u); }

}  // namespace

double Expiry::next_expiry(const Leases& leases) const noexcept {
  return ttl_ ? std::min(leases.next_expiry(), next_) : leases.next_expiry();
}

void Expiry::sweep(double now, const std::function<void(Node* leaf)>& remove) {
  std::vector<Node*> nodes;  // parents before their children
  trie_.visit([&](Node& node) {
    if (!node.is_root()) nodes.push_back(&node);
  });
  double oldest = now;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const double used = state_of(*node).last_used_seconds;
    if (now - used < *ttl_) {
      oldest = std::min(oldest, used);
    } else if (may_go(*node)) {
      remove(*node);
    }
  }
  next_ = std::max(oldest + *ttl_, now + *ttl_ / 64);
}

}  // namespace kvtrie
