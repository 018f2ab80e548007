// Copies, removals, snapshots and scheduled captures: what sequences_of.h asks of a state.
#include "cache/recurrent_cache_state.h"
#include "cache/sequences_of.h"

namespace kvtrie {

using CacheState = RecurrentCache::State;

// ---- contents -----------------------------------------------------------------------------------------------------

// Of the slot if it has one holder, or if it has several.
std::uint64_t RecurrentContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  return slot && (slot.holders() == 1) == alone ? state->shape.bytes_per_slot() : 0;
}

void RecurrentContents::take(RecurrentContents& from) noexcept { slot = std::move(from.slot); }

void RecurrentContents::join(RecurrentContents& first, RecurrentContents& second) noexcept {
  take(second);
  first.slot.reset();
}

// ---- state --------------------------------------------------------------------------------------------------------

void CacheState::require_resumable(const StateSequence& sequence, std::int32_t length, const char* where) const {
  if (length == 0 || length == sequence.length) return;
  throw Error::not_restorable(cat("[", where, "] length: got ", length, ", allowed 0 or ", sequence.length,
                                  ": a recurrent state exists at its own length only"),
                              0);
}

void CacheState::cut(StateSequence& sequence, std::int32_t length) noexcept {
  if (length < sequence.length) become(sequence, 0, {});
}

SlotRef CacheState::prefix(const StateSequence& sequence, std::int32_t length) const {
  return length == 0 ? SlotRef() : sequence.slot;
}

void CacheState::remove_middle(StateSequence& sequence, std::int32_t begin, std::int32_t end, const char* where) {
  fail(ErrorKind::kNotSupported, where, "tokens ", begin, " to ", end, " of ", sequence.length,
       ": a recurrent state cannot lose tokens in its middle");
}

std::unique_ptr<RecurrentContents> CacheState::no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                                           std::int32_t end) {
  auto contents = std::make_unique<Contents>();
  contents->owner = self;
  contents->start = start;
  contents->end = end;
  return contents;
}

std::unique_ptr<RecurrentContents> CacheState::contents_of(const std::shared_ptr<State>& self,
                                                           const StateSequence& sequence, std::int32_t start,
                                                           std::int32_t length) const {
  auto contents = no_contents(self, start, length);
  contents->slot = sequence.slot;
  return contents;
}

RecurrentCache::SnapshotPtr CacheState::make_snapshot(const std::shared_ptr<State>& self, SlotRef slot,
                                                      std::int32_t start, std::int32_t end) {
  auto contents = no_contents(self, start, end);
  contents->slot = std::move(slot);
  return std::make_shared<Snapshot>(std::move(contents));
}

std::optional<CacheState::Restoring> CacheState::plan_restore(SequenceId id, const Contents* contents,
                                                              std::int32_t target) const {
  const std::int32_t only = contents != nullptr ? contents->end : length_of(id);
  return target == only ? std::optional(Restoring{}) : std::nullopt;
}

void CacheState::restore(SequenceId id, const Restoring&, const Contents* contents, std::int32_t target,
                         const char* where) {
  if (contents == nullptr) return;  // it stands there
  StateSequence& sequence = open(id);
  make_idle(sequence, where);
  become(sequence, target, contents->slot);
}

void CacheState::begin_schedule(const std::shared_ptr<State>& self, StateSequence& sequence,
                                CaptureSchedule<SnapshotPtr>& schedule, const char* where) {
  const std::int32_t length = sequence.length;
  if (schedule.offsets.front() == length && length > 0)
    schedule.captured.front() = make_snapshot(self, sequence.slot, length, length);
  make_idle(sequence, where);  // the boundaries of an open forward are fixed
}

template class CacheSnapshot<RecurrentCache, RecurrentContents>;
template class Sequences<RecurrentCache, RecurrentContents>;

}  // namespace kvtrie
