// What is measured, and what follows from it: rates, the best cut between tiers, load or recompute. The clock is a
// number that the test moves on.
#include "tree/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "block_cache.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "slow_device.h"

namespace kvtrie {
namespace {

using Range = CostModel::Range;

void repeat(CostModel& model, double per_token, double per_host_byte, double per_disk_byte) {
  for (int i = 0; i < 6; ++i) {
    model.computed(100, 0, 100 * per_token);
    model.loaded(Tier::kHost, 1000, 1000 * per_host_byte);
    model.loaded(Tier::kDisk, 1000, 1000 * per_disk_byte);
  }
}

TEST(Rate, KnowsNothingBeforeThereIsEnough) {
  Rate rate;
  for (std::size_t i = 0; i < Rate::kEnough; ++i) {
    EXPECT_EQ(rate.value(), std::nullopt) << i << " measurements and the first, which does not count";
    rate.add(2);
  }
  rate.add(2);
  EXPECT_EQ(rate.value(), 2.0);
}

TEST(Rate, IgnoresTheFirstMeasurementOutliersAndWhatIsNone) {
  Rate rate;
  for (const double each : {1000.0, 1.0, 2.0, 500.0, 1.0, 0.001, 3.0, 2.0}) rate.add(each);
  EXPECT_EQ(rate.value(), 2.0);
  for (const double each : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (int i = 0; i < 20; ++i) rate.add(each);
  }
  EXPECT_EQ(rate.value(), 2.0);
}

TEST(Rate, FollowsAChange) {
  Rate rate;
  for (int i = 0; i < 100; ++i) rate.add(1);
  for (std::size_t i = 0; i < Rate::kKept / 2; ++i) rate.add(5);
  EXPECT_EQ(rate.value(), 1.0);
  rate.add(5);
  EXPECT_EQ(rate.value(), 5.0);
}

// ---- asking a store -----------------------------------------------------------------------------------------------

CostModel asking(double per_token, double per_call, double per_byte) {
  CostModel model;
  for (int i = 0; i < 8; ++i) {
    model.computed(100, 0, 100 * per_token);
    model.asked(100, per_call, 1);
    model.asked(1000000, per_call + 1000000 * per_byte, 1);
  }
  return model;
}

TEST(CostModel, SaysHowManyTokensAreWorthAskingFor) {
  const CostModel model = asking(1e-3, 4.9e-3, 1e-6);
  EXPECT_DOUBLE_EQ(*model.seconds_per_call(), 4.9e-3);
  EXPECT_NEAR(*model.seconds_per_byte(Tier::kStore), 1e-6, 1e-12);
  EXPECT_EQ(model.least_to_ask(2, 0, 0, 1), 8) << "two calls, of 1.25 ms that each token saves";
  EXPECT_EQ(model.least_to_ask(2, 0, 250, 1), 10) << "whose bytes take 0.25 ms";
  EXPECT_EQ(model.least_to_ask(2, 5000, 250, 1), 15);
  EXPECT_EQ(model.least_to_ask(2, 0, 1250, 1), std::nullopt) << "nothing is gained by any";
  EXPECT_EQ(model.least_to_ask(2, 0, 5000, 1), std::nullopt);
}

TEST(CostModel, AsksWhereItDoesNotKnow) {
  EXPECT_EQ(CostModel().least_to_ask(2, 0, 1 << 20, 0), 0);
  CostModel slow = asking(1e-3, 5e-3, 1e-3);
  EXPECT_EQ(slow.least_to_ask(2, 0, 1000, 1 + CostModel::kBelieved - 1), std::nullopt);
  EXPECT_EQ(slow.least_to_ask(2, 0, 1000, 1 + CostModel::kBelieved), 0) << "it is tried again";
  for (int i = 0; i < 3; ++i) slow.asked(1000000, 6e-3, 100);
  EXPECT_EQ(slow.least_to_ask(2, 0, 1000, 100), 9) << "of the latest five";
}

TEST(CostModel, KeepsPrefillAndDecodeApart) {
  CostModel model;
  for (int i = 0; i < 6; ++i) {
    model.computed(CostModel::kPrefillRows, 0, 16);
    model.computed(1, 0, 9);
  }
  EXPECT_EQ(model.seconds_per_token(), 1.0);
  EXPECT_EQ(model.seconds_per_decoded_token(), 9.0);
  for (int i = 0; i < 9; ++i) {
    model.computed(100, 0, 100);
    model.prolong(100, 300);
  }
  EXPECT_EQ(model.seconds_per_token(), 3.0) << "what the model did after its last layer counts";
}

TEST(CostModel, LoadsWhatIsCheaperToLoad) {
  CostModel model;
  repeat(model, 1.0, 0.01, 0.1);
  EXPECT_EQ(model.best_end(100, std::vector<Range>{{Tier::kHost, 1000, 200}}), 200) << "10 s against 100";
  EXPECT_EQ(model.best_end(100, std::vector<Range>{{Tier::kHost, 20000, 200}}), 100) << "200 s against 100";
}

TEST(CostModel, WantsAMargin) {
  CostModel model;
  repeat(model, 1.0, 1.0, 1.0);
  EXPECT_EQ(model.best_end(0, std::vector<Range>{{Tier::kHost, 124, 100}}), 100);
  EXPECT_EQ(model.best_end(0, std::vector<Range>{{Tier::kHost, 126, 100}}), 0);
}

TEST(CostModel, CutsBetweenTiers) {
  CostModel model;
  repeat(model, 1.0, 0.01, 1.0);
  const std::vector<Range> ranges{{Tier::kHost, 1000, 100}, {Tier::kDisk, 1000, 200}};
  EXPECT_EQ(model.best_end(0, ranges), 100) << "10 s and computing 100, against 10 and loading 1000";
}

TEST(CostModel, DecidesNothingWhileARateIsUnknown) {
  const std::vector<Range> ranges{{Tier::kDisk, 1000000, 10}};
  CostModel model;
  EXPECT_EQ(model.best_end(0, ranges), 10);
  for (int i = 0; i < 9; ++i) model.computed(100, 0, 1);
  for (int i = 0; i < 9; ++i) model.loaded(Tier::kHost, 1, 1);
  EXPECT_EQ(model.best_end(0, ranges), 10) << "the disk was not measured";
  for (int i = 0; i < 9; ++i) model.loaded(Tier::kDisk, 1, 1);
  EXPECT_EQ(model.best_end(0, ranges), 0);
  EXPECT_EQ(model.best_end(7, {}), 7);
}

TEST(CostModel, SeesThatDeepTokensTakeLonger) {
  CostModel flat, deep;
  for (int i = 0; i < 40; ++i) {
    const int position = i % 8 * 1000;
    flat.computed(100, position, 100 * 1.0);
    deep.computed(100, position, 100 * (1.0 + 0.0001 * (position + 50)));
  }
  EXPECT_NEAR(flat.growth(), 0, 1e-9);
  EXPECT_NEAR(deep.growth(), 0.0001, 1e-6);
}

TEST(NodeCost, IsOneForPlainTokensMoreInTheDepthAndLessWithAState) {
  const auto states = test::BlockCache::create(9, 1100, 800);
  NodeCosts costs{{8}, {}, 0};
  NodeState node(1000, 1100, 1, &costs);
  node.held[0].slices.push_back({nullptr, 1000, 100, 1000, 1100});
  EXPECT_DOUBLE_EQ(node.recompute_cost(), 1);
  costs.growth = 0.001;
  EXPECT_DOUBLE_EQ(node.recompute_cost(), 1 + 0.001 * 1050);
  costs.growth = 0;
  costs.states.assign(100, states.get());
  Trie trie(2, VictimPolicy::kLru, TreeOrders{false, {}, {0}}.others());
  NodePlaces places(trie, {false, {}, {0}});
  RestorePoints points(trie, places, {false, {}, {0}}, 64);
  Node* with_point = trie.add_child(trie.root("n"), Tokens(100), std::make_unique<NodeState>(1000, 1100, 1, &costs));
  state_of(with_point).held[0].slices.push_back({nullptr, 1000, 100, 1000, 1100});
  points.put(with_point, PointKind::kEnd, std::vector<HeldState>(1));
  EXPECT_DOUBLE_EQ(state_of(with_point).recompute_cost(), 0.5) << "a state as large as its cells";
  EXPECT_DOUBLE_EQ(NodeState(0, 5, 1).recompute_cost(), 1) << "nothing is known";
}

// A cache whose steps and page-ins take what the test says.
class LoadOrRecompute : public ::testing::Test {
 protected:
  static constexpr double kStep = 1, kRead = 100, kEnqueue = 1e-4;  // seconds

  void open(LoadPolicy load = LoadPolicy::kAuto, bool with_clock = true) {
    KvShape shape;
    shape.layers = 1;
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = 2;
    shape.cells = 4096;
    shape.formats = plain_format(DType::kFloat32);
    CausalCache::Options options;
    options.layers = {0};
    PrefixCacheOptions settings;
    settings.host_bytes = 4096 * shape.bytes_per_cell();
    settings.load = load;
    settings.device_times = slow_;
    if (with_clock) settings.clock = [this] { return now_ += tick_; };
    std::unique_ptr<KvStore> store = std::make_unique<NullKvStore>(shape);
    if (slow_) store = std::make_unique<SlowStore>(shape, device_);
    cache_ = PrefixCache::create({{CausalCache::create(std::move(store), options)}, {}}, settings);
  }

  void TearDown() override { EXPECT_EQ(cache_->check(), std::vector<std::string>{}); }

  static Tokens prompt(Token salt, std::int32_t length = 200) {
    Tokens tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = i + 100000 * salt;
    return tokens;
  }

  SessionPtr chat(const Tokens& tokens) {
    const SessionPtr session = cache_->begin("n", tokens);
    while (StepPtr step = session->next_prefill(50)) {
      if (slow_) {
        now_ += kEnqueue;
        device_.work(kStep);
      } else {
        now_ += kStep;
      }
      const Tensor kv = Tensor::host(DType::kFloat32, {static_cast<std::int64_t>(step->tokens().size()), 1, 2});
      step->put(0, kv, kv);
    }
    device_.catch_up();
    session->close();
    return session;
  }

  // Enough samples of both: a page-in takes `tick` seconds for each time it looks at the clock.
  void measure(double tick) {
    for (Token salt = 1; salt <= 8; ++salt) {
      chat(prompt(salt));
      cache_->page_out("n", prompt(salt));
      tick_ = tick;
      cache_->restore("n", prompt(salt));
      tick_ = 0;
      cache_->evict("n", prompt(salt));
    }
  }

  double now_ = 1, tick_ = 0;
  bool slow_ = false;
  SlowDevice device_;
  PrefixCachePtr cache_;
};

TEST_F(LoadOrRecompute, ComputesAgainWhatIsSlowToLoad) {
  open();
  measure(kRead);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  const ReusePlan plan = cache_->plan("n", prompt(50));
  EXPECT_EQ(plan.matched, 200);
  EXPECT_EQ(plan.reusable, 0);
  EXPECT_EQ(plan.bytes_moved, 0u);
  EXPECT_EQ(plan.reason.code, ReasonCode::kRecompute);
  const std::uint64_t before = cache_->stats().page_ins;
  const SessionPtr session = chat(prompt(50));
  EXPECT_EQ(session->reused(), 0);
  EXPECT_EQ(session->matched(), 200);
  EXPECT_EQ(session->reason().code, ReasonCode::kRecompute);
  EXPECT_STREQ(name_of(session->reason().code), "recompute");
  EXPECT_FALSE(session->reason().text.empty());
  const PrefixCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.page_ins, before);
  EXPECT_EQ(stats.recomputed_instead, 199u);
  EXPECT_EQ(stats.tokens, 200u) << "what was computed again took the place of what was outside";
  EXPECT_EQ(stats.device_tokens, 200u);
}

TEST_F(LoadOrRecompute, LoadsWhatIsFastToLoad) {
  open();
  measure(0.001);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  EXPECT_EQ(cache_->plan("n", prompt(50)).reason.code, ReasonCode::kLastToken);
  EXPECT_EQ(chat(prompt(50))->reused(), 199);
  EXPECT_EQ(cache_->stats().recomputed_instead, 0u);
}

// Enqueueing a step takes 0.1 ms and computing it a second. A page-in of 2 s is slower than the one and faster than the
// other: of four steps.
TEST_F(LoadOrRecompute, AStepTakesWhatTheDeviceNeedsForIt) {
  slow_ = true;
  open();
  measure(1);
  ASSERT_TRUE(cache_->stats().seconds_per_token);
  EXPECT_NEAR(*cache_->stats().seconds_per_token, kStep / 50, 1e-9);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  EXPECT_EQ(cache_->plan("n", prompt(50)).reason.code, ReasonCode::kLastToken);
  EXPECT_EQ(chat(prompt(50))->reused(), 199);
  EXPECT_EQ(cache_->stats().recomputed_instead, 0u);
}

// What was queued before a step, and what the device rests after it, are not the step's.
TEST_F(LoadOrRecompute, AStepTakesNothingElse) {
  slow_ = true;
  open();
  for (Token salt = 1; salt <= 8; ++salt) {
    device_.work(1000);
    chat(prompt(salt));
    device_.given += 1000;
    device_.catch_up();
  }
  EXPECT_NEAR(*cache_->stats().seconds_per_token, kStep / 50, 1e-9);
}

// What the model computes after its last layer is the step's, where the loop comes back.
TEST_F(LoadOrRecompute, AStepEndsWhereTheLoopOfThePrefillComesBack) {
  slow_ = true;
  open();
  for (Token salt = 1; salt <= 8; ++salt) {
    const SessionPtr session = cache_->begin("n", prompt(salt));
    StepPtr previous;
    while (const StepPtr step = session->next_prefill(50, previous)) {
      const Tensor kv = Tensor::host(DType::kFloat32, {50, 1, 2});
      step->put(0, kv, kv);
      device_.work(kStep);
      previous = step;
    }
    device_.catch_up();
  }
  ASSERT_TRUE(cache_->stats().seconds_per_token);
  EXPECT_NEAR(*cache_->stats().seconds_per_token, kStep / 50, 1e-9);
}

TEST_F(LoadOrRecompute, StandsAtWhatIsOnTheDevice) {
  open();
  measure(kRead);
  chat(prompt(50, 120));
  chat(prompt(50, 200));
  cache_->pin("n", prompt(50, 120));
  cache_->page_out("n", prompt(50, 200));
  const SessionPtr session = chat(prompt(50, 200));
  EXPECT_EQ(session->reused(), 120);
  EXPECT_EQ(session->tier(), Tier::kDevice);
  EXPECT_EQ(session->reason().code, ReasonCode::kRecompute);
}

TEST_F(LoadOrRecompute, RestoreAlwaysLoads) {
  open();
  measure(kRead);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  EXPECT_EQ(cache_->restore("n", prompt(50)), 200);
  EXPECT_EQ(cache_->stats().recomputed_instead, 0u);
}

TEST_F(LoadOrRecompute, AlwaysMeansAlways) {
  open(LoadPolicy::kAlways);
  measure(kRead);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  EXPECT_EQ(cache_->plan("n", prompt(50)).reusable, 199);
  EXPECT_EQ(chat(prompt(50))->reused(), 199);
}

TEST_F(LoadOrRecompute, WithoutAClockNothingIsMeasured) {
  open(LoadPolicy::kAuto, /*with_clock=*/false);
  measure(kRead);
  const PrefixCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.seconds_per_token, std::nullopt);
  EXPECT_EQ(stats.host_seconds_per_byte, std::nullopt);
  chat(prompt(50));
  cache_->page_out("n", prompt(50));
  EXPECT_EQ(chat(prompt(50))->reused(), 199);
}

TEST_F(LoadOrRecompute, SaysWhatItMeasured) {
  open();
  measure(kRead);
  const PrefixCacheStats stats = cache_->stats();
  ASSERT_TRUE(stats.seconds_per_token && stats.host_seconds_per_byte);
  EXPECT_NEAR(*stats.seconds_per_token, kStep / 50, 1e-9);
  EXPECT_NEAR(*stats.host_seconds_per_byte * 200 * 16, 2 * kRead, kRead) << "from before verifying to handed over";
  EXPECT_EQ(stats.disk_seconds_per_byte, std::nullopt);
}

}  // namespace
}  // namespace kvtrie
