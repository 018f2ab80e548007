// Copies, removals and compaction.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "cache/causal_cache_state.h"

namespace kvtrie {

namespace {

// How many numbers of positions the cells of these spans have moved by.
std::size_t kinds_of(const CellSpans& kept, const CellSpans& tail) {
  std::set<std::int32_t> kinds;
  for (const CellSpans* spans : {&kept, &tail})
    for (const CellSpan& span : *spans) kinds.insert(span.moved);
  return kinds.size();
}

// [from, length) of a sequence, `by` positions further down.
CellSpans moved_down(const Sequence& sequence, std::int32_t from, std::int32_t by) {
  CellSpans tail;
  for (CellSpan span : slice_spans(sequence.history(), from, sequence.length)) {
    span.position -= by;
    span.moved += by;
    append_span(tail, span);
  }
  return tail;
}

// Keys to rotate where they are: by how much they have moved -> which cells.
using Settling = std::map<std::int32_t, CellSpans>;

// Cells from position `alone_from` on that one list holds have not moved any more; what else has stays as it is.
Settling settle(const CellPool& pool, CellSpans& tail, std::int32_t alone_from) {
  Settling settling;
  CellSpans settled;
  const auto keep = [&](const CellSpans& spans) {
    for (const CellSpan& span : spans) append_span(settled, span);
  };
  keep(slice_spans(tail, 0, alone_from));
  for (const CellSpan& span : slice_spans(tail, alone_from, std::numeric_limits<std::int32_t>::max())) {
    auto [alone, shared] = pool.split_by_holders({span}, 1);
    if (span.moved != 0) settling[span.moved].insert(settling[span.moved].end(), alone.begin(), alone.end());
    for (CellSpan& each : alone) each.moved = 0;
    alone.insert(alone.end(), shared.begin(), shared.end());
    std::sort(alone.begin(), alone.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
    keep(alone);
  }
  tail = std::move(settled);
  return settling;
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

// Nothing is copied, and nothing can fail once something has changed, but the rotation of keys that have moved in too
// many ways.
void CausalCache::State::remove_middle(Sequence& sequence, std::int32_t begin, std::int32_t end, const char* where) {
  require_shiftable(*this, where);
  require_window_after(*this, sequence, begin, end, where);
  require_sound(where);
  if (busy(sequence)) require_idle(sequence, where);
  const std::int32_t by = end - begin, after = sequence.length - by;
  CellSpans spans = moved_down(sequence, end, by);
  Settling settling;
  if (kinds_of(slice_spans(sequence.history(), 0, begin), spans) > kMostMoves)
    settling = settle(*pool, spans, is_windowed() ? 0 : sequence.borrowed_end - by);
  SpanList tail(*pool, true);
  tail.append(spans);
  sequence.own.make_room(spans.size());
  make_idle(sequence, where);
  try {
    for (const auto& [moved, cells] : settling)
      if (!cells.empty()) store->rotate(cells, -moved);
  } catch (...) {
    cut(sequence, begin);  // some keys may be rotated, some not: what follows is forgotten
    throw;
  }
  cut(sequence, begin);
  sequence.own.append(std::move(tail));
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
