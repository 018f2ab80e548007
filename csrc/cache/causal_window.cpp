// The cells that a windowed sequence holds, and how it lets go.
#include <algorithm>

#include "cache/causal_cache_state.h"

namespace kvtrie {

void Sequence::let_passed_go() noexcept {
  if (const auto list = passed.lock()) list->clear();
  passed.reset();
}

// ---- state --------------------------------------------------------------------------------------------------------

std::int32_t CausalCache::State::retained_from(std::int32_t length) const noexcept {
  if (options.memory > 0 && static_cast<Cell>(options.memory) >= pool->cells()) return 0;
  const std::int32_t floor = options.visibility.floor(length);
  return std::max(0, floor - std::max(0, options.memory - options.visibility.window));
}

bool CausalCache::State::complete_at(std::int32_t position, std::int32_t held_from) const noexcept {
  const std::int32_t floor = options.visibility.floor(position);
  return held_from <= floor || floor == position;
}

bool CausalCache::State::resumable(const Sequence& sequence, std::int32_t position) const noexcept {
  return position >= 0 && position <= sequence.length && complete_at(position, sequence.held_from());
}

void CausalCache::State::require_resumable(const Sequence& sequence, std::int32_t position, const char* where) const {
  if (!resumable(sequence, position)) fail_incomplete(sequence, position, where);
}

// Below a length whose window is incomplete, only those can be reached that see nothing before themselves: the floor
// never falls with the position.
void CausalCache::State::fail_incomplete(const Sequence& sequence, std::int32_t position, const char* where) const {
  const std::int32_t chunk = options.visibility.chunk;
  const std::int32_t nearest = chunk > 0 ? position - position % chunk : 0;
  throw Error::not_restorable(cat("[", where, "] length: got ", position, ", whose query sees positions from ",
                                  options.visibility.floor(position), " on; held are those from ", sequence.held_from(),
                                  " to ", sequence.length, ", allowed ", nearest),
                              nearest);
}

// ---- the cache ----------------------------------------------------------------------------------------------------

bool CausalCache::is_windowed() const noexcept { return state_->is_windowed(); }

const Visibility& CausalCache::visibility() const noexcept { return state_->options.visibility; }

std::int32_t CausalCache::memory() const noexcept { return state_->options.memory; }

std::int32_t CausalCache::held_from(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence == nullptr ? 0 : sequence->held_from();
}

bool CausalCache::can_resume(SequenceId id, std::int32_t position) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence == nullptr ? position == 0 : state_->resumable(*sequence, position);
}

void CausalCache::start_at(SequenceId id, std::int32_t position) {
  const char* where = "causal_cache.start_at";
  const MutexLock lock(state_->mutex);
  Sequence& sequence = state_->known(id, where);
  require(position >= 0, where, "position: got ", position, ", allowed 0 or more");
  require(position == 0 || is_windowed(), where, "position: got ", position,
          ", allowed 0 in a cache that is not windowed");
  state_->require_idle(sequence, where);
  state_->cut(sequence, 0);
  sequence.length = sequence.borrowed_end = position;
}

void CausalCache::release_unseen(SequenceId id, std::int32_t next) {
  const char* where = "causal_cache.release_unseen";
  const MutexLock lock(state_->mutex);
  Sequence& sequence = state_->known(id, where);
  state_->require_idle(sequence, where);
  const std::int32_t keep = state_->retained_from(std::min(next, sequence.length));
  if (!is_windowed() || keep <= sequence.held_from()) return;
  if (const auto passed = sequence.passed.lock()) {
    const std::int32_t from = passed->empty() ? sequence.held_from() : passed->end_position();
    passed->append(slice_spans(sequence.history(), from, keep));
  }
  sequence.borrowed.drop_front(keep);
  sequence.own.drop_front(keep);
}

std::uint32_t CausalCache::live_cells(std::span<const SpanList* const> also, std::optional<Owner> owner) const {
  const MutexLock lock(state_->mutex);
  std::vector<std::pair<Cell, Cell>> ranges;
  const auto add = [&](const CellSpans& spans) {
    for (const CellSpan& span : spans) ranges.emplace_back(span.cell, span.end_cell());
  };
  for (const SpanList* list : also) add(list->spans());
  for (const auto& [id, sequence] : state_->sequences) {
    if (owner && sequence.owner != *owner) continue;
    add(sequence.history());
    if (const auto passed = sequence.passed.lock()) add(passed->spans());
  }
  for (const Forward::State* forward : state_->open_forwards) {
    for (const ForwardSequence& in_forward : forward->sequences) {
      const Sequence* sequence = state_->find(in_forward.id);
      if (!owner || (sequence != nullptr && sequence->owner == *owner)) add(in_forward.claimed.spans());
    }
  }
  if (!owner) {
    const MutexLock snapshots(state_->registry);
    for (const Snapshot::Contents* each : state_->snapshots) add(each->spans());
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint32_t cells = 0;
  Cell end = 0;
  for (const auto& [first, last] : ranges) {
    if (last > end) cells += last - std::max(first, end);
    end = std::max(end, last);
  }
  return cells;
}

}  // namespace kvtrie
