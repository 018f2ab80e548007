// The calls that wait without the mutex of their prefix cache, and those that wait for it (calls.h).
//
// Threads: CallsOutside is guarded by that mutex; Turns may be used by any.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvtrie {

// The callers that wait for the mutex, and how often a call has got it.
class Turns {
 public:
  // `lock` takes the mutex.
  template <class Lock>
  void wait(const Lock& lock) {
    ++waiting_;
    lock();
    ++taken_;
    taken_.notify_all();
    --waiting_;
  }
  std::uint32_t taken() const noexcept { return taken_; }
  // Until a call has got the mutex since `turn`, where one waits for it. REQUIRES: this thread does not hold it.
  void let_one_in(std::uint32_t turn) const noexcept {
    if (waiting_ > 0) taken_.wait(turn);
  }

 private:
  std::atomic<std::uint32_t> waiting_ = 0;
  std::atomic<std::uint32_t> taken_ = 0;
};

// The calls that are outside now.
class CallsOutside {
 public:
  CallsOutside() { threads_.reserve(1); }
  // Throws, and changes nothing, when there is no memory; the one that closes has its place already.
  void add(std::thread::id thread) {
    threads_.reserve(threads_.size() + 2);
    add_closing(thread);
  }
  void add_closing(std::thread::id thread) noexcept {
    threads_.push_back(thread);
    ++times_;
  }
  void remove(std::thread::id thread) noexcept;
  bool has(std::thread::id thread) const noexcept;
  bool empty() const noexcept { return threads_.empty(); }
  std::uint64_t times() const noexcept { return times_; }  // that a call went outside, since the beginning
  // Until none is outside but those of this thread. `mutex`: the cache's.
  void wait_for_others(Mutex& mutex) KVTRIE_REQUIRES(mutex);

 private:
  bool only(std::thread::id thread) const noexcept;
  std::vector<std::thread::id> threads_;  // one entry for each call: calls nest in callbacks
  std::uint64_t times_ = 0;
  Condition came_back_;
};

}  // namespace kvtrie
