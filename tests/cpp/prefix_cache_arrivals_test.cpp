// Page-ins under way: in which order they are met, what keeps their memory, and which nodes refer to them until when.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/log.h"
#include "failing_allocations.h"
#include "tree/arrivals.h"
#include "tree/node_state.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kArrivalSeed = 20261124;

// What the device was given: it ends when the test says so, or when somebody waits for it.
class DeviceRead final : public Completion {
 public:
  bool done() const override { return done_; }
  void wait() const override {
    done_ = true;
    if (fails) throw std::runtime_error("the device was lost");
  }
  void end(bool well) {
    fails = !well;
    done_ = true;
  }

  bool fails = false;

 private:
  mutable bool done_ = false;
};
using DeviceReadPtr = std::shared_ptr<DeviceRead>;

struct ArrivalWorld {
  static constexpr std::uint64_t kBytes = 64;  // of a read

  DeviceReadPtr read(Arrival& arrival) {
    const auto given = std::make_shared<DeviceRead>();
    arrival.read(HostMemory::allocate(host, kBytes), [&] { return given; });
    return given;
  }

  std::shared_ptr<ByteBudget> host = std::make_shared<ByteBudget>(1 << 20);
  Arrivals arrivals;
};

class ArrivalsTest : public ::testing::Test, public ArrivalWorld {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, const std::string& message) { messages.push_back(message); });
  }
  void TearDown() override { set_log_sink({}); }

  std::vector<std::string> messages;
};

TEST_F(ArrivalsTest, MemoryStaysUntilEveryReadHasEnded) {
  const ArrivalPtr arrival = arrivals.add();
  const DeviceReadPtr first = read(*arrival), second = read(*arrival);
  first->end(true);
  EXPECT_FALSE(arrival->done());
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_FALSE(arrivals.empty());
  EXPECT_EQ(host->used(), 2 * kBytes);
  second->end(true);
  EXPECT_FALSE(arrival->settled()) << "nobody has seen how it ended";
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_TRUE(arrivals.empty());
  EXPECT_TRUE(arrival->settled());
  EXPECT_EQ(host->used(), 0u);
}

TEST_F(ArrivalsTest, ThoseThatFailedComeOnceEachInTheirOrderAndALateOneKeepsNobodyBack) {
  std::vector<ArrivalPtr> all;
  std::vector<DeviceReadPtr> reads;
  for (int i = 0; i < 6; ++i) {
    all.push_back(arrivals.add());
    reads.push_back(read(*all.back()));
  }
  for (const std::size_t i : {5, 4, 1, 0}) reads[i]->end(i != 1 && i != 5);  // 2 and 3 are late
  EXPECT_EQ(arrivals.take_failed(), all[1]);
  EXPECT_FALSE(all[5]->settled()) << "the one behind it is not met before the caller is done with this one";
  EXPECT_EQ(arrivals.take_failed(), all[5]);
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_EQ(host->used(), 2 * kBytes) << "failed ones need their memory no longer";
  reads[2]->end(false);
  EXPECT_EQ(arrivals.take_failed(), all[2]);
  reads[3]->end(true);
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_TRUE(arrivals.empty());
  const std::string line = "prefix cache: a page-in failed: the device was lost";
  EXPECT_EQ(messages, (std::vector<std::string>{line, line, line}));
}

TEST_F(ArrivalsTest, WhatTheDeviceRefusedIsNotWaitedFor) {
  const ArrivalPtr arrival = arrivals.add();
  const DeviceReadPtr before = read(*arrival);
  const HostMemoryPtr memory = HostMemory::allocate(host, kBytes);
  EXPECT_THROW(arrival->read(memory, []() -> CompletionPtr { throw std::runtime_error("no queue"); }),
               std::runtime_error);
  EXPECT_EQ(arrivals.under_way(), std::vector<CompletionPtr>{before});
  EXPECT_FALSE(arrival->done()) << "what was given before that is still under way";
  before->end(true);
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_TRUE(arrivals.empty());
}

TEST_F(ArrivalsTest, APageInWithoutBytesIsSettled) {
  const ArrivalPtr arrival = arrivals.add();
  EXPECT_TRUE(arrival->settled());
  EXPECT_FALSE(arrivals.empty());
  EXPECT_EQ(arrivals.take_failed(), nullptr);
  EXPECT_TRUE(arrivals.empty());
}

TEST_F(ArrivalsTest, WaitingIsForAllHoweverTheyEnd) {
  const ArrivalPtr one = arrivals.add(), other = arrivals.add();
  read(*one)->fails = true;
  read(*one);
  read(*other);
  const std::vector<CompletionPtr> given = arrivals.under_way();
  ASSERT_EQ(given.size(), 3u);
  Arrivals::wait_for(given);
  EXPECT_TRUE(one->done() && other->done());
  EXPECT_EQ(arrivals.take_failed(), one);
  EXPECT_EQ(arrivals.take_failed(), nullptr);
}

// Nodes are cut and joined while sessions leave what failed: each of them has to be found then.
TEST_F(ArrivalsTest, NodesReferToWhatFailedThroughCutsAndJoinsAndForgetWhatCameWell) {
  const ArrivalPtr good = arrivals.add(), bad = arrivals.add(), late = arrivals.add();
  const DeviceReadPtr of_good = read(*good), of_bad = read(*bad), of_late = read(*late);
  NodeState node(0, 10, 0);
  node.add_arrivals({good, bad, late, bad});
  EXPECT_EQ(node.arrivals, (std::vector<ArrivalPtr>{good, bad, late}));
  of_good->end(true);
  of_bad->end(false);
  EXPECT_EQ(arrivals.take_failed(), bad);
  const std::unique_ptr<Payload> front = node.split_front(4);
  auto& upper = static_cast<NodeState&>(*front);
  EXPECT_EQ(upper.arrivals, (std::vector<ArrivalPtr>{bad, late}));
  upper.arrivals.clear();
  upper.join(node);
  EXPECT_EQ(upper.arrivals, (std::vector<ArrivalPtr>{bad, late}));
}

// Whatever allocation fails, the device is given nothing that is not listed.
TEST_F(ArrivalsTest, WithoutMemoryNothingIsEnqueuedUnlisted) {
  for (std::uint64_t failing = 1;; ++failing) {
    std::size_t listed = arrivals.under_way().size(), given = listed;
    const HostMemoryPtr memory = HostMemory::allocate(host, kBytes);
    const auto work = std::make_shared<DeviceRead>();
    const bool failed = testing::runs_out_of_memory(failing, [&] {
      arrivals.add()->read(memory, [&] {
        ++given;
        return work;
      });
    });
    EXPECT_EQ(arrivals.under_way().size(), given);
    if (!failed) break;
    EXPECT_EQ(given, listed);
  }
}

// ---- against a twin -----------------------------------------------------------------------------------------------

// Each arrival as a list of how its reads stand.
struct ArrivalTwin {
  enum class End { kNone, kWell, kBadly };
  ArrivalPtr arrival;
  std::vector<DeviceReadPtr> reads;
  std::vector<End> ends;

  bool done() const { return std::find(ends.begin(), ends.end(), End::kNone) == ends.end(); }
  bool failed() const { return std::find(ends.begin(), ends.end(), End::kBadly) != ends.end(); }
};

class ArrivalDriver {
 public:
  void step() {
    using Action = void (ArrivalDriver::*)();
    constexpr Action kActions[] = {&ArrivalDriver::add,  &ArrivalDriver::read, &ArrivalDriver::read,
                                   &ArrivalDriver::end,  &ArrivalDriver::end,  &ArrivalDriver::end,
                                   &ArrivalDriver::take, &ArrivalDriver::tell};
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    ASSERT_EQ(world_.arrivals.empty(), listed_.empty());
    std::vector<CompletionPtr> reads;
    for (const ArrivalTwin& each : listed_) {
      ASSERT_EQ(each.arrival->done(), each.done());
      ASSERT_EQ(each.arrival->settled(), each.reads.empty());
      reads.insert(reads.end(), each.reads.begin(), each.reads.end());
    }
    ASSERT_EQ(world_.arrivals.under_way(), reads);
    ASSERT_EQ(world_.host->used(), reads.size() * ArrivalWorld::kBytes);
    for (const ArrivalPtr& each : failed_) ASSERT_FALSE(each->settled());
  }

  std::size_t failures() const { return failed_.size(); }
  std::size_t settled() const { return settled_; }

 private:
  ArrivalTwin* pick() { return listed_.empty() ? nullptr : &listed_[random_() % listed_.size()]; }

  void add() {
    if (listed_.size() < 12) listed_.push_back({world_.arrivals.add(), {}, {}});
  }
  void read() {
    ArrivalTwin* twin = pick();
    if (twin == nullptr || twin->reads.size() >= 5) return;
    twin->reads.push_back(world_.read(*twin->arrival));
    twin->ends.push_back(ArrivalTwin::End::kNone);
  }
  void end() {
    ArrivalTwin* twin = pick();
    if (twin == nullptr || twin->reads.empty()) return;
    const std::size_t which = random_() % twin->reads.size();
    if (twin->ends[which] != ArrivalTwin::End::kNone) return;
    const bool well = random_() % 4 != 0;
    twin->reads[which]->end(well);
    twin->ends[which] = well ? ArrivalTwin::End::kWell : ArrivalTwin::End::kBadly;
  }
  void take() {
    ArrivalPtr expected;
    for (auto each = listed_.begin(); each != listed_.end() && expected == nullptr;) {
      if (!each->done()) {
        ++each;
        continue;
      }
      if (each->failed()) expected = each->arrival;
      settled_ += each->failed() ? 0 : 1;
      each = listed_.erase(each);
    }
    ASSERT_EQ(world_.arrivals.take_failed(), expected);
    if (expected != nullptr) failed_.push_back(expected);
  }
  // A node learns of some of all that there were.
  void tell() {
    std::vector<ArrivalPtr> some, expected;
    for (const ArrivalTwin& each : listed_) {
      if (random_() % 2 == 0) some.push_back(each.arrival);
      if (random_() % 4 == 0) some.push_back(each.arrival);
    }
    if (!failed_.empty()) some.push_back(failed_[random_() % failed_.size()]);
    NodeState node(0, 1, 0);
    node.add_arrivals(some);
    std::set<ArrivalPtr> known;
    for (const ArrivalPtr& each : some) {
      const auto of_it = [&](const ArrivalTwin& twin) { return twin.arrival == each && twin.reads.empty(); };
      if (std::none_of(listed_.begin(), listed_.end(), of_it) && known.insert(each).second) expected.push_back(each);
    }
    ASSERT_EQ(node.arrivals, expected);
  }

  std::mt19937_64 random_{kArrivalSeed};
  ArrivalWorld world_;
  std::vector<ArrivalTwin> listed_;  // as they were added
  std::vector<ArrivalPtr> failed_;
  std::size_t settled_ = 0;
};

TEST(Arrivals, AgreeWithATwinAfterEveryStep) {
  ArrivalDriver driver;
  for (int i = 0; i < 20000; ++i) {
    driver.step();
    if (!::testing::Test::HasFatalFailure()) driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kArrivalSeed << ", step " << i;
  }
  EXPECT_GT(driver.failures(), 100u);
  EXPECT_GT(driver.settled(), 100u);
}

}  // namespace
}  // namespace kvtrie
