// Copies, removals and compaction.
#include <algorithm>

#include "cache/causal_cache_state.h"

namespace kvtrie {

namespace {

// How the tail of a sequence moves down: its new spans, and which of their cells are copies.
struct Shift {
  SpanList tail;  // at the new positions, in order; cells that stay are held twice until the old list goes
  std::vector<CellMove> copies;  // from the shared cells to their copies
  bool in_place = false;         // some cells are rotated where they are
};

// REQUIRES: the room for the copies is there.
Shift plan_shift(CausalCache::State& state, const CellSpans& alone, const CellSpans& shared, std::uint32_t shared_cells,
                 std::int32_t delta, Owner owner) {
  Shift shift;
  shift.tail = SpanList(*state.pool, true);
  shift.in_place = !alone.empty();
  Reservation none;
  SpanList fresh;
  if (shared_cells > 0) fresh = state.pool->claim(shared_cells, 0, 0, none, 0, owner);
  std::int32_t copied = 0;
  auto next_alone = alone.begin(), next_shared = shared.begin();
  while (next_alone != alone.end() || next_shared != shared.end()) {
    const bool copies =
        next_alone == alone.end() || (next_shared != shared.end() && next_shared->position < next_alone->position);
    const CellSpan& span = copies ? *next_shared++ : *next_alone++;
    if (!copies) {
      shift.tail.append(CellSpan{span.cell, span.length, span.position + delta});
      continue;
    }
    const auto end = copied + static_cast<std::int32_t>(span.length);
    for (const CellSpan& copy : slice_spans(fresh.spans(), copied, end)) {
      const std::int32_t inside = copy.position - copied;
      shift.copies.push_back({span.cell + static_cast<Cell>(inside), copy.cell, copy.length});
      shift.tail.append(CellSpan{copy.cell, copy.length, span.position + inside + delta});
    }
    copied = end;
  }
  return shift;
}

void require_shiftable(const CausalCache::State& state, const char* where) {
  if (state.rope.empty()) {
    fail(ErrorKind::kNotSupported, where, "the cache has no rope parameters, so stored keys cannot move");
  }
  for (const ops::RopeParams& each : state.rope) {
    if (!each.can_shift()) {
      fail(ErrorKind::kNotSupported, where, "the rope scaling depends on the length, so stored keys cannot move");
    }
  }
}

// Cells of [from, end) of the sequence that only it holds, and the others.
std::pair<CellSpans, CellSpans> split_tail(const CausalCache::State& state, const Sequence& sequence,
                                           std::int32_t from) {
  const std::int32_t end = sequence.length;
  if (state.is_windowed()) return state.pool->split_by_holders(slice_spans(sequence.history(), from, end), 1);
  auto [alone, shared] = state.pool->split_by_holders(slice_spans(sequence.own.spans(), from, end), 1);
  CellSpans copied = slice_spans(sequence.borrowed.spans(), from, end);
  copied.insert(copied.end(), shared.begin(), shared.end());
  return {std::move(alone), std::move(copied)};
}

// Removing [begin, end) must leave everything that later queries see: what is held is [held_from, begin) and what moves
// down.
void require_window_after(const CausalCache::State& state, const Sequence& sequence, std::int32_t begin,
                          std::int32_t end, const char* where) {
  if (state.options.visibility.chunk > 0) {
    fail(ErrorKind::kNotSupported, where, "the cache has chunks: what moves down would lie in others");
  }
  const std::int32_t held = sequence.held_from();
  const std::int32_t after = held <= begin ? held : begin + std::max(0, held - end);
  if (state.complete_at(sequence.length - (end - begin), after)) return;
  fail(ErrorKind::kNotSupported, where, "the window would be incomplete: held are the positions from ", held,
       " on, and later queries would see ", end - begin, " more before them");
}

std::uint32_t count_of(const CellSpans& spans) {
  std::uint32_t cells = 0;
  for (const CellSpan& span : spans) cells += span.length;
  return cells;
}

// Room for so many copies, once what goes with the change has gone.
void require_cells(const CausalCache::State& state, const Sequence& sequence, std::uint32_t needed, const char* where) {
  std::vector<const SpanList*> going;
  const auto passed = sequence.passed.lock();
  if (passed) going.push_back(passed.get());
  if (sequence.forward != nullptr) {
    for (const ForwardSequence& in_forward : sequence.forward->sequences) going.push_back(&in_forward.claimed);
  }
  const Cell free = state.pool->free_without(going);
  if (needed <= free) return;
  const CacheFullCounts counts{needed, free, 0, state.pool->held_cells()};
  throw Error::cache_full(cat("[", where, "] cells for copies of shared ones: needed ", needed, ", free ", free),
                          counts);
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

CausalCache::State::Prefix CausalCache::State::prefix(const Sequence& sequence, std::int32_t length) const {
  Prefix prefix{SpanList(*pool, true), sequence.is_private && length > 0};
  prefix.cells.append(slice_spans(sequence.history(), 0, length));
  return prefix;
}

void CausalCache::State::become(Sequence& sequence, std::int32_t length, Prefix prefix) noexcept {
  cut(sequence, 0);
  sequence.own = std::move(prefix.cells);
  sequence.length = length;
  sequence.is_private = prefix.is_private;
  sequence.epoch = ++stamp;
}

void CausalCache::State::remove_middle(Sequence& sequence, std::int32_t begin, std::int32_t end, const char* where) {
  require_shiftable(*this, where);
  require_window_after(*this, sequence, begin, end, where);
  require_sound(where);
  if (busy(sequence)) require_idle(sequence, where);
  const auto [alone, shared] = split_tail(*this, sequence, end);
  const std::uint32_t needed = count_of(shared);
  require_cells(*this, sequence, needed, where);
  make_idle(sequence, where);
  if (needed > pool->free_cells()) sequence.let_passed_go();  // else with the cut, once all else is ready
  const std::int32_t delta = begin - end;
  const std::int32_t after = sequence.length + delta;
  Shift shift = plan_shift(*this, alone, shared, needed, delta, sequence.owner);
  sequence.own.make_room(shift.tail.spans().size());
  for (const CellMove& copy : shift.copies) owners.set(copy.to, copy.length, kForeign);
  if (!shift.copies.empty()) store->move(shift.copies);
  for (const CellMove& copy : shift.copies) owners.set(copy.to, copy.length, sequence.owner);
  try {
    store->rotate(shift.tail.spans(), delta, rope);
  } catch (...) {
    if (shift.in_place) cut(sequence, begin);  // some keys may be rotated, some not: what follows is forgotten
    throw;
  }
  cut(sequence, begin);
  sequence.own.append(std::move(shift.tail));
  sequence.length = after;
  sequence.is_private = true;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

void CausalCache::check_remove_middle(SequenceId id, std::int32_t begin, std::int32_t end, const char* where) const {
  const State& state = *state_;
  const MutexLock lock(state.mutex);
  const Sequence& sequence = state.known(id, where);
  require_shiftable(state, where);
  require_window_after(state, sequence, begin, end, where);
  require_cells(state, sequence, count_of(split_tail(state, sequence, end).second), where);
}

bool CausalCache::can_remove(SequenceId id, std::int32_t begin, std::int32_t end) const {
  const char* where = "causal_cache.can_remove";
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  if (sequence == nullptr || begin < 0 || begin > end || end > sequence->length) return false;
  if (begin == end) return true;
  if (end == sequence->length) return state_->resumable(*sequence, begin);
  try {
    require_shiftable(*state_, where);
    require_window_after(*state_, *sequence, begin, end, where);
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::uint32_t CausalCache::cells_to_copy(SequenceId id, std::int32_t end) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence == nullptr ? 0 : count_of(split_tail(*state_, *sequence, end).second);
}

void CausalCache::defrag() {
  const char* where = "causal_cache.defrag";
  const MutexLock lock(state_->mutex);
  state_->require_sound(where);
  if (!state_->open_forwards.empty()) {
    fail(ErrorKind::kBusy, where, "open forwards: got ", state_->open_forwards.size(), ", allowed none");
  }
  CellPool& pool = *state_->pool;
  const std::vector<CellMove> moves = pool.compact();
  for (auto& [id, sequence] : state_->sequences) sequence.layout = ++state_->stamp;
  try {
    if (!moves.empty()) state_->store->move(moves);
    state_->owners.move(moves);
  } catch (...) {
    state_->damaged = true;  // labels and bytes may disagree from here on
    throw;
  }
  const Cell held = pool.held_cells();
  if (pool.on_free && held < pool.cells()) pool.on_free(held, pool.cells() - held);
}

}  // namespace kvtrie
