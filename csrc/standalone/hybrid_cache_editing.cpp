// Copies, removals, restores and compaction.
#include <algorithm>

#include "cache/cache_snapshot_contents.h"
#include "standalone/hybrid_cache_state.h"

namespace kvtrie {
namespace {

using CacheState = HybridCache::State;

void check_middle(const CacheState& state, SequenceId id, std::int32_t begin, std::int32_t end, const char* where)
    KVTRIE_REQUIRES(state.mutex) {
  state.level(id, where);
  for (const auto& component : state.components) component->check_remove_middle(id, begin, end, where);
}

void copy_all(const CacheState& state, SequenceId from, SequenceId to, std::int32_t length)
    KVTRIE_REQUIRES(state.mutex) {
  const bool nothing = state.length(from) == 0;  // the components need not know an empty sequence
  for (const auto& component : state.components) {
    if (!nothing) {
      component->copy_prefix(from, to, length);
    } else {
      component->remove(to, 0, std::nullopt);
      if (from != to) component->take_snapshots(to);
    }
  }
}

// The state of a sequence in every component, so that it can be restored.
class Before {
 public:
  Before(CacheState& state, SequenceId id) : state_(state), id_(id) {
    for (const auto& component : state.components) {
      lengths_.push_back(component->length(id));
      held_.push_back(component->snapshot(id, 0));
    }
  }
  // Where that fails, too, the sequence is emptied.
  void put_back() noexcept {
    try {
      for (std::size_t i = 0; i < held_.size(); ++i) {
        if (!held_[i] || !state_.components[i]->restore(id_, held_[i], lengths_[i])) {
          state_.components[i]->remove(id_, 0, std::nullopt);
        }
      }
    } catch (...) {
      state_.empty(id_);
    }
  }

 private:
  CacheState& state_;
  SequenceId id_;
  std::vector<std::int32_t> lengths_;
  std::vector<ComponentSnapshot> held_;
};

// How a component comes to `target`: from its own snapshot, or by being cut.
enum class Way : std::uint8_t { kNone, kRestore, kCut };

Way way_of(const CacheState& state, std::size_t component, SequenceId id,
           const HybridCache::Snapshot::Contents* contents, std::int32_t target) KVTRIE_REQUIRES(state.mutex) {
  const std::int32_t length = state.length_in(component, id);
  if (contents != nullptr && state.components[component]->can_restore(id, contents->snapshots[component], target))
    return Way::kRestore;
  const bool below = contents == nullptr || (target <= contents->start && contents->start <= length);
  return below && target <= length && state.can_resume(component, id, target) ? Way::kCut : Way::kNone;
}

std::vector<Way> plan_restore(const CacheState& state, SequenceId id, const HybridCache::Snapshot::Contents* contents,
                              std::int32_t target) KVTRIE_REQUIRES(state.mutex) {
  if (target < 0 || (contents != nullptr && target > contents->end)) return {};
  std::vector<Way> ways;
  for (std::size_t i = 0; i < state.components.size(); ++i) {
    ways.push_back(way_of(state, i, id, contents, target));
    if (ways.back() == Way::kNone) return {};
  }
  return ways;
}

}  // namespace

void HybridCache::copy_prefix(SequenceId from, SequenceId to, std::int32_t length) {
  const char* where = "hybrid_cache.copy_prefix";
  const MutexLock lock(state_->mutex);
  require(to >= 0 && (to < kFirstOpenedSequence || state_->length(to) > 0), where, "sequence: got ", to,
          ", allowed 0 to ", kFirstOpenedSequence - 1);
  state_->take_back_torn(from);
  const std::int32_t whole = state_->level(from, where);
  require(length >= 0 && length <= whole, where, "length: got ", length, ", allowed 0 to ", whole);
  state_->require_resumable(from, length, where);
  state_->check_change(to, where);
  state_->make_idle(to);
  Before before(*state_, to);
  try {
    copy_all(*state_, from, to, length);
  } catch (...) {
    before.put_back();
    throw;
  }
  if (from != to) state_->schedules.erase(to);
}

void HybridCache::remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) {
  const char* where = "hybrid_cache.remove";
  const MutexLock lock(state_->mutex);
  const std::int32_t length = state_->length(id), stop = end_of_removal(begin, end, length, where);
  if (begin == stop && (end || state_->is_level(id))) return;
  state_->take_back_torn(id);
  const bool to_end = stop == length;
  if (to_end) state_->require_resumable(id, begin, where);
  if (!to_end) check_middle(*state_, id, begin, stop, where);
  state_->check_change(id, where);
  state_->make_idle(id);
  try {
    for (const auto& component : state_->components)
      component->remove(id, begin, to_end ? std::nullopt : std::optional(stop));
  } catch (...) {
    state_->empty(id, begin);
    throw;
  }
}

bool HybridCache::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  const char* where = "hybrid_cache.restore";
  const MutexLock lock(state_->mutex);
  const Snapshot::Contents* contents = usable_contents(snapshot, state_, where);
  require(id >= 0 && (id < kFirstOpenedSequence || state_->length(id) > 0), where, "sequence: got ", id,
          ", allowed 0 to ", kFirstOpenedSequence - 1);
  state_->take_back_torn(id);
  const std::vector<Way> ways = plan_restore(*state_, id, contents, target);
  if (ways.empty()) return false;
  state_->check_change(id, where);
  state_->make_idle(id);
  Before before(*state_, id);
  try {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      HybridComponent& component = *state_->components[i];
      if (ways[i] == Way::kCut) component.remove(id, target, std::nullopt);
      if (ways[i] == Way::kRestore) ensure(component.restore(id, contents->snapshots[i], target), where, "cache ", i);
    }
  } catch (...) {
    before.put_back();
    throw;
  }
  return true;
}

void HybridCache::defrag() {
  const char* where = "hybrid_cache.defrag";
  const MutexLock lock(state_->mutex);
  if (!state_->members.empty() && !state_->whole()) fail(ErrorKind::kBusy, where, "a step is open");
  for (const auto& component : state_->components) component->defrag();
}

}  // namespace kvtrie
