// What a caller does with the sequences of one cache that it drives by itself (docs/tensors.md): copies, removals and
// snapshots. CausalCache, RecurrentCache and EncoderCache derive from it; what is the same for all of them is written
// once, in sequences_of.h, and what a kind keeps of a sequence is said by its State.
//
// Concept. Nothing here moves bytes: copies and snapshots are further holds on the same units. Where a sequence can be
// cut, and what a snapshot brings back, is the kind's:
//
//     kind        can be cut to                       a snapshot of [start, end) holds
//     causal      any length whose window is held     the cells of [start, end) that were still there
//     recurrent   0 and its length                    the state at `end`
//     encoder     any length                          the cells of the item that stands there, if any
//
// A changed sequence leaves the forward of start_forward that it is in: it is dropped, or, where its rows brought
// nothing that is still missing, ends. One of begin means kBusy.
//
// Threads: every method may be called from any thread. Units: tokens. A call that throws has changed nothing, but for
// what causal_cache.h says about removals.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/cache_snapshot.h"
#include "cache/layer_cache.h"

namespace kvtrie {

template <class Cache, class Contents>
class Sequences {
 public:
  using Snapshot = CacheSnapshot<Cache, Contents>;
  using SnapshotPtr = std::shared_ptr<Snapshot>;

  // `to` is opened or replaced by [0, length) of `from`. from == to: truncation. kNotRestorable where `from` cannot be
  // cut to the length.
  void copy_prefix(SequenceId from, SequenceId to, std::int32_t length);
  // Removes [begin, end), by default to the end: then kNotRestorable where the sequence cannot be cut to `begin`. In
  // the middle what follows moves down to `begin`; kNotSupported where the kind cannot.
  void remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end = std::nullopt);
  bool busy(SequenceId id) const;  // in an open forward of begin: changes are refused

  // [start, length); null when that range is empty.
  SnapshotPtr snapshot(SequenceId id, std::int32_t start);
  // True: the sequence has exactly `target` tokens now. False, with nothing changed: the snapshot (null: the sequence
  // itself) does not reach so far, or what it holds and what the sequence holds below it is not all that is needed
  // there. kClosed for a snapshot that was consumed.
  bool restore(SequenceId id, const SnapshotPtr& snapshot_or_null, std::int32_t target);
  bool can_restore(SequenceId id, const SnapshotPtr& snapshot_or_null, std::int32_t target) const;
  // Both consume their arguments; null is an empty snapshot. Merged ones are adjacent.
  std::pair<SnapshotPtr, SnapshotPtr> split(const SnapshotPtr& snapshot, std::int32_t at);
  SnapshotPtr merge(const SnapshotPtr& a, const SnapshotPtr& b);
  // Captures during later forwards at `offsets` (ascending, none below the length, no schedule undrained). The first
  // begins at the present length, each other one at the one before. take_snapshots: one entry per offset, null where
  // nothing is held or the sequence never came by; the schedule is over.
  void prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets);
  std::vector<SnapshotPtr> take_snapshots(SequenceId id);

 protected:
  ~Sequences() = default;

 private:
  const auto& state() const noexcept { return static_cast<const Cache&>(*this).state_; }
};

}  // namespace kvtrie
