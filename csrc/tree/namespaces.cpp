#include "tree/namespaces.h"

#include <algorithm>
#include <limits>

namespace kvtrie {

Namespace& Namespaces::of(std::string_view name_space) {
  constexpr std::uint64_t kNoCap = std::numeric_limits<std::uint64_t>::max();
  const auto known = records_.find(name_space);
  if (known != records_.end()) return known->second;
  if (records_.size() >= prune_at_) {
    std::erase_if(records_,
                  [&](const auto& each) { return !each.second.has_bytes() && trie_.find_root(each.first) == nullptr; });
    prune_at_ = std::max(kLeast, 2 * records_.size());
  }
  Namespace fresh;
  if (counted_) {
    if (host_ != nullptr) fresh.host = std::make_shared<ByteBudget>(kNoCap, host_);
    fresh.disk = std::make_shared<ByteBudget>(kNoCap);
  }
  Namespace& record = records_.emplace(std::string(name_space), std::move(fresh)).first->second;
  record.number = next_++;
  return record;
}

const std::shared_ptr<ByteBudget>& Namespaces::host_of(std::string_view name_space) {
  return counted_ && host_ != nullptr ? of(name_space).host : host_;
}

std::shared_ptr<ByteBudget> Namespaces::disk_of(std::string_view name_space) {
  return counted_ ? of(name_space).disk : nullptr;
}

void Namespaces::begin_writing(std::string_view name_space, std::uint64_t bytes) {
  if (counted_) of(name_space).writing += bytes;
}

void Namespaces::end_writing(std::string_view name_space, std::uint64_t bytes) noexcept {
  const auto known = records_.find(name_space);
  if (known != records_.end()) known->second.writing -= std::min(known->second.writing, bytes);
}

}  // namespace kvtrie
