// The inside of a CausalCache: what its mutex guards.
//
//   causal_cache.cpp      creation, sequences, questions
//   causal_forward.cpp    forwards: claims, the rows' bounds, dropping
//   causal_attend.cpp     forwards: puts, attention, completion
//   causal_hold.cpp       forwards whose layers are computed together
//   causal_union.h        the cells that a forward's rows see, numbered
//   causal_get.cpp        histories and masks for models that do their own attention
//   causal_chosen.cpp     attention to chosen keys
//   causal_window.cpp     what a windowed sequence holds, and how it lets go
//   causal_lending.cpp    what the prefix cache builds on
//   causal_editing.cpp    copies, removals, compaction
//   causal_snapshot.cpp   snapshots and scheduled captures
//   causal_check.cpp      invariants and the dump
//
// A windowed sequence of length n holds the positions [held_from, n) without gaps; what lies below is gone. It may
// hold nothing and still have a length: where no later query sees what came before.
//
//     positions   0 ........ held_from ...... borrowed_end ...... length
//                 gone       borrowed         own
//     or          0 ........ borrowed_end ... held_from ......... length
//                 gone                        own
//
// A sequence carries two stamps. `epoch` changes when its contents are cut: a complete forward that saw the old
// contents may not attend any more. `layout` changes when the same contents lie in other cells: such a forward plans
// again. Letting go at the front changes neither: the last complete forward holds what its rows saw (`passed`).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/cache_base.h"
#include "cache/causal_cache.h"
#include "cache/cell_owners.h"
#include "cache/scheduled_captures.h"

namespace kvtrie {

struct Sequence {
  Sequence(CellPool& pool, bool windowed) : borrowed(pool, windowed), own(pool, true) {}

  SpanList borrowed;  // up to borrowed_end; counted in a windowed cache
  SpanList own;       // from there on
  std::int32_t length = 0;
  std::int32_t borrowed_end = 0;
  Reservation reservation;
  Forward::State* forward = nullptr;  // the open forward it is in
  std::weak_ptr<SpanList> passed;     // what it let go of and its last complete forward still holds
  CaptureSchedule<CausalCache::SnapshotPtr> schedule;
  std::uint64_t epoch = 0, layout = 0;
  Owner owner = kOwnCallers;
  bool is_private = false;

  std::int32_t held_from() const noexcept {
    return !borrowed.empty() ? borrowed.begin_position() : own.empty() ? length : own.begin_position();
  }
  Cell after() const noexcept;  // last cell + 1; 0 when it holds none
  CellSpans history() const;
  void let_passed_go() noexcept;
};

struct CausalCache::State : CacheBase<Sequence, Forward> {
  static constexpr char kName[] = "causal_cache";
  static constexpr bool kWhole = false;
  using Contents = Snapshot::Contents;

  State(std::unique_ptr<KvStore> store_in, Options options_in);
  ~State();  // lists that outlive the cache still release, but tell nobody

  // --- set at creation -------------------------------------------------------------------------------------------
  const std::unique_ptr<KvStore> store KVTRIE_POINTEE_GUARDED_BY(mutex);
  const KvShape& shape;  // of the store
  const std::shared_ptr<CellPool> pool;
  const Options options;
  std::vector<ops::RopeParams> rope;  // per layer; empty: shifts are not supported

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  std::vector<Forward::State*> open_forwards KVTRIE_GUARDED_BY(mutex);
  CellOwners owners KVTRIE_GUARDED_BY(mutex);
  std::uint32_t growth KVTRIE_GUARDED_BY(mutex) = 256;
  std::uint64_t stamp KVTRIE_GUARDED_BY(mutex) = 0;
  bool attached KVTRIE_GUARDED_BY(mutex) = false;
  bool damaged KVTRIE_GUARDED_BY(mutex) = false;  // a device failure left cells with unknown bytes

  // --- guarded by `registry`, taken last; snapshots go on any thread, also while `mutex` is held -------------------
  mutable Mutex registry;
  std::unordered_set<const Snapshot::Contents*> snapshots KVTRIE_GUARDED_BY(registry);

  void require_sound(const char* where) const KVTRIE_REQUIRES(mutex);
  // Readies a sequence for a change: drops the forward of start_forward that it is in; kBusy for any other.
  void make_idle(Sequence& sequence, const char* where) KVTRIE_REQUIRES(mutex);
  Sequence& open(SequenceId id) KVTRIE_REQUIRES(mutex);  // existing or new
  void cut(Sequence& sequence, std::int32_t length) noexcept KVTRIE_REQUIRES(mutex);
  // False: it was not open any more.
  bool drop(Forward::State& forward) noexcept KVTRIE_REQUIRES(mutex);  // gives its cells back
  // The same, and forgets sequences that it brought into being.
  bool discard(Forward::State& forward) noexcept KVTRIE_REQUIRES(mutex);
  void complete(Forward::State& forward) KVTRIE_REQUIRES(mutex);  // strong: throws before anything changed
  // A snapshot that fires when the sequence reaches `length` with this history.
  std::vector<SnapshotPtr> capture(const Sequence& sequence, const CellSpans& history, std::int32_t length,
                                   const std::shared_ptr<State>& self) const KVTRIE_REQUIRES(mutex);

  // sequences_of.h; causal_editing.cpp and causal_snapshot.cpp.
  struct Prefix {
    SpanList cells;
    bool is_private = false;
  };
  // What a sequence holds below `kept` stays, [share_from, target) is the snapshot's.
  struct Restoring {
    std::int32_t kept = 0, share_from = 0;
  };
  bool busy(const Sequence& sequence) const noexcept KVTRIE_REQUIRES(mutex);
  Prefix prefix(const Sequence& sequence, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  void become(Sequence& sequence, std::int32_t length, Prefix prefix) noexcept KVTRIE_REQUIRES(mutex);
  void remove_middle(Sequence& sequence, std::int32_t begin, std::int32_t end, const char* where)
      KVTRIE_REQUIRES(mutex);
  static std::unique_ptr<Contents> no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                               std::int32_t end);
  std::unique_ptr<Contents> contents_of(const std::shared_ptr<State>& self, const Sequence& sequence,
                                        std::int32_t start, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  std::optional<Restoring> plan_restore(SequenceId id, const Contents* contents, std::int32_t target) const
      KVTRIE_REQUIRES(mutex);
  void restore(SequenceId id, const Restoring& plan, const Contents* contents, std::int32_t target, const char* where)
      KVTRIE_REQUIRES(mutex);

  // Newly claimed cells become the sequence's owner's, cleared where they were another's; with them what is kept back
  // behind, so that growing token by token does not clear token by token.
  void take_over(const SpanList& claimed, const Sequence& sequence) KVTRIE_REQUIRES(mutex);
  // Fills with zeros what of it is foreign to the owner.
  void clear(Cell begin, std::uint32_t length, Owner owner) KVTRIE_REQUIRES(mutex);

  // causal_window.cpp.
  bool is_windowed() const noexcept { return !options.visibility.full(); }
  // The first position that a sequence of this length keeps by itself.
  std::int32_t retained_from(std::int32_t length) const noexcept;
  // Whether everything is held that the query at `position` sees below itself, when [held_from, position) is held.
  bool complete_at(std::int32_t position, std::int32_t held_from) const noexcept;
  bool resumable(const Sequence& sequence, std::int32_t position) const noexcept KVTRIE_REQUIRES(mutex);
  // kNotRestorable unless resumable. REQUIRES: 0 <= position <= length.
  void require_resumable(const Sequence& sequence, std::int32_t position, const char* where) const
      KVTRIE_REQUIRES(mutex);
  [[noreturn]] void fail_incomplete(const Sequence& sequence, std::int32_t position, const char* where) const
      KVTRIE_REQUIRES(mutex);
};

// Rows [row, row + count) of a forward are the positions from `position` of its `sequence`-th sequence.
struct ForwardBlock {
  std::uint32_t row = 0, count = 0;
  std::size_t sequence = 0;
  std::int32_t position = 0;
};

// A sequence in a forward: its rows are the positions [begin, end). Those from `length` on are stored, in `claimed`.
struct ForwardSequence {
  SequenceId id = 0;
  std::int32_t begin = 0;
  std::uint32_t count = 0;
  std::int32_t length = 0;           // of the sequence when the forward began
  std::int32_t sees_from = 0;        // the first position that any of its rows sees
  SpanList claimed;                  // until completion
  std::shared_ptr<SpanList> passed;  // from completion on, in a windowed cache: below the sequence's held_from
  std::uint64_t epoch = 0, layout = 0;

  std::int32_t end() const noexcept { return begin + static_cast<std::int32_t>(count); }
  std::uint32_t fresh() const noexcept { return end() > length ? static_cast<std::uint32_t>(end() - length) : 0; }
};

struct ChosenCells;  // causal_chosen.cpp

struct Forward::State {
  enum class Status : std::uint8_t { kOpen, kComplete, kDropped };

  std::weak_ptr<CausalCache::State> owner;
  std::atomic<Status> status = Status::kOpen;
  bool lets_go_unseen = false;  // when it is complete: of what its sequences no longer see
  bool was_read = false;        // a layer was attended or got: which rows are causal is settled
  std::uint32_t rows = 0;
  std::vector<ForwardSequence> sequences;
  std::vector<ForwardBlock> blocks;
  std::vector<std::uint32_t> not_causal;  // ascending rows that see all rows of their sequence
  std::vector<bool> put;                  // per layer index
  std::size_t puts = 0;
  PreparedStepPtr step;                 // null until it is needed, and once dropped
  std::shared_ptr<ChosenCells> chosen;  // of a step that chooses keys

  bool causal(std::uint32_t row) const noexcept;
  std::uint64_t fresh() const noexcept;  // cells it claims
};

// causal_forward.cpp: what a sequence's rows see, themselves included; and [first, end) of one row.
CellSpans history_of(const CausalCache::State& state, const ForwardSequence& in_forward) KVTRIE_REQUIRES(state.mutex);
ops::RowBounds bounds_of(const CausalCache::State& state, const Forward::State& forward, const ForwardBlock& block,
                         std::uint32_t index);
PreparedStepPtr prepare(CausalCache::State& state, const Forward::State& forward) KVTRIE_REQUIRES(state.mutex);
void require_of(const std::shared_ptr<CausalCache::State>& state, const Forward::State& forward, const char* where);
// causal_attend.cpp: what attend and get ask first; returns the layer's index.
std::uint32_t require_readable(const std::shared_ptr<CausalCache::State>& state, Forward::State& forward,
                               std::int32_t layer, const char* where) KVTRIE_REQUIRES(state->mutex);

// The cells that a snapshot holds of [start, end): lists in position order, none empty, with gaps between them.
struct CausalContents {
  CausalContents(const std::shared_ptr<CausalCache::State>& state, std::int32_t start_in, std::int32_t end_in);
  ~CausalContents();
  CausalContents(const CausalContents&) = delete;
  CausalContents& operator=(const CausalContents&) = delete;

  std::weak_ptr<CausalCache::State> owner;
  std::vector<SpanList> held;
  std::int32_t start = 0, end = 0;
  bool is_private = false;
  std::atomic<bool> consumed = false;

  std::uint64_t bytes(bool alone) const;
  CellSpans spans() const;
  void take(CausalContents& from) noexcept;
  void split(std::int32_t at, CausalContents& lower, CausalContents& upper);
  void join(CausalContents& first, CausalContents& second);
  // The run of held positions that ends at `position`: [first of the result, position); `position` when there is none.
  std::int32_t held_from(std::int32_t position) const noexcept;
};

}  // namespace kvtrie
