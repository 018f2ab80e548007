// Private to cl/: looks at the status of every command, since OpenCL itself forgets failed ones.
//
// Concept. Each command leaves its event here, in queue order, or, where events cost more than launches, each *group*:
// launches without an event of their own, up to kGroup, and the command behind them whose event stands for all. Ended
// events are taken off the front as new ones come, and wherever somebody waits. Commands belong to an *epoch*; when a
// failure is reported the epoch ends, so that it is reported once, and to every waiter whose command came after the
// failure in the same epoch:
//
//     command    1  2  3x 4  5 | 6  7         3 fails; finish() after 5 throws and starts a new epoch
//     epoch      a  a  a  a  a | b  b         Event 2 is sound, 3, 4 and 5 throw, 6 and 7 are sound
//
// Of a group that failed it is not known which launch did. So for some time from there on each launch has an event, as
// `watches` says: a caller that does the same work again is told the kernel.
//
// Two bounds hold for pending commands. By number: a host that runs far ahead of the device would otherwise fill its
// memory with commands. And by the time that the device is expected to need for it (pace.h).
//
// Threads: every method may be called from any thread. `add` must be called in queue order: under the enqueue lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>

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
    std::string named;  // what failed, " in ..."; written before first_failed, under the log's lock
  };
  // A command's place in the queue.
  struct Ticket {
    std::uint64_t number = 0;
    std::shared_ptr<Epoch> epoch;
  };

  CommandLog() : epoch_(std::make_shared<Epoch>()) {}

  // `timed`: done when `event` is, and has its time. Empty: `has_times` says whether `event` has it itself; of a
  // command whose time nobody has, none is expected. `name`, of a kernel, outlives this.
  struct Command {
    EventHandle event;
    Pace::Kind kind = 0;
    EventHandle timed{};
    bool has_times = false;
    const char* name = nullptr;
  };
  // The event stands for the open group, too. Strong: where it throws, kDevice or bad_alloc, the group stays open.
  Ticket add(Command command);
  // A launch without an event joins the open group. True: the group is full, and wants an event.
  bool join(Pace::Kind kind, const char* name) noexcept;
  bool has_open_group() const noexcept;
  bool watches() noexcept;  // whether the launch to come is to have an event of its own
  // REQUIRES: the command of `ticket` has ended, hence all before it. Throws kDevice if one of its epoch failed.
  void check(const Ticket& ticket, const char* where);
  std::uint64_t pending() const;
  // Back-pressure: when kMaxPending commands or more, or `seconds` of work, are pending, one that is far enough
  // behind to be worth waiting for; else empty. With it done the device has about half as much to do, hence goes on.
  EventHandle overdue(double seconds) noexcept;

 private:
  static constexpr std::size_t kMaxPending = 8192;
  static constexpr std::uint32_t kGroup = 16;         // launches
  static constexpr std::uint32_t kWatched = 1 << 14;  // launches behind a failure that was a group's: a long prompt's

  struct Group {
    std::uint32_t launches = 0;
    Pace::Kind kind = 0;
    const char *first = nullptr, *last = nullptr;  // kernels' names
  };
  struct Pending {
    std::uint64_t number;
    Command command;
    Group group;  // in front of the command
    std::shared_ptr<Epoch> epoch;
    double expected;  // seconds
  };
  static std::string name_of(const Pending& pending);
  void note_failed(const Pending& failed, int status) noexcept KVTRIE_REQUIRES(mutex_);
  std::uint64_t number_behind(std::size_t at) const KVTRIE_REQUIRES(mutex_) {
    return next_number_ - pending_[at].number;
  }
  void learn(const Pending& pending) noexcept KVTRIE_REQUIRES(mutex_);
  // Takes ended commands off the front; all up to `ended` are known to have ended.
  void settle(std::uint64_t ended, std::size_t at_most) KVTRIE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::deque<Pending> pending_ KVTRIE_GUARDED_BY(mutex_);  // in queue order
  std::shared_ptr<Epoch> epoch_ KVTRIE_GUARDED_BY(mutex_);
  std::uint64_t next_number_ KVTRIE_GUARDED_BY(mutex_) = 1;
  Group open_ KVTRIE_GUARDED_BY(mutex_);
  std::uint64_t behind_events_ KVTRIE_GUARDED_BY(mutex_) = 0;  // launches of pending groups
  std::uint32_t watched_ KVTRIE_GUARDED_BY(mutex_) = 0;        // launches to come
  std::uint64_t last_ended_ KVTRIE_GUARDED_BY(mutex_) = 0;     // nanoseconds of the device's clock
  Pace pace_ KVTRIE_GUARDED_BY(mutex_);
  double ahead_ KVTRIE_GUARDED_BY(mutex_) = 0;  // seconds, the sum of what is expected of pending_
};

// The execution status of a command: CL_QUEUED .. CL_COMPLETE (0), or the negative code it failed with. CL_QUEUED where
// the driver does not say: then it must not be taken for ended.
int command_status(cl_event event) noexcept;
int ask_status(cl_event event, cl_int& status) noexcept;  // the driver's answer to the question itself

}  // namespace kvtrie::cl
