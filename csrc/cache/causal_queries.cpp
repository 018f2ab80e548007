// Questions to this cache by a caller that changes several caches as one.
#include "cache/causal_cache_state.h"

namespace kvtrie {

bool CausalCache::busy(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  if (sequence == nullptr || sequence->forward == nullptr) return false;
  return !state_->current || state_->current->state_.get() != sequence->forward;
}

Cell CausalCache::free_for_removal(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  if (sequence == nullptr) return state_->pool->free_cells();
  std::vector<const SpanList*> going;
  const auto passed = sequence->passed.lock();
  if (passed) going.push_back(passed.get());
  if (sequence->forward != nullptr) {
    for (const ForwardSequence& in_forward : sequence->forward->sequences) going.push_back(&in_forward.claimed);
  }
  return state_->pool->free_without(going);
}

bool CausalCache::can_restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) const {
  const char* where = "causal_cache.can_restore";
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  const std::int32_t length = sequence == nullptr ? 0 : sequence->length;
  const std::int32_t held = sequence == nullptr ? 0 : sequence->held_from();
  if (!snapshot) return target >= 0 && target <= length && state_->complete_at(target, held);
  const Snapshot::Contents& contents = *snapshot->contents_;
  if (contents.consumed) fail(ErrorKind::kClosed, where, "the snapshot was consumed by split or merge");
  require(contents.owner.lock() == state_, where, "snapshot: got one of another cache");
  if (target < 0 || target > contents.end) return false;
  if (target < contents.start) return contents.start <= length && state_->complete_at(target, held);
  const std::int32_t first = contents.held_from(target);
  const bool joins = first == contents.start && contents.start <= length && held < contents.start;
  return state_->complete_at(target, joins ? held : first);
}

}  // namespace kvtrie
