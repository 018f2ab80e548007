// Lending, for the prefix cache: sequences whose first positions lie in cells that trie nodes hold.
#include <algorithm>

#include "cache/causal_cache_state.h"
#include "cache/cell_image.h"

namespace kvtrie {
namespace {

void require_range(std::int32_t from, std::int32_t to, std::int32_t first, std::int32_t last, const char* where) {
  require(first <= from && from <= to && to <= last, where, "positions: got ", from, " to ", to, ", allowed within ",
          first, " to ", last);
}

// The spans of [from, to) of somebody's list.
CellSpans spans_of(const CausalCache::State& state, const SpanList& list, std::int32_t from, std::int32_t to,
                   const char* where) {
  require(list.belongs_to(*state.pool), where, "list: got one of another cache");
  require_range(from, to, list.begin_position(), list.end_position(), where);
  return slice_spans(list.spans(), from, to);
}

// The part of somebody's list that a sequence takes when it borrows [from, to): all of it, or, where the sequence holds
// only later cells itself, as much as the list has. Nothing where that would leave a gap behind it.
CellSpans taken_from(const CausalCache::State& state, const Sequence& sequence, const SpanList& list, std::int32_t from,
                     std::int32_t to) {
  const char* where = "causal_cache.borrow";
  require(from <= to, where, "positions: got ", from, " to ", to, ", allowed ascending ones");
  const std::int32_t held = sequence.held_from();
  if (from == to || held >= to) return {};
  const std::int32_t first = held <= from ? from : std::min(held, std::max(from, list.begin_position()));
  return spans_of(state, list, first, to, where);
}

}  // namespace

SpanList CausalCache::lend(SequenceId id, std::int32_t from, std::int32_t to) {
  const char* where = "causal_cache.lend";
  const MutexLock lock(state_->mutex);
  Sequence& sequence = state_->known(id, where);
  if (sequence.is_private) {
    fail(ErrorKind::kNotSupported, where, "sequence ", id, " is private: its state does not follow from its tokens");
  }
  const std::int32_t begin = sequence.borrowed_end;
  require(from == begin, where, "from: got ", from, ", allowed ", begin, ", the end of what is borrowed");
  require_range(from, to, begin, sequence.length, where);
  SpanList kept;  // what the sequence itself goes on holding
  if (is_windowed()) kept = sequence.own.share(from, to);
  sequence.borrowed.make_room(sequence.own.spans().size());
  if (to < sequence.length) sequence.own.make_room(1);  // for unlend
  SpanList rest = sequence.own.split(to);
  SpanList lent = std::move(sequence.own);
  sequence.own = std::move(rest);
  if (is_windowed()) {
    sequence.borrowed.append(std::move(kept));
  } else {
    sequence.borrowed.append(lent.spans());
  }
  sequence.borrowed_end = to;
  return lent;
}

void CausalCache::unlend(SequenceId id, SpanList lent, std::int32_t from) noexcept {
  const MutexLock lock(state_->mutex);
  Sequence* sequence = state_->find(id);
  sequence->borrowed.truncate(from);
  sequence->borrowed_end = from;
  if (lent.empty()) return;
  lent.append(std::move(sequence->own));
  sequence->own = std::move(lent);
}

void CausalCache::borrow(SequenceId id, const SpanList& list, std::int32_t from, std::int32_t to) {
  const char* where = "causal_cache.borrow";
  const MutexLock lock(state_->mutex);
  Sequence& sequence = state_->known(id, where);
  state_->require_idle(sequence, where);
  const std::int32_t begin = sequence.borrowed_end;
  require(from == begin, where, "from: got ", from, ", allowed ", begin, ", the end of what is borrowed");
  SpanList taken(*state_->pool, is_windowed());
  taken.append(taken_from(*state_, sequence, list, from, to));
  sequence.borrowed.make_room(taken.spans().size());
  SpanList rest = sequence.own.split(to);
  sequence.borrowed.append(std::move(taken));
  sequence.own = std::move(rest);
  sequence.borrowed_end = to;
  sequence.length = std::max(sequence.length, to);
  sequence.layout = ++state_->stamp;
}

void CausalCache::truncate(SequenceId id, std::int32_t length) {
  const char* where = "causal_cache.truncate";
  const MutexLock lock(state_->mutex);
  Sequence& sequence = state_->known(id, where);
  require(length >= 0 && length <= sequence.length, where, "length: got ", length, ", allowed 0 to ", sequence.length);
  state_->require_resumable(sequence, length, where);
  state_->make_idle(sequence, where);
  state_->cut(sequence, length);
}

void CausalCache::fork(SequenceId from, SequenceId to, std::int32_t length) {
  const char* where = "causal_cache.fork";
  const MutexLock lock(state_->mutex);
  const Sequence& source = state_->known(from, where);
  Sequence& target = state_->known(to, where);
  require(length >= 0 && length <= source.length, where, "length: got ", length, ", allowed 0 to ", source.length);
  require(from != to && target.length == 0, where, "to: got sequence ", to, " of ", target.length,
          " tokens, allowed another, empty one");
  state_->require_resumable(source, length, where);
  state_->require_idle(target, where);
  SpanList borrowed(*state_->pool, is_windowed());
  borrowed.append(slice_spans(source.borrowed.spans(), 0, length));
  target.own = source.own.share(0, length);
  target.borrowed = std::move(borrowed);
  target.length = length;
  target.borrowed_end = std::min(source.borrowed_end, length);
  target.is_private = source.is_private && length > 0;
  target.epoch = ++state_->stamp;
}

std::int32_t CausalCache::borrowed_length(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence == nullptr ? 0 : sequence->borrowed_end;
}

SpanList CausalCache::claim(std::uint32_t count, std::int32_t position, Owner owner) {
  const MutexLock lock(state_->mutex);
  Reservation none;
  return state_->pool->claim(count, position, 0, none, 0, owner);
}

CompletionPtr CausalCache::mark() {
  const MutexLock lock(state_->mutex);
  return state_->store->mark();
}

CompletionPtr CausalCache::store_image(const SpanList& list, std::int32_t from, std::int32_t to,
                                       std::int32_t image_position, std::byte* image, std::uint32_t image_cells) {
  const MutexLock lock(state_->mutex);
  state_->require_sound("causal_cache.store_image");
  const CellSpans spans = spans_of(*state_, list, from, to, "causal_cache.store_image");
  require_in_image(spans, image_position, image_cells);
  for (const CellSpan& span : spans)
    ensure(span.moved == 0, "causal_cache.store_image", "cells moved by ", span.moved, ", which images do not say");
  return state_->store->store_image(spans, image_position, image, image_cells);
}

CompletionPtr CausalCache::load_image(const SpanList& list, std::int32_t from, std::int32_t to,
                                      std::int32_t image_position, const std::byte* image, std::uint32_t image_cells,
                                      Owner owner) {
  const MutexLock lock(state_->mutex);
  state_->require_sound("causal_cache.load_image");
  const CellSpans spans = spans_of(*state_, list, from, to, "causal_cache.load_image");
  require_in_image(spans, image_position, image_cells);
  for (const CellSpan& span : spans) state_->owners.set(span.cell, span.length, kForeign);
  CompletionPtr loaded = state_->store->load_image(spans, image_position, image, image_cells);
  for (const CellSpan& span : spans) state_->owners.set(span.cell, span.length, owner);
  return loaded;
}

void CausalCache::count_owners() { state_->pool->count_owners(true); }

std::uint32_t CausalCache::held_by(Owner owner) const { return state_->pool->held_by(owner); }

void CausalCache::distrust_owners() {
  const MutexLock lock(state_->mutex);
  state_->owners.distrust();
}

Owner CausalCache::owner_of(Cell cell) const {
  require(cell < capacity(), "causal_cache.owner_of", "cell: got ", cell, ", allowed 0 to ", capacity() - 1);
  const MutexLock lock(state_->mutex);
  return state_->owners.owner_of(cell);
}

std::uint32_t CausalCache::cells_held_only(const SpanList& list, std::uint32_t holders) const {
  const MutexLock lock(state_->mutex);
  return state_->pool->cells_held_only(list.spans(), holders);
}

}  // namespace kvtrie
