// What is written, in which order, and each ending of what is not.
#include <gtest/gtest.h>

#include "failing_allocations.h"
#include "save_all.h"
#include "write_behind_world.h"

namespace kvtrie {
namespace {

class WriteBehindTest : public ::testing::Test, public WriteBehindWorld {
 protected:
  static constexpr std::uint64_t kLarge = 1 << 20;
  explicit WriteBehindTest(std::uint32_t disk_after = 1) : WriteBehindWorld(kLarge, kLarge, disk_after) {
    mutex.lock();
  }

  void TearDown() override {
    files->heal();
    drain();
    if (!closed) {
      EXPECT_EQ(all_findings(), std::vector<std::string>{});
    }
    EXPECT_EQ(lower.disk()->budget().used(), file_bytes());
    EXPECT_EQ(host->used(), memory());
    mutex.unlock();
  }
  void close() {
    behind.close();
    closed = true;
  }
  DiskStats disk() const { return lower.disk()->stats(); }
  bool all_right(const Node* node) const {
    const std::vector<BlobSlice>& slices = state_of(node).held[0].slices;
    return std::all_of(slices.begin(), slices.end(),
                       [&](const BlobSlice& slice) { return slice.whole() && is_right_in_file(node, slice); });
  }

  bool closed = false;

  Node* top = add(trie.root("n"), 70);  // of two sections
  Node* leaf = add(top);
};

TEST_F(WriteBehindTest, APathIsSavedRootFirstAndOnce) {
  put_point(leaf);
  EXPECT_FALSE(behind.is_saved(top));
  EXPECT_TRUE(behind.save_path(leaf));
  EXPECT_EQ(queue->pending_jobs(), 2u);
  EXPECT_TRUE(behind.save_path(leaf));  // on its way
  EXPECT_EQ(queue->pending_jobs(), 2u);
  EXPECT_TRUE(top->in_order(kDiskOrder) && leaf->in_order(kDiskOrder));
  drain();
  EXPECT_TRUE(behind.is_saved(top) && behind.is_saved(leaf) && all_saved());
  EXPECT_TRUE(all_right(top) && all_right(leaf));
  std::vector<std::byte> bytes(kBytes);
  const std::vector<std::uint32_t> first{0};
  EXPECT_TRUE(state_of(leaf).point().copies[1].blob->read(first, bytes));  // the second image of its file
  EXPECT_EQ(state_of(leaf).saving->header.start, 70);
  EXPECT_EQ(state_of(leaf).saving->header.point, static_cast<std::uint8_t>(PointKind::kEnd));
  EXPECT_EQ(sealed_by_queue, 3u);
  EXPECT_TRUE(save_now(leaf));
  EXPECT_EQ(disk().writes, 2u);
}

TEST_F(WriteBehindTest, WhereMemoryIsShortNothingIsReservedOrLeftUnderWay) {
  put_point(leaf);
  ASSERT_TRUE(make_copies(top, nullptr) && make_copies(leaf, nullptr));
  int refused = 0;
  for (std::uint64_t failing = 1; !behind.is_saved(leaf); ++failing) {
    refused += testing::runs_out_of_memory(failing, [&] { behind.save_path(leaf); }) ? 1 : 0;
    drain();
    ASSERT_EQ(all_findings(), std::vector<std::string>{}) << "allocation " << failing;
    ASSERT_EQ(lower.disk()->budget().used(), file_bytes()) << "allocation " << failing;
  }
  EXPECT_GT(refused, 10);
}

TEST_F(WriteBehindTest, WithoutItsAncestorASnapshotIsNotWritten) {
  files->fail(test::Call::kCreate, 1, EIO, /*once=*/true);
  EXPECT_TRUE(save_now(leaf));
  EXPECT_EQ(disk().failed_writes, 1u);
  EXPECT_EQ(disk().writes, 0u);
  EXPECT_EQ(disk().bytes, 0u);
  EXPECT_FALSE(behind.is_saved(top) || leaf->in_order(kDiskOrder));
  EXPECT_TRUE(save_now(leaf));  // the next time
  EXPECT_TRUE(all_saved());
}

TEST_F(WriteBehindTest, AFlushAnswersForWhatWasThere) {
  EXPECT_TRUE(save_now(top));
  const std::uint64_t flush = test::ask_for_all(behind);
  Node* later = add(leaf);
  Node* beside = add(trie.root("n"));
  Node* upper = trie.split(leaf, leaf->start() + 1);  // both halves were there
  const WriteBehind::Round round = test::save_all(behind, flush);
  EXPECT_EQ(round.queued, 2u);
  EXPECT_EQ(round.left, 0u);
  EXPECT_FALSE(round.is_written());  // not yet
  drain();
  EXPECT_TRUE(round.is_written());
  EXPECT_TRUE(behind.is_saved(upper) && behind.is_saved(leaf));
  EXPECT_FALSE(behind.is_saved(later) || behind.is_saved(beside) || all_saved());
  EXPECT_EQ(test::save_all(behind, test::ask_for_all(behind)).queued, 2u);
}

TEST_F(WriteBehindTest, ARoundSavesWhatIsAboveFirstHoweverItGoesOverTheTree) {
  Node* upper = trie.split(top, 3);  // is met after what is below it
  const std::uint64_t flush = test::ask_for_all(behind);
  WriteBehind::Round round = behind.begin_round(flush);
  NodeWalk walk;
  while (round.queued == 0) behind.save_next(walk, round);
  EXPECT_EQ(round.queued, 2u);
  EXPECT_TRUE(state_of(upper).saving != nullptr && state_of(leaf).saving == nullptr);
  while (!walk.over) behind.save_next(walk, round);
  EXPECT_EQ(round.queued, 3u);
  drain();
  EXPECT_TRUE(round.is_written() && all_saved());
}

// For one half there was no room, the other one was not met yet: what they become is tried again.
TEST_F(WriteBehindTest, WhatJoinsInTheMiddleOfARoundIsSavedWhole) {
  Node* upper = trie.split(top, 3);
  const std::uint64_t flush = test::ask_for_all(behind);
  WriteBehind::Round round = behind.begin_round(flush);
  state_of(upper).flush = round.mark_left;
  ASSERT_TRUE(trie.join_with_child(upper));
  EXPECT_EQ(state_of(top).flush, flush);
  for (NodeWalk walk; !walk.over;) behind.save_next(walk, round);
  drain();
  EXPECT_TRUE(round.is_written() && all_saved());
}

TEST_F(WriteBehindTest, AFlushKnowsWhatFailedAndForgetsWhatIsGone) {
  files->fail(test::Call::kCreate, 1, EIO, /*once=*/true);
  const WriteBehind::Round failed = test::save_all(behind, test::ask_for_all(behind));
  drain();
  EXPECT_FALSE(failed.is_written());
  EXPECT_TRUE(behind.save_path(leaf));  // by somebody else
  const WriteBehind::Round round = test::save_all(behind, test::ask_for_all(behind));
  EXPECT_TRUE(removal.remove_unlocked(leaf));
  drain();
  EXPECT_TRUE(round.is_written() && failed.is_written());
}

TEST_F(WriteBehindTest, WhatIsCutWhileItIsUnderWayIsFoundAgain) {
  EXPECT_TRUE(behind.save_path(leaf));
  Node* upper = trie.split(top, 66);
  drain();
  EXPECT_TRUE(behind.is_saved(upper) && behind.is_saved(top) && behind.is_saved(leaf));
}

TEST_F(WriteBehindTest, WhatIsRemovedWhileItIsUnderWayLeavesNoFile) {
  EXPECT_TRUE(behind.save_path(leaf));
  EXPECT_TRUE(removal.remove_unlocked(leaf));
  drain();
  EXPECT_EQ(disk().writes, 2u);
  EXPECT_EQ(disk().files, 1u);
}

TEST_F(WriteBehindTest, AnImageThatWasCutGetsOneForEachHalf) {
  ASSERT_TRUE(make_copies(top, nullptr));
  Node* upper = trie.split(top, 3);
  EXPECT_TRUE(save_now(leaf));
  EXPECT_TRUE(all_saved());
  EXPECT_TRUE(all_right(upper) && all_right(top));
  EXPECT_TRUE(removal.remove_unlocked(leaf) && removal.remove_unlocked(top));
  drain();
  EXPECT_TRUE(all_right(upper));  // its file needs no other
}

TEST_F(WriteBehindTest, WithoutMemoryForItACutImageWaits) {
  ASSERT_TRUE(removal.remove_unlocked(leaf) && make_copies(top, nullptr));
  Node* upper = trie.split(top, 3);
  for (Node* node : {upper, top}) leases.pin(node);
  ASSERT_TRUE(lower.set_host_cap(host->used()));
  for (Node* node : {top, upper}) places.leave(node);  // so that its copy is all there is
  EXPECT_FALSE(save_now(top));
  EXPECT_EQ(disk().writes, 0u);
  ASSERT_TRUE(lower.set_host_cap(kLarge));
  EXPECT_TRUE(save_now(top));
  EXPECT_TRUE(behind.is_saved(upper) && behind.is_saved(top));
}

TEST_F(WriteBehindTest, DamagedBytesAreNotWritten) {
  ASSERT_TRUE(make_copies(top, nullptr));
  Node* upper = trie.split(top, 3);
  std::byte& first = *state_of(top).held[0].slices[0].blob->memory()->data();
  first ^= std::byte{1};
  EXPECT_FALSE(save_now(leaf));
  EXPECT_EQ(disk().writes, 0u);
  EXPECT_FALSE(behind.is_saved(upper));
}

TEST_F(WriteBehindTest, OnAFullDiskOldSnapshotsGoButNothingOfThePath) {
  Node* other = add(trie.root("n"), 100);
  ASSERT_TRUE(save_now(other) && save_now(top));
  ASSERT_TRUE(lower.set_disk_cap(disk().bytes));
  EXPECT_TRUE(save_now(leaf));
  EXPECT_TRUE(behind.is_saved(leaf) && !other->in_order(kDiskOrder));
  Node* third = add(leaf, 300);
  EXPECT_FALSE(save_now(third));  // nothing else could go
  EXPECT_TRUE(behind.is_saved(leaf) && behind.is_saved(top) && !behind.is_saved(third));
}

class SecondHitTest : public WriteBehindTest {
 protected:
  SecondHitTest() : WriteBehindTest(2) {}
};

TEST_F(SecondHitTest, OnlyWhatIsWantedIsWrittenBehind) {
  EXPECT_FALSE(save_now(leaf));
  EXPECT_EQ(disk().writes, 0u);
  EXPECT_FALSE(top->in_order(kHostOrder));  // nor copied
  EXPECT_TRUE(demand.ask(top, 0));
  EXPECT_FALSE(save_now(leaf));
  EXPECT_TRUE(behind.is_saved(top) && !behind.is_saved(leaf));
  EXPECT_TRUE(demand.want(leaf));
  EXPECT_TRUE(save_now(leaf));
  EXPECT_TRUE(all_saved());
}

TEST_F(SecondHitTest, SaveAllWritesWhatIsHeldBack) {
  EXPECT_EQ(test::save_all(behind).queued, 2u);
  drain();
  EXPECT_TRUE(all_saved());
  EXPECT_FALSE(demand.is_wanted(top));
}

TEST_F(SecondHitTest, ForWhatIsWantedMemoryOfWhatIsNotGoes) {
  ASSERT_TRUE(removal.remove_unlocked(leaf));
  Node* other = add();
  ASSERT_TRUE(copy(other) && leave_device(other));
  ASSERT_TRUE(lower.set_host_cap(top->end() * shape.bytes_per_cell() + kBytes));  // and a point
  demand.want(top);
  EXPECT_TRUE(save_now(top));
  EXPECT_EQ(nodes(), std::vector<Node*>{top});
  ASSERT_TRUE(lower.set_host_cap(kLarge));
}

TEST_F(WriteBehindTest, SaveAllTakesNothingAwayAndCountsWhatIsLeft) {
  Node* other = add();
  ASSERT_TRUE(save_now(other));
  ASSERT_TRUE(lower.set_disk_cap(disk().bytes));
  const WriteBehind::Round none = test::save_all(behind);
  EXPECT_EQ(none.queued, 0u);
  EXPECT_EQ(none.left, 2u);
  EXPECT_TRUE(behind.is_saved(other));
  ASSERT_TRUE(lower.set_disk_cap(kLarge));
  EXPECT_EQ(test::save_all(behind).queued, 2u);
  drain();
  EXPECT_TRUE(all_saved());
}

TEST_F(WriteBehindTest, ADiskThatFailsIsLeftAloneForAWhile) {
  behind.write_again_after_a_while(0);
  files->fail(test::Call::kCreate, 1, EIO, /*once=*/false);
  for (int i = 0; i < DiskTier::kFailuresInARow; ++i) static_cast<void>(save_now(leaf));
  EXPECT_FALSE(lower.disk()->writing() || behind.save_path(leaf));
  files->heal();
  for (const double now : {1.0, 30.5}) behind.write_again_after_a_while(now);
  EXPECT_FALSE(lower.disk()->writing());
  behind.write_again_after_a_while(31);
  EXPECT_TRUE(lower.disk()->writing() && save_now(leaf));
  EXPECT_TRUE(all_saved());
}

TEST_F(WriteBehindTest, AfterClosingOnlyBlobsKnow) {
  EXPECT_TRUE(behind.save_path(top));
  close();
  for (const BlobPtr& blob : blobs_of(top)) places.end_writing(blob);
  places.settle(top);
  drain();
  EXPECT_TRUE(blobs_of(top).front()->saved());
  EXPECT_FALSE(top->in_order(kDiskOrder));
}

TEST_F(WriteBehindTest, WhatNobodyWritesIsFound) {
  ASSERT_TRUE(make_copies(top, nullptr));
  places.begin_writing(blobs_of(top).front());
  places.settle(top);
  std::vector<std::string> found;
  behind.check(found);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found.front().find("node [0,70) of 'n': counts as on its way to a file"), std::string::npos) << found[0];
  places.end_writing(blobs_of(top).front());
  places.settle(top);
}

}  // namespace
}  // namespace kvtrie
