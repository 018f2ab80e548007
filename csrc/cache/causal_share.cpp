// Counted lists on what a sequence holds: restore points keep a window that way.
#include "cache/causal_cache_state.h"

namespace kvtrie {

SpanList CausalCache::share(SequenceId id, std::int32_t from, std::int32_t to) const {
  const char* where = "causal_cache.share";
  const MutexLock lock(state_->mutex);
  const CellSpans history = state_->known(id, where).history();
  const std::int32_t first = history.empty() ? to : history.front().position;
  const std::int32_t end = history.empty() ? from : history.back().end_position();
  SpanList list(*state_->pool, true);
  if (from >= to) return list;
  require(first <= from && to <= end, where, "positions: got ", from, " to ", to, ", allowed within ", first, " to ",
          end);
  list.append(slice_spans(history, from, to));
  return list;
}

HeldState CausalCache::hold(SequenceId id, std::int32_t length) const {
  const std::int32_t floor = visibility().floor(length);
  return floor < length ? HeldState(share(id, floor, length)) : HeldState();
}

}  // namespace kvtrie
