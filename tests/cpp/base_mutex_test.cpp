// base/mutex.h: what its locks do when they run. What the analysis refuses is tests/lint/refused_locks.cpp.
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvtrie {
namespace {

struct Counter {
  Mutex mutex;
  Condition changed;
  int value KVTRIE_GUARDED_BY(mutex) = 0;
};

void add_many(Counter& counter, int times) {
  for (int i = 0; i < times; ++i) {
    const MutexLock lock(counter.mutex);
    ++counter.value;
  }
}

TEST(Mutex, OneThreadAtATimeIsBehindIt) {
  constexpr int kThreads = 4, kTimes = 20000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&counter] { add_many(counter, kTimes); });
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kTimes);
}

// Each step waits for the other thread's, so this ends only where waiting frees the mutex and takes it again.
TEST(Condition, TwoThreadsTakeTurns) {
  constexpr int kTurns = 1000;
  Counter counter;
  const auto play = [&counter](int parity) {
    for (int turn = parity; turn < kTurns; turn += 2) {
      const MutexLock lock(counter.mutex);
      while (counter.value != turn) counter.changed.wait(counter.mutex);
      ++counter.value;
      counter.changed.notify_all();
    }
  };
  std::thread other([&play] { play(1); });
  play(0);
  other.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kTurns);
}

TEST(MutexUnlock, LeavesItFreeForAScopeAlsoWhenThatThrows) {
  Counter counter;
  const MutexLock lock(counter.mutex);
  const auto outside = [&counter]() KVTRIE_REQUIRES(counter.mutex) {
    const MutexUnlock meanwhile(counter.mutex);
    std::thread([&counter] { add_many(counter, 1); }).join();  // ends only while the mutex is free
    throw 1;
  };
  EXPECT_THROW(outside(), int);
  EXPECT_EQ(counter.value, 1);
}

}  // namespace
}  // namespace kvtrie
