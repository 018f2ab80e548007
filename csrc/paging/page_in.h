// A session goes as deep as the tree allows, and what is missing there comes back from the lower tiers.
//
// Concept. A search says what is to be brought back (session/reuse_search.h); one attempt verifies and reads it with
// the mutex free, then claims and loads it with the mutex held:
//
//     mutex      what is missing at the target --> room in host memory for what lies in files
//     outside    stages are read and verified (tiers/stage.h)
//     mutex      what is missing now? --> room on the device --> loaded (tiers/loader.h), a pending load until the
//                device has read it
//
// The path may change while the mutex is free: nodes split (the halves share the verified blobs), somebody else brings
// them back (nothing left to do for those), or they come back and go again (new blobs: start over). So what is missing
// is looked up again afterwards, and only bytes that were verified in this attempt are loaded.
//
// Bytes that are not what they were are dropped with everything below them. A load that fails on the device takes its
// nodes along, and the sessions that stand on them fail.
//
// Errors: kClosed when the session or the cache was closed meanwhile, kDevice when what it stood on was lost. Threads:
// called with the prefix cache's mutex held. Units: tokens, bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "paging/gate.h"
#include "plan/plan_types.h"
#include "plan/planner.h"
#include "session/cursors.h"
#include "session/steps.h"
#include "store/background_queue.h"
#include "tiers/device_budget.h"
#include "tiers/lower_tiers.h"
#include "tree/cost_model.h"
#include "tree/namespaces.h"
#include "tree/pending_loads.h"
#include "tree/quotas.h"
#include "tree/reuse_plan.h"
#include "tree/stats.h"

namespace kvtrie {

// The parts of the tree that a page-in reads and changes. All outlive the PageIn.
struct PagedTree {
  Gate& gate;
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  RestorePoints& points;
  Leases& leases;
  LiveSessions& sessions;
  Namespaces& namespaces;
  Quotas& quotas;
  Planner& planner;
  CostModel& costs;
  const std::shared_ptr<ByteBudget>& host;
  LowerTiers& lower;
  BackgroundQueue* const& writer;  // null: no disk tier
  DeviceBudget& device_budget;
  Removal& removal;
  PendingLoads& pending_loads;
  Cursors& cursors;
  Steps& steps;
  PrefixCacheStats& totals;
};

class PageIn {
 public:
  explicit PageIn(const PagedTree& of) : of_(of) {}
  PageIn(const PageIn&) = delete;
  PageIn& operator=(const PageIn&) = delete;

  // Moves the cursor as deep as the tree and `limit` allow. Lets go of the mutex.
  ReusePlan advance(Cursor& cursor, std::int32_t limit, Call& call);

  // Whether host memory will come back by itself, and until some has: lets go of the mutex.
  bool host_is_busy() const;
  void wait_for_host(Call& call);
  // Ends the loads that the device has read. Throws when there is no memory to drop those that failed: the next call
  // does it.
  void reap_pending_loads();

 private:
  friend class PageInAttempt;  // page_in.cpp
  enum class Result : std::uint8_t { kDone, kNoRoom, kHostFull, kChecksum, kChanged };

  void drop_damaged(const Path& path);  // what of the path has bytes that are known to be wrong
  void fail(const PendingLoadPtr& pending_load);

  const PagedTree of_;
};

}  // namespace kvtrie
