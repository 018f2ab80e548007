#include "store/background_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "disk_helpers.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

// Holds a job until it is let go.
class Gate {
 public:
  void open() { promise_.set_value(); }
  std::function<void()> job() {
    return [this] {
      begun_.set_value();
      future_.wait();
    };
  }
  void wait_until_begun() { begun_.get_future().wait(); }

 private:
  std::promise<void> promise_, begun_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

TEST(BackgroundQueue, RunsJobsInOrderAndDrains) {
  BackgroundQueue queue("test");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) queue.add(1, [&order, i] { order.push_back(i); });
  queue.drain();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(queue.pending_bytes(), 0u);
  EXPECT_EQ(queue.pending_jobs(), 0u);
}

// As many jobs as are waited for, and no more: that can be replayed.
TEST(BackgroundQueue, MayWorkOnlyWhenItIsWaitedFor) {
  std::atomic<int> run = 0;
  {
    BackgroundQueue queue("test");
    queue.only_when_waited_for();
    for (int i = 0; i < 8; ++i) {
      queue.add(10, [&queue, &run] {
        if (++run == 1) queue.add(10, [&run] { ++run; });  // younger than what is waited for
      });
    }
    std::this_thread::yield();
    EXPECT_EQ(run, 0);
    queue.wait_below(50);  // of 80, and of what the first job adds
    EXPECT_EQ(run, 4);
    queue.add(0, [&run] { ++run; });
    queue.wait_below(50);
    EXPECT_EQ(run, 4) << "there are no more bytes than that";
    queue.drain();
    EXPECT_EQ(run, 10);
    queue.add(10, [&run] { ++run; });
    std::this_thread::yield();
    EXPECT_EQ(run, 10);
  }
  EXPECT_EQ(run, 11) << "what is left at the end is done";
}

TEST(BackgroundQueue, NothingAddedIsNothingToWaitFor) {
  BackgroundQueue queue("test");
  queue.drain();
  queue.wait_below(0);
}

TEST(BackgroundQueue, CountsTheRunningJobToo) {
  Gate gate;  // outlives the queue
  BackgroundQueue queue("test");
  queue.add(10, gate.job());
  queue.add(5, [] {});
  gate.wait_until_begun();
  EXPECT_EQ(queue.pending_bytes(), 15u);
  EXPECT_EQ(queue.pending_jobs(), 2u);
  gate.open();
  queue.wait_below(0);
  EXPECT_EQ(queue.pending_jobs(), 0u);
}

TEST(BackgroundQueue, WaitBelowReturnsAsSoonAsEnoughIsGone) {
  Gate first, second;
  BackgroundQueue queue("test");
  queue.add(10, first.job());
  queue.add(7, second.job());
  queue.wait_below(17);
  std::atomic<bool> below = false;
  std::thread waiter([&] {
    queue.wait_below(7);
    below = true;
  });
  first.wait_until_begun();
  EXPECT_FALSE(below);
  first.open();
  waiter.join();
  second.wait_until_begun();
  EXPECT_EQ(queue.pending_bytes(), 7u);
  second.open();
}

TEST(BackgroundQueue, WhatAJobCapturedIsGoneBeforeItsBytesAre) {
  BackgroundQueue queue("test");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  queue.add(10, [held = std::move(held)] {});
  queue.wait_below(0);
  EXPECT_TRUE(watched.expired());
}

TEST(BackgroundQueue, AJobThatThrowsIsLoggedAndForgotten) {
  const test::Log log;
  BackgroundQueue queue("paging");
  int ran = 0;
  queue.add(1, [] { throw std::runtime_error("no room"); });
  queue.add(1, [] { throw 7; });  // NOLINT: not a std::exception, on purpose
  queue.add(1, [&ran] { ++ran; });
  queue.drain();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(queue.pending_bytes(), 0u);
  EXPECT_EQ(log.count("[paging] a job failed: no room"), 1u);
  EXPECT_EQ(log.count("[paging] a job failed"), 2u);
}

TEST(BackgroundQueue, TheDestructorRunsWhatIsLeft) {
  int ran = 0;
  {
    BackgroundQueue queue("test");
    for (int i = 0; i < 50; ++i) queue.add(1, [&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(BackgroundQueue, TheDestructorRunsWhatJobsAdd) {
  int ran = 0;
  {
    BackgroundQueue queue("test");
    queue.add(1, [&] {
      queue.add(1, [&] {
        queue.add(1, [&ran] { ++ran; });
        ++ran;
      });
      ++ran;
    });
  }
  EXPECT_EQ(ran, 3);
}

TEST(BackgroundQueue, SeveralThreadsAddAndDrain) {
  BackgroundQueue queue("test");
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&queue, &ran] {
      for (int i = 0; i < 200; ++i) {
        std::atomic<bool> mine = false;
        queue.add(3, [&] {
          ++ran;
          mine = true;
        });
        queue.drain();
        EXPECT_TRUE(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 800);
  EXPECT_EQ(queue.pending_bytes(), 0u);
}

TEST(BackgroundQueue, AJobMayNotWaitForItsOwnQueue) {
  const test::Log log;
  BackgroundQueue queue("test");
  std::vector<ErrorKind> kinds;
  const auto noted = [&kinds](const auto& wait) {
    try {
      wait();
    } catch (const Error& error) {
      kinds.push_back(error.kind());
      throw;
    }
  };
  queue.add(1, [&] { noted([&] { queue.drain(); }); });
  queue.add(1, [&] { noted([&] { queue.wait_below(0); }); });
  queue.drain();
  EXPECT_EQ(kinds, std::vector(2, ErrorKind::kBusy));
  EXPECT_EQ(log.count("[test] wait: got one inside a job of its own thread"), 2u);
}

TEST(BackgroundQueue, AJobMayHoldTheLastReferenceToTheQueue) {
  auto queue = std::make_shared<BackgroundQueue>("test");
  BackgroundQueue* const raw = queue.get();
  std::promise<void> released;
  const auto last = std::make_shared<std::promise<void>>();
  raw->add(1, [queue, wait = released.get_future().share()] { wait.wait(); });
  raw->add(1, [last] { last->set_value(); });
  queue.reset();
  released.set_value();
  last->get_future().wait();
}

TEST(BackgroundQueue, APreparedJobComesLastAndWantsNoMemory) {
  std::vector<int> order;
  BackgroundQueue queue("test");
  queue.prepare([&] { order.push_back(3); });
  queue.add(1, [&] {
    queue.add(1, [&] { order.push_back(2); });
    order.push_back(1);
    EXPECT_FALSE(testing::runs_out_of_memory(1, [&] { queue.add_prepared(); }));
    queue.add_prepared();  // once
  });
  queue.drain();
  queue.drain();  // of what that job added
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(BackgroundQueue, APreparedJobThatIsNotAddedDoesNotRun) {
  bool ran = false;
  {
    BackgroundQueue queue("test");
    queue.prepare([&] { ran = true; });
    queue.add(1, [] {});
  }
  EXPECT_FALSE(ran);
}

TEST(BackgroundQueue, RefusesNoJob) {
  BackgroundQueue queue("test");
  EXPECT_THROW(queue.add(1, nullptr), Error);
  EXPECT_EQ(queue.pending_jobs(), 0u);
}

}  // namespace
}  // namespace kvtrie
