// The inside of a HybridCache: what its mutex guards.
//
//   hybrid_cache.cpp            creation, layers, questions
//   hybrid_cache_step.cpp       steps: starting, what components hold, taking back; what names a layer
//   hybrid_cache_editing.cpp    copies, removals, restores
//   hybrid_cache_snapshot.cpp   snapshots and scheduled captures
//   hybrid_cache_component.cpp  the components behind one interface
//
// The present step is
//
//     open     no component is complete: the components' sequences stand where they stood
//     torn     some are, some are not
//     whole    all are
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/cache_base.h"
#include "cache/scheduled_captures.h"
#include "standalone/hybrid_cache.h"
#include "standalone/hybrid_cache_component.h"

namespace kvtrie {

// A sequence in a step: its length before and after, and what take_back() needs of it in each component.
struct HybridMember {
  SequenceId id = 0;
  std::int32_t begin = 0, end = 0;
  std::vector<ComponentSnapshot> held;
};

struct HybridSchedule : CaptureSchedule<HybridCache::SnapshotPtr> {
  std::vector<bool> lost;  // of each offset: it was captured in a step that was taken back
};

struct HybridCache::State {
  static constexpr bool kWhole = false;
  explicit State(std::vector<Component> caches_in);

  // --- set at creation -------------------------------------------------------------------------------------------
  const std::vector<Component> caches;
  std::vector<std::unique_ptr<HybridComponent>> components;  // of `caches`
  std::map<std::int32_t, std::size_t> component_of_layer;    // index into both

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable Mutex mutex;
  std::vector<HybridMember> members KVTRIE_GUARDED_BY(mutex);  // of the step, while it can be taken back; else empty
  std::vector<std::uint32_t> not_causal KVTRIE_GUARDED_BY(mutex);
  std::map<SequenceId, HybridSchedule> schedules KVTRIE_GUARDED_BY(mutex);

  // The index of a layer's component that passes `allowed`; kArgument else.
  template <class Allowed>
  std::size_t find(std::int32_t layer, const char* where, Allowed allowed) const;
  AttentionLayers& attention(std::int32_t layer, const char* where) const;
  RecurrentLayers& recurrent(std::int32_t layer, const char* where) const;

  // Null: not in a step that can be taken back.
  const HybridMember* member(SequenceId id) const noexcept KVTRIE_REQUIRES(mutex);
  bool torn() const KVTRIE_REQUIRES(mutex);
  bool whole() const KVTRIE_REQUIRES(mutex);
  void settle() noexcept KVTRIE_REQUIRES(mutex);  // a step that is whole, and stays so, needs no holds any more
  void take_back() KVTRIE_REQUIRES(mutex);        // the step, unless it is whole
  void take_back_torn(SequenceId id) KVTRIE_REQUIRES(mutex);  // if it is torn, and the sequence is in it
  // Ends the step that the sequence is in, before a change: taken back, or its holds go.
  void make_idle(SequenceId id) KVTRIE_REQUIRES(mutex);
  // In all components, after a failure; 0 where it cannot be.
  void empty(SequenceId id, std::int32_t length = 0) noexcept KVTRIE_REQUIRES(mutex);

  // Without the rows of a step that is not whole.
  std::int32_t length_in(std::size_t component, SequenceId id) const KVTRIE_REQUIRES(mutex);
  std::int32_t length(SequenceId id) const KVTRIE_REQUIRES(mutex);
  bool is_level(SequenceId id) const KVTRIE_REQUIRES(mutex);  // all components have that length
  // The length that all components agree on; kArgument when they do not.
  std::int32_t level(SequenceId id, const char* where) const KVTRIE_REQUIRES(mutex);
  bool can_resume(std::size_t component, SequenceId id, std::int32_t position) const KVTRIE_REQUIRES(mutex);
  bool can_resume(SequenceId id, std::int32_t position) const KVTRIE_REQUIRES(mutex);
  // Throws kNotRestorable.
  void require_resumable(SequenceId id, std::int32_t position, const char* where) const KVTRIE_REQUIRES(mutex);
  void check_change(SequenceId id, const char* where) const KVTRIE_REQUIRES(mutex);  // kBusy
  // cache_snapshot_contents.h.
  static std::unique_ptr<Snapshot::Contents> no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                                         std::int32_t end);
};

// snapshots[i] is the i-th component's; null where it holds nothing of [start, end).
struct HybridContents {
  std::weak_ptr<HybridCache::State> owner;
  std::vector<ComponentSnapshot> snapshots;
  std::int32_t start = 0, end = 0;
  std::atomic<bool> consumed = false;

  std::uint64_t bytes(bool alone) const;
  // Where memory runs out, what was split or joined is consumed.
  void take(HybridContents& from) noexcept;
  void split(std::int32_t at, HybridContents& lower, HybridContents& upper);
  void join(HybridContents& first, HybridContents& second);
};

}  // namespace kvtrie
