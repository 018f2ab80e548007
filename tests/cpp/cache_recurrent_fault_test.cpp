// What is left of a recurrent cache after a failure: every allocation of every call fails once, and the call has
// changed nothing.
#include <gtest/gtest.h>

#include <functional>

#include "failing_allocations.h"
#include "state_helpers.h"

namespace kvtrie::testing {

namespace {

using Tokens = std::vector<std::int32_t>;

class RecurrentFaultTest : public ::testing::Test {
 protected:
  // Sequence 0: three tokens, with a snapshot; sequence `a_`: two tokens.
  void SetUp() override {
    cache_ = host_states(small_states());
    append(*cache_, 0, {1, 2, 3});
    snapshot_ = cache_->snapshot(0, 1);
    a_ = cache_->open_sequence();
    run_forward(*cache_, *cache_->begin(std::vector<ForwardRows>{{a_, 2, {}}}), {4, 5});
  }

  // Fails the first, second, ... allocation of `call` until it needs no more of them.
  void sweep(const std::function<void()>& call) {
    for (std::uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 1000u);
      const std::string before = cache_->dump();
      const bool failed = runs_out_of_memory(n, call);
      ASSERT_TRUE(sound(*cache_)) << "allocation " << n;
      if (!failed) break;
      ASSERT_EQ(before, cache_->dump()) << "allocation " << n;
    }
    EXPECT_TRUE(holds_state(*cache_, cache_->slot(0).slot(), point_after(cache_->shape(), nullptr, {1, 2, 3})));
  }

  std::shared_ptr<RecurrentCache> cache_;
  RecurrentCache::SnapshotPtr snapshot_;
  SequenceId a_ = 0;
};

TEST_F(RecurrentFaultTest, BeginningAForward) {
  const std::vector<ForwardRows> rows{{a_, 4, {3, 5}}, {cache_->open_sequence(), 1, {}}};
  StateForwardPtr forward;
  sweep([&] { forward = cache_->begin(rows); });
}

TEST_F(RecurrentFaultTest, ReplacingAForward) {
  cache_->start_forward(Tokens{3, 0, 0}, Tokens{0, 6, 7});  // its sequences come and go with it
  sweep([&] { cache_->start_forward(Tokens{0, 1, 0, 0}, Tokens{7, 7, 8, -1}); });
}

TEST_F(RecurrentFaultTest, CompletingAForwardWithCaptures) {
  cache_->prepare_snapshots(a_, {2, 3, 5});
  const auto forward = cache_->begin(std::vector<ForwardRows>{{a_, 3, {4}}});
  const PointPtr three = point_after(cache_->shape(), nullptr, {1, 2, 3});
  const auto entries = [&](std::size_t layer, bool delta) {
    std::vector<float> all;
    for (int i = 0; i < 3; ++i) {
      const auto& one = delta ? three->layers[layer].delta : three->layers[layer].conv;
      all.insert(all.end(), one.begin(), one.end());
    }
    return placed(nullptr, all, delta ? Shape{3, 2, 3, 4} : Shape{3, 3, 5});
  };
  const Tensor conv_0 = entries(0, false), conv_1 = entries(1, false), delta_0 = entries(0, true),
               delta_1 = entries(1, true);
  sweep([&] { cache_->put_states(*forward, 1, conv_0, delta_0); });
  sweep([&] { cache_->put_states(*forward, 5, conv_1, delta_1); });
  EXPECT_TRUE(forward->complete());
  sweep([&] { forward->take_captured(0); });
}

TEST_F(RecurrentFaultTest, OperationsOfAForward) {
  const auto forward = cache_->begin(std::vector<ForwardRows>{{a_, 1, {}}});
  const RowInputs in = row_inputs(cache_->shape(), 0, {6});
  const Tensor x = placed(nullptr, in.x, {1, 5}), weight = placed(nullptr, in.weight, {5, 4});
  sweep([&] { cache_->states(*forward, 1); });
  sweep([&] { cache_->conv(*forward, 1, x, weight); });
}

TEST_F(RecurrentFaultTest, TheSnapshotAlgebra) {
  sweep([&] { cache_->copy_prefix(0, 3, 3); });
  sweep([&] { cache_->restore(4, snapshot_, 3); });
  sweep([&] { cache_->prepare_snapshots(5, {0, 4}); });
  sweep([&] { cache_->prepare_snapshots(a_, {2, 4}); });
  sweep([&] { cache_->take_snapshots(a_); });
  RecurrentCache::SnapshotPtr upper, merged;
  sweep([&] { upper = cache_->split(snapshot_, 2).second; });
  append(*cache_, 4, {9});
  const auto later = cache_->snapshot(4, 3);
  sweep([&] { merged = cache_->merge(upper, later); });
  EXPECT_EQ(merged->end(), 4);
  sweep([&] { cache_->claim(1); });
  sweep([&] { cache_->open_sequence(); });
}

}  // namespace
}  // namespace kvtrie::testing
