// Snapshots and scheduled captures: what the trie engine's KV cache promises, on held cells instead of copies.
#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::holds;
using testing::host_cache;
using testing::range;
using testing::refused;
using testing::small_shape;
using testing::sound;
using SnapshotPtr = CausalCache::SnapshotPtr;

class SnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override { append(*cache_, 0, range(0, 10)); }
  void TearDown() override { EXPECT_TRUE(sound(*cache_)); }
  std::uint64_t cells(std::uint64_t count) const { return count * cache_->shape().bytes_per_cell(); }

  std::shared_ptr<CausalCache> cache_ = host_cache(small_shape(), {ops::RopeParams{}});
};

TEST_F(SnapshotTest, HoldsCellsAndCopiesNothing) {
  const Cell free = cache_->free_cells();
  const SnapshotPtr snapshot = cache_->snapshot(0, 4);
  EXPECT_EQ(snapshot->start(), 4);
  EXPECT_EQ(snapshot->end(), 10);
  EXPECT_STREQ(snapshot->tier(), "device");
  EXPECT_EQ(cache_->free_cells(), free);
  EXPECT_EQ(snapshot->nbytes(), 0u);
  EXPECT_EQ(snapshot->shared_nbytes(), cells(6));
  cache_->remove(0, 7);
  EXPECT_EQ(snapshot->nbytes(), cells(3)) << "what it alone holds";
  EXPECT_EQ(snapshot->shared_nbytes(), cells(3));
}

TEST_F(SnapshotTest, AnEmptyRangeIsNull) {
  EXPECT_EQ(cache_->snapshot(0, 10), nullptr);
  EXPECT_EQ(cache_->snapshot(0, 99), nullptr);
  EXPECT_EQ(cache_->snapshot(5, 0), nullptr);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->snapshot(0, -1); }));
}

TEST_F(SnapshotTest, RestoringNeedsTheBase) {
  const SnapshotPtr snapshot = cache_->snapshot(0, 5);
  const std::string before = cache_->dump();
  EXPECT_FALSE(cache_->restore(1, snapshot, 10)) << "[5, 10) on an empty sequence";
  EXPECT_FALSE(cache_->restore(0, snapshot, 11));
  EXPECT_FALSE(cache_->restore(0, snapshot, -1));
  EXPECT_FALSE(cache_->restore(0, nullptr, 11));
  EXPECT_FALSE(cache_->restore(0, nullptr, -1));
  EXPECT_EQ(cache_->dump(), before);
}

TEST_F(SnapshotTest, DataSurvivesOverwritingAndComesBack) {
  const SnapshotPtr snapshot = cache_->snapshot(0, 0);
  EXPECT_TRUE(cache_->restore(0, nullptr, 3));
  append(*cache_, 0, range(100, 112));
  EXPECT_TRUE(cache_->restore(0, snapshot, 8));
  EXPECT_EQ(cache_->length(0), 8);
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(0, 8)));
  EXPECT_TRUE(cache_->restore(0, snapshot, 10));
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(0, 10)));
  EXPECT_TRUE(cache_->restore(7, snapshot, 10)) << "into another sequence, sharing";
  EXPECT_TRUE(holds(*cache_, cache_->spans(7), range(0, 10)));
  EXPECT_EQ(cache_->usage().held, 10u);
}

TEST_F(SnapshotTest, RestoringBelowTheStartIsTruncation) {
  const SnapshotPtr snapshot = cache_->snapshot(0, 6);
  EXPECT_TRUE(cache_->restore(0, snapshot, 2));
  EXPECT_EQ(cache_->length(0), 2);
  EXPECT_FALSE(cache_->restore(0, snapshot, 8)) << "now there is a gap";
}

TEST_F(SnapshotTest, EveryInteriorOffsetIsRestorable) {
  const SnapshotPtr snapshot = cache_->snapshot(0, 0);
  for (std::int32_t target = 0; target <= 10; ++target) {
    EXPECT_TRUE(cache_->restore(1, snapshot, target));
    EXPECT_EQ(cache_->length(1), target);
    EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(0, target)));
  }
}

TEST_F(SnapshotTest, SplitAndMergeKeepDataAndConsume) {
  const SnapshotPtr whole = cache_->snapshot(0, 0);
  const std::string pieces = cache_->pool().dump();
  auto [front, back] = cache_->split(whole, 4);
  EXPECT_EQ(cache_->pool().dump(), pieces) << "arithmetic";
  EXPECT_TRUE(whole->consumed());
  EXPECT_EQ(whole->nbytes() + whole->shared_nbytes(), 0u);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { cache_->restore(1, whole, 2); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { cache_->split(whole, 2); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->merge(back, front); })) << "not adjacent";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->merge(front, front); }));
  EXPECT_TRUE(cache_->restore(1, front, 4));
  EXPECT_TRUE(cache_->restore(1, back, 9));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(0, 9)));
  const SnapshotPtr merged = cache_->merge(front, back);
  EXPECT_TRUE(front->consumed() && back->consumed());
  EXPECT_EQ(merged->start(), 0);
  EXPECT_EQ(merged->end(), 10);
  EXPECT_TRUE(cache_->restore(2, merged, 10));
  EXPECT_TRUE(holds(*cache_, cache_->spans(2), range(0, 10)));
}

TEST_F(SnapshotTest, EmptyHalvesAreNullAndNullIsEmpty) {
  auto [none, all] = cache_->split(cache_->snapshot(0, 3), 3);
  EXPECT_EQ(none, nullptr);
  ASSERT_NE(all, nullptr);
  auto [again, nothing] = cache_->split(all, 10);
  EXPECT_EQ(nothing, nullptr);
  EXPECT_EQ(again->start(), 3);
  const SnapshotPtr merged = cache_->merge(nullptr, again);
  EXPECT_TRUE(again->consumed());
  EXPECT_EQ(merged->end(), 10);
  EXPECT_EQ(cache_->merge(nullptr, nullptr), nullptr);
  EXPECT_EQ(cache_->split(nullptr, 4).first, nullptr);
}

TEST_F(SnapshotTest, SnapshotsOfAnotherCacheAreRefused) {
  const auto other = host_cache(small_shape());
  append(*other, 0, range(0, 4));
  const SnapshotPtr foreign = other->snapshot(0, 0);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->restore(1, foreign, 2); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->split(foreign, 2); }));
}

// ---- scheduled captures -------------------------------------------------------------------------------------------

std::vector<std::pair<std::int32_t, std::int32_t>> ranges(const std::vector<SnapshotPtr>& snapshots) {
  std::vector<std::pair<std::int32_t, std::int32_t>> result;
  for (const SnapshotPtr& each : snapshots) result.emplace_back(each ? each->start() : -1, each ? each->end() : -1);
  return result;
}

using Ranges = std::vector<std::pair<std::int32_t, std::int32_t>>;

TEST_F(SnapshotTest, CapturesTileAcrossSeveralWrites) {
  cache_->prepare_snapshots(0, {10, 12, 15, 17, 30});
  append(*cache_, 0, range(10, 14));  // the write's end moves no cursor
  append(*cache_, 0, range(14, 18));
  const auto captured = cache_->take_snapshots(0);
  EXPECT_EQ(ranges(captured), (Ranges{{-1, -1}, {10, 12}, {12, 15}, {15, 17}, {-1, -1}}))
      << "no width at the start, never reached at the end";
  EXPECT_EQ(cache_->usage().held, 18u) << "captures hold, they copy nothing";
  cache_->remove(0, 10);
  for (const std::size_t i : {1, 2, 3}) EXPECT_TRUE(cache_->restore(0, captured[i], captured[i]->end()));
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(0, 17)));
  EXPECT_TRUE(cache_->take_snapshots(0).empty()) << "the schedule is over";
}

TEST_F(SnapshotTest, PerTokenCapturesHoldEachInteriorOffset) {
  cache_->prepare_snapshots(0, range(11, 16));
  append(*cache_, 0, range(10, 15));
  const auto captured = cache_->take_snapshots(0);
  cache_->remove(0, 10);
  for (std::size_t i = 0; i < captured.size(); ++i) {
    ASSERT_TRUE(cache_->restore(0, captured[i], 11 + static_cast<std::int32_t>(i)));
  }
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(0, 15)));
}

TEST_F(SnapshotTest, ADroppedForwardCapturesNothing) {
  cache_->prepare_snapshots(0, {12});
  const std::vector<std::int32_t> positions{10, 11}, ids{0, 0};
  cache_->start_forward(positions, ids);
  append(*cache_, 0, {10});
  EXPECT_EQ(ranges(cache_->take_snapshots(0)), (Ranges{{-1, -1}}));
}

TEST_F(SnapshotTest, CapturesOutliveTheSequence) {
  cache_->prepare_snapshots(3, {2, 4});
  append(*cache_, 3, range(50, 54));
  const auto captured = cache_->take_snapshots(3);
  cache_->remove(3, 0);
  append(*cache_, 3, range(80, 84));
  EXPECT_TRUE(cache_->restore(4, captured[0], 2));
  EXPECT_TRUE(cache_->restore(4, captured[1], 4));
  EXPECT_TRUE(holds(*cache_, cache_->spans(4), range(50, 54)));
}

TEST_F(SnapshotTest, BadSchedulesAreRefused) {
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {9}); })) << "past";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {12, 11}); })) << "unsorted";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {12, 12}); })) << "twice";
  cache_->prepare_snapshots(0, {12});
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {14}); })) << "undrained";
  EXPECT_EQ(cache_->take_snapshots(0).size(), 1u);
  EXPECT_TRUE(cache_->take_snapshots(77).empty());
}

}  // namespace
}  // namespace kvtrie
