#include "tiers/quota_change.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr const char* kSetQuota = "set_quota";

void require_within(const char* what, std::uint64_t most, std::uint64_t least, std::uint64_t others,
                    std::uint64_t there_is) {
  require(least <= most, kSetQuota, what, ": got a floor of ", least, ", allowed ", most,
          ", the most that it may have");
  require(least <= there_is - std::min(there_is, others), kSetQuota, what, ": got a floor of ", least, ", allowed ",
          there_is - std::min(there_is, others), ": floors of other namespaces have ", others, " of ", there_is);
}

[[noreturn]] void refuse_kept(const char* what, const std::string& name, std::uint64_t most, std::uint64_t kept) {
  CacheFullCounts counts;
  counts.needed = kept - std::min(kept, most);
  counts.held_live = kept;
  throw Error::cache_full(cat("[", kSetQuota, "] ", what, ": got ", most, " for namespace '", name, "', allowed ", kept,
                              " or more, which live sessions and pins hold or floors promise"),
                          counts);
}

}  // namespace

void QuotaChange::require_counted(const char* where) const {
  if (!of_.quotas.counted())
    fail(ErrorKind::kNotSupported, where, "this cache counts no namespaces: make it with quotas");
}

// Floors come to no more than there is.
void QuotaChange::require_possible(const Caps& most, const Caps& least, Group group) const {
  const Caps there_is = of_.capacity.caps();
  for (std::size_t i = 0; i < most.units.size(); ++i) {
    require_within(i < of_.caches.attention.size() ? "cells" : "slots", most.units[i], least.units[i],
                   of_.quotas.floor_units(i, group), there_is.units[i]);
  }
  require_within("host_bytes", most.host, least.host, of_.quotas.floor_host(group), there_is.host);
  require_within("disk_bytes", most.disk, least.disk, of_.quotas.floor_disk(group), there_is.disk);
}

void QuotaChange::require_lower_tiers(const Quotas::Quota& quota, Group group) const {
  const Caps caps = of_.capacity.caps();
  if (of_.host != nullptr) {
    const std::uint64_t own = of_.lower.pinned_host_bytes(group), all = of_.lower.kept_host_bytes();
    if (own > quota.most.host) refuse_kept("host_bytes", quota.name, quota.most.host, own);
    if (all > caps.host) refuse_kept("host_bytes", quota.name, caps.host, all);
  }
  if (of_.lower.disk() == nullptr) return;
  const std::uint64_t own = of_.lower.pinned_disk_bytes(group), all = of_.lower.kept_disk_bytes();
  if (own > quota.most.disk) refuse_kept("disk_bytes", quota.name, quota.most.disk, own);
  if (all > caps.disk) refuse_kept("disk_bytes", quota.name, caps.disk, all);
}

// Whether the quota makes bytes leave the lower tiers now.
bool QuotaChange::shrinks(Group group) const {
  const Quotas& quotas = of_.quotas;
  const TierShare in_memory = quotas.host(group), in_files = quotas.disk(group);
  const bool memory = of_.host != nullptr && (in_memory.used > in_memory.most ||
                                              of_.host->cap() - of_.host->used() < quotas.unfilled_host(0, 0));
  const DiskTier* disk = of_.lower.disk().get();
  const bool files =
      disk != nullptr && (in_files.used > in_files.most || of_.lower.free_disk() < quotas.unfilled_disk(0, 0));
  return memory || files;
}

// A quota that was put in place for a call, and goes back to what it was unless the call kept it.
class QuotaChange::Tried {
 public:
  Tried(QuotaChange& owner, std::string_view name_space, Caps most, Caps least) : owner_(owner) {
    if (const Quotas::Quota* before = owner.of_.quotas.find(name_space)) before_ = {before->most, before->least};
    group_ = owner.of_.quotas.set(name_space, std::move(most), std::move(least));
    root_ = owner.of_.trie.find_root(name_space);
    try {
      owner.move_group(root_, group_);
    } catch (...) {
      owner.of_.quotas.remove(group_);
      throw;
    }
  }
  ~Tried() { undo(); }
  Tried(const Tried&) = delete;
  Tried& operator=(const Tried&) = delete;

  Group group() const noexcept { return group_; }
  const Node* root() const noexcept { return root_; }
  void keep() noexcept { kept_ = true; }

 private:
  void undo() noexcept {
    if (kept_) return;
    try {
      if (before_) {
        owner_.of_.quotas.set(owner_.of_.quotas.find(group_)->name, before_->first, before_->second);
        return;
      }
      owner_.move_group(root_, 0);
      owner_.of_.quotas.remove(group_);
    } catch (...) {  // no memory to go back: the namespace keeps a quota that takes nothing from anybody
    }
  }

  QuotaChange& owner_;
  std::optional<std::pair<Caps, Caps>> before_;
  Group group_ = 0;
  Node* root_ = nullptr;
  bool kept_ = false;
};

// The nodes of the namespace go to another group, and come to stand in all orders where they stood.
void QuotaChange::move_group(Node* root, Group to) {
  const Group from = root->group();
  if (from == to) return;
  const std::size_t count = std::max<std::size_t>({of_.quotas.groups(), to + 1U, from + 1U});
  std::vector<Node*> nodes{root};
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child = nodes[i]->first_child(); child != nullptr; child = child->next_sibling()) nodes.push_back(child);
    if (i > 0 && state_of(nodes[i]).on_device()) tokens += state_of(nodes[i]).length();
  }
  of_.places.reserve_groups(count);
  of_.points.reserve_groups(count);
  of_.leases.reserve_groups(count);
  of_.trie.set_group(root, to);
  of_.points.move_group(nodes, from, to);
  of_.leases.move_group(nodes, from, to);
  of_.places.move_tokens(from, to, tokens);
}

// Counted first, then made: what would have to stay is refused before anything goes.
void QuotaChange::change(std::string_view name_space, const Caps& most, const Caps& least) {
  Tried tried(*this, name_space, most, least);
  const std::string name(name_space);
  const Claim claim{tried.group(), of_.caches.no_needs()};
  of_.device_budget.require_room({&claim, 1});
  require_lower_tiers(*of_.quotas.find(tried.group()), tried.group());
  if (of_.lower.disk() != nullptr && !of_.lower.settle_disk_quota(tried.root()))
    refuse_kept("disk_bytes", name, most.disk, of_.quotas.disk(tried.group()).used);
  if (of_.host != nullptr && !of_.lower.settle_host_quota(tried.root()))
    refuse_kept("host_bytes", name, most.host, of_.quotas.host(tried.group()).used);
  of_.device_budget.make_room({&claim, 1});
  of_.capacity.set_pin_cap(tried.group(), most);
  tried.keep();
}

bool QuotaChange::set(std::string_view name_space, const Limits& most, const Limits& least, bool at_rest) {
  require_counted(kSetQuota);
  constexpr std::uint64_t kNoCap = std::numeric_limits<std::uint64_t>::max();
  const Caps none{Needs(of_.caches.all.size()), 0, 0};
  const Caps all{Needs(of_.caches.all.size(), Allotment::kAll), kNoCap, kNoCap};
  const Caps above = of_.capacity.quota_for(most, all);
  const Caps floor = of_.capacity.quota_for(least, none);
  const Quotas::Quota* present = of_.quotas.find(name_space);
  require_possible(above, floor, present == nullptr ? Group{0} : present->root->group());
  if (!at_rest) {
    const Tried tried(*this, name_space, above, floor);
    if (shrinks(tried.group())) return false;
  }
  change(name_space, above, floor);
  return true;
}

void QuotaChange::remove(std::string_view name_space) {
  const Quotas::Quota* quota = of_.quotas.find(name_space);
  if (quota == nullptr) return;
  const Group group = quota->root->group();
  move_group(quota->root, 0);
  of_.quotas.remove(group);
}

}  // namespace kvtrie
