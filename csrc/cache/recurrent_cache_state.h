// The inside of a RecurrentCache: what its mutex guards.
//
//   recurrent_cache.cpp      creation, sequences, owners
//   recurrent_points.cpp     what is held at a length: cut, resumed, and its images
//   recurrent_forward.cpp    forwards: claims, completion, drops
//   recurrent_layers.cpp     what is written in them: operations and states
//   recurrent_hold.cpp       the same for all layers at once
//   recurrent_snapshot.cpp   copies, removals, snapshots and scheduled captures
//   recurrent_check.cpp      invariants and the dump
//
// Lock order: a cache's mutex, then its pool's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/cache_base.h"
#include "cache/recurrent_cache.h"
#include "cache/scheduled_captures.h"

namespace kvtrie {

struct StateSequence {
  std::int32_t length = 0;
  SlotRef slot;  // none exactly at length 0
  Owner owner = kOwnCallers;
  StateForward::State* forward = nullptr;
  CaptureSchedule<RecurrentCache::SnapshotPtr> schedule;  // in any order: a state is taken where one is
};

struct RecurrentCache::State : CacheBase<StateSequence, StateForward> {
  static constexpr char kName[] = "recurrent_cache";
  static constexpr bool kWhole = true;
  using Contents = Snapshot::Contents;

  State(std::unique_ptr<StateStore> store_in, std::vector<std::int32_t> layers_in);
  ~State();  // slots that outlive the cache still go back to the pool, but tell nobody

  // --- set at creation -------------------------------------------------------------------------------------------
  const std::unique_ptr<StateStore> store KVTRIE_POINTEE_GUARDED_BY(mutex);
  const StateShape& shape;  // of the store
  const std::shared_ptr<StatePool> pool;
  const std::vector<std::int32_t> layers;

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  std::vector<StateForward::State*> open_forwards KVTRIE_GUARDED_BY(mutex);
  bool attached KVTRIE_GUARDED_BY(mutex) = false;

  // Readies a sequence for a change: drops the forward of start_forward that it is in; kBusy for any other.
  void make_idle(StateSequence& sequence, const char* where) KVTRIE_REQUIRES(mutex);
  StateSequence& open(SequenceId id) KVTRIE_REQUIRES(mutex);  // existing or new
  // Slots claimed for these owners become theirs, cleared where they were another's.
  void take_over(std::span<const SlotRef> claimed, std::span<const Owner> by) KVTRIE_REQUIRES(mutex);
  // False: it was not open any more.
  bool drop(StateForward::State& forward) noexcept KVTRIE_REQUIRES(mutex);  // gives its slots back
  // The same, and forgets sequences that it brought into being.
  bool discard(StateForward::State& forward) noexcept KVTRIE_REQUIRES(mutex);
  void complete(StateForward::State& forward) KVTRIE_REQUIRES(mutex);  // strong: throws before anything changed

  // sequences_of.h; recurrent_snapshot.cpp.
  struct Restoring {};
  bool busy(const StateSequence& sequence) const noexcept KVTRIE_REQUIRES(mutex);
  void require_resumable(const StateSequence& sequence, std::int32_t length, const char* where) const
      KVTRIE_REQUIRES(mutex);
  void cut(StateSequence& sequence, std::int32_t length) noexcept KVTRIE_REQUIRES(mutex);
  SlotRef prefix(const StateSequence& sequence, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  void become(StateSequence& sequence, std::int32_t length, SlotRef slot) noexcept KVTRIE_REQUIRES(mutex);
  [[noreturn]] void remove_middle(StateSequence& sequence, std::int32_t begin, std::int32_t end, const char* where)
      KVTRIE_REQUIRES(mutex);
  static std::unique_ptr<Contents> no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                               std::int32_t end);
  std::unique_ptr<Contents> contents_of(const std::shared_ptr<State>& self, const StateSequence& sequence,
                                        std::int32_t start, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  // Of the state in `slot`.
  static SnapshotPtr make_snapshot(const std::shared_ptr<State>& self, SlotRef slot, std::int32_t start,
                                   std::int32_t end);
  std::optional<Restoring> plan_restore(SequenceId id, const Contents* contents, std::int32_t target) const
      KVTRIE_REQUIRES(mutex);
  void restore(SequenceId id, const Restoring& plan, const Contents* contents, std::int32_t target, const char* where)
      KVTRIE_REQUIRES(mutex);
  void begin_schedule(const std::shared_ptr<State>& self, StateSequence& sequence,
                      CaptureSchedule<SnapshotPtr>& schedule, const char* where) KVTRIE_REQUIRES(mutex);
};

// A sequence in a forward: `count` rows from `row`, in which its length goes from `begin` to end().
struct StateForwardSequence {
  SequenceId id = 0;
  std::uint32_t row = 0, count = 0;
  std::int32_t begin = 0;
  std::vector<std::int32_t> boundaries;  // lengths, ascending, between begin and end()
  SlotRef from;                          // until completion
  std::vector<SlotRef> slots;            // per boundary, then (until completion) for the end

  std::int32_t end() const noexcept { return begin + static_cast<std::int32_t>(count); }
};

struct StateForward::State {
  enum class Status : std::uint8_t { kOpen, kComplete, kDropped };
  struct Written {
    bool conv = false, delta = false;
  };

  std::weak_ptr<RecurrentCache::State> owner;
  std::atomic<Status> status = Status::kOpen;
  std::uint32_t rows = 0;       // padding included
  bool keeps_captured = false;  // for take_captured: of begin; else only schedules keep what they asked for
  std::vector<StateForwardSequence> sequences;
  std::vector<Written> written;  // per layer index
  std::size_t missing = 0;       // halves that are still to be written
  PreparedStatesPtr step;        // from the first operation on

  std::size_t slots() const noexcept;  // that it claimed
  // States that its layers write, conv and delta each.
  static std::size_t halves(const StateShape& shape) noexcept {
    return std::size_t{shape.layers} * (std::size_t{shape.has_conv()} + std::size_t{shape.has_delta()});
  }
  // kArgument for a forward of another cache, kClosed for one that is over.
  void require_open(const std::shared_ptr<RecurrentCache::State>& state, const char* where) const;
  std::vector<ops::StateRows> rows_of_sequences() const;  // while open
};

struct RecurrentContents {
  std::weak_ptr<RecurrentCache::State> owner;
  SlotRef slot;
  std::int32_t start = 0, end = 0;
  std::atomic<bool> consumed = false;

  std::uint64_t bytes(bool alone) const;
  void take(RecurrentContents& from) noexcept;
  void join(RecurrentContents& first, RecurrentContents& second) noexcept;
};

}  // namespace kvtrie
