#include "tiers/capacity.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr const char* kSetLimits = "set_limits";

// `units` of these caches as wanted: 0 for the capacity, none for what it is now.
void choose(std::span<LayerCache* const> caches, const std::vector<std::optional<std::uint32_t>>& wanted,
            std::uint32_t* units, const char* name) {
  require(wanted.empty() || wanted.size() == caches.size(), kSetLimits, name, ": got ", wanted.size(),
          " entries, allowed one for each of the ", caches.size(), " caches");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint32_t capacity = caches[i]->capacity();
    if (wanted[i]) units[i] = *wanted[i] == 0 ? capacity : std::min(*wanted[i], capacity);
  }
}

[[noreturn]] void refuse(const char* what, std::uint64_t wanted, std::uint64_t held) {
  CacheFullCounts counts;
  counts.needed = held - std::min(held, wanted);
  counts.held_live = held;
  throw Error::cache_full(cat("[", kSetLimits, "] ", what, ": got ", wanted, ", allowed ", held,
                              " or more, which live sessions and pins hold or floors promise"),
                          counts);
}

}  // namespace

void Capacity::set_pin_cap() {
  std::uint32_t smallest = std::numeric_limits<std::int32_t>::max();
  for (const auto& cache : caches_.attention) smallest = std::min(smallest, cache->limit());
  leases_.set_cap(static_cast<std::uint32_t>(most_pinned_ * smallest));
  for (std::size_t group = 1; group < quotas_.groups(); ++group) {
    const Quotas::Quota* quota = quotas_.find(static_cast<Group>(group));
    if (quota != nullptr) set_pin_cap(static_cast<Group>(group), quota->most);
  }
}

void Capacity::set_pin_cap(Group group, const Caps& most) {
  std::uint32_t smallest = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < caches_.attention.size(); ++i)
    smallest = std::min({smallest, most.units[i], caches_.attention[i]->limit()});
  leases_.set_cap(static_cast<std::uint32_t>(most_pinned_ * smallest), group);
}

Caps Capacity::quota_for(const Limits& limits, const Caps& others) const {
  constexpr const char* kWhere = "set_quota";
  Caps result = others;
  const auto amounts = [&](const std::vector<std::optional<std::uint32_t>>& wanted, std::size_t first,
                           std::size_t count, const char* name) {
    require(wanted.empty() || wanted.size() == count, kWhere, name, ": got ", wanted.size(),
            " entries, allowed one for each of the ", count, " caches");
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) result.units[first + i] = std::min(*wanted[i], caches_.all[first + i]->limit());
    }
  };
  amounts(limits.held_cells, 0, caches_.attention.size(), "cells");
  amounts(limits.held_slots, caches_.attention.size(), caches_.states.size(), "slots");
  const Caps present = caps();
  if (limits.host_bytes) result.host = std::min(*limits.host_bytes, present.host);
  if (limits.disk_bytes) result.disk = std::min(*limits.disk_bytes, present.disk);
  return result;
}

// Named before anything is counted: floors are as good as live state.
void Capacity::require_floors(const Caps& wanted) const {
  const auto require_floor = [](const char* what, std::uint64_t got, std::uint64_t floors) {
    require(got >= floors, kSetLimits, what, ": got ", got, ", allowed ", floors,
            " or more: so much is promised to namespaces as floors (set_quota)");
  };
  for (std::size_t i = 0; i < caches_.all.size(); ++i) {
    require_floor(i < caches_.attention.size() ? "held_cells" : "held_slots", wanted.units[i], quotas_.floor_units(i));
  }
  if (host_ != nullptr) require_floor("host_bytes", wanted.host, quotas_.floor_host());
  if (lower_.disk() != nullptr) require_floor("disk_bytes", wanted.disk, quotas_.floor_disk());
}

Caps Capacity::caps() const {
  Caps caps;
  for (const LayerCache* cache : caches_.all) caps.units.push_back(cache->limit());
  if (host_ != nullptr) caps.host = host_->cap();
  if (lower_.disk() != nullptr) caps.disk = lower_.disk()->budget().cap();
  return caps;
}

Caps Capacity::caps_for(const Limits& limits, std::uint64_t aside) const {
  Caps result = caps();
  const std::span<LayerCache* const> all = caches_.all;
  choose(all.first(caches_.attention.size()), limits.held_cells, result.units.data(), "held_cells");
  choose(all.subspan(caches_.attention.size()), limits.held_slots, result.units.data() + caches_.attention.size(),
         "held_slots");
  if (limits.host_bytes) {
    if (host_ == nullptr)
      fail(ErrorKind::kNotSupported, kSetLimits, "host_bytes: there is no host tier (host_bytes is 0)");
    require(*limits.host_bytes > 0 || lower_.disk() == nullptr, kSetLimits,
            "host_bytes: got 0, allowed 1 or more with a disk tier: bytes pass through it");
    require(*limits.host_bytes >= aside, kSetLimits, "host_bytes: got ", *limits.host_bytes, ", allowed ", aside,
            " or more: so much is set aside for sending to the store");
    result.host = *limits.host_bytes - aside;
  }
  if (limits.disk_bytes) {
    if (lower_.disk() == nullptr)
      fail(ErrorKind::kNotSupported, kSetLimits, "disk_bytes: there is no disk tier (disk is None)");
    result.disk = *limits.disk_bytes;
  }
  return result;
}

// ---- making it so -------------------------------------------------------------------------------------------------

Needs Capacity::needs_for(const Caps& wanted) const {
  Needs needs = caches_.no_needs();
  for (std::size_t i = 0; i < caches_.all.size(); ++i) {
    const std::uint32_t present = caches_.all[i]->limit();
    needs[i] = present - std::min(present, wanted.units[i]);
  }
  return needs;
}

void Capacity::require_reachable(const Caps& wanted) {
  require_floors(wanted);
  if (host_ != nullptr && wanted.host < host_->used() + quotas_.unfilled_host(0, 0)) {
    const std::uint64_t kept = lower_.kept_host_bytes();
    if (kept > wanted.host) refuse("host_bytes", wanted.host, kept);
  }
  if (lower_.disk() != nullptr && wanted.disk < lower_.disk()->budget().used() + quotas_.unfilled_disk(0, 0)) {
    const std::uint64_t kept = lower_.kept_disk_bytes();
    if (kept > wanted.disk) refuse("disk_bytes", wanted.disk, kept);
  }
  device_budget_.require_room(needs_for(wanted));
}

void Capacity::change(const Caps& wanted) {
  if (host_ != nullptr && wanted.host > host_->cap() && !lower_.set_host_cap(wanted.host))
    refuse("host_bytes", wanted.host, host_->used());
  if (lower_.disk() != nullptr && !lower_.lower_disk_cap(wanted.disk))
    refuse("disk_bytes", wanted.disk, lower_.disk()->budget().used());
  if (host_ != nullptr && !lower_.lower_host_cap(wanted.host)) refuse("host_bytes", wanted.host, host_->used());
  device_budget_.make_room(needs_for(wanted));
  for (std::size_t i = 0; i < caches_.all.size(); ++i) {
    LayerCache& cache = *caches_.all[i];
    if (cache.set_limit(wanted.units[i])) continue;
    refuse(i < caches_.attention.size() ? "held_cells" : "held_slots", wanted.units[i],
           cache.limit() - cache.free_units());
  }
  set_pin_cap();
}

bool Capacity::shrinks(const Caps& wanted) const {
  const std::uint64_t in_memory = quotas_.unfilled_host(0, 0), in_files = quotas_.unfilled_disk(0, 0);
  return (host_ != nullptr && wanted.host < host_->used() + in_memory) ||
         (lower_.disk() != nullptr && wanted.disk < lower_.disk()->budget().used() + in_files);
}

void Capacity::apply(const Caps& wanted) {
  const Caps before = caps();
  try {
    change(wanted);
  } catch (...) {
    if (host_ != nullptr) static_cast<void>(lower_.set_host_cap(before.host));
    if (lower_.disk() != nullptr) static_cast<void>(lower_.set_disk_cap(before.disk));
    for (std::size_t i = 0; i < caches_.all.size(); ++i) static_cast<void>(caches_.all[i]->set_limit(before.units[i]));
    throw;
  }
}

}  // namespace kvtrie
