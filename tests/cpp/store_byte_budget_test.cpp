#include "store/byte_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TEST(ByteBudget, HoldsItsCapToTheByte) {
  ByteBudget budget(100);
  EXPECT_FALSE(budget.reserve(101));
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_TRUE(budget.reserve(60));
  EXPECT_TRUE(budget.fits(40));
  EXPECT_FALSE(budget.fits(41));
  EXPECT_FALSE(budget.reserve(41));
  EXPECT_TRUE(budget.reserve(40));
  EXPECT_TRUE(budget.fits(0));
  EXPECT_TRUE(budget.reserve(0));
  EXPECT_FALSE(budget.reserve(1));
  EXPECT_EQ(budget.used(), 100u);
}

TEST(ByteBudget, ACapOfNothingHoldsNothing) {
  ByteBudget budget(0);
  EXPECT_TRUE(budget.reserve(0));
  EXPECT_FALSE(budget.reserve(1));
  EXPECT_FALSE(budget.reserve(kMost));
}

TEST(ByteBudget, TheLargestNumbersDoNotWrap) {
  ByteBudget budget(kMost);
  EXPECT_TRUE(budget.reserve(kMost));
  EXPECT_FALSE(budget.fits(1));
  EXPECT_FALSE(budget.reserve(kMost));
  budget.release(kMost);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(budget.peak(), kMost);
}

TEST(ByteBudget, PeakIsTheMostThatWasUsed) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.reserve(70));
  budget.release(50);
  EXPECT_TRUE(budget.reserve(30));
  EXPECT_FALSE(budget.reserve(90)) << "a refusal is no use";
  EXPECT_EQ(budget.used(), 50u);
  EXPECT_EQ(budget.peak(), 70u);
}

TEST(ByteBudget, ACapBelowWhatIsUsedIsRefused) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.reserve(70));
  EXPECT_FALSE(budget.set_cap(69));
  EXPECT_EQ(budget.cap(), 100u);
  EXPECT_TRUE(budget.set_cap(70));
  EXPECT_FALSE(budget.reserve(1));
  EXPECT_TRUE(budget.set_cap(71));
  EXPECT_TRUE(budget.reserve(1));
}

TEST(ByteBudget, GivingBackMoreThanWasTakenIsSeen) {
  std::vector<std::string> messages;
  set_log_sink([&](LogLevel, const std::string& message) { messages.push_back(message); });
  ByteBudget budget(100);
  EXPECT_TRUE(budget.reserve(10));
  budget.release(10);
  EXPECT_EQ(budget.violations(), 0u);
  budget.release(1);
  set_log_sink({});
  EXPECT_EQ(budget.violations(), 1u);
  EXPECT_EQ(budget.used(), 0u) << "it does not wrap";
  EXPECT_EQ(messages.size(), 1u);
}

TEST(ByteBudget, ThreadsNeverHoldMoreThanTheCap) {
  ByteBudget budget(1000);
  std::atomic<std::uint64_t> held = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t bytes = random() % 500;
        if (!budget.reserve(bytes)) continue;
        if (held.fetch_add(bytes) + bytes > 1000) over = true;
        held.fetch_sub(bytes);
        budget.release(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(budget.peak(), 1000u);
  EXPECT_EQ(budget.violations(), 0u);
}

}  // namespace
}  // namespace kvtrie
