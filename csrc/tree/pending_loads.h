// Page-ins that the device may still be reading.
//
// Concept. A page-in hands host memory to the device and goes on: its nodes are on the device from then on, and what
// uses their cells is enqueued behind it. A *pending load* is the work that one page-in had the device do. It keeps
// that memory until it has been read, and its nodes refer to it until it is known how that ended:
//
//     add --> under way --+-- every read ended well --> settled: its nodes forget it when they next change
//                         '-- one or more failed -----> failed: the cells do not have what the tree says
//
// Which of the two it is `take_failed` finds out, when a call begins. The nodes that refer to what failed are removed
// next. Until then they keep referring to it: through cuts and joins, so that none of them is missed while sessions
// leave the others; and when they leave the device before a read has ended, for what is copied then is not what they
// should have.
//
// A pending load is listed before anything is enqueued for it: where an error interrupts a page-in, the memory of what
// the device was given by then is kept, too.
//
// Invariants: memory is kept while a read of it may be under way, and no longer than until take_failed() has met the
// pending load done. One that is not listed any more is settled or failed.
//
// Errors: take_failed() reports each failed read in the log and throws nothing for it. Cost: O(reads) for each pending
// load that is listed. Threads: guarded by the prefix cache's mutex, but for `wait_for`, which waits for the device:
// call it under no lock.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_store.h"
#include "store/blob.h"

namespace kvtrie {

class PendingLoad {
 public:
  // `enqueue` has the device read from `memory` and gives the completion; or it throws, and nothing was enqueued.
  template <class Enqueue>
  void read(const HostMemoryPtr& memory, Enqueue&& enqueue) {
    reads_.push_back({memory, nullptr});
    reads_.back().completion = std::forward<Enqueue>(enqueue)();
  }

  bool done() const;  // no read is under way
  // Nothing was read, or it is known that all of it ended well: no node has to refer to it.
  bool settled() const noexcept { return reads_.empty() && !failed_; }

 private:
  friend class PendingLoads;
  struct Read {
    HostMemoryPtr memory;
    CompletionPtr completion;  // null: nothing was enqueued
  };
  void settle();  // REQUIRES: done

  std::vector<Read> reads_;
  bool failed_ = false;
};
using PendingLoadPtr = std::shared_ptr<PendingLoad>;

class PendingLoads {
 public:
  PendingLoadPtr add();  // of a page-in that begins now
  bool empty() const noexcept { return listed_.empty(); }

  // Loads that are done are listed no longer, up to the first one that failed, in the order in which they were added:
  // that one. Null: none of them failed, and those that are left are under way.
  PendingLoadPtr take_failed();
  void put_back(PendingLoadPtr failed) noexcept;  // it is met again. REQUIRES: it was taken, and none was added since

  // The loads under way, for `wait_for`.
  std::vector<CompletionPtr> under_way() const;
  static void wait_for(std::span<const CompletionPtr> completions) noexcept;  // until they are done, well or not

 private:
  std::vector<PendingLoadPtr> listed_;
};

}  // namespace kvtrie
