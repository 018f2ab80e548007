// The counters of a prefix cache, and its holdings at a moment.
//
// Concept. A prefix cache has one record of totals; each class that changes something adds to its own fields of it.
// Holdings are read from the caches, the tree and the tiers on request (inspect.cpp), so they cannot drift.
//
// Threads: a value; `totals` is guarded by the prefix cache's mutex. Units: in the names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "store/disk_tier.h"
#include "store/shared_exchange.h"

namespace kvtrie {

struct CacheStats {
  std::uint64_t capacity_cells = 0, free_cells = 0, reserved_cells = 0, held_cells = 0, pieces = 0, bytes = 0;
  std::uint64_t limit_cells = 0;  // the cap on held_cells
};
struct StateStats {
  std::uint64_t capacity_slots = 0, free_slots = 0, bytes = 0;
  std::uint64_t limit_slots = 0;
};

struct StoreStats {
  SharedStats tier;
  std::uint64_t sent = 0;      // snapshots that the store has now, by this process
  std::uint64_t unsent = 0;    // and those not sent: gone before their turn, no room for them, no answer
  std::uint64_t received = 0;  // snapshots that became nodes here
  std::uint64_t received_bytes = 0;
  std::uint64_t pending = 0;      // paths on their way
  std::uint64_t not_worth = 0;    // look-ups left out, or cut short: computing was measured to take less
  std::int64_t least_tokens = 0;  // that a prompt must be able to gain, when it was last looked at; -1: none will do
};

struct PrefixCacheStats {
  std::vector<CacheStats> caches;
  std::vector<StateStats> recurrent;
  std::uint64_t nodes = 0, tokens = 0, device_tokens = 0, host_tokens = 0, disk_tokens = 0, sessions = 0;
  std::uint64_t device_bytes = 0, host_bytes = 0, host_cap_bytes = 0, host_peak_bytes = 0;
  std::optional<DiskStats> disk;                        // with a disk tier
  std::uint64_t pending_writes = 0, pending_bytes = 0;  // on their way to the disk
  std::optional<StoreStats> store;                      // with a store
  std::uint64_t suffix_tokens = 0, suffix_bytes = 0;    // places in the index of suffixes, and its memory
  std::uint64_t user_points = 0, pins = 0, pinned_tokens = 0, restore_points = 0;
  // Totals since creation.
  std::uint64_t begins = 0, hits = 0, matched_tokens = 0, reused_tokens = 0, computed_tokens = 0, adopted_tokens = 0;
  std::uint64_t steps = 0, dropped_steps = 0, branches = 0, rewinds = 0;
  std::uint64_t proposed_tokens = 0, accepted_tokens = 0;  // drafts that were decided about, and those that were right
  std::uint64_t page_outs = 0, page_out_bytes = 0, page_ins = 0, page_in_bytes = 0;
  std::uint64_t evicted_tokens = 0, expired_tokens = 0, expired_pins = 0, checksum_failures = 0;
  std::uint64_t captures = 0, skipped_captures = 0, dropped_points = 0;
  std::uint64_t unusable_snapshots = 0;  // complete, but of no use to this cache
  std::uint64_t keyless_sessions = 0;    // closed ones whose state stays in the process: no key for their namespace
  std::uint64_t recomputed_instead = 0;  // tokens that `begin` left in lower tiers, as computing them is faster
  // Measured by the clock (cost_model.h); none until there are enough measurements.
  std::optional<double> seconds_per_token, seconds_per_decoded_token, host_seconds_per_byte, disk_seconds_per_byte;
  std::optional<double> store_seconds_per_byte, seconds_per_store_call;  // of a call that brings next to nothing
};

}  // namespace kvtrie
