// Snapshots and scheduled captures.
#include <algorithm>
#include <tuple>

#include "cache/cache_snapshot_contents.h"
#include "standalone/hybrid_cache_state.h"

namespace kvtrie {

using Snapshot = HybridCache::Snapshot;
using SnapshotPtr = HybridCache::SnapshotPtr;
using Contents = Snapshot::Contents;

// ---- contents -----------------------------------------------------------------------------------------------------

namespace {

// From here on the snapshots are consumed, also when memory runs out half-way.
struct Consuming {
  std::vector<Contents*> all;
  ~Consuming() {
    for (Contents* each : all) {
      each->snapshots.clear();
      each->consumed = true;
    }
  }
};

}  // namespace

std::uint64_t HybridContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    const HybridComponent& component = *state->components[i];
    if (snapshots[i]) sum += alone ? component.nbytes(snapshots[i]) : component.shared_nbytes(snapshots[i]);
  }
  return sum;
}

void HybridContents::take(HybridContents& from) noexcept {
  snapshots.swap(from.snapshots);
  from.snapshots.clear();
}

void HybridContents::split(std::int32_t at, HybridContents& lower, HybridContents& upper) {
  const auto state = owner.lock();
  const Consuming consuming{{this}};
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    if (snapshots[i]) std::tie(lower.snapshots[i], upper.snapshots[i]) = state->components[i]->split(snapshots[i], at);
  }
}

void HybridContents::join(HybridContents& first, HybridContents& second) {
  const auto state = owner.lock();
  const Consuming consuming{{&first, &second}};
  for (std::size_t i = 0; i < snapshots.size(); ++i)
    snapshots[i] = state->components[i]->merge(first.snapshots[i], second.snapshots[i]);
}

std::unique_ptr<Contents> HybridCache::State::no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                                          std::int32_t end) {
  auto contents = std::make_unique<Contents>();
  contents->owner = self;
  contents->snapshots.resize(self->components.size());
  contents->start = start;
  contents->end = end;
  return contents;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

SnapshotPtr HybridCache::snapshot(SequenceId id, std::int32_t start) {
  const char* where = "hybrid_cache.snapshot";
  require(start >= 0, where, "start: got ", start, ", allowed 0 or more");
  const MutexLock lock(state_->mutex);
  state_->take_back_torn(id);
  const std::int32_t length = state_->level(id, where);
  if (start >= length) return nullptr;
  if (!state_->whole()) state_->make_idle(id);  // an encoder cache counts the rows of an open step
  auto contents = State::no_contents(state_, start, length);
  for (std::size_t i = 0; i < state_->components.size(); ++i)
    contents->snapshots[i] = state_->components[i]->snapshot(id, start);
  return std::make_shared<Snapshot>(std::move(contents));
}

std::pair<SnapshotPtr, SnapshotPtr> HybridCache::split(const SnapshotPtr& snapshot, std::int32_t at) {
  if (!snapshot) return {};
  const MutexLock lock(state_->mutex);
  return split_contents<Snapshot>(state_, *usable_contents(snapshot, state_, "hybrid_cache.split"), at);
}

SnapshotPtr HybridCache::merge(const SnapshotPtr& a, const SnapshotPtr& b) {
  const char* where = "hybrid_cache.merge";
  const MutexLock lock(state_->mutex);
  Contents* first = usable_contents(a, state_, where);
  return merge_contents<Snapshot>(state_, first, usable_contents(b, state_, where), where);
}

void HybridCache::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  const char* where = "hybrid_cache.prepare_snapshots";
  const MutexLock lock(state_->mutex);
  state_->take_back_torn(id);
  const std::int32_t length = state_->level(id, where);
  require(state_->schedules.count(id) == 0, where, "the schedule before was not taken: call take_snapshots first");
  HybridSchedule schedule{{nullptr, offsets, length, where}, std::vector<bool>(offsets.size(), false)};
  if (offsets.empty()) return;
  state_->check_change(id, where);
  const auto entry = state_->schedules.emplace(id, std::move(schedule)).first;
  std::size_t prepared = 0;
  try {
    state_->make_idle(id);
    for (; prepared < state_->components.size(); ++prepared)
      state_->components[prepared]->prepare_snapshots(id, offsets);
  } catch (...) {
    state_->schedules.erase(entry);
    for (std::size_t i = 0; i < prepared; ++i) state_->components[i]->take_snapshots(id);
    throw;
  }
}

std::vector<SnapshotPtr> HybridCache::take_snapshots(SequenceId id) {
  const MutexLock lock(state_->mutex);
  if (state_->schedules.count(id) == 0) return {};
  state_->make_idle(id);  // what it captured before it was complete is lost
  const HybridSchedule schedule = state_->schedules.at(id);
  std::vector<SnapshotPtr> taken;
  for (std::size_t i = 0; i < schedule.offsets.size(); ++i) {
    taken.push_back(std::make_shared<Snapshot>(State::no_contents(state_, schedule.start(i), schedule.offsets[i])));
  }
  for (std::size_t component = 0; component < state_->components.size(); ++component) {
    const std::vector<ComponentSnapshot> captured = state_->components[component]->take_snapshots(id);
    for (std::size_t i = 0; i < std::min(captured.size(), taken.size()); ++i) {
      taken[i]->contents().snapshots[component] = captured[i];
    }
  }
  state_->schedules.erase(id);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto& all = taken[i]->contents().snapshots;
    const bool empty = std::none_of(all.begin(), all.end(), [](const auto& each) { return each != nullptr; });
    if (empty || schedule.lost[i]) taken[i].reset();
  }
  return taken;
}

template class CacheSnapshot<HybridCache, HybridContents>;

}  // namespace kvtrie
