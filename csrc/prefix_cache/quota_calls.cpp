// Quotas of namespaces that are set and taken off at run time (quotas.h).
#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

constexpr const char* kSetQuota = "set_quota";

void require_counted(const PrefixCacheState& state, const char* where) KVTRIE_REQUIRES(state.mutex) {
  if (!state.quotas.counted())
    fail(ErrorKind::kNotSupported, where, "this cache counts no namespaces: make it with quotas");
}

void require_within(const char* what, std::uint64_t most, std::uint64_t least, std::uint64_t others,
                    std::uint64_t there_is) {
  require(least <= most, kSetQuota, what, ": got a floor of ", least, ", allowed ", most,
          ", the most that it may have");
  require(least <= there_is - std::min(there_is, others), kSetQuota, what, ": got a floor of ", least, ", allowed ",
          there_is - std::min(there_is, others), ": floors of other namespaces have ", others, " of ", there_is);
}

// Floors come to no more than there is.
void require_possible(const PrefixCacheState& state, const Caps& most, const Caps& least, Group group)
    KVTRIE_REQUIRES(state.mutex) {
  const Caps there_is = state.capacity.caps();
  for (std::size_t i = 0; i < most.units.size(); ++i) {
    require_within(i < state.caches.attention.size() ? "cells" : "slots", most.units[i], least.units[i],
                   state.quotas.floor_units(i, group), there_is.units[i]);
  }
  require_within("host_bytes", most.host, least.host, state.quotas.floor_host(group), there_is.host);
  require_within("disk_bytes", most.disk, least.disk, state.quotas.floor_disk(group), there_is.disk);
}

[[noreturn]] void refuse_kept(const char* what, const std::string& name, std::uint64_t most, std::uint64_t kept) {
  CacheFullCounts counts;
  counts.needed = kept - std::min(kept, most);
  counts.held_live = kept;
  throw Error::cache_full(cat("[", kSetQuota, "] ", what, ": got ", most, " for namespace '", name, "', allowed ", kept,
                              " or more, which live sessions and pins hold"),
                          counts);
}

template <class OfGroup>
std::uint64_t sum_of_groups(const Quotas& quotas, const OfGroup& bytes_of) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < quotas.groups(); ++i) bytes += bytes_of(static_cast<Group>(i));
  return bytes;
}

// Of all namespaces, what no cap could make go, or their floors: as much as has to fit under the cap of a lower tier.
std::uint64_t kept_in_memory(const LowerTiers& lower, const Quotas& quotas) {
  return sum_of_groups(quotas,
                       [&](Group group) { return std::max(lower.pinned_host_bytes(group), quotas.host(group).least); });
}
std::uint64_t kept_in_files(const LowerTiers& lower, const Quotas& quotas) {
  return sum_of_groups(quotas,
                       [&](Group group) { return std::max(lower.pinned_disk_bytes(group), quotas.disk(group).least); });
}

void require_lower_tiers(const PrefixCacheState& state, const Quotas::Quota& quota, Group group)
    KVTRIE_REQUIRES(state.mutex) {
  const Caps caps = state.capacity.caps();
  if (state.host != nullptr) {
    const std::uint64_t own = state.lower.pinned_host_bytes(group), all = kept_in_memory(state.lower, state.quotas);
    if (own > quota.most.host) refuse_kept("host_bytes", quota.name, quota.most.host, own);
    if (all > caps.host) refuse_kept("host_bytes", quota.name, caps.host, all);
  }
  if (state.lower.disk() == nullptr) return;
  const std::uint64_t own = state.lower.pinned_disk_bytes(group), all = kept_in_files(state.lower, state.quotas);
  if (own > quota.most.disk) refuse_kept("disk_bytes", quota.name, quota.most.disk, own);
  if (all > caps.disk) refuse_kept("disk_bytes", quota.name, caps.disk, all);
}

// Whether bytes have to leave the lower tiers for a quota now.
bool shrinks(const PrefixCacheState& state, Group group) KVTRIE_REQUIRES(state.mutex) {
  const Quotas& quotas = state.quotas;
  const TierShare in_memory = quotas.host(group), in_files = quotas.disk(group);
  const bool memory = state.host != nullptr && (in_memory.used > in_memory.most ||
                                                state.host->cap() - state.host->used() < quotas.unfilled_host(0, 0));
  const DiskTier* disk = state.lower.disk().get();
  const bool files =
      disk != nullptr && (in_files.used > in_files.most || state.lower.free_disk() < quotas.unfilled_disk(0, 0));
  return memory || files;
}

// A quota that was put in place for a call, and goes back to what it was unless the call kept it.
class Tried {
 public:
  Tried(PrefixCacheState& state, std::string_view name_space, Caps most, Caps least) KVTRIE_REQUIRES(state.mutex)
      : state_(state) {
    if (const Quotas::Quota* before = state.quotas.find(name_space)) before_ = {before->most, before->least};
    group_ = state.quotas.set(name_space, std::move(most), std::move(least));
    root_ = state.trie.find_root(name_space);
    try {
      state.move_group(root_, group_);
    } catch (...) {
      state.quotas.remove(group_);
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
  void undo() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS {  // made and ended with the mutex held
    if (kept_) return;
    try {
      if (before_) {
        state_.quotas.set(state_.quotas.find(group_)->name, before_->first, before_->second);
        return;
      }
      state_.move_group(root_, 0);
      state_.quotas.remove(group_);
    } catch (...) {  // no memory to go back: the namespace keeps a quota that takes nothing from anybody
    }
  }

  PrefixCacheState& state_;
  std::optional<std::pair<Caps, Caps>> before_;
  Group group_ = 0;
  Node* root_ = nullptr;
  bool kept_ = false;
};

}  // namespace

void PrefixCacheState::move_group(Node* root, Group to) {
  const Group from = root->group();
  if (from == to) return;
  const std::size_t count = std::max<std::size_t>({quotas.groups(), to + 1U, from + 1U});
  std::vector<Node*> nodes{root};
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child = nodes[i]->first_child(); child != nullptr; child = child->next_sibling()) nodes.push_back(child);
    if (i > 0 && state_of(nodes[i]).on_device()) tokens += state_of(nodes[i]).length();
  }
  places.reserve_groups(count);
  points.reserve_groups(count);
  leases.reserve_groups(count);
  trie.set_group(root, to);
  points.move_group(nodes, from, to);
  leases.move_group(nodes, from, to);
  places.move_tokens(from, to, tokens);
}

// Counted first, then made: what would have to stay is refused before anything goes.
void PrefixCacheState::change_quota(std::string_view name_space, const Caps& most, const Caps& least) {
  Tried tried(*this, name_space, most, least);
  const std::string name(name_space);
  const Claim claim{tried.group(), caches.no_needs()};
  device_budget.require_room({&claim, 1});
  require_lower_tiers(*this, *quotas.find(tried.group()), tried.group());
  if (lower.disk() != nullptr && !lower.settle_disk_quota(tried.root()))
    refuse_kept("disk_bytes", name, most.disk, quotas.disk(tried.group()).used);
  if (host != nullptr && !lower.settle_host_quota(tried.root()))
    refuse_kept("host_bytes", name, most.host, quotas.host(tried.group()).used);
  device_budget.make_room({&claim, 1});
  capacity.set_pin_cap(tried.group(), most);
  tried.keep();
}

void PrefixCacheState::drop_quota(std::string_view name_space) {
  const Quotas::Quota* quota = quotas.find(name_space);
  if (quota == nullptr) return;
  const Group group = quota->root->group();
  move_group(quota->root, 0);
  quotas.remove(group);
}

namespace {

// False: what has to go is on its way between the tiers; nothing has changed.
bool set_at_once(PrefixCacheState& state, std::string_view name_space, const Limits& most, const Limits& least)
    KVTRIE_REQUIRES(state.mutex) {
  require_counted(state, kSetQuota);
  constexpr std::uint64_t kNoCap = std::numeric_limits<std::uint64_t>::max();
  const Caps none{Needs(state.caches.all.size()), 0, 0};
  const Caps all{Needs(state.caches.all.size(), Allotment::kAll), kNoCap, kNoCap};
  const Caps above = state.capacity.quota_for(most, all);
  const Caps floor = state.capacity.quota_for(least, none);
  const Quotas::Quota* present = state.quotas.find(name_space);
  require_possible(state, above, floor, present == nullptr ? Group{0} : present->root->group());
  bool at_once = state.at_rest();
  if (!at_once) {
    const Tried tried(state, name_space, above, floor);
    at_once = !shrinks(state, tried.group());
  }
  if (at_once) state.change_quota(name_space, above, floor);
  return at_once;
}

}  // namespace

void PrefixCache::set_quota(std::string_view name_space, const Limits& most, const Limits& least) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    {
      Entry entry(*state_);
      if (set_at_once(*state_, name_space, most, least)) return;
      if (attempt == kAttempts) fail(ErrorKind::kBusy, kSetQuota, "state is on its way between the tiers: try again");
      state_->wait_for_host(entry);
    }
    if (state_->writer != nullptr) state_->writer->drain();
    if (state_->exchange != nullptr) state_->exchange->drain();
    std::this_thread::yield();
  }
}

void PrefixCache::remove_quota(std::string_view name_space) {
  Entry entry(*state_);
  require_counted(*state_, "remove_quota");
  state_->drop_quota(name_space);
}

NamespaceUsage PrefixCache::usage(std::string_view name_space) {
  Entry entry(*state_);
  require_counted(*state_, "usage");
  NamespaceUsage usage;
  Quotas::Usage used = state_->quotas.usage(name_space);
  usage.units = std::move(used.units);
  usage.host_bytes = used.host;
  usage.disk_bytes = used.disk;
  const Quotas::Quota* quota = state_->quotas.find(name_space);
  if (quota == nullptr) return usage;
  usage.has_quota = true;
  usage.most_units = quota->most.units, usage.least_units = quota->least.units;
  usage.most_host_bytes = quota->most.host, usage.least_host_bytes = quota->least.host;
  usage.most_disk_bytes = quota->most.disk, usage.least_disk_bytes = quota->least.disk;
  return usage;
}

}  // namespace kvtrie
