// The calls that wait without the mutex of their prefix cache (calls.h).
//
// Threads: guarded by that mutex.
#pragma once

#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvtrie {

// The calls that are outside now.
class CallsOutside {
 public:
  CallsOutside() { threads_.reserve(1); }
  // Throws, and changes nothing, when there is no memory; the one that closes has its place already.
  void add(std::thread::id thread) {
    threads_.reserve(threads_.size() + 2);
    threads_.push_back(thread);
  }
  void add_closing(std::thread::id thread) noexcept { threads_.push_back(thread); }
  void remove(std::thread::id thread) noexcept;
  bool has(std::thread::id thread) const noexcept;
  bool empty() const noexcept { return threads_.empty(); }
  // Until none is outside but those of this thread. `mutex`: the cache's.
  void wait_for_others(Mutex& mutex) KVTRIE_REQUIRES(mutex);

 private:
  bool only(std::thread::id thread) const noexcept;
  std::vector<std::thread::id> threads_;  // one entry for each call: calls nest in callbacks
  Condition came_back_;
};

}  // namespace kvtrie
