// Copies, removals, snapshots and scheduled captures.
#include <algorithm>
#include <utility>

#include "cache/cache_snapshot_contents.h"
#include "cache/recurrent_cache_state.h"

namespace kvtrie {

using Snapshot = RecurrentCache::Snapshot;
using SnapshotPtr = RecurrentCache::SnapshotPtr;

namespace {

// A snapshot of [start, end of `from`) with the slot that `from` held.
SnapshotPtr take_over(Snapshot::Contents& from, std::int32_t start) {
  SnapshotPtr whole = RecurrentCache::State::make_snapshot(from.slot, start, from.end, from.owner);
  from.slot.reset();
  from.consumed = true;
  return whole;
}

[[noreturn]] void fail_inside(const char* where, const char* name, std::int32_t got, std::int32_t length) {
  throw Error::not_restorable(cat("[", where, "] ", name, ": got ", got, ", allowed 0 or ", length,
                                  ": a recurrent state exists at its own length only"),
                              0);
}

}  // namespace

// Of the slot if it has one holder, or if it has several.
std::uint64_t RecurrentContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  return slot && (slot.holders() == 1) == alone ? state->shape.bytes_per_slot() : 0;
}

SnapshotPtr RecurrentCache::State::make_snapshot(SlotRef slot, std::int32_t start, std::int32_t end,
                                                 std::weak_ptr<State> owner) {
  auto contents = std::make_unique<Snapshot::Contents>();
  contents->owner = std::move(owner);
  contents->slot = std::move(slot);
  contents->start = start;
  contents->end = end;
  return std::make_shared<Snapshot>(std::move(contents));
}

// ---- editing ------------------------------------------------------------------------------------------------------

void RecurrentCache::copy_prefix(SequenceId from, SequenceId to, std::int32_t length) {
  const char* where = "recurrent_cache.copy_prefix";
  const MutexLock lock(state_->mutex);
  const StateSequence& source = state_->known(from, where);
  require(length >= 0 && length <= source.length, where, "length: got ", length, ", allowed 0 to ", source.length);
  if (length != 0 && length != source.length) fail_inside(where, "length", length, source.length);
  if (from == to && length == source.length) return;
  SlotRef slot = length == 0 ? SlotRef() : source.slot;
  StateSequence& target = state_->open(to);
  state_->make_idle(target, where);
  state_->stand(target, length, std::move(slot));
  if (from != to) target.schedule = {};
  state_->forget_if_empty(to);
}

void RecurrentCache::remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) {
  const char* where = "recurrent_cache.remove";
  const MutexLock lock(state_->mutex);
  StateSequence* sequence = state_->find(id);
  const std::int32_t length = state_->length_of(id), stop = end_of_removal(begin, end, length, where);
  if (begin == stop) return;
  if (stop < length) {
    fail(ErrorKind::kNotSupported, where, "tokens ", begin, " to ", stop, " of ", length,
         ": a recurrent state cannot lose tokens in its middle");
  }
  if (begin > 0) fail_inside(where, "begin", begin, length);
  state_->make_idle(*sequence, where);
  state_->stand(*sequence, 0, {});
  state_->forget_if_empty(id);
}

// ---- snapshots ----------------------------------------------------------------------------------------------------

SnapshotPtr RecurrentCache::snapshot(SequenceId id, std::int32_t start) {
  require(start >= 0, "recurrent_cache.snapshot", "start: got ", start, ", allowed 0 or more");
  const MutexLock lock(state_->mutex);
  const StateSequence* sequence = state_->find(id);
  if (sequence == nullptr || start >= sequence->length) return nullptr;
  return State::make_snapshot(sequence->slot, start, sequence->length, state_);
}

bool RecurrentCache::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  const char* where = "recurrent_cache.restore";
  const MutexLock lock(state_->mutex);
  if (!snapshot) {
    return target == state_->length_of(id);
  }
  require_usable(*snapshot->contents_, state_, where);
  if (target != snapshot->end()) return false;
  StateSequence& sequence = state_->open(id);
  state_->make_idle(sequence, where);
  state_->stand(sequence, target, snapshot->contents_->slot);
  return true;
}

std::pair<SnapshotPtr, SnapshotPtr> RecurrentCache::split(const SnapshotPtr& snapshot, std::int32_t at) {
  if (!snapshot) return {};
  const MutexLock lock(state_->mutex);
  Snapshot::Contents& whole = *snapshot->contents_;
  require_usable(whole, state_, "recurrent_cache.split");
  if (at >= whole.end) return {take_over(whole, whole.start), nullptr};
  return {nullptr, take_over(whole, std::max(at, whole.start))};
}

SnapshotPtr RecurrentCache::merge(const SnapshotPtr& a, const SnapshotPtr& b) {
  const char* where = "recurrent_cache.merge";
  const MutexLock lock(state_->mutex);
  if (a) require_usable(*a->contents_, state_, where);
  if (b) require_usable(*b->contents_, state_, where);
  if (!a && !b) return nullptr;
  if (!a || !b) return take_over(*(a ? a : b)->contents_, (a ? a : b)->start());
  Snapshot::Contents& first = *a->contents_;
  Snapshot::Contents& second = *b->contents_;
  require(a != b && first.end == second.start, where, "b: got a snapshot from ", second.start, ", allowed one from ",
          first.end);
  SnapshotPtr merged = take_over(second, first.start);
  first.slot.reset();
  first.consumed = true;
  return merged;
}

void RecurrentCache::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  const char* where = "recurrent_cache.prepare_snapshots";
  const MutexLock lock(state_->mutex);
  const StateSequence* existing = state_->find(id);
  const std::int32_t length = state_->length_of(id);
  CaptureSchedule<SnapshotPtr> schedule(existing == nullptr ? nullptr : &existing->schedule, std::move(offsets), length,
                                        where);
  if (schedule.offsets.empty()) return;
  if (schedule.offsets.front() == length && length > 0)
    schedule.captured.front() = State::make_snapshot(existing->slot, length, length, state_);
  StateSequence& sequence = state_->open(id);
  state_->make_idle(sequence, where);  // the boundaries of an open forward are fixed
  sequence.schedule = std::move(schedule);
}

std::vector<SnapshotPtr> RecurrentCache::take_snapshots(SequenceId id) {
  const MutexLock lock(state_->mutex);
  return take_captured(*state_, id);
}

bool RecurrentCache::busy(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const StateSequence* sequence = state_->find(id);
  if (sequence == nullptr || sequence->forward == nullptr) return false;
  return !state_->current || state_->current->state_.get() != sequence->forward;
}

template class CacheSnapshot<RecurrentCache, RecurrentContents>;

}  // namespace kvtrie
