// Snapshots and scheduled captures.
#include <algorithm>

#include "cache/cache_snapshot_contents.h"
#include "standalone/encoder_cache_state.h"

namespace kvtrie {

using Snapshot = EncoderCache::Snapshot;
using SnapshotPtr = EncoderCache::SnapshotPtr;

namespace {

using Contents = Snapshot::Contents;

// Of [start, end), without an item.
std::unique_ptr<Contents> empty_contents(const std::shared_ptr<EncoderCache::State>& state, std::int32_t start,
                                         std::int32_t end) {
  auto contents = std::make_unique<Contents>();
  contents->owner = state;
  contents->cells = SpanList(*state->pool, true);
  contents->start = start;
  contents->end = end;
  return contents;
}

SnapshotPtr make_snapshot(const std::shared_ptr<EncoderCache::State>& state, const CellSpans& cells,
                          std::int32_t position, std::int32_t start, std::int32_t end) {
  std::unique_ptr<Contents> contents = empty_contents(state, start, end);
  if (position >= start && position < end) contents->cells.append(cells);
  contents->position = position;
  return std::make_shared<Snapshot>(std::move(contents));
}

void move_item(Contents& from, Contents& to) noexcept {
  to.cells = std::move(from.cells);
  to.position = from.position;
}

// How a restored sequence comes to be: its item is the snapshot's or, when that stands below `kept`, its own.
struct Restoring {
  bool possible = false, from_snapshot = false;
  std::int32_t kept = 0;
};

Restoring plan_restore(std::int32_t length, const Contents* contents, std::int32_t target) {
  if (target < 0 || target > (contents != nullptr ? contents->end : length)) return {};
  if (contents == nullptr) return {true, false, target};
  if (contents->has_item_below(target)) return {true, true, 0};
  return {contents->start <= length, false, std::min(contents->start, target)};
}

// Rows without an item came before what is scheduled next, or are in what is taken.
void end_text(EncoderCache::State& state, const EncoderSequence& sequence) KVTRIE_REQUIRES(state.mutex) {
  if (sequence.forward != nullptr && !sequence.forward->brings) state.end(*sequence.forward);
}

}  // namespace

std::uint64_t EncoderContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  const std::uint64_t own = state->pool->cells_held_only(cells.spans(), 1);
  return (alone ? own : cells.length() - own) * state->shape.bytes_per_cell();
}

// ---- state --------------------------------------------------------------------------------------------------------

std::vector<SnapshotPtr> EncoderCache::State::capture(const EncoderSequence& sequence, const CellSpans& cells,
                                                      std::int32_t position, std::int32_t length,
                                                      const std::shared_ptr<State>& self) const {
  return sequence.schedule.due(length, [&](std::int32_t start, std::int32_t offset) {
    return make_snapshot(self, cells, position, start, offset);
  });
}

// ---- the cache ----------------------------------------------------------------------------------------------------

SnapshotPtr EncoderCache::snapshot(SequenceId id, std::int32_t start) {
  require(start >= 0, "encoder_cache.snapshot", "start: got ", start, ", allowed 0 or more");
  const MutexLock lock(state_->mutex);
  const std::int32_t length = state_->length(id);
  if (start >= length) return nullptr;
  const EncoderSequence& sequence = *state_->find(id);
  return make_snapshot(state_, sequence.cells.spans(), sequence.position, start, length);
}

bool EncoderCache::can_restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) const {
  const MutexLock lock(state_->mutex);
  if (snapshot) require_usable(*snapshot->contents_, state_, "encoder_cache.can_restore");
  return plan_restore(state_->length(id), snapshot ? snapshot->contents_.get() : nullptr, target).possible;
}

bool EncoderCache::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  const MutexLock lock(state_->mutex);
  if (snapshot) require_usable(*snapshot->contents_, state_, "encoder_cache.restore");
  const Contents* contents = snapshot ? snapshot->contents_.get() : nullptr;
  const Restoring plan = plan_restore(state_->length(id), contents, target);
  if (!plan.possible) return false;
  SpanList cells;
  if (plan.from_snapshot) cells = contents->cells.share();
  EncoderSequence& sequence = state_->open(id);
  state_->make_idle(id);
  if (plan.from_snapshot) {
    sequence.cells = std::move(cells);
    sequence.position = contents->position;
    sequence.epoch = ++state_->stamp;
  } else if (sequence.position >= plan.kept) {
    state_->let_go(sequence);
  }
  sequence.length = target;
  state_->forget_if_empty(id);
  return true;
}

std::pair<SnapshotPtr, SnapshotPtr> EncoderCache::split(const SnapshotPtr& snapshot, std::int32_t at) {
  if (!snapshot) return {};
  const MutexLock lock(state_->mutex);
  Contents& whole = *snapshot->contents_;
  require_usable(whole, state_, "encoder_cache.split");
  const std::int32_t border = std::clamp(at, whole.start, whole.end);
  auto lower = std::make_shared<Snapshot>(empty_contents(state_, whole.start, border));
  auto upper = std::make_shared<Snapshot>(empty_contents(state_, border, whole.end));
  const bool below = border == whole.end || whole.has_item_below(border);
  move_item(whole, *(below ? lower : upper)->contents_);
  whole.consumed = true;
  if (lower->start() == border) lower.reset();
  if (upper->end() == border) upper.reset();
  return {std::move(lower), std::move(upper)};
}

SnapshotPtr EncoderCache::merge(const SnapshotPtr& a, const SnapshotPtr& b) {
  const char* where = "encoder_cache.merge";
  const MutexLock lock(state_->mutex);
  if (a) require_usable(*a->contents_, state_, where);
  if (b) require_usable(*b->contents_, state_, where);
  if (!a && !b) return nullptr;
  Contents& first = *(a ? a : b)->contents_;
  Contents& second = *(b ? b : a)->contents_;
  const bool both = a && b;
  require(!both || (a != b && first.end == second.start), where, "b: got a snapshot from ", second.start,
          ", allowed one from ", first.end);
  auto merged = std::make_shared<Snapshot>(empty_contents(state_, first.start, second.end));
  move_item(second.cells.empty() ? first : second, *merged->contents_);
  first.cells.clear();
  first.consumed = second.consumed = true;
  return merged;
}

void EncoderCache::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  const char* where = "encoder_cache.prepare_snapshots";
  const MutexLock lock(state_->mutex);
  const EncoderSequence* existing = state_->find(id);
  CaptureSchedule<SnapshotPtr> schedule(existing == nullptr ? nullptr : &existing->schedule, std::move(offsets),
                                        state_->length(id), where);
  if (schedule.offsets.empty()) return;
  EncoderSequence& sequence = state_->open(id);
  end_text(*state_, sequence);
  sequence.schedule = std::move(schedule);
}

std::vector<SnapshotPtr> EncoderCache::take_snapshots(SequenceId id) {
  const MutexLock lock(state_->mutex);
  if (const EncoderSequence* sequence = state_->find(id)) end_text(*state_, *sequence);
  return take_captured(*state_, id);
}

template class CacheSnapshot<EncoderCache, EncoderContents>;

}  // namespace kvtrie
