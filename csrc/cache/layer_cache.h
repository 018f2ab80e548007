// A cache as its owner sees it that shares it between conversations and makes room in it, whatever kind of state it
// keeps.
//
// Concept. State lies in *units* of a pool: a cell for each token of attention, a slot for the whole state of recurrent
// layers at one length. Sequences hold units; so do others, by reference. A unit that nobody holds is free. A limit
// hides the rest of the pool: at most so many are held at once, whichever they are.
//
// A step claims units, and its sequences go on once every layer was written. A sequence can be cut to the lengths at
// which its cache still has what the next query needs:
//
//     units_for --> begin --every layer written--> complete      length(id) has grown
//                     '------------drop----------> as before     can_resume(id, t) --> truncate(id, t), hold(id, t)
//
// Two families derive from this: CausalCache has a cell for each token, of which some may go (a window, a chunk), and
// publishes them token by token; PointCache (point_cache.h) has states at single lengths.
//
// Threads: every method may be called from any thread; none waits for the device. Units: where nothing else is said,
// units of the pool; lengths in tokens. A call that throws has changed nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cell_owners.h"
#include "cache/held_state.h"
#include "cache/kv_store.h"

namespace kvtrie {

using SequenceId = std::int32_t;

// Numbers below this are the caller's own; `open_sequence` gives out numbers from here on.
inline constexpr SequenceId kFirstOpenedSequence = 1 << 30;

// The shape that a cache must have for bytes of another one to fit: compared exactly.
struct CacheIdentity {
  static constexpr std::uint8_t kAttention = 1, kRecurrent = 2;  // 128 to 255 are for kinds of others (docs/format.md)

  std::uint8_t kind = 0;
  std::uint8_t format = 0;          // the code of CellFormats (base/cell_format.h)
  std::vector<std::int64_t> shape;  // numbers of the kind, the first one how many layers it has
};

// `count` rows of a step that extend `sequence`.
struct ForwardRows {
  SequenceId sequence = 0;
  std::uint32_t count = 0;
  // Lengths at which states are wanted, ascending, each above the one at the beginning and below the one at the end,
  // whose state is always kept. For caches of states; of cells everything is there afterwards.
  std::vector<std::int32_t> boundaries = {};
  // The first row's position; -1: the sequence's length. Rows below the length are computed again: they see the cells
  // that are there and store nothing, the others extend the sequence. That is how a model whose other layers restart
  // earlier goes on. The cells that the first row sees must be held, else kNotRestorable. A state goes on at its length
  // only.
  std::int32_t from = -1;
};

// One open step of one cache. Destroying it before it is complete drops it.
class LayerForward {
 public:
  LayerForward() = default;
  virtual ~LayerForward() = default;
  LayerForward(const LayerForward&) = delete;
  LayerForward& operator=(const LayerForward&) = delete;

  virtual bool complete() const noexcept = 0;  // every layer was written; its sequences have advanced
  // Of each sequence, as lengths: those at which states come out. Another thread may drop the step meanwhile.
  virtual std::vector<std::vector<std::int32_t>> boundaries() const { return {}; }
  // The states at the boundaries of the i-th sequence of a complete step; once, then empty.
  virtual std::vector<HeldState> take_captured(std::size_t) { return {}; }
};
using LayerForwardPtr = std::shared_ptr<LayerForward>;

class LayerCache {
 public:
  LayerCache() = default;
  virtual ~LayerCache() = default;
  LayerCache(const LayerCache&) = delete;
  LayerCache& operator=(const LayerCache&) = delete;

  virtual const std::vector<std::int32_t>& layers() const noexcept = 0;  // the model's own numbers
  virtual std::uint64_t nbytes() const noexcept = 0;
  virtual CacheIdentity identity() const = 0;  // without the layers' numbers

  // --- the pool --------------------------------------------------------------------------------------------------
  virtual std::uint32_t capacity() const noexcept = 0;
  virtual std::uint32_t limit() const = 0;       // the most that may be held; the capacity unless it was set
  virtual std::uint32_t free_units() const = 0;  // that a claim could have at once, under the limit
  virtual std::uint64_t bytes_per_unit() const noexcept = 0;
  virtual std::uint32_t freed_by(const HeldState& state) const = 0;  // units of it that nobody else holds
  // False: more are held, nothing changed. REQUIRES: 1 to the capacity.
  [[nodiscard]] virtual bool set_limit(std::uint32_t units) = 0;

  // --- whose it is -----------------------------------------------------------------------------------------------
  // A cache belongs to one PrefixCache at a time: attach() throws kArgument when it already does. Units are cleared of
  // their earlier bytes when they are claimed. detach() ends a limit.
  virtual void attach() = 0;
  virtual void detach() noexcept = 0;
  // From now on, until it is detached: units are counted by the owner that they are claimed for (owner_counts.h).
  virtual void count_owners() = 0;
  virtual std::uint32_t held_by(Owner owner) const = 0;  // REQUIRES: count_owners
  // After a load or a clearing failed on the device: who claims any unit that is not clean gets it cleared.
  virtual void distrust_owners() = 0;
  virtual CompletionPtr mark() = 0;  // done when everything that was enqueued so far is

  // --- sequences -------------------------------------------------------------------------------------------------
  // Empty; ids are not reused while open. Units it claims that last were another owner's are cleared (cell_owners.h).
  virtual SequenceId open_sequence(Owner owner = kOwnCallers) = 0;
  virtual void close_sequence(SequenceId id) noexcept = 0;  // gives back what it holds; drops the open forward it is in
  virtual std::int32_t length(SequenceId id) const = 0;     // tokens; 0 for an unknown sequence
  // Makes [0, length) of `from` the history of the empty sequence `to`; no bytes move. REQUIRES: `from` can be resumed
  // there.
  virtual void fork(SequenceId from, SequenceId to, std::int32_t length) = 0;

  // Whether everything is there that the next query needs at `position`, up to the length.
  virtual bool can_resume(SequenceId id, std::int32_t position) const = 0;
  virtual void truncate(SequenceId id, std::int32_t length) = 0;  // REQUIRES: can_resume; 0 always can
  // Tokens whose units somebody else published; none of a kind that publishes none.
  virtual std::int32_t borrowed_length(SequenceId) const { return 0; }
  // Another hold on what the query at `length` needs; nothing at 0. REQUIRES: can_resume.
  virtual HeldState hold(SequenceId id, std::int32_t length) const = 0;

  // --- steps -----------------------------------------------------------------------------------------------------
  // What a step claims that extends the sequence to `end`, with the states at `boundaries` inside it.
  virtual std::uint32_t units_for(SequenceId id, std::int32_t end, std::span<const std::int32_t> boundaries) const = 0;
  // Claims what the rows need, or throws kCacheFull. kBusy: a sequence is in another one. Each cache has this also with
  // its own type of forward.
  LayerForwardPtr begin(std::span<const ForwardRows> rows) { return begin_any(rows); }
  virtual bool drop(LayerForward& forward) noexcept = 0;  // false: it was complete, dropped before, or another cache's

  virtual std::vector<std::string> check() const = 0;  // empty when every invariant holds

 private:
  virtual LayerForwardPtr begin_any(std::span<const ForwardRows> rows) = 0;
};

}  // namespace kvtrie
