// A forward of recurrent layers that are computed together, in one launch that was recorded before: what causal_hold.h
// is for attention, and used in the same way.
//
//     RecurrentHold hold(cache, forward);     locks
//     graph.replay({.., {hold.rows()}});      enqueued behind everything that wrote states so far
//     hold.put_all();                         the forward is complete
//
// Threads: one thread makes, uses and ends a hold. A caller with several caches makes the holds in the order of the
// caches, and calls nothing else of them meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cache/recurrent_cache.h"

namespace kvtrie {

class RecurrentHold {
 public:
  // Throws kArgument once a layer was written, and like RecurrentCache::conv.
  RecurrentHold(RecurrentCache& cache, StateForward& forward);
  ~RecurrentHold();
  RecurrentHold(RecurrentHold&&) noexcept;

  std::vector<ops::StateRows> rows() const;
  void put_all();  // once; strong: throws before anything changed

  // A complete forward again, for comparing: from the states `before` it, one of each sequence, writing none. The
  // slots must be held for as long as the rows are used.
  static std::vector<ops::StateRows> rows_again(const StateForward& forward, const std::vector<SlotRef>& before);
  // The slots and rows of layers that were computed one by one; of a complete forward.
  static ops::DeviceStateRuns recorded(const StateForward& forward);

 private:
  std::shared_ptr<RecurrentCache::State> state_;
  StateForward::State* forward_;
  MovableMutexLock lock_;  // of the cache
};

}  // namespace kvtrie
