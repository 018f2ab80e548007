// The inside of an EncoderCache: what its mutex guards.
//
//   encoder_cache.cpp           creation, sequences, questions
//   encoder_cache_forward.cpp   forwards: rows, claims, ends
//   encoder_cache_layers.cpp    forwards: puts, attention, histories
//   encoder_cache_editing.cpp   copies, removals, compaction
//   encoder_cache_snapshot.cpp  snapshots and scheduled captures
//   encoder_cache_check.cpp     invariants and the dump
//
// The life of a forward:
//
//     kText  ---- put, or started with items ---->  kOpen  ---- last layer ---->  kComplete
//       |  \------------ ends: its rows count -----------------------------------^
//       \---------------- dropped ----------------->  kDropped  <------ ends, or dropped ----- kOpen
//
// Only the forward that start_forward made last is ever kText or kOpen.
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
#include "cache/scheduled_captures.h"
#include "standalone/encoder_cache.h"

namespace kvtrie {

struct EncoderSequence {
  explicit EncoderSequence(CellPool& pool) : cells(pool, true) {}

  SpanList cells;                            // of the item, labelled from 0; empty: no item
  std::int32_t position = 0;                 // of the item
  std::int32_t length = 0;                   // without the rows of a forward that has not ended
  EncoderForward::State* forward = nullptr;  // while that is kText or kOpen
  CaptureSchedule<EncoderCache::SnapshotPtr> schedule;
  std::uint64_t epoch = 0;  // changes with the item

  bool has_item() const noexcept { return !cells.empty(); }
};

struct EncoderCache::State : CacheBase<EncoderSequence, EncoderForward> {
  static constexpr char kName[] = "encoder_cache";
  static constexpr bool kWhole = false;
  using Contents = Snapshot::Contents;

  State(std::unique_ptr<KvStore> store_in, std::vector<std::int32_t> layers_in);
  ~State();  // lists that outlive the cache still release, but tell nobody

  // --- set at creation -------------------------------------------------------------------------------------------
  const std::unique_ptr<KvStore> store KVTRIE_POINTEE_GUARDED_BY(mutex);
  const KvShape& shape;  // of the store
  const std::shared_ptr<CellPool> pool;
  const std::vector<std::int32_t> layers;

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  std::uint64_t stamp KVTRIE_GUARDED_BY(mutex) = 0;   // of epochs
  std::uint64_t layout KVTRIE_GUARDED_BY(mutex) = 0;  // changes when cells move
  bool damaged KVTRIE_GUARDED_BY(mutex) = false;      // a device failure left cells with unknown bytes

  EncoderSequence& open(SequenceId id) KVTRIE_REQUIRES(mutex);  // existing or new
  void require_sound(const char* where) const KVTRIE_REQUIRES(mutex);
  std::int32_t length_of(SequenceId id) const KVTRIE_REQUIRES(mutex);      // the rows of a kText forward count
  EncoderForward::State* unended() const noexcept KVTRIE_REQUIRES(mutex);  // the forward that is kText or kOpen; null
  // Readies a sequence for a change: ends the forward that it is in. Strong: throws before anything changed.
  void make_idle(EncoderSequence& sequence, const char* where) KVTRIE_REQUIRES(mutex);
  // Rows that brought nothing count, unfinished items go; strong.
  void end(EncoderForward::State& forward) KVTRIE_REQUIRES(mutex);
  void complete(EncoderForward::State& forward) KVTRIE_REQUIRES(mutex);  // strong, too
  void drop(EncoderForward::State& forward) noexcept KVTRIE_REQUIRES(mutex);
  // Sequences that the forward brought into being and left empty, but for `kept`.
  void forget_empty(const EncoderForward::State& forward, const EncoderSequence* kept = nullptr) noexcept
      KVTRIE_REQUIRES(mutex);
  void let_go(EncoderSequence& sequence) noexcept KVTRIE_REQUIRES(mutex);  // of its item
  // A snapshot that fires when the sequence, with this item, reaches `length`.
  std::vector<SnapshotPtr> capture(const EncoderSequence& sequence, const CellSpans& cells, std::int32_t position,
                                   std::int32_t length, const std::shared_ptr<State>& self) const
      KVTRIE_REQUIRES(mutex);

  // sequences_of.h; encoder_cache_editing.cpp and encoder_cache_snapshot.cpp.
  struct Prefix {
    SpanList cells;
    std::int32_t position = 0;
  };
  // The item is the snapshot's or, when that stands below `kept`, the sequence's own.
  struct Restoring {
    bool from_snapshot = false;
    std::int32_t kept = 0;
  };
  static bool busy(const EncoderSequence&) noexcept { return false; }
  static void require_resumable(const EncoderSequence&, std::int32_t, const char*) noexcept {}
  void cut(EncoderSequence& sequence, std::int32_t length) noexcept KVTRIE_REQUIRES(mutex);
  Prefix prefix(const EncoderSequence& sequence, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  void become(EncoderSequence& sequence, std::int32_t length, Prefix prefix) noexcept KVTRIE_REQUIRES(mutex);
  void remove_middle(EncoderSequence& sequence, std::int32_t begin, std::int32_t end, const char* where)
      KVTRIE_REQUIRES(mutex);
  static std::unique_ptr<Contents> no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                               std::int32_t end);
  std::unique_ptr<Contents> contents_of(const std::shared_ptr<State>& self, const EncoderSequence& sequence,
                                        std::int32_t start, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  std::optional<Restoring> plan_restore(SequenceId id, const Contents* contents, std::int32_t target) const
      KVTRIE_REQUIRES(mutex);
  void restore(SequenceId id, const Restoring& plan, const Contents* contents, std::int32_t target, const char* where)
      KVTRIE_REQUIRES(mutex);
  void begin_schedule(const std::shared_ptr<State>&, EncoderSequence& sequence, CaptureSchedule<SnapshotPtr>&,
                      const char*) KVTRIE_REQUIRES(mutex) {
    end_rows(sequence);
  }
  // Rows without an item came before what is scheduled next, or are in what is taken.
  void end_rows(const EncoderSequence& sequence) KVTRIE_REQUIRES(mutex);
};

// Rows [row, row + count) of a forward are the positions from `position` of its `sequence`-th sequence.
struct EncoderBlock {
  std::uint32_t row = 0, count = 0;
  std::size_t sequence = 0;
  std::int32_t position = 0;
};

// A sequence in a forward: its rows are the positions [begin, end).
struct EncoderForwardSequence {
  SequenceId id = 0;
  std::int32_t begin = 0, end = 0;
  std::int32_t item_position = 0;  // of the item that it brings; counts while there is one
  SpanList claimed;                // its cells, until completion
  std::uint64_t epoch = 0;
};

struct EncoderForward::State {
  enum class Status : std::uint8_t { kText, kOpen, kComplete, kDropped };

  std::weak_ptr<EncoderCache::State> owner;
  std::atomic<Status> status = Status::kDropped;
  std::atomic<bool> brings = false;
  std::uint32_t rows = 0, item_rows = 0;  // of text; of put()
  std::vector<EncoderForwardSequence> sequences;
  std::vector<EncoderBlock> blocks;
  std::vector<std::size_t> bringing;  // the sequences that bring items, in the order of put()'s rows
  std::vector<bool> put;              // per layer index
  std::size_t puts = 0;
  PreparedStepPtr step;  // null until it is needed
  std::uint64_t layout = 0;

  const EncoderForwardSequence* find(SequenceId id) const noexcept;
};

// encoder_cache_forward.cpp: claims the items of a forward that has none yet, which is kOpen then. Strong.
void claim_items(EncoderCache::State& state, EncoderForward::State& forward, std::span<const EncoderItem> items,
                 const char* where) KVTRIE_REQUIRES(state.mutex);

// The cells that a snapshot holds of [start, end).
struct EncoderContents {
  std::weak_ptr<EncoderCache::State> owner;
  SpanList cells;  // of the item, labelled from 0; empty: none stands there
  std::int32_t position = 0, start = 0, end = 0;
  std::atomic<bool> consumed = false;

  std::uint64_t bytes(bool alone) const;
  void take(EncoderContents& from) noexcept;
  void split(std::int32_t at, EncoderContents& lower, EncoderContents& upper) noexcept;
  void join(EncoderContents& first, EncoderContents& second) noexcept;
  bool has_item_below(std::int32_t target) const noexcept { return !cells.empty() && position < target; }
};

}  // namespace kvtrie
