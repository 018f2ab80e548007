// Copies, removals and compaction.
#include "standalone/encoder_cache_state.h"

namespace kvtrie {

void EncoderCache::copy_prefix(SequenceId from, SequenceId to, std::int32_t length) {
  const char* where = "encoder_cache.copy_prefix";
  const MutexLock lock(state_->mutex);
  const EncoderSequence* source = &state_->known(from, where);
  const std::int32_t whole = state_->length(from);
  require(length >= 0 && length <= whole, where, "length: got ", length, ", allowed 0 to ", whole);
  const bool has_item = source->has_item() && source->position < length;
  SpanList shared = has_item ? source->cells.share() : SpanList(*state_->pool, true);
  const std::int32_t position = source->position;
  EncoderSequence& target = state_->open(to);
  state_->make_idle(to);
  state_->let_go(target);
  target.cells = std::move(shared);
  target.position = position;
  target.length = length;
  target.epoch = ++state_->stamp;
  if (from != to) target.schedule = {};
  state_->forget_if_empty(to);
}

void EncoderCache::remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) {
  const char* where = "encoder_cache.remove";
  const MutexLock lock(state_->mutex);
  const std::int32_t length = state_->length(id), stop = end_of_removal(begin, end, length, where);
  if (begin == stop) return;
  EncoderSequence& sequence = *state_->find(id);
  state_->make_idle(id);
  if (sequence.position >= stop) {
    sequence.position -= stop - begin;
  } else if (sequence.position >= begin) {
    state_->let_go(sequence);
  }
  sequence.length = length - (stop - begin);
  state_->forget_if_empty(id);
}

void EncoderCache::defrag() {
  const char* where = "encoder_cache.defrag";
  const MutexLock lock(state_->mutex);
  state_->require_sound(where);
  const EncoderForward::State* forward = state_->unended();
  if (forward != nullptr && forward->brings) fail(ErrorKind::kBusy, where, "items are being put in an open forward");
  CellPool& pool = *state_->pool;
  const std::vector<CellMove> moves = pool.compact();
  ++state_->layout;
  try {
    if (!moves.empty()) state_->store->move(moves);
  } catch (...) {
    state_->damaged = true;  // labels and bytes may disagree from here on
    throw;
  }
  if (pool.on_free && pool.free_cells() > 0) pool.on_free(pool.held_cells(), pool.free_cells());
}

}  // namespace kvtrie
