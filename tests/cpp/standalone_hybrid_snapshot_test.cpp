// Snapshots of several caches as one, scheduled captures, and what is left after a failed allocation.
#include <functional>
#include <random>

#include "failing_allocations.h"
#include "hybrid_helpers.h"

namespace kvtrie::testing {

namespace {

using Tokens = HybridTokens;
using Twin = HybridTwin;
using SnapshotPtr = HybridCache::SnapshotPtr;

class HybridSnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override { all_.append_item(0, {1, 2, 3, 4, 5, 6}, 3, {60, 61}); }
  void TearDown() override { EXPECT_TRUE(sound(all_)); }
  ::testing::AssertionResult declined(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
    const std::string before = all_->dump();
    if (all_->restore(id, snapshot, target)) return ::testing::AssertionFailure() << "restored";
    if (all_->dump() != before) return ::testing::AssertionFailure() << "changed to:\n" << all_->dump();
    return sound(all_);
  }
  std::uint64_t whole_bytes() const {  // of sequence 0: six cells, three of the window, a slot, two cells of the item
    return 6 * all_.causal->shape().bytes_per_cell() + 3 * all_.window->shape().bytes_per_cell() +
           all_.states->shape().bytes_per_slot() + 2 * all_.items->shape().bytes_per_cell();
  }

  const Twin zero_ = twin({1, 2, 3, 4, 5, 6}, 3, {60, 61});
  Hybrid all_{Hybrid::Capacity{60, 60, 14, 24}};
};

TEST_F(HybridSnapshotTest, OneObjectOverAllComponents) {
  const SnapshotPtr whole = all_->snapshot(0, 0);
  EXPECT_EQ(whole->start(), 0);
  EXPECT_EQ(whole->end(), 6);
  EXPECT_STREQ(whole->tier(), "device");
  EXPECT_EQ(whole->nbytes(), 0u);
  EXPECT_EQ(whole->shared_nbytes(), whole_bytes());
  EXPECT_EQ(all_->snapshot(0, 6), nullptr);
  EXPECT_EQ(all_->snapshot(9, 0), nullptr);
  all_->remove(0, 0);
  EXPECT_EQ(whole->nbytes(), whole_bytes());
  for (const std::int32_t target : {-1, 1, 4, 5, 7}) EXPECT_TRUE(declined(1, whole, target)) << target;
  EXPECT_TRUE(all_->restore(1, whole, 6));
  EXPECT_TRUE(is(all_, 1, zero_));
  all_.append(1, {7});
  EXPECT_TRUE(is(all_, 1, twin({1, 2, 3, 4, 5, 6, 7}, 3, {60, 61})));
  EXPECT_TRUE(all_->restore(1, whole, 6));
  EXPECT_TRUE(is(all_, 1, zero_));
  EXPECT_TRUE(all_->restore(1, whole, 0));
  EXPECT_TRUE(is(all_, 1, twin({})));
}

TEST_F(HybridSnapshotTest, OtherTokensAreNeverMixedIn) {
  auto [lower, upper] = all_->split(all_->snapshot(0, 0), 4);
  ASSERT_TRUE(lower && upper);
  // A sequence of exactly 4 other tokens: the lower half has its cells, but not the recurrent state there.
  all_.append(1, {40, 41, 42, 43});
  EXPECT_TRUE(declined(1, lower, 4));
  EXPECT_TRUE(is(all_, 1, twin({40, 41, 42, 43})));
  EXPECT_TRUE(declined(2, upper, 6)) << "nobody has what comes before it";
  const SnapshotPtr merged = all_->merge(lower, upper);
  EXPECT_TRUE(lower->consumed() && upper->consumed());
  EXPECT_EQ(lower->nbytes() + lower->shared_nbytes(), 0u);
  EXPECT_TRUE(all_->restore(1, merged, 6));
  EXPECT_TRUE(is(all_, 1, zero_));
  EXPECT_EQ(merged->shared_nbytes(), whole_bytes());
}

TEST_F(HybridSnapshotTest, SplitAndMergeAtAnyPlace) {
  for (std::int32_t at = -1; at <= 7; ++at) {
    auto [lower, upper] = all_->split(all_->snapshot(0, 0), at);
    EXPECT_EQ(lower == nullptr, at <= 0);
    EXPECT_EQ(upper == nullptr, at >= 6);
    const SnapshotPtr merged = all_->merge(lower, upper);
    EXPECT_EQ(merged->start(), 0);
    EXPECT_EQ(merged->end(), 6);
    ASSERT_TRUE(all_->restore(1, merged, 6)) << at;
    EXPECT_TRUE(is(all_, 1, zero_)) << at;
  }
  const SnapshotPtr one = all_->snapshot(0, 0), other = all_->snapshot(1, 0);
  EXPECT_THROW(all_->merge(one, other), Error) << "not adjacent";
  EXPECT_FALSE(one->consumed() || other->consumed());
  EXPECT_THROW(all_->merge(one, one), Error);
  all_->split(one, 2);
  EXPECT_THROW(all_->split(one, 2), Error);
  EXPECT_THROW(all_->restore(0, one, 2), Error);
  EXPECT_EQ(all_->merge(nullptr, nullptr), nullptr);
  EXPECT_EQ(all_->split(nullptr, 3).first, nullptr);
  const Hybrid elsewhere(Hybrid::Capacity{8, 0, 0, 0});
  EXPECT_THROW(elsewhere->restore(0, other, 1), Error);
}

TEST_F(HybridSnapshotTest, CutsWithoutASnapshot) {
  EXPECT_TRUE(declined(0, nullptr, 3));
  EXPECT_TRUE(declined(0, nullptr, 7));
  EXPECT_TRUE(declined(0, nullptr, -1));
  EXPECT_TRUE(all_->restore(0, nullptr, 6));
  EXPECT_TRUE(is(all_, 0, zero_));
  EXPECT_TRUE(all_->restore(0, nullptr, 0));
  EXPECT_TRUE(is(all_, 0, twin({})));
  EXPECT_EQ(all_->free_slots(), 14u);
}

TEST_F(HybridSnapshotTest, ScheduledCapturesOfAllComponents) {
  all_->prepare_snapshots(0, {6, 8, 11, 20});
  EXPECT_THROW(all_->prepare_snapshots(0, {21}), Error);
  all_.start(0, 3);
  EXPECT_EQ(all_->boundaries(1), (std::vector<Tokens>{{2}}));
  all_.write_all({7, 8, 9});
  all_.append(0, {10, 11});
  const auto taken = all_->take_snapshots(0);
  ASSERT_EQ(taken.size(), 4u);
  EXPECT_EQ(taken[3], nullptr);
  EXPECT_EQ(taken[1]->start(), 6);
  EXPECT_EQ(taken[2]->start(), 8);
  EXPECT_TRUE(all_->take_snapshots(0).empty());
  const Twin eleven = twin({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 3, {60, 61});
  // Back by k tokens: the state was kept, the cells are there as far as the window's memory reaches.
  ASSERT_NE(taken[0], nullptr) << "the state at the length when it was asked for";
  EXPECT_TRUE(declined(0, taken[0], 6)) << "the window has moved on";
  const SnapshotPtr tail = all_->merge(taken[1], taken[2]);
  EXPECT_TRUE(all_->restore(0, tail, 11));
  EXPECT_TRUE(is(all_, 0, eleven));
}

TEST(HybridRewindTest, TheStateAtTheLengthIsEnoughToComeBack) {  // speculation: k tokens are rejected
  const Hybrid two(Hybrid::Capacity{40, 0, 8, 0});
  two.append(0, {1, 2, 3});
  two->prepare_snapshots(0, {3, 4, 5});
  two.append(0, {4, 5, 6});
  const auto taken = two->take_snapshots(0);
  EXPECT_TRUE(two->restore(0, taken[2], 5));
  EXPECT_TRUE(is(two, 0, twin({1, 2, 3, 4, 5})));
  EXPECT_TRUE(two->restore(0, taken[0], 3));
  EXPECT_TRUE(is(two, 0, twin({1, 2, 3})));
  EXPECT_FALSE(two->restore(0, taken[2], 5)) << "nobody has the token before it";
  EXPECT_TRUE(two->restore(0, taken[1], 4));
  EXPECT_TRUE(two->restore(0, taken[2], 5));
  EXPECT_TRUE(is(two, 0, twin({1, 2, 3, 4, 5})));
}

TEST_F(HybridSnapshotTest, CapturesOfAStepThatWasTakenBackAreLost) {
  all_->prepare_snapshots(0, {7, 9});
  all_.start(0, 2);
  all_.write_all({50, 51}, {}, 5);  // the causal caches are complete and have captured 7; the recurrent one is not
  all_.append(0, {7, 8, 9});
  const auto taken = all_->take_snapshots(0);
  EXPECT_EQ(taken[0], nullptr);
  ASSERT_NE(taken[1], nullptr);
  EXPECT_TRUE(all_->restore(1, all_->merge(all_->snapshot(0, 0), nullptr), 9));
  EXPECT_TRUE(is(all_, 1, twin({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, {60, 61})));
  EXPECT_TRUE(is(all_, 0, twin({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, {60, 61})));
}

TEST_F(HybridSnapshotTest, ASnapshotOutlivesItsCache) {
  const SnapshotPtr snapshot = all_->snapshot(0, 0);
  all_.start(0, 1);
  all_ = Hybrid(Hybrid::Capacity{8, 8, 4, 8});
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), 0u);
  EXPECT_EQ(snapshot->end(), 6);
}

// ---- failed allocations ---------------------------------------------------------------------------------------------

class HybridFaultTest : public HybridSnapshotTest {
 protected:
  // Fails the first, second, ... allocation of `call` until it needs no more of them. Whatever fails, the sequences
  // stay what they were, or become it again, or are emptied as one.
  void sweep(const std::function<void()>& call, const std::vector<std::pair<SequenceId, Twin>>& twins) {
    for (std::uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 3000u);
      const bool failed = runs_out_of_memory(n, call);
      ASSERT_TRUE(sound(all_)) << "allocation " << n;
      if (!failed) return;
      for (const auto& [id, expected] : twins) ASSERT_TRUE(is(all_, id, expected)) << "allocation " << n;
    }
  }
};

TEST_F(HybridFaultTest, StartingAStep) {
  all_.append(1, {9});
  const std::vector<std::pair<SequenceId, Twin>> twins{{0, zero_}, {1, twin({9})}, {2, twin({})}};
  const Tokens positions{6, 1, 0}, sequences{0, 1, 2};
  const std::vector<EncoderItem> items{{1, 1, 3}};
  sweep([&] { all_->start_forward(positions, sequences, false, items); }, twins);
  sweep([&] { all_->start_forward(positions, sequences, false, items); }, twins);  // over an open one
  EXPECT_EQ(all_->free_cells(), 19u);
  all_.write_all({30, 31, 32}, {70, 71, 72});
  EXPECT_TRUE(is(all_, 1, twin({9, 31}, 1, {70, 71, 72})));
}

TEST_F(HybridFaultTest, TakingAStepBack) {
  for (std::size_t written = 1; written < 7; ++written) {
    for (std::uint64_t n = 1;; ++n) {
      all_.start(0, 2, {{0, 7, 2}});
      all_.write_all({50, 51}, {70, 71}, written);
      bool reached = false;
      const bool failed = runs_out_of_memory(n, [&] {
        all_->restore(0, nullptr, 3);  // declined, once it is back
        reached = allocations_until_failure() == 0;
      });
      all_->drop_forward();
      ASSERT_TRUE(sound(all_));
      const bool emptied = all_->length(0) == 0;
      ASSERT_TRUE(is(all_, 0, emptied ? twin({}) : zero_)) << written << ' ' << n;
      if (!failed && !reached) break;
      if (!emptied) continue;
      all_->remove(0, 0);
      all_.append_item(0, {1, 2, 3, 4, 5, 6}, 3, {60, 61});
    }
  }
}

TEST_F(HybridFaultTest, Editing) {
  all_.append_item(1, {9, 8}, 0, {70});
  const SnapshotPtr snapshot = all_->snapshot(0, 0);
  const std::vector<std::pair<SequenceId, Twin>> twins{{0, zero_}, {1, twin({9, 8}, 0, {70})}};
  sweep([&] { all_->copy_prefix(0, 1, 6); }, twins);
  EXPECT_TRUE(is(all_, 1, zero_));
  all_->remove(1, 0);
  all_.append(1, {9, 8});
  sweep([&] { all_->restore(1, snapshot, 6); }, {{0, zero_}, {1, twin({9, 8})}});
  EXPECT_TRUE(is(all_, 1, zero_));
  sweep([&] { all_->remove(1, 0); }, {{0, zero_}, {1, zero_}});
  EXPECT_TRUE(is(all_, 1, twin({})));
  sweep([&] { all_->prepare_snapshots(0, {7, 9}); }, {{0, zero_}});
  sweep([&] { all_->snapshot(0, 2); }, {{0, zero_}});
  sweep([&] { all_->take_snapshots(0); }, {{0, zero_}});
  EXPECT_TRUE(all_->take_snapshots(0).empty());
}

TEST_F(HybridFaultTest, SnapshotsAreWholeOrConsumed) {
  bool failed = true;
  for (std::uint64_t n = 1; failed; ++n) {
    const SnapshotPtr whole = all_->snapshot(0, 0);
    failed = runs_out_of_memory(n, [&] {
      auto [lower, upper] = all_->split(whole, 3);
      all_->merge(lower, upper);
    });
    ASSERT_TRUE(whole->consumed() || all_->restore(1, whole, 6));
    ASSERT_TRUE(sound(all_));
  }
  EXPECT_TRUE(is(all_, 0, zero_));
}

}  // namespace
}  // namespace kvtrie::testing
