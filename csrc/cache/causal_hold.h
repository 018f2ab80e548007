// A forward whose layers are computed together, in one launch that was recorded before (ops/launch_graph.h).
//
// Concept. `attend_qkv` takes the cache's lock once for each layer; in between, cells may move, and the next layer
// plans again. A replay computes all layers at once, so the cache has to hold still from planning until the launch is
// enqueued, and then all layers count as put:
//
//     CausalHold hold(cache, forward);     locks, plans
//     graph.replay(ids, {hold.tables()});  enqueued behind everything that moved cells so far
//     hold.put_all();                      the forward is complete
//
// Threads: one thread makes, uses and ends a hold. A caller with several caches makes the holds in the order of the
// caches, and calls nothing else of them meanwhile.
#pragma once

#include <memory>
#include <optional>

#include "base/mutex.h"
#include "cache/causal_cache.h"

namespace kvtrie {

class CausalHold {
 public:
  // Throws kArgument once a layer was put, and like CausalCache::put.
  CausalHold(CausalCache& cache, Forward& forward);
  // A complete forward again, for comparing: empty when it no longer sees what it saw, where it saw it.
  static std::optional<CausalHold> again(CausalCache& cache, Forward& forward);
  ~CausalHold();
  CausalHold(CausalHold&&) noexcept;

  ops::StepTables tables() const;        // the plan in it lives as long as the hold
  ops::RecordedTables recorded() const;  // what layers used that were attended one by one
  // What rows choose from among the cache's keys (LaunchGraph::choices). REQUIRES: not copies().
  ops::ChoiceTables choice(std::int32_t ratio, bool masked) const;
  bool copies() const;  // whether keys that are chosen are copied, as those that have moved
  void put_all();       // once; strong: throws before anything changed

 private:
  struct Unplanned {};
  CausalHold(CausalCache& cache, Forward& forward, Unplanned);

  std::shared_ptr<CausalCache::State> state_;
  Forward::State* forward_;
  MovableMutexLock lock_;  // of the cache
};

}  // namespace kvtrie
