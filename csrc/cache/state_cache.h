// A cache as its owner sees it that shares it between conversations and makes room in it, whatever kind of state it
// keeps.
//
// Concept. State lies in *units* of a pool: a cell for each token of attention, a slot for the whole state of recurrent
// layers at one length. Sequences hold units; so do others, by reference. A unit that nobody holds is free. A limit
// hides the rest of the pool: at most so many are held at once, whichever they are.
//
// Two families derive from this: CausalCache has a cell for each token, of which some may go (a window, a chunk);
// PointCache (point_cache.h) has states at single lengths.
//
// Threads: every method may be called from any thread; none waits for the device. Units: where nothing else is said,
// units of the pool. A call that throws has changed nothing.
#pragma once

#include <cstdint>
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
  std::uint8_t format = 0;          // the code of a CellFormat (base/cell_format.h)
  std::vector<std::int64_t> shape;  // numbers of the kind, the first one how many layers it has
};

class StateCache {
 public:
  StateCache() = default;
  virtual ~StateCache() = default;
  StateCache(const StateCache&) = delete;
  StateCache& operator=(const StateCache&) = delete;

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

  virtual std::vector<std::string> check() const = 0;  // empty when every invariant holds
};

}  // namespace kvtrie
