#include "base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtrie {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_sink({}); }
};

TEST_F(Log, DropsEverythingWithoutASink) {
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  log_message(LogLevel::kError, "nobody hears");
}

TEST_F(Log, ReachesTheSinkFromTheWantedLevelUp) {
  std::vector<std::pair<LogLevel, std::string>> seen;
  set_log_sink([&](LogLevel level, const std::string& message) { seen.emplace_back(level, message); },
               LogLevel::kWarning);
  log_message(LogLevel::kInfo, "too low");
  log_message(LogLevel::kWarning, "first");
  log_message(LogLevel::kError, "second");
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0], std::make_pair(LogLevel::kWarning, std::string("first")));
  EXPECT_EQ(seen[1].second, "second");
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_STREQ(name_of(LogLevel::kWarning), "warning");
}

TEST_F(Log, SurvivesASinkThatThrows) {
  set_log_sink([](LogLevel, const std::string&) { throw std::runtime_error("broken sink"); });
  log_message(LogLevel::kError, "goes nowhere");
}

TEST_F(Log, ASinkMayLogAndReplaceItself) {
  int calls = 0;
  set_log_sink([&](LogLevel, const std::string&) {
    if (++calls == 1) log_message(LogLevel::kError, "again");
    if (calls == 2) set_log_sink({});
  });
  log_message(LogLevel::kError, "once");
  log_message(LogLevel::kError, "after");
  EXPECT_EQ(calls, 2);
}

TEST_F(Log, MessagesOfManyThreadsAllArrive) {
  std::atomic<int> count{0};
  set_log_sink([&](LogLevel, const std::string&) { ++count; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 500; ++n) log_message(LogLevel::kInfo, "x");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 2000);
}

}  // namespace
}  // namespace kvtrie
