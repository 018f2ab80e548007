// A number for each namespace, by which the caches know whose bytes a cell or slot has (cache/cell_owners.h).
//
// The caches clear what changes hands when a step claims it; a page-in writes every byte of what it claims. Host memory
// is never cleared and needs not be: a blob's sections cover all of its bytes, an image writes all of them, and nothing
// is read of a blob before its bytes have arrived and were hashed (store/blob.h).
//
// A namespace that has gone from the tree may get another number when it comes back: what it left is cleared then.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

Owner PrefixCacheState::tenant_of(std::string_view name_space) {
  const auto known = tenants.find(name_space);
  if (known != tenants.end()) return known->second;
  if (tenants.size() >= tenants_pruned_at) {
    std::erase_if(tenants,
                  [&](const auto& each) KVTRIE_REQUIRES(mutex) { return trie.find_root(each.first) == nullptr; });
    tenants_pruned_at = std::max<std::size_t>(64, 2 * tenants.size());
  }
  return tenants.emplace(std::string(name_space), next_tenant++).first->second;
}

void PrefixCacheState::distrust_owners() {
  for (StateCache* cache : caches.all) cache->distrust_owners();
}

}  // namespace kvtrie
