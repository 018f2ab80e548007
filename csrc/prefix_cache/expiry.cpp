// What goes because its time is over: pins with a time to live, and state that nobody used for as long as the cache's
// `ttl` says, in every tier.
//
// Looked at when a call begins and the clock has passed `next_expiry()`: else it costs one comparison. Unused state is
// found by looking at every node, at most 64 times in one ttl: so it may live one 64th longer. Victim orders are no
// help, for only that of `lru` is by use. What is pinned, or on the way to a live session, does not expire; what the
// user asked to keep (`checkpoint`) does. A node whose children have gone is as old as the last use of any of them.
// What comes from files counts as used when they were opened.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

void PrefixCacheState::expire() {
  expire_pins();
  if (options.ttl && now >= next_sweep) expire_nodes();
}

double PrefixCacheState::next_expiry() const {
  return options.ttl ? std::min(leases.next_expiry(), next_sweep) : leases.next_expiry();
}

void PrefixCacheState::expire_pins() {
  while (Node* node = leases.take_expired(now)) {
    state_of(node).last_used_seconds = now;  // it was wanted until now
    ++totals.expired_pins;
    eviction.try_join(node);
  }
}

void PrefixCacheState::expire_nodes() {
  std::vector<Node*> nodes;  // parents before their children
  trie.visit([&](Node& node) {
    if (!node.is_root()) nodes.push_back(&node);
  });
  double oldest = now;
  for (auto each = nodes.rbegin(); each != nodes.rend(); ++each) {
    Node* node = *each;
    const NodeState& state = state_of(node);
    if (now - state.last_used_seconds < *options.ttl) {
      oldest = std::min(oldest, state.last_used_seconds);
    } else if (node->is_leaf() && node->locks() == (state.user() ? 1u : 0u)) {
      totals.expired_tokens += state.length();
      eviction.remove_subtree(node, /*tidy=*/false);  // a join would take away a node that is still to be looked at
    }
  }
  next_sweep = std::max(oldest + *options.ttl, now + *options.ttl / 64);
}

}  // namespace kvtrie
