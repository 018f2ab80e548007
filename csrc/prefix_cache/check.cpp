// The check of every invariant: each owner's own, of each node and cursor, and of the caches.
#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"
#include "tree/node_check.h"

namespace kvtrie {

using Findings = std::vector<std::string>;

// While something is on its way more bytes may be used than nodes have.
void PrefixCacheState::check_budgets(Findings& findings) const {
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const CausalCache::Usage usage = caches.attention[i]->usage();
    if (usage.held > usage.limit)
      findings.push_back(cat("cache ", i, ": ", usage.held, " cells held, limit ", usage.limit));
  }
  lower.check(findings, quiet());
  if (!closed) quotas.check(findings, lower.disk() == nullptr ? 0 : lower.free_disk());
  behind.check(findings);
}

std::vector<std::string> PrefixCacheState::check() const {
  Findings findings = trie.check();
  places.check(findings);
  points.check(findings);
  leases.check(findings);
  demand.check(trie, findings);
  trie.visit([&](Node& node) {
    if (!node.is_root()) check_node(caches, orders, node, findings);
  });
  check_budgets(findings);
  cursors.check(findings);
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    for (std::string& finding : caches.all[i]->check()) findings.push_back(cat("cache ", i, ": ", finding));
  }
  return findings;
}

}  // namespace kvtrie
