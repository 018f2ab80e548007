// Copies, removals and compaction.
#include "standalone/encoder_cache_state.h"

namespace kvtrie {

// ---- state --------------------------------------------------------------------------------------------------------

using CacheState = EncoderCache::State;

void CacheState::cut(EncoderSequence& sequence, std::int32_t length) noexcept {
  if (sequence.position >= length) let_go(sequence);
  sequence.length = length;
}

CacheState::Prefix CacheState::prefix(const EncoderSequence& sequence, std::int32_t length) const {
  const bool has_item = sequence.has_item() && sequence.position < length;
  return {has_item ? sequence.cells.share() : SpanList(*pool, true), sequence.position};
}

void CacheState::become(EncoderSequence& sequence, std::int32_t length, Prefix prefix) noexcept {
  sequence.cells = std::move(prefix.cells);
  sequence.position = prefix.position;
  sequence.length = length;
  sequence.epoch = ++stamp;
}

void CacheState::remove_middle(EncoderSequence& sequence, std::int32_t begin, std::int32_t end, const char* where) {
  make_idle(sequence, where);
  if (sequence.position >= end) {
    sequence.position -= end - begin;
  } else if (sequence.position >= begin) {
    let_go(sequence);
  }
  sequence.length -= end - begin;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

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
