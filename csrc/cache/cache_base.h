// The common part of all caches' insides: layers by number, sequences by number, and the forward that start_forward
// made last. Each kind of cache derives its State from this, with its own sequences and forwards.
//
// Concept. Two sorts of numbers name sequences: the caller's own, below kFirstOpenedSequence, come into being when they
// are first used and are forgotten when they are empty; those that open_sequence gives out stay until they are closed.
//
// Sequences have `length`, `forward` (null: in none) and `schedule` (scheduled_captures.h).
//
// Threads: as marked. Errors: kArgument for what is unknown, naming what is known.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/layer_cache.h"

namespace kvtrie {

template <class Sequence, class Forward>
struct CacheBase {
  // `layers`: the model's own numbers, as many as the store has. `cache`: for messages.
  CacheBase(const char* cache, std::span<const std::int32_t> layers, std::size_t stored) : name(cache) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const bool fresh = layer_index.emplace(layers[i], static_cast<std::uint32_t>(i)).second;
      require(fresh, name, "layers: got ", layers[i], " twice, allowed once");
    }
    require(layers.size() == stored, name, "layers: got ", layers.size(), ", allowed ", stored, " as the store has");
  }

  // --- set at creation -------------------------------------------------------------------------------------------
  const char* const name;
  std::map<std::int32_t, std::uint32_t> layer_index;

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable Mutex mutex;
  std::unordered_map<SequenceId, Sequence> sequences KVTRIE_GUARDED_BY(mutex);
  std::shared_ptr<Forward> current KVTRIE_GUARDED_BY(mutex);  // what start_forward made last
  SequenceId next_opened KVTRIE_GUARDED_BY(mutex) = kFirstOpenedSequence;

  std::uint32_t index_of(std::int32_t layer, const char* where) const {
    const auto entry = layer_index.find(layer);
    if (entry != layer_index.end()) return entry->second;
    fail(ErrorKind::kArgument, where, "layer: got ", layer, ", allowed the ", layer_index.size(),
         " layers of this cache, ", layer_index.begin()->first, " to ", layer_index.rbegin()->first);
  }

  Sequence* find(SequenceId id) KVTRIE_REQUIRES(mutex) {
    const auto entry = sequences.find(id);
    return entry == sequences.end() ? nullptr : &entry->second;
  }
  const Sequence* find(SequenceId id) const KVTRIE_REQUIRES(mutex) {
    const auto entry = sequences.find(id);
    return entry == sequences.end() ? nullptr : &entry->second;
  }
  Sequence& known(SequenceId id, const char* where) KVTRIE_REQUIRES(mutex) {
    require_known(id, where);
    return *find(id);
  }
  const Sequence& known(SequenceId id, const char* where) const KVTRIE_REQUIRES(mutex) {
    require_known(id, where);
    return *find(id);
  }
  std::int32_t length_of(SequenceId id) const KVTRIE_REQUIRES(mutex) {
    const Sequence* sequence = find(id);
    return sequence == nullptr ? 0 : sequence->length;
  }

  void require_idle(const Sequence& sequence, const char* where) const KVTRIE_REQUIRES(mutex) {
    if (sequence.forward != nullptr) fail(ErrorKind::kBusy, where, "the sequence is in a forward that is still open");
  }

  // Before a schedule of captures begins, and before one is taken; of kinds that have something to do then.
  template <class State, class Schedule>
  void begin_schedule(const std::shared_ptr<State>&, Sequence&, Schedule&, const char*) KVTRIE_REQUIRES(mutex) {}
  void end_rows(const Sequence&) KVTRIE_REQUIRES(mutex) {}

  // A new one of the caller's own numbers, made of `parts`. REQUIRES: there is none.
  template <class... Parts>
  Sequence& add(SequenceId id, Parts&... parts) KVTRIE_REQUIRES(mutex) {
    require(id >= 0 && id < kFirstOpenedSequence, name, "sequence: got ", id, ", allowed 0 to ",
            kFirstOpenedSequence - 1);
    return sequences.try_emplace(id, parts...).first->second;
  }
  // One for open_sequence.
  template <class... Parts>
  std::pair<SequenceId, Sequence*> add_next(Parts&... parts) KVTRIE_REQUIRES(mutex) {
    const auto next = [](SequenceId id) { return id == INT32_MAX ? kFirstOpenedSequence : id + 1; };
    SequenceId id = next_opened;
    while (find(id) != nullptr) id = next(id);
    Sequence& sequence = sequences.try_emplace(id, parts...).first->second;
    next_opened = next(id);
    return {id, &sequence};
  }
  // The caller's own numbers need no entry at length 0.
  void forget_if_empty(SequenceId id) noexcept KVTRIE_REQUIRES(mutex) {
    const Sequence* sequence = find(id);
    if (sequence == nullptr || id >= kFirstOpenedSequence || sequence->length > 0) return;
    if (sequence->forward == nullptr && sequence->schedule.offsets.empty()) sequences.erase(id);
  }

 private:
  void require_known(SequenceId id, const char* where) const KVTRIE_REQUIRES(mutex) {
    require(find(id) != nullptr, where, "sequence: got ", id, ", allowed one of the ", sequences.size(), " open ones");
  }
};

// Sequences that a forward brings into being: they stay if it begins, and else are forgotten.
template <class State>
struct OpenedHere {
  State& state;
  std::vector<SequenceId> ids;
  ~OpenedHere() {
    for (const SequenceId id : ids) state.forget_if_empty(id);
  }
};

// The rows of start_forward: as many sequences as positions, one at least.
inline void require_rows(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                         const char* where) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  require(!positions.empty(), where, "positions: got none, allowed 1 or more");
  require(positions.size() <= kMost, where, "positions: got ", positions.size(), ", allowed ", kMost);
  require(positions.size() == sequences.size(), where, "sequences: got ", sequences.size(), ", allowed ",
          positions.size(), " as positions has");
}

// Where a removal of [begin, end), by default to the end, ends. Throws kArgument unless it is within the length.
inline std::int32_t end_of_removal(std::int32_t begin, std::optional<std::int32_t> end, std::int32_t length,
                                   const char* where) {
  const std::int32_t stop = end.value_or(length);
  require(begin >= 0 && begin <= length, where, "begin: got ", begin, ", allowed 0 to ", length);
  require(stop >= begin && stop <= length, where, "end: got ", stop, ", allowed ", begin, " to ", length);
  return stop;
}

}  // namespace kvtrie
