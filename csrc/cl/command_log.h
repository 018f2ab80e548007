// Private to cl/: looks at the status of every command, since OpenCL itself forgets failed ones.
//
// Concept. Each command leaves its event here, in queue order. Ended events are taken off the front as new ones come,
// and wherever somebody waits. Commands belong to an *epoch*; when a failure is reported the epoch ends, so that it is
// reported once, and to every waiter whose command came after the failure in the same epoch:
//
//     command    1  2  3x 4  5 | 6  7         3 fails; finish() after 5 throws and starts a new epoch
//     epoch      a  a  a  a  a | b  b         Event 2 is sound, 3, 4 and 5 throw, 6 and 7 are sound
//
// What is pending is bounded in two ways. By number: a host that runs far ahead of the device would otherwise fill its
// memory with commands. And by the time that the device is expected to need for it (pace.h).
//
// Threads: every method may be called from any thread. `add` must be called in queue order: under the enqueue lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>

#include "base/mutex.h"
#include "cl/opencl.h"
#include "cl/pace.h"

namespace kvtrie::cl {

class CommandLog {
 public:
  struct Epoch {
    static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
    std::atomic<std::uint64_t> first_failed{kNone};
    std::atomic<int> code{0};
  };
  // A command's place in the queue.
  struct Ticket {
    std::uint64_t number = 0;
    std::shared_ptr<Epoch> epoch;
  };

  CommandLog() : epoch_(std::make_shared<Epoch>()) {}

  Ticket add(EventHandle event, Pace::Kind kind);
  // REQUIRES: the command of `ticket` has ended, hence all before it. Throws kDevice if one of its epoch failed.
  void check(const Ticket& ticket, const char* where);
  std::uint64_t pending() const;
  // Back-pressure: when more than kMaxPending commands, or `seconds` of work, are pending, one that is far enough
  // behind to be worth waiting for; else empty. With it done the device has about half as much to do, hence goes on.
  EventHandle overdue(double seconds) noexcept;

 private:
  static constexpr std::size_t kMaxPending = 8192;

  struct Pending {
    std::uint64_t number;
    EventHandle event;
    std::shared_ptr<Epoch> epoch;
    Pace::Kind kind;
    double expected;  // seconds
  };
  // Takes ended commands off the front; all up to `ended` are known to have ended.
  void settle(std::uint64_t ended, std::size_t at_most) KVTRIE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::deque<Pending> pending_ KVTRIE_GUARDED_BY(mutex_);  // in queue order
  std::shared_ptr<Epoch> epoch_ KVTRIE_GUARDED_BY(mutex_);
  std::uint64_t next_number_ KVTRIE_GUARDED_BY(mutex_) = 1;
  Pace pace_ KVTRIE_GUARDED_BY(mutex_);
  double ahead_ KVTRIE_GUARDED_BY(mutex_) = 0;  // seconds, the sum of what is expected of pending_
};

// The execution status of a command: CL_QUEUED .. CL_COMPLETE (0), or the negative code it failed with. CL_QUEUED where
// the driver does not say: then it must not be taken for ended.
int command_status(cl_event event) noexcept;
int ask_status(cl_event event, cl_int& status) noexcept;  // the driver's answer to the question itself

}  // namespace kvtrie::cl
