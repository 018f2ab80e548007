// What steps are measured to take, without steps: a device that the test moves on, and a twin that knows when each of
// them began and ended.
#include "session/step_times.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "slow_device.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kTimesSeed = 20261127;

class LostStore final : public NullKvStore {
 public:
  using NullKvStore::NullKvStore;
  CompletionPtr mark() override { fail(ErrorKind::kDevice, "test", "the device is lost"); }
};

struct StepTimesWorld {
  explicit StepTimesWorld(std::unique_ptr<KvStore> store) : caches(set_of(std::move(store))) {}

  static KvShape shape() { return {1, 1, 2, 2, 64, plain_format(DType::kFloat32)}; }
  static CacheSet set_of(std::unique_ptr<KvStore> store) {
    CausalCache::Options options;
    options.layers = {0};
    return {{CausalCache::create(std::move(store), options)}, {}};
  }
  static std::vector<std::int32_t> rows(std::int32_t from, std::size_t count) {
    std::vector<std::int32_t> positions(count);
    std::iota(positions.begin(), positions.end(), from);
    return positions;
  }
  // From its making to its last layer, by the clock.
  StepTiming step(double seconds, bool by_device = false) {
    StepTiming timing = StepTimes::begin(caches, now, by_device);
    now += seconds;
    times.measure(timing, rows(0, 50), now);
    return timing;
  }

  CacheTable caches;
  CostModel costs;
  NodeCosts node_costs;
  StepTimes times{caches, costs, node_costs};
  double now = 100;
};

TEST(StepTimes, AreThoseOfTheClockWhereNoDeviceComputes) {
  StepTimesWorld world(std::make_unique<NullKvStore>(StepTimesWorld::shape()));
  for (const bool by_device : {false, true}) {
    for (int i = 0; i < 10; ++i) {
      const StepTiming timing = world.step(5, by_device);
      EXPECT_EQ(timing.marks, nullptr);
      world.now += 5;  // the model had it until the loop came back
      world.times.measure_again(timing, 50, world.now);
    }
    ASSERT_TRUE(world.costs.seconds_per_token());
    EXPECT_NEAR(*world.costs.seconds_per_token(), 10.0 / 50, 1e-9);
  }
}

TEST(StepTimes, AreThoseOfTheClockWhereTheDeviceIsLost) {
  StepTimesWorld world(std::make_unique<LostStore>(StepTimesWorld::shape()));
  for (int i = 0; i < 10; ++i) world.step(5, /*by_device=*/true);
  ASSERT_TRUE(world.costs.seconds_per_token());
  EXPECT_NEAR(*world.costs.seconds_per_token(), 5.0 / 50, 1e-9);
}

TEST(StepTimes, OfAStepWithoutATimeNothingIsMeasured) {
  StepTimesWorld world(std::make_unique<NullKvStore>(StepTimesWorld::shape()));
  for (int i = 0; i < 10; ++i) {
    StepTiming timing;
    world.times.measure(timing, StepTimesWorld::rows(0, 50), world.now += 5);
    world.times.measure_again(timing, 50, world.now += 5);
    world.times.measure(timing, {}, world.now);
  }
  EXPECT_EQ(world.costs.seconds_per_token(), std::nullopt);
}

TEST(StepTimes, TheLatestOfManyUnfinishedOnesCount) {
  SlowDevice device;
  StepTimesWorld world(std::make_unique<SlowStore>(StepTimesWorld::shape(), device));
  for (int i = 0; i < 200; ++i) {
    StepTiming timing = StepTimes::begin(world.caches, world.now, /*by_device=*/true);
    device.work(i < 200 - 64 ? 1000 : 2);
    world.times.measure(timing, StepTimesWorld::rows(0, 50), world.now);
  }
  world.times.settle();
  EXPECT_EQ(world.costs.seconds_per_token(), std::nullopt) << "the device has not finished any";
  device.catch_up();
  world.times.settle();
  EXPECT_NEAR(*world.costs.seconds_per_token(), 2.0 / 50, 1e-9);
}

TEST(StepTimes, NothingIsLeftAfterClear) {
  SlowDevice device;
  StepTimesWorld world(std::make_unique<SlowStore>(StepTimesWorld::shape(), device));
  for (int i = 0; i < 20; ++i) {
    StepTiming timing = StepTimes::begin(world.caches, world.now, /*by_device=*/true);
    device.work(1);
    world.times.measure(timing, StepTimesWorld::rows(0, 50), world.now);
  }
  world.times.clear();
  device.catch_up();
  world.times.settle();
  EXPECT_EQ(world.costs.seconds_per_token(), std::nullopt);
}

// The device is given work that is no step's, gets to what it was given late, and loops come back or do not.
TEST(StepTimes, AgreeWithATwinThatKnowsWhenEachBeganAndEnded) {
  struct StepTwin {
    std::uint32_t rows;
    std::int32_t position;
    double begun, ended;
  };
  SlowDevice device;
  StepTimesWorld world(std::make_unique<SlowStore>(StepTimesWorld::shape(), device));
  std::mt19937_64 random(kTimesSeed);
  const auto seconds = [&] { return static_cast<double>(1 + random() % 1000) / 100; };
  const auto end = [&] { return std::max(device.given, device.done); };
  std::deque<StepTwin> twins;
  CostModel costs;
  std::size_t settled = 0;
  for (int step = 0; step < 5000; ++step) {
    StepTiming timing = StepTimes::begin(world.caches, world.now, /*by_device=*/true);
    const double begun = end();
    device.work(seconds());
    const std::vector<std::int32_t> rows =
        StepTimesWorld::rows(static_cast<std::int32_t>(random() % 5000), 1 + random() % 40);
    world.times.measure(timing, rows, world.now += 1e-4);
    if (twins.size() == 64) twins.pop_front();
    twins.push_back({static_cast<std::uint32_t>(rows.size()), rows.front(), begun, end()});
    if (random() % 2 == 0) {
      device.work(seconds());
      world.times.measure_again(timing, static_cast<std::uint32_t>(rows.size()), world.now += 1e-4);
      twins.back().ended = end();
    }
    if (random() % 3 == 0) device.work(seconds());
    if (step / 500 % 2 == 0) device.done = std::max(device.done, device.given - (random() % 3 == 0 ? seconds() : 0));
    world.times.settle();
    for (; !twins.empty() && twins.front().ended <= device.done; twins.pop_front(), ++settled)
      costs.computed(twins.front().rows, twins.front().position, twins.front().ended - twins.front().begun);
    ASSERT_EQ(world.costs.seconds_per_token(), costs.seconds_per_token()) << "seed " << kTimesSeed << ", step " << step;
    ASSERT_EQ(world.costs.seconds_per_decoded_token(), costs.seconds_per_decoded_token());
    ASSERT_EQ(world.costs.growth(), costs.growth());
    ASSERT_EQ(world.node_costs.growth, costs.growth());
  }
  EXPECT_GT(settled, 1000u);
}

}  // namespace
}  // namespace kvtrie
