// Caps that change at run time.
//
// Lowering a cap is making room as a claim does, only that the room is then taken away: what goes, goes in the usual
// order, and what may not go is counted first, so that a refusal changes nothing. Host memory and files can only be let
// go of when nothing is on its way between the tiers; that is waited for without the mutex, before anything changes.
//
//     device    held <= limit of each pool      needs: what has to be free under the old limit for the new one to hold
//     host      what pinned nodes have nowhere else stays
//     disk      what pinned nodes have nowhere else stays, with all above it
//
// The disk comes first, then the host, then the pools: what leaves a pool finds the host's new cap in force.
#include <algorithm>
#include <limits>
#include <span>
#include <thread>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

constexpr const char* kSetLimits = "set_limits";

// `units` of these caches as wanted: 0 for the capacity, none for what it is now.
void choose(std::span<StateCache* const> caches, const std::vector<std::optional<std::uint32_t>>& wanted,
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
                              " or more, which live sessions and pins hold"),
                          counts);
}

}  // namespace

void PrefixCacheState::set_pin_cap() {
  std::uint32_t smallest = std::numeric_limits<std::int32_t>::max();
  for (const auto& cache : caches.attention) smallest = std::min(smallest, cache->limit());
  leases.set_cap(static_cast<std::uint32_t>(options.max_pinned_fraction * smallest));
}

Caps PrefixCacheState::caps() const {
  Caps caps;
  for (const StateCache* cache : caches.all) caps.units.push_back(cache->limit());
  if (host != nullptr) caps.host = host->cap();
  if (lower.disk() != nullptr) caps.disk = lower.disk()->budget().cap();
  return caps;
}

Caps PrefixCacheState::caps_for(const Limits& limits) const {
  Caps result = caps();
  const std::span<StateCache* const> all = caches.all;
  choose(all.first(caches.attention.size()), limits.held_cells, result.units.data(), "held_cells");
  choose(all.subspan(caches.attention.size()), limits.held_slots, result.units.data() + caches.attention.size(),
         "held_slots");
  if (limits.host_bytes) {
    if (host == nullptr)
      fail(ErrorKind::kNotSupported, kSetLimits, "host_bytes: there is no host tier (host_bytes is 0)");
    require(*limits.host_bytes > 0 || lower.disk() == nullptr, kSetLimits,
            "host_bytes: got 0, allowed 1 or more with a disk tier: bytes pass through it");
    const std::uint64_t aside = exchange == nullptr ? 0 : exchange->room();
    require(*limits.host_bytes >= aside, kSetLimits, "host_bytes: got ", *limits.host_bytes, ", allowed ", aside,
            " or more: so much is set aside for sending to the store");
    result.host = *limits.host_bytes - aside;
  }
  if (limits.disk_bytes) {
    if (lower.disk() == nullptr)
      fail(ErrorKind::kNotSupported, kSetLimits, "disk_bytes: there is no disk tier (disk is None)");
    result.disk = *limits.disk_bytes;
  }
  return result;
}

// ---- making it so -------------------------------------------------------------------------------------------------

Needs PrefixCacheState::needs_for(const Caps& wanted) const {
  Needs needs = caches.no_needs();
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    const std::uint32_t present = caches.all[i]->limit();
    needs[i] = present - std::min(present, wanted.units[i]);
  }
  return needs;
}

void PrefixCacheState::require_reachable(const Caps& wanted) {
  if (host != nullptr && wanted.host < host->used()) {
    const std::uint64_t kept = lower.pinned_host_bytes();
    if (kept > wanted.host) refuse("host_bytes", wanted.host, kept);
  }
  if (lower.disk() != nullptr && wanted.disk < lower.disk()->budget().used()) {
    const std::uint64_t kept = lower.pinned_disk_bytes();
    if (kept > wanted.disk) refuse("disk_bytes", wanted.disk, kept);
  }
  room.require_room(needs_for(wanted));
}

bool PrefixCacheState::at_rest() const {
  if (!arrivals.empty() || !copies.all_sealed() || !leases.holds().empty()) return false;
  if (writer != nullptr && writer->pending_jobs() > 0) return false;
  // Else another call still checks or reads bytes that nobody knows any more.
  return host == nullptr || lower.bytes_in_memory() == host->used();
}

void PrefixCacheState::change_caps(const Caps& wanted) {
  if (host != nullptr && wanted.host > host->cap() && !lower.set_host_cap(wanted.host))
    refuse("host_bytes", wanted.host, host->used());
  if (lower.disk() != nullptr && !lower.lower_disk_cap(wanted.disk))
    refuse("disk_bytes", wanted.disk, lower.disk()->budget().used());
  if (host != nullptr && !lower.lower_host_cap(wanted.host)) refuse("host_bytes", wanted.host, host->used());
  room.make_room(needs_for(wanted));
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    StateCache& cache = *caches.all[i];
    if (cache.set_limit(wanted.units[i])) continue;
    refuse(i < caches.attention.size() ? "held_cells" : "held_slots", wanted.units[i],
           cache.limit() - cache.free_units());
  }
  set_pin_cap();
}

// A device or the memory may fail on the way: then the caps are what they were, as far as what is held allows it.
void PrefixCacheState::apply(const Caps& wanted) {
  const Caps before = caps();
  try {
    change_caps(wanted);
  } catch (...) {
    if (host != nullptr) static_cast<void>(lower.set_host_cap(before.host));
    if (lower.disk() != nullptr) static_cast<void>(lower.set_disk_cap(before.disk));
    for (std::size_t i = 0; i < caches.all.size(); ++i) static_cast<void>(caches.all[i]->set_limit(before.units[i]));
    throw;
  }
}

std::uint64_t PrefixCache::host_cap() const noexcept {
  const std::uint64_t aside = state_->exchange == nullptr ? 0 : state_->exchange->room();
  return state_->host == nullptr ? 0 : state_->host->cap() + aside;
}

void PrefixCache::set_limits(const Limits& limits) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    {
      Entry entry(*state_);
      const Caps wanted = state_->caps_for(limits);
      state_->require_reachable(wanted);
      const bool shrinks = (state_->host != nullptr && wanted.host < state_->host->used()) ||
                           (state_->lower.disk() != nullptr && wanted.disk < state_->lower.disk()->budget().used());
      if (!shrinks || state_->at_rest()) return state_->apply(wanted);
      if (attempt == kAttempts) fail(ErrorKind::kBusy, kSetLimits, "state is on its way between the tiers: try again");
      state_->wait_for_host(entry);
    }
    if (state_->writer != nullptr) state_->writer->drain();
    if (state_->exchange != nullptr) state_->exchange->drain();
    std::this_thread::yield();
  }
}

}  // namespace kvtrie
