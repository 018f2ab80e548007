// Work that nobody waits for: one thread that runs jobs in order.
//
// Each job has a number of bytes it keeps alive; they count until the job and what it captured are gone. `wait_below`
// lets a caller slow down while too much is under way, and `drain` waits for all that was given before. A job that
// throws is logged and forgotten. The destructor runs what is left.
//
// A job may add jobs. It may even hold the last reference to the queue's owner: the destructor then returns at once and
// the thread ends by itself after what is left. A job that waits for its own queue is refused (kBusy).
//
// A queue that works `only_when_waited_for` begins jobs in `wait_below`, `drain` and the destructor alone, as many as
// these wait for. The owner's calls in between then meet the same jobs in every replay.
//
// Threads: any, but never under a lock that a job takes. The thread starts with the first job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace kvtrie {

class BackgroundQueue {
 public:
  explicit BackgroundQueue(std::string name);
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  // Throws, and keeps nothing of the job, when there is no memory or no thread for it.
  void add(std::uint64_t bytes, std::function<void()> job);
  // A job that is added later, once, by a caller who has no memory then and may not fail. Where it is not, it goes with
  // the queue. REQUIRES of `add_prepared`: the thread runs, as in a job.
  void prepare(std::function<void()> job);
  void add_prepared() noexcept;
  void wait_below(std::uint64_t bytes);  // until at most `bytes` are queued or running
  void drain();                          // until every job added before this call is gone
  void only_when_waited_for();           // from now on; REQUIRES: no job was added yet
  std::uint64_t pending_bytes() const;   // queued or running
  std::uint64_t pending_jobs() const;    // the same
  bool on_own_thread() const;            // whether the caller is a job of this queue

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive the queue
};

}  // namespace kvtrie
