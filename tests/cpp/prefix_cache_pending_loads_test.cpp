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
#include "tree/node_state.h"
#include "tree/pending_loads.h"

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

struct PendingLoadWorld {
  static constexpr std::uint64_t kBytes = 64;  // of a read

  DeviceReadPtr read(PendingLoad& pending_load) {
    const auto given = std::make_shared<DeviceRead>();
    pending_load.read(HostMemory::allocate(host, kBytes), [&] { return given; });
    return given;
  }

  std::shared_ptr<ByteBudget> host = std::make_shared<ByteBudget>(1 << 20);
  PendingLoads pending_loads;
};

class PendingLoadsTest : public ::testing::Test, public PendingLoadWorld {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, const std::string& message) { messages.push_back(message); });
  }
  void TearDown() override { set_log_sink({}); }

  std::vector<std::string> messages;
};

TEST_F(PendingLoadsTest, MemoryStaysUntilEveryReadHasEnded) {
  const PendingLoadPtr pending_load = pending_loads.add();
  const DeviceReadPtr first = read(*pending_load), second = read(*pending_load);
  first->end(true);
  EXPECT_FALSE(pending_load->done());
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_FALSE(pending_loads.empty());
  EXPECT_EQ(host->used(), 2 * kBytes);
  second->end(true);
  EXPECT_FALSE(pending_load->settled()) << "nobody has seen how it ended";
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_TRUE(pending_loads.empty());
  EXPECT_TRUE(pending_load->settled());
  EXPECT_EQ(host->used(), 0u);
}

TEST_F(PendingLoadsTest, ThoseThatFailedComeOnceEachInTheirOrderAndALateOneKeepsNobodyBack) {
  std::vector<PendingLoadPtr> all;
  std::vector<DeviceReadPtr> reads;
  for (int i = 0; i < 6; ++i) {
    all.push_back(pending_loads.add());
    reads.push_back(read(*all.back()));
  }
  for (const std::size_t i : {5, 4, 1, 0}) reads[i]->end(i != 1 && i != 5);  // 2 and 3 are late
  EXPECT_EQ(pending_loads.take_failed(), all[1]);
  EXPECT_FALSE(all[5]->settled()) << "the one behind it is not met before the caller is done with this one";
  EXPECT_EQ(pending_loads.take_failed(), all[5]);
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_EQ(host->used(), 2 * kBytes) << "failed ones need their memory no longer";
  reads[2]->end(false);
  EXPECT_EQ(pending_loads.take_failed(), all[2]);
  reads[3]->end(true);
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_TRUE(pending_loads.empty());
  const std::string line = "prefix cache: a page-in failed: the device was lost";
  EXPECT_EQ(messages, (std::vector<std::string>{line, line, line}));
}

TEST_F(PendingLoadsTest, WhatTheDeviceRefusedIsNotWaitedFor) {
  const PendingLoadPtr pending_load = pending_loads.add();
  const DeviceReadPtr before = read(*pending_load);
  const HostMemoryPtr memory = HostMemory::allocate(host, kBytes);
  EXPECT_THROW(pending_load->read(memory, []() -> CompletionPtr { throw std::runtime_error("no queue"); }),
               std::runtime_error);
  EXPECT_EQ(pending_loads.under_way(), std::vector<CompletionPtr>{before});
  EXPECT_FALSE(pending_load->done()) << "what was given before that is still under way";
  before->end(true);
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_TRUE(pending_loads.empty());
}

TEST_F(PendingLoadsTest, APageInWithoutBytesIsSettled) {
  const PendingLoadPtr pending_load = pending_loads.add();
  EXPECT_TRUE(pending_load->settled());
  EXPECT_FALSE(pending_loads.empty());
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_TRUE(pending_loads.empty());
}

TEST_F(PendingLoadsTest, WaitingIsForAllHoweverTheyEnd) {
  const PendingLoadPtr one = pending_loads.add(), other = pending_loads.add();
  read(*one)->fails = true;
  read(*one);
  read(*other);
  const std::vector<CompletionPtr> given = pending_loads.under_way();
  ASSERT_EQ(given.size(), 3u);
  PendingLoads::wait_for(given);
  EXPECT_TRUE(one->done() && other->done());
  EXPECT_EQ(pending_loads.take_failed(), one);
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
}

// Nodes are cut and joined while sessions leave what failed: each of them has to be found then.
TEST_F(PendingLoadsTest, NodesReferToWhatFailedThroughCutsAndJoinsAndForgetWhatCameWell) {
  const PendingLoadPtr good = pending_loads.add(), bad = pending_loads.add(), late = pending_loads.add();
  const DeviceReadPtr of_good = read(*good), of_bad = read(*bad), of_late = read(*late);
  NodeState node(0, 10, 0);
  node.add_pending_loads({good, bad, late, bad});
  EXPECT_EQ(node.pending_loads, (std::vector<PendingLoadPtr>{good, bad, late}));
  of_good->end(true);
  of_bad->end(false);
  EXPECT_EQ(pending_loads.take_failed(), bad);
  const std::unique_ptr<Payload> front = node.split_front(4);
  auto& upper = static_cast<NodeState&>(*front);
  EXPECT_EQ(upper.pending_loads, (std::vector<PendingLoadPtr>{bad, late}));
  upper.pending_loads.clear();
  upper.join(node);
  EXPECT_EQ(upper.pending_loads, (std::vector<PendingLoadPtr>{bad, late}));
}

// Whatever allocation fails, the device is given nothing that is not listed.
TEST_F(PendingLoadsTest, WithoutMemoryNothingIsEnqueuedUnlisted) {
  for (std::uint64_t failing = 1;; ++failing) {
    std::size_t listed = pending_loads.under_way().size(), given = listed;
    const HostMemoryPtr memory = HostMemory::allocate(host, kBytes);
    const auto work = std::make_shared<DeviceRead>();
    const bool failed = testing::runs_out_of_memory(failing, [&] {
      pending_loads.add()->read(memory, [&] {
        ++given;
        return work;
      });
    });
    EXPECT_EQ(pending_loads.under_way().size(), given);
    if (!failed) break;
    EXPECT_EQ(given, listed);
  }
}

// ---- against a twin -----------------------------------------------------------------------------------------------

// Each pending load as a list of how its reads stand.
struct PendingLoadTwin {
  enum class End { kNone, kWell, kBadly };
  PendingLoadPtr pending_load;
  std::vector<DeviceReadPtr> reads;
  std::vector<End> ends;

  bool done() const { return std::find(ends.begin(), ends.end(), End::kNone) == ends.end(); }
  bool failed() const { return std::find(ends.begin(), ends.end(), End::kBadly) != ends.end(); }
};

class PendingLoadDriver {
 public:
  void step() {
    using Action = void (PendingLoadDriver::*)();
    constexpr Action kActions[] = {&PendingLoadDriver::add,  &PendingLoadDriver::read, &PendingLoadDriver::read,
                                   &PendingLoadDriver::end,  &PendingLoadDriver::end,  &PendingLoadDriver::end,
                                   &PendingLoadDriver::take, &PendingLoadDriver::tell};
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    ASSERT_EQ(world_.pending_loads.empty(), listed_.empty());
    std::vector<CompletionPtr> reads;
    for (const PendingLoadTwin& each : listed_) {
      ASSERT_EQ(each.pending_load->done(), each.done());
      ASSERT_EQ(each.pending_load->settled(), each.reads.empty());
      reads.insert(reads.end(), each.reads.begin(), each.reads.end());
    }
    ASSERT_EQ(world_.pending_loads.under_way(), reads);
    ASSERT_EQ(world_.host->used(), reads.size() * PendingLoadWorld::kBytes);
    for (const PendingLoadPtr& each : failed_) ASSERT_FALSE(each->settled());
  }

  std::size_t failures() const { return failed_.size(); }
  std::size_t settled() const { return settled_; }

 private:
  PendingLoadTwin* pick() { return listed_.empty() ? nullptr : &listed_[random_() % listed_.size()]; }

  void add() {
    if (listed_.size() < 12) listed_.push_back({world_.pending_loads.add(), {}, {}});
  }
  void read() {
    PendingLoadTwin* twin = pick();
    if (twin == nullptr || twin->reads.size() >= 5) return;
    twin->reads.push_back(world_.read(*twin->pending_load));
    twin->ends.push_back(PendingLoadTwin::End::kNone);
  }
  void end() {
    PendingLoadTwin* twin = pick();
    if (twin == nullptr || twin->reads.empty()) return;
    const std::size_t which = random_() % twin->reads.size();
    if (twin->ends[which] != PendingLoadTwin::End::kNone) return;
    const bool well = random_() % 4 != 0;
    twin->reads[which]->end(well);
    twin->ends[which] = well ? PendingLoadTwin::End::kWell : PendingLoadTwin::End::kBadly;
  }
  void take() {
    PendingLoadPtr expected;
    for (auto each = listed_.begin(); each != listed_.end() && expected == nullptr;) {
      if (!each->done()) {
        ++each;
        continue;
      }
      if (each->failed()) expected = each->pending_load;
      settled_ += each->failed() ? 0 : 1;
      each = listed_.erase(each);
    }
    ASSERT_EQ(world_.pending_loads.take_failed(), expected);
    if (expected != nullptr) failed_.push_back(expected);
  }
  // A node learns of some of all that there were.
  void tell() {
    std::vector<PendingLoadPtr> some, expected;
    for (const PendingLoadTwin& each : listed_) {
      if (random_() % 2 == 0) some.push_back(each.pending_load);
      if (random_() % 4 == 0) some.push_back(each.pending_load);
    }
    if (!failed_.empty()) some.push_back(failed_[random_() % failed_.size()]);
    NodeState node(0, 1, 0);
    node.add_pending_loads(some);
    std::set<PendingLoadPtr> known;
    for (const PendingLoadPtr& each : some) {
      const auto of_it = [&](const PendingLoadTwin& twin) { return twin.pending_load == each && twin.reads.empty(); };
      if (std::none_of(listed_.begin(), listed_.end(), of_it) && known.insert(each).second) expected.push_back(each);
    }
    ASSERT_EQ(node.pending_loads, expected);
  }

  std::mt19937_64 random_{kArrivalSeed};
  PendingLoadWorld world_;
  std::vector<PendingLoadTwin> listed_;  // as they were added
  std::vector<PendingLoadPtr> failed_;
  std::size_t settled_ = 0;
};

TEST(PendingLoads, AgreeWithATwinAfterEveryStep) {
  PendingLoadDriver driver;
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
