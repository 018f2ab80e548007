#include "prefix_cache/tenants.h"

#include <algorithm>

namespace kvtrie {

Owner Tenants::of(std::string_view name_space) {
  const auto known = numbers_.find(name_space);
  if (known != numbers_.end()) return known->second;
  if (numbers_.size() >= prune_at_) {
    std::erase_if(numbers_, [&](const auto& each) { return trie_.find_root(each.first) == nullptr; });
    prune_at_ = std::max(kLeast, 2 * numbers_.size());
  }
  return numbers_.emplace(std::string(name_space), next_++).first->second;
}

}  // namespace kvtrie
