// Snapshots of a windowed cache: they cover what was held, and say what they cannot restore.
#include <algorithm>

#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::holds;
using testing::host_cache;
using testing::range;
using testing::seen_by;
using testing::small_shape;
using testing::sound;
using SnapshotPtr = CausalCache::SnapshotPtr;
using Seen = std::vector<std::vector<std::int32_t>>;

class WindowSnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override { append(*cache_, 0, range(0, 10)); }  // holds [5, 10)
  void TearDown() override { EXPECT_TRUE(sound(*cache_)); }
  std::uint64_t cells(std::uint64_t count) const { return count * cache_->shape().bytes_per_cell(); }
  bool refuses(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
    const std::string before = cache_->dump();
    const bool restored = cache_->restore(id, snapshot, target);
    EXPECT_TRUE(restored || cache_->dump() == before);
    return !restored;
  }

  // Windows of 4 keys, memory for 6.
  std::shared_ptr<CausalCache> cache_ = host_cache(small_shape(64), {ops::RopeParams{}}, 0, {4, 0}, 6);
};

TEST_F(WindowSnapshotTest, CoversWhatIsHeld) {
  const SnapshotPtr snapshot = cache_->snapshot(0, 2);
  EXPECT_EQ(snapshot->start(), 2);
  EXPECT_EQ(snapshot->end(), 10);
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), cells(5));
  EXPECT_TRUE(cache_->restore(1, snapshot, 10));  // RestoreFromSnapshot
  EXPECT_EQ(cache_->held_from(1), 5);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(5, 10)));
  EXPECT_EQ(seen_by(*cache_, *append(*cache_, 1, {60}), 0), (Seen{{7, 8, 9, 60}}));
}

TEST_F(WindowSnapshotTest, RestoresWhereTheWindowIsWhole) {  // RestoreOutsideWindow
  const SnapshotPtr snapshot = cache_->snapshot(0, 0);
  for (const std::int32_t target : {-1, 1, 5, 7, 11}) EXPECT_TRUE(refuses(1, snapshot, target)) << target;
  for (const std::int32_t target : {0, 8, 9, 10}) EXPECT_FALSE(refuses(1, snapshot, target)) << target;
  EXPECT_TRUE(cache_->restore(1, snapshot, 8));
  EXPECT_EQ(cache_->length(1), 8);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(5, 8)));
}

TEST_F(WindowSnapshotTest, GoesOnWithWhatTheSequenceHolds) {
  const SnapshotPtr tail = cache_->snapshot(0, 8);
  EXPECT_TRUE(refuses(1, tail, 10)) << "two of three keys";
  append(*cache_, 1, range(0, 8));
  EXPECT_TRUE(cache_->restore(1, tail, 10));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(3, 10)));
  append(*cache_, 2, range(0, 3));
  EXPECT_TRUE(refuses(2, tail, 10)) << "it ends before the snapshot starts";
  const SnapshotPtr whole = cache_->snapshot(0, 6);
  EXPECT_TRUE(cache_->restore(2, whole, 10)) << "the snapshot alone is enough";
  EXPECT_EQ(cache_->held_from(2), 6);
}

TEST_F(WindowSnapshotTest, SurvivesWhatTheSequenceLetsGo) {  // SnapshotPreservesWindow, SurvivesLaterChunk
  const SnapshotPtr snapshot = cache_->snapshot(0, 0);
  append(*cache_, 0, range(10, 30));
  append(*cache_, 1, {90});  // the step before held what it saw
  EXPECT_FALSE(cache_->can_resume(0, 10));
  EXPECT_EQ(snapshot->nbytes(), cells(5));
  EXPECT_TRUE(cache_->restore(0, snapshot, 10));
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(5, 10)));
  EXPECT_EQ(seen_by(*cache_, *append(*cache_, 0, {60}), 0), (Seen{{7, 8, 9, 60}}));
}

TEST_F(WindowSnapshotTest, SplitAndMergeKeepWhatThereIs) {
  for (const std::int32_t at : {3, 5, 7}) {
    auto [lower, upper] = cache_->split(cache_->snapshot(0, 1), at);
    ASSERT_TRUE(lower && upper) << at;
    EXPECT_EQ(lower->end(), at);
    EXPECT_EQ(upper->start(), at);
    EXPECT_EQ(lower->nbytes() + lower->shared_nbytes(), cells(static_cast<std::uint64_t>(std::max(0, at - 5))));
    EXPECT_EQ(refuses(3, upper, 10), at > 7) << "a half is enough where it has the window";
    const SnapshotPtr whole = cache_->merge(lower, upper);
    EXPECT_TRUE(cache_->restore(1, whole, 8));
    EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(5, 8)));
  }
}

TEST_F(WindowSnapshotTest, MergedSnapshotsMayHaveAGapBetweenThem) {
  const SnapshotPtr early = cache_->snapshot(0, 0);  // holds [5, 10)
  append(*cache_, 0, range(10, 20));
  const SnapshotPtr late = cache_->snapshot(0, 10);  // holds [15, 20)
  const SnapshotPtr both = cache_->merge(early, late);
  EXPECT_EQ(both->nbytes() + both->shared_nbytes(), cells(10));
  for (const std::int32_t target : {8, 9, 10, 18, 19, 20}) {
    EXPECT_TRUE(cache_->restore(1, both, target)) << target;
    EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(target > 10 ? 15 : 5, target)));
  }
  for (const std::int32_t target : {7, 11, 14, 16, 17}) EXPECT_TRUE(refuses(1, both, target)) << target;
  auto [lower, upper] = cache_->split(both, 12);
  EXPECT_EQ(lower->nbytes() + lower->shared_nbytes(), cells(5));
  EXPECT_TRUE(cache_->restore(2, upper, 18));
  const SnapshotPtr kept = cache_->merge(nullptr, upper);
  EXPECT_TRUE(cache_->restore(2, kept, 20)) << "merging with null keeps the other's data";
}

TEST_F(WindowSnapshotTest, CapturesTileAndKeepTheirWindows) {  // PerTokenSnapshotRestore, ScheduledSnapshotParity
  cache_->prepare_snapshots(1, {3, 4, 12});
  append(*cache_, 1, range(0, 6));
  append(*cache_, 1, range(6, 14));
  const std::vector<SnapshotPtr> captured = cache_->take_snapshots(1);
  ASSERT_EQ(captured.size(), 3u);
  EXPECT_EQ(captured[2]->start(), 4);
  EXPECT_EQ(captured[2]->nbytes() + captured[2]->shared_nbytes(), cells(8)) << "all of [4, 12) was there";
  EXPECT_TRUE(cache_->restore(2, captured[2], 12));
  EXPECT_TRUE(refuses(3, captured[1], 4));
  EXPECT_TRUE(cache_->restore(3, captured[0], 3));
  EXPECT_TRUE(cache_->restore(3, captured[1], 4));
  EXPECT_TRUE(holds(*cache_, cache_->spans(3), range(0, 4)));
}

TEST_F(WindowSnapshotTest, CapturesOfLaterStepsCoverWhatIsLeft) {
  cache_->prepare_snapshots(0, {18});
  for (std::int32_t token = 10; token < 20; ++token) append(*cache_, 0, {token});
  const SnapshotPtr captured = cache_->take_snapshots(0).front();
  EXPECT_EQ(captured->start(), 10);
  EXPECT_EQ(captured->nbytes() + captured->shared_nbytes(), cells(6)) << "[12, 18) with the step's own row";
  EXPECT_TRUE(cache_->restore(4, captured, 18));
}

TEST(ChunkSnapshots, AreWorthSomethingAtABorderEvenWhenEmpty) {
  const auto cache = host_cache(small_shape(), {}, 0, {0, 4});
  append(*cache, 0, range(0, 8));
  const SnapshotPtr snapshot = cache->snapshot(0, 6);
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), 0u);
  EXPECT_TRUE(cache->restore(1, snapshot, 8));
  EXPECT_EQ(cache->length(1), 8);
  EXPECT_FALSE(cache->restore(2, snapshot, 7));
  EXPECT_EQ(seen_by(*cache, *append(*cache, 1, {9, 10}), 0), (Seen{{9}, {9, 10}}));
  EXPECT_TRUE(sound(*cache));
}

}  // namespace
}  // namespace kvtrie
