// Caps that change at run time (capacity.h): what is on its way between the tiers is waited for without the mutex,
// before anything changes.
#include <thread>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"

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

void PrefixCache::set_limits(const Limits& limits) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    {
      Entry entry(*state_);
      Capacity& capacity = state_->capacity;
      const Caps wanted = capacity.caps_for(limits, aside(*state_));
      capacity.require_reachable(wanted);
      if (!capacity.shrinks(wanted) || state_->at_rest()) return capacity.apply(wanted);
      if (attempt == kAttempts)
        fail(ErrorKind::kBusy, "set_limits", "state is on its way between the tiers: try again");
      state_->wait_for_host(entry);
    }
    if (state_->writer != nullptr) state_->writer->drain();
    if (state_->exchange != nullptr) state_->exchange->drain();
    std::this_thread::yield();
  }
}

}  // namespace kvtrie
