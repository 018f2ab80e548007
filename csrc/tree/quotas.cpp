#include "tree/quotas.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kvtrie {

// ---- who has one --------------------------------------------------------------------------------------------------

const Quotas::Quota* Quotas::find(std::string_view name_space) const noexcept {
  const Node* root = trie_.find_root(name_space);
  return root == nullptr ? nullptr : find(root->group());
}

Group Quotas::set(std::string_view name_space, Caps most, Caps least) {
  ensure(counted(), "quotas.set", "nothing is counted");
  Node* root = trie_.root(name_space);
  if (root->group() > 0) {
    Quota& quota = *quotas_[root->group() - 1U];
    quota.most = std::move(most);
    quota.least = std::move(least);
    return root->group();
  }
  auto place = std::find(quotas_.begin(), quotas_.end(), nullptr);
  require(place != quotas_.end() || quotas_.size() < kMost, "set_quota", "namespaces with quotas: got ",
          quotas_.size() + 1, ", allowed ", kMost);
  auto quota = std::make_unique<Quota>(
      Quota{std::string(name_space), root, &namespaces_.of(name_space), std::move(most), std::move(least)});
  if (place == quotas_.end()) place = quotas_.insert(place, nullptr);
  *place = std::move(quota);
  ++count_;
  trie_.lock(root);
  return static_cast<Group>(place - quotas_.begin() + 1);
}

void Quotas::remove(Group group) noexcept {
  const std::unique_ptr<Quota> quota = std::exchange(quotas_[group - 1U], nullptr);
  --count_;
  trie_.unlock(quota->root);
}

// Of all quotas; 0 for those without a floor.
template <class Each>
std::uint64_t Quotas::sum(const Each& each, Group but) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < quotas_.size(); ++i) {
    if (quotas_[i] != nullptr && i + 1 != but) total += each(static_cast<Group>(i + 1), *quotas_[i]);
  }
  return total;
}

std::uint64_t Quotas::floor_units(std::size_t cache, Group but) const {
  return sum([&](Group, const Quota& each) { return std::uint64_t{each.least.units[cache]}; }, but);
}

std::uint64_t Quotas::floor_host(Group but) const {
  return sum([](Group, const Quota& each) { return each.least.host; }, but);
}

std::uint64_t Quotas::floor_disk(Group but) const {
  return sum([](Group, const Quota& each) { return each.least.disk; }, but);
}

// ---- how much it has ----------------------------------------------------------------------------------------------

std::uint32_t Quotas::used(Group group, std::size_t cache) const {
  return caches_.all[cache]->held_by(find(group)->space->number);
}

TierShare Quotas::host(Group group) const {
  const Quota* quota = find(group);
  if (quota == nullptr || quota->space->host == nullptr) return {};
  return {quota->space->host->used(), quota->least.host, quota->most.host};
}

TierShare Quotas::disk(Group group) const {
  const Quota* quota = find(group);
  return quota == nullptr ? TierShare{} : TierShare{quota->space->disk->used(), quota->least.disk, quota->most.disk};
}

std::uint64_t Quotas::unfilled_host(Group who, std::uint64_t more) const {
  return sum([&](Group group, const Quota&) { return host(group).unfilled(group == who ? more : 0); }, 0);
}

std::uint64_t Quotas::unfilled_disk(Group who, std::uint64_t more) const {
  return sum([&](Group group, const Quota&) { return disk(group).unfilled(group == who ? more : 0); }, 0);
}

std::uint64_t Quotas::writing(Group group) const noexcept { return find(group)->space->writing; }

Quotas::Usage Quotas::usage(std::string_view name_space) {
  ensure(counted(), "quotas.usage", "nothing is counted");
  Usage usage;
  const Namespace& space = namespaces_.of(name_space);
  for (const LayerCache* cache : caches_.all) usage.units.push_back(cache->held_by(space.number));
  if (space.host != nullptr) usage.host = space.host->used();
  usage.disk = space.disk->used();
  return usage;
}

// ---- check --------------------------------------------------------------------------------------------------------

void Quotas::check(std::vector<std::string>& findings, std::uint64_t free_disk) const {
  if (!any()) return;
  const Allotment now(*this, {});
  for (std::size_t group = 1; group < groups(); ++group) {
    const Quota* quota = find(static_cast<Group>(group));
    if (quota == nullptr) continue;
    if (quota->root->group() != group) findings.push_back(cat("quota of '", quota->name, "': its root has another"));
    for (std::size_t i = 0; i < caches_.all.size(); ++i) {
      const std::uint32_t held = used(static_cast<Group>(group), i);
      if (held > quota->most.units[i])
        findings.push_back(cat("cache ", i, ": '", quota->name, "' holds ", held, ", at most ", quota->most.units[i]));
    }
    const TierShare in_memory = host(static_cast<Group>(group)), in_files = disk(static_cast<Group>(group));
    if (in_memory.used > in_memory.most || in_files.used > in_files.most) {
      findings.push_back(cat("'", quota->name, "' has ", in_memory.used, " bytes in memory and ", in_files.used,
                             " in files, at most ", in_memory.most, " and ", in_files.most));
    }
  }
  for (std::size_t i = 0; i < caches_.all.size(); ++i) {
    if (caches_.all[i]->free_units() < now.unfilled(i))
      findings.push_back(cat("cache ", i, ": floors lack ", now.unfilled(i), ", free ", caches_.all[i]->free_units()));
  }
  const std::shared_ptr<ByteBudget>& memory = namespaces_.host();
  if (memory != nullptr && memory->cap() - memory->used() < unfilled_host(0, 0)) {
    findings.push_back(
        cat("host memory: floors lack ", unfilled_host(0, 0), ", free ", memory->cap() - memory->used()));
  }
  if (free_disk < unfilled_disk(0, 0))
    findings.push_back(cat("disk: floors lack ", unfilled_disk(0, 0), ", free ", free_disk));
}

// ---- what claims may take -----------------------------------------------------------------------------------------

bool Allotment::claims_any(Group group) const noexcept {
  return std::any_of(claims_.begin(), claims_.end(), [&](const Claim& each) { return each.who == group; });
}

std::uint32_t Allotment::need(Group group, std::size_t cache) const noexcept {
  std::uint32_t units = 0;
  for (const Claim& claim : claims_) units += claim.who == group ? claim.needs[cache] : 0;
  return units;
}

std::uint32_t Allotment::over_most(Group group, std::size_t cache) const {
  const Quotas::Quota* quota = quotas_.find(group);
  if (quota == nullptr) return 0;
  const std::uint64_t after = std::uint64_t{quotas_.used(group, cache)} + need(group, cache);
  return static_cast<std::uint32_t>(after - std::min<std::uint64_t>(after, quota->most.units[cache]));
}

std::uint32_t Allotment::excess(Group group, std::size_t cache) const {
  const Quotas::Quota* quota = quotas_.find(group);
  if (quota == nullptr) return group == 0 ? kAll : 0;
  const std::uint64_t after = std::uint64_t{quotas_.used(group, cache)} + need(group, cache);
  return static_cast<std::uint32_t>(after - std::min<std::uint64_t>(after, quota->least.units[cache]));
}

std::uint64_t Allotment::lacking(std::size_t cache, Group but) const {
  std::uint64_t units = 0;
  for (std::size_t i = 1; i < quotas_.groups(); ++i) {
    const auto group = static_cast<Group>(i);
    const Quotas::Quota* quota = quotas_.find(group);
    if (quota == nullptr || group == but) continue;
    const std::uint64_t after = std::uint64_t{quotas_.used(group, cache)} + need(group, cache);
    units += quota->least.units[cache] - std::min<std::uint64_t>(after, quota->least.units[cache]);
  }
  return units;
}

}  // namespace kvtrie
