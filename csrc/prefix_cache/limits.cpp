// Caps and quotas that change at run time (tiers/capacity.h, tiers/quota_change.h): what is on its way between the
// tiers is waited for without the mutex, before anything changes.
#include <thread>

#include "base/error.h"
#include "prefix_cache/entry.h"

namespace kvtrie {
namespace {

// Host memory that is set aside for sending.
std::uint64_t aside(const PrefixCacheState& state) { return state.exchange == nullptr ? 0 : state.exchange->room(); }

}  // namespace

bool PrefixCacheState::nothing_under_way() const {
  const bool written = writer == nullptr || writer->pending_jobs() == 0;
  return pending_loads.empty() && copies.all_sealed() && leases.holds().empty() && written;
}

bool PrefixCacheState::quiet() const {
  const bool calls_have_none = staging_calls == 0 && *sealing_calls == 0;
  return nothing_under_way() && calls_have_none && (exchange == nullptr || exchange->quiet());
}

// Where more is used than nodes have, another call still checks or reads bytes that nobody knows any more. Nodes are
// counted only where that might be.
bool PrefixCacheState::at_rest() const {
  if (!nothing_under_way()) return false;
  return host == nullptr || quiet() || lower.bytes_in_memory() == host->used();
}

std::uint64_t PrefixCache::host_cap() const noexcept {
  return state_->host == nullptr ? 0 : state_->host->cap() + aside(*state_);
}

void PrefixCache::when_at_rest(const char* where, const std::function<bool(PrefixCacheState&)>& change) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    {
      Entry entry(*state_);
      if (change(*state_)) return;
      if (attempt == kAttempts) fail(ErrorKind::kBusy, where, "state is on its way between the tiers: try again");
      state_->page_in.wait_for_host(entry);
    }
    if (state_->writer != nullptr) state_->writer->drain();
    if (state_->exchange != nullptr) state_->exchange->drain();
    std::this_thread::yield();
  }
}

void PrefixCache::set_limits(const Limits& limits) {
  when_at_rest("set_limits", [&](PrefixCacheState& state) KVTRIE_REQUIRES(state.gate.mutex) {
    const Caps wanted = state.capacity.caps_for(limits, aside(state));
    state.capacity.require_reachable(wanted);
    const bool at_once = !state.capacity.shrinks(wanted) || state.at_rest();
    if (at_once) state.capacity.apply(wanted);
    return at_once;
  });
}

void PrefixCache::set_quota(std::string_view name_space, const Limits& most, const Limits& least) {
  when_at_rest("set_quota", [&](PrefixCacheState& state) KVTRIE_REQUIRES(state.gate.mutex) {
    return state.quota_change.set(name_space, most, least, state.at_rest());
  });
}

void PrefixCache::remove_quota(std::string_view name_space) {
  Entry entry(*state_);
  state_->quota_change.require_counted("remove_quota");
  state_->quota_change.remove(name_space);
}

NamespaceUsage PrefixCache::usage(std::string_view name_space) {
  Entry entry(*state_);
  state_->quota_change.require_counted("usage");
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
