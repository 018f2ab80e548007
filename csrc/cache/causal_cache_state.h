// The inside of a CausalCache: what its mutex guards.
//
//   causal_cache.cpp      creation, sequences, questions
//   causal_forward.cpp    forwards: claims, puts, attention, completion
//   causal_get.cpp        histories and masks for models that do their own attention
//   causal_lending.cpp    what the prefix cache builds on
//   causal_editing.cpp    copies, removals, compaction
//   causal_snapshot.cpp   snapshots and scheduled captures
//   causal_check.cpp      invariants and the dump
//
// A sequence carries two stamps. `epoch` changes when its contents are cut: a complete forward that saw the old
// contents may not attend any more. `layout` changes when the same contents lie in other cells: such a forward plans
// again.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "cache/causal_cache.h"

namespace kvtrie {

// Scheduled captures: entry i of `captured` is for offsets[i]; the first `fired` are done.
struct CaptureSchedule {
  std::vector<std::int32_t> offsets;
  std::vector<CausalCache::SnapshotPtr> captured;
  std::size_t fired = 0;
  std::int32_t cursor = 0;  // where the next capture starts; moves only when one fires
};

struct Sequence {
  explicit Sequence(CellPool& pool) : borrowed(pool, false), own(pool, true) {}

  SpanList borrowed;  // positions [0, borrowed.end_position())
  SpanList own;       // from there on
  Reservation reservation;
  Forward::State* forward = nullptr;  // the open forward it is in
  CaptureSchedule schedule;
  std::uint64_t epoch = 0, layout = 0;
  bool is_private = false;

  std::int32_t length() const noexcept { return own.empty() ? borrowed.end_position() : own.end_position(); }
  Cell after() const noexcept;  // last cell + 1; 0 when empty
  CellSpans history() const;
};

struct CausalCache::State {
  State(std::unique_ptr<KvStore> store_in, Options options_in);
  ~State();  // lists that outlive the cache still release, but tell nobody

  // --- set at creation -------------------------------------------------------------------------------------------
  const std::unique_ptr<KvStore> store;
  const std::shared_ptr<CellPool> pool;
  const Options options;
  std::map<std::int32_t, std::uint32_t> layer_index;
  std::vector<ops::RopeParams> rope;  // per layer; empty: shifts are not supported

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable std::mutex mutex;
  std::unordered_map<SequenceId, Sequence> sequences;
  std::vector<Forward::State*> open_forwards;
  ForwardPtr current;  // what start_forward made last
  SequenceId next_opened = kFirstOpenedSequence;
  std::uint32_t growth = 256;
  std::uint64_t stamp = 0;
  bool attached = false;
  bool damaged = false;  // a device failure left cells with unknown bytes

  // All below: `mutex` is held.
  std::uint32_t index_of(std::int32_t layer, const char* where) const;
  Sequence* find(SequenceId id);
  const Sequence* find(SequenceId id) const;
  Sequence& known(SequenceId id, const char* where);  // kArgument for an unknown one
  const Sequence& known(SequenceId id, const char* where) const;
  void require_idle(const Sequence& sequence, const char* where) const;
  void require_sound(const char* where) const;
  // Readies a sequence for a change: drops the forward of start_forward that it is in; kBusy for any other.
  void make_idle(Sequence& sequence, const char* where);
  Sequence& open(SequenceId id);                 // existing or new
  void forget_if_empty(SequenceId id) noexcept;  // the caller's own numbers need no entry at length 0
  void cut(Sequence& sequence, std::int32_t length) noexcept;
  void drop(Forward::State& forward) noexcept;     // gives its cells back
  void discard(Forward::State& forward) noexcept;  // and forgets sequences that it brought into being
  void complete(Forward::State& forward);          // strong: throws before anything changed
  std::vector<SpanList> capture(const Sequence& sequence, const SpanList& claimed) const;
  SnapshotPtr make_snapshot(SpanList cells, bool is_private, const std::weak_ptr<State>& owner) const;
};

// Rows [row, row + count) of a forward are the positions from `position` of part `part`.
struct ForwardBlock {
  std::uint32_t row = 0, count = 0;
  std::size_t part = 0;
  std::int32_t position = 0;
};

// One sequence's share in a forward.
struct ForwardPart {
  SequenceId id = 0;
  std::int32_t begin = 0;  // its length when the forward began
  std::uint32_t count = 0;
  SpanList claimed;  // until completion
  std::uint64_t epoch = 0, layout = 0;

  std::int32_t end() const noexcept { return begin + static_cast<std::int32_t>(count); }
};

struct Forward::State {
  enum class Status : std::uint8_t { kOpen, kComplete, kDropped };

  std::weak_ptr<CausalCache::State> owner;
  std::atomic<Status> status = Status::kOpen;
  std::uint32_t rows = 0;
  std::vector<ForwardPart> parts;
  std::vector<ForwardBlock> blocks;
  std::vector<bool> put;  // per layer index
  std::size_t puts = 0;
  PreparedStepPtr step;  // null once dropped
};

// causal_forward.cpp: what a part sees, its own rows included; and what attend and get ask first (returns the layer's
// index).
CellSpans history_of(const CausalCache::State& state, const ForwardPart& part);
std::uint32_t require_readable(const std::shared_ptr<CausalCache::State>& state, Forward::State& forward,
                               std::int32_t layer, const char* where);

struct CausalCache::Snapshot::Contents {
  std::weak_ptr<CausalCache::State> owner;
  SpanList cells;
  std::int32_t start = 0, end = 0;
  bool is_private = false;
  std::atomic<bool> consumed = false;
};

}  // namespace kvtrie
