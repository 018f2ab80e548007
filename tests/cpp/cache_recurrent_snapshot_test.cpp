// The snapshot algebra of recurrent caches: whole states at exact offsets.
#include <gtest/gtest.h>

#include "state_helpers.h"

namespace kvtrie::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(RecurrentSnapshot, HoldsTheStateAndMovesNoByte) {
  const auto cache = host_states(small_states());
  EXPECT_EQ(cache->snapshot(0, 0), nullptr);  // never written
  append(*cache, 0, {1, 2, 3});
  EXPECT_EQ(cache->snapshot(0, 3), nullptr);
  const auto snapshot = cache->snapshot(0, 1);
  EXPECT_EQ(snapshot->start(), 1);
  EXPECT_EQ(snapshot->end(), 3);
  EXPECT_STREQ(snapshot->tier(), "device");
  EXPECT_EQ(cache->free_slots(), 15u);
  const std::uint64_t bytes = 2 * (3 * 5 + 2 * 3 * 4) * 4;  // compact: one slot, however long the history
  EXPECT_EQ(snapshot->nbytes(), 0u);
  EXPECT_EQ(snapshot->shared_nbytes(), bytes);
  append(*cache, 0, {4});
  EXPECT_EQ(snapshot->nbytes(), bytes);
  EXPECT_EQ(snapshot->shared_nbytes(), 0u);
}

TEST(RecurrentSnapshot, RestoresItsOwnOffsetOnly) {  // RestoreExactOffset
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2, 3});
  const auto snapshot = cache->snapshot(0, 0);
  append(*cache, 0, {4, 5});
  const std::string before = cache->dump();
  for (const std::int32_t target : {-1, 0, 2, 4, 5}) EXPECT_FALSE(cache->restore(0, snapshot, target)) << target;
  for (const std::int32_t target : {-1, 0, 3, 6}) EXPECT_FALSE(cache->restore(0, nullptr, target)) << target;
  EXPECT_TRUE(cache->restore(0, nullptr, 5));
  EXPECT_EQ(cache->dump(), before);
  EXPECT_TRUE(cache->restore(0, snapshot, 3));
  EXPECT_EQ(cache->length(0), 3);
  append(*cache, 0, {9});
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3, 9})));
  EXPECT_TRUE(cache->restore(8, snapshot, 3));  // another sequence, from nothing
  EXPECT_TRUE(holds_state(*cache, cache->slot(8).slot(), history(*cache, {1, 2, 3})));
  EXPECT_TRUE(sound(*cache));
}

TEST(RecurrentSnapshot, SplitsAndMergesAsWholeStates) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2});
  auto first = cache->snapshot(0, 0);
  append(*cache, 0, {3, 4, 5});
  auto second = cache->snapshot(0, 2);
  EXPECT_THROW(cache->merge(second, first), Error);
  const auto merged = cache->merge(first, second);
  EXPECT_TRUE(first->consumed());
  EXPECT_EQ(first->nbytes() + first->shared_nbytes(), 0u);
  EXPECT_EQ(merged->start(), 0);
  EXPECT_EQ(merged->end(), 5);
  EXPECT_EQ(cache->free_slots(), 15u);  // the earlier state went
  EXPECT_THROW(cache->restore(0, first, 2), Error);
  auto [lower, upper] = cache->split(merged, 3);
  EXPECT_EQ(lower, nullptr);
  EXPECT_EQ(upper->start(), 3);
  EXPECT_EQ(upper->end(), 5);
  auto [all, none] = cache->split(upper, 5);
  EXPECT_EQ(all->end(), 5);
  EXPECT_EQ(none, nullptr);
  const auto again = cache->merge(nullptr, all);
  EXPECT_EQ(again->start(), 3);
  EXPECT_EQ(cache->merge(nullptr, nullptr), nullptr);
  EXPECT_EQ(cache->split(nullptr, 1).first, nullptr);
  EXPECT_TRUE(cache->restore(1, again, 5));
  EXPECT_TRUE(holds_state(*cache, cache->slot(1).slot(), history(*cache, {1, 2, 3, 4, 5})));
  EXPECT_THROW(host_states(small_states())->restore(0, again, 5), Error);  // another cache
  EXPECT_TRUE(sound(*cache));
}

TEST(RecurrentSnapshot, CapturesDuringForwards) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2});
  cache->prepare_snapshots(0, {2, 4, 7, 9, 12});
  const auto forward = start(*cache, 0, 4);
  EXPECT_EQ(forward->boundaries(), (std::vector<Tokens>{{4}}));
  run_forward(*cache, *forward, {3, 4, 5, 6});
  append(*cache, 0, {7});             // to 7: the end
  append(*cache, 0, {8, 9, 10, 11});  // over 9, below 12
  const auto taken = cache->take_snapshots(0);
  ASSERT_EQ(taken.size(), 5u);
  EXPECT_EQ(taken[4], nullptr);  // never reached
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Tokens starts{2, 2, 4, 7}, ends{2, 4, 7, 9};
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_NE(taken[i], nullptr) << i;
    EXPECT_EQ(taken[i]->start(), starts[i]);
    EXPECT_EQ(taken[i]->end(), ends[i]);
    ASSERT_TRUE(cache->restore(1, taken[i], ends[i]));
    const Tokens until(tokens.begin(), tokens.begin() + ends[i]);
    EXPECT_TRUE(holds_state(*cache, cache->slot(1).slot(), history(*cache, until))) << i;
  }
  EXPECT_TRUE(cache->take_snapshots(0).empty());
}

TEST(RecurrentSnapshot, RollsBackTheLastTokens) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2, 3});
  for (std::int32_t accepted = 0; accepted <= 4; ++accepted) {
    const std::int32_t length = cache->length(0);
    cache->prepare_snapshots(0, {length, length + 1, length + 2, length + 3, length + 4});
    append(*cache, 0, {40, 41, 42, 43});  // one forward over four drafted tokens
    const auto taken = cache->take_snapshots(0);
    ASSERT_TRUE(cache->restore(0, taken[static_cast<std::size_t>(accepted)], length + accepted));
    EXPECT_EQ(cache->length(0), length + accepted);
  }
  EXPECT_EQ(cache->free_slots(), 15u);
  EXPECT_TRUE(
      holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3, 40, 40, 41, 40, 41, 42, 40, 41, 42, 43})));
}

TEST(RecurrentSnapshot, RefusesWrongSchedules) {  // PrepareSnapshotsPastOffset
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2});
  const auto prepares = [&](ErrorKind kind, const Tokens& offsets) {
    return refused(*cache, kind, [&] { cache->prepare_snapshots(0, offsets); });
  };
  EXPECT_TRUE(prepares(ErrorKind::kArgument, {1}));
  EXPECT_TRUE(prepares(ErrorKind::kArgument, {5, 4}));
  EXPECT_TRUE(prepares(ErrorKind::kArgument, {4, 4}));
  cache->prepare_snapshots(0, {});
  {
    const auto open = cache->begin(std::vector<ForwardRows>{{0, 3, {}}});
    EXPECT_TRUE(prepares(ErrorKind::kBusy, {4}));
  }
  const auto open = start(*cache, 0, 3);
  cache->prepare_snapshots(0, {4});  // drops it: its boundaries would be wrong
  EXPECT_THROW(cache->states(*open, 1), Error);
  EXPECT_TRUE(prepares(ErrorKind::kArgument, {5}));  // undrained
  EXPECT_EQ(cache->take_snapshots(0).size(), 1u);
  cache->prepare_snapshots(0, {5});
  cache->prepare_snapshots(9, {0, 1});  // a sequence that is not there yet
  append(*cache, 9, {1});
  const auto taken = cache->take_snapshots(9);
  EXPECT_EQ(taken[0], nullptr);  // zeros
  EXPECT_EQ(taken[1]->start(), 0);
  EXPECT_EQ(taken[1]->end(), 1);
}

TEST(RecurrentSnapshot, CopiesHoldTheSameSlot) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2, 3});
  cache->copy_prefix(0, 1, 3);
  EXPECT_EQ(cache->free_slots(), 15u);
  EXPECT_TRUE(cache->slot(0) == cache->slot(1));
  append(*cache, 1, {4});
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3})));
  EXPECT_TRUE(holds_state(*cache, cache->slot(1).slot(), history(*cache, {1, 2, 3, 4})));
  EXPECT_TRUE(refused(*cache, ErrorKind::kNotRestorable, [&] { cache->copy_prefix(0, 1, 2); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->copy_prefix(0, 1, 4); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->copy_prefix(5, 1, 0); }));
  cache->copy_prefix(0, 0, 3);
  cache->copy_prefix(0, 1, 0);
  EXPECT_EQ(cache->length(1), 0);
  cache->copy_prefix(0, 0, 0);
  EXPECT_EQ(cache->free_slots(), 16u);
}

TEST(RecurrentSnapshot, RemovesEverythingOrNothing) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2, 3});
  EXPECT_TRUE(cache->can_resume(0, 0));
  EXPECT_TRUE(cache->can_resume(0, 3));
  EXPECT_FALSE(cache->can_resume(0, 2));
  EXPECT_FALSE(cache->can_resume(0, 4));
  EXPECT_TRUE(refused(*cache, ErrorKind::kNotRestorable, [&] { cache->remove(0, 2); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kNotSupported, [&] { cache->remove(0, 0, 2); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->remove(0, 4); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->remove(0, 1, 0); }));
  cache->remove(0, 3);
  cache->remove(0, 1, 1);
  EXPECT_EQ(cache->length(0), 3);
  try {
    cache->remove(0, 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.nearest(), 0);
  }
  cache->remove(0, 0);
  EXPECT_EQ(cache->length(0), 0);
  EXPECT_EQ(cache->free_slots(), 16u);
}

}  // namespace
}  // namespace kvtrie::testing
