// Each way in which a copy goes from memory and from the disk, and each end of a cap that is lowered.
#include <gtest/gtest.h>

#include "lower_tiers_world.h"
#include "plan/node_tier.h"

namespace kvtrie {
namespace {

class LowerTiersTest : public ::testing::Test, public LowerTiersWorld {
 protected:
  static constexpr std::uint64_t kLarge = 1 << 20;
  explicit LowerTiersTest(std::uint32_t disk_after = 1) : LowerTiersWorld(kLarge, kLarge, disk_after) {}

  void TearDown() override {
    while (!writes.empty()) finish(0);
    EXPECT_EQ(findings(), std::vector<std::string>{});
    EXPECT_EQ(host->used(), memory());
    lower.disk()->sweep();
    EXPECT_EQ(lower.disk()->budget().used(), file_bytes());
  }

  Node* outside(Node* parent) {
    Node* node = add(parent);
    if (!state_of(node).on_device()) {
      EXPECT_TRUE(copy(node));
      return node;
    }
    EXPECT_TRUE(copy(node) && leave_device(node));
    return node;
  }
  Node* outside() { return outside(trie.root("n")); }
  Node* copied() {
    Node* node = add();
    EXPECT_TRUE(copy(node));
    return node;
  }
  // When so many more are there than fit.
  bool make_room_of(std::uint64_t blobs, MayLose may_lose, const Node* whose = nullptr) {
    EXPECT_TRUE(lower.set_host_cap(host->used()));
    const bool made = lower.make_host_room(blobs * kBytes, may_lose, whose);
    EXPECT_TRUE(lower.set_host_cap(kLarge));
    return made;
  }
  bool make_room_for_a_file(const Node* below) {
    const std::uint64_t bytes = test::entry_of({0}, 0, {.image_bytes = kBytes}).bytes();
    EXPECT_TRUE(lower.set_disk_cap(lower.disk()->budget().used()));
    const bool made = lower.make_disk_room(bytes, below);
    if (made) lower.disk()->unreserve(bytes);
    EXPECT_TRUE(lower.set_disk_cap(kLarge));
    return made;
  }
  bool is_there(const Node* node) const {
    const std::vector<Node*> all = nodes();
    return std::find(all.begin(), all.end(), node) != all.end();
  }
  static bool in_memory(const Node* node) { return node->in_order(kHostOrder); }
  static bool in_file(const Node* node) { return node->in_order(kDiskOrder); }
};

TEST_F(LowerTiersTest, SayTheLowestTierThatIsReadFrom) {
  Node* node = add();
  put_point(node);
  ASSERT_TRUE(copy(node) && copy_point(node));
  EXPECT_EQ(tier_of(state_of(node)), Tier::kDevice);
  EXPECT_EQ(tier_of(state_of(node).point()), Tier::kDevice);
  ASSERT_TRUE(leave_device(node));
  EXPECT_EQ(tier_of(state_of(node)), Tier::kHost);
  EXPECT_EQ(tier_of(state_of(node).point()), Tier::kHost);
  ASSERT_TRUE(save(node));
  state_of(node).point().copies[1].blob->drop_memory();
  EXPECT_EQ(tier_of(state_of(node)), Tier::kDisk);
  EXPECT_EQ(tier_of(state_of(node).point()), Tier::kDisk);
}

TEST_F(LowerTiersTest, TheOldestLeavesMemoryFirstAndLeavesFirst) {
  Node* top = outside();
  Node* leaf = outside(top);
  Node* other = outside();
  trie.touch(top);
  EXPECT_TRUE(make_room_of(1, MayLose::kAnything));
  EXPECT_FALSE(is_there(leaf));
  EXPECT_TRUE(make_room_of(1, MayLose::kAnything));
  EXPECT_FALSE(is_there(other));
  EXPECT_TRUE(is_there(top));
}

TEST_F(LowerTiersTest, MemoryThatIsInAFileGoesAtNoLoss) {
  Node* node = outside();
  ASSERT_TRUE(save(node));
  EXPECT_TRUE(make_room_of(1, MayLose::kNothing));
  EXPECT_FALSE(in_memory(node));
  EXPECT_TRUE(in_file(node) && covered(node));
}

TEST_F(LowerTiersTest, WhatIsNowhereElseGoesOnlyWhereItMay) {
  Node* node = outside();
  Node* top = copied();
  EXPECT_FALSE(make_room_of(1, MayLose::kNothing));
  EXPECT_TRUE(is_there(node) && in_memory(top));
  EXPECT_TRUE(make_room_of(2, MayLose::kAnything));
  EXPECT_FALSE(is_there(node));
  EXPECT_TRUE(is_there(top));  // it is on the device
  EXPECT_FALSE(in_memory(top));
}

class HeldBackTest : public LowerTiersTest {
 protected:
  HeldBackTest() : LowerTiersTest(2) {}
  bool make_room_to_write(const Node* below) { return make_room_of(1, MayLose::kUnwanted, below); }
};

TEST_F(HeldBackTest, ForWhatIsWrittenOnlyWhatIsNotWantedGoesAndNothingOfItsPath) {
  Node* wanted = outside();
  Node* once = outside();
  Node* top = outside();
  Node* leaf = outside(top);
  demand.want(wanted);
  EXPECT_FALSE(make_room_to_write(leaf));  // the wanted one comes first
  trie.touch(wanted);
  EXPECT_TRUE(make_room_to_write(leaf));
  EXPECT_FALSE(is_there(once));
  EXPECT_FALSE(make_room_to_write(leaf));
  EXPECT_TRUE(is_there(leaf) && is_there(top) && is_there(wanted));
  ASSERT_TRUE(begin_writing(leaf));
  EXPECT_FALSE(make_room_to_write(wanted));  // not even what is on its way
  EXPECT_TRUE(is_there(leaf));
}

TEST_F(HeldBackTest, MemoryOfWhatIsInFilesGoesWhereverItStandsInTheOrder) {
  Node* once = outside();
  Node* saved = outside();
  ASSERT_TRUE(save(saved));
  EXPECT_FALSE(make_room_of(1, MayLose::kNothing));
  NodeWalk walk, again;
  EXPECT_TRUE(lower.let_go_of_saved_memory(walk, 100));
  EXPECT_TRUE(in_memory(once) && !in_memory(saved) && in_file(saved));
  EXPECT_FALSE(lower.let_go_of_saved_memory(again, 100));
}

TEST_F(LowerTiersTest, ACopyOfAPointGoesAndThePointStays) {
  Node* node = add();
  put_point(node);
  ASSERT_TRUE(copy_point(node));
  EXPECT_TRUE(make_room_of(1, MayLose::kAnything));
  EXPECT_TRUE(state_of(node).point().exists());
  EXPECT_FALSE(state_of(node).point().copied());
  EXPECT_EQ(totals.dropped_points, 0u);
}

TEST_F(LowerTiersTest, APointThatIsNowhereElseIsForgottenWithItsMark) {
  Node* node = add();
  put_point(node);
  ASSERT_TRUE(copy_point(node));
  points.leave(node);
  points.mark_user(node);
  lower.drop_slices(node, [](const BlobPtr&) { return true; });
  places.settle(node);
  EXPECT_FALSE(state_of(node).point().exists() || state_of(node).user());
  EXPECT_EQ(totals.dropped_points, 1u);
}

TEST_F(LowerTiersTest, LockedCopiesGoLastButForThoseThatCallsHold) {
  Node* pinned = copied();
  Node* held = copied();
  Node* free = copied();
  leases.pin(pinned);
  const Leases::Hold hold = leases.hold(held);
  const std::uint64_t visits = trie.visits();
  EXPECT_TRUE(make_room_of(1, MayLose::kAnything));
  EXPECT_TRUE(in_memory(pinned) && !in_memory(free));
  EXPECT_TRUE(make_room_of(1, MayLose::kAnything));
  EXPECT_FALSE(in_memory(pinned));
  EXPECT_FALSE(make_room_of(1, MayLose::kAnything));
  EXPECT_TRUE(in_memory(held));
  EXPECT_EQ(trie.visits(), visits) << "however much is known";
  leases.let_go(hold);
}

TEST_F(LowerTiersTest, NothingGoesWhereWhatIsUnderWayIsTooMuch) {
  Node* node = outside();
  Node* other = outside();
  ASSERT_TRUE(begin_writing(other));
  EXPECT_FALSE(make_room_of(2, MayLose::kAnything));
  EXPECT_TRUE(is_there(node) && is_there(other));
  EXPECT_FALSE(lower.make_host_room(kLarge + 1, MayLose::kAnything));
}

TEST_F(LowerTiersTest, OnlyWhatIsInFilesLeavesMemoryForThem) {
  Node* node = copied();
  EXPECT_EQ(lower.leave_host_for_disk(node), 0u);  // on the device
  ASSERT_TRUE(leave_device(node));
  EXPECT_EQ(lower.leave_host_for_disk(node), 0u);  // in no file
  ASSERT_TRUE(save(node));
  EXPECT_EQ(lower.leave_host_for_disk(node), kBytes);
  EXPECT_EQ(lower.leave_host_for_disk(node), 0u);  // nothing left
  EXPECT_TRUE(is_there(node) && covered(node));
}

TEST_F(LowerTiersTest, AFileGoesAndMemoryStays) {
  Node* node = outside();
  Node* top = copied();
  ASSERT_TRUE(save(node) && save(top));
  EXPECT_TRUE(make_room_for_a_file(nullptr));
  EXPECT_TRUE(is_there(node) && in_memory(node) && !in_file(node));
  EXPECT_TRUE(make_room_for_a_file(nullptr));
  EXPECT_TRUE(in_memory(top) && !in_file(top));
  EXPECT_FALSE(make_room_for_a_file(nullptr));
}

TEST_F(LowerTiersTest, AFileThatTwoHalvesShareStaysForTheOther) {
  Node* node = copied();
  ASSERT_TRUE(save(node));
  Node* upper = trie.split(node, 1);
  leases.pin(upper);
  EXPECT_FALSE(make_room_for_a_file(nullptr));  // it is one file
  EXPECT_TRUE(blobs_of(node).empty() && blobs_of(upper).front()->saved());
}

TEST_F(LowerTiersTest, WhatIsOnlyInAFileGoesWithWhatIsBelowIt) {
  Node* top = outside();
  Node* leaf = outside(top);
  ASSERT_TRUE(save(top));
  EXPECT_GT(lower.leave_host_for_disk(top), 0u);
  leases.pin(leaf);
  EXPECT_FALSE(make_room_for_a_file(nullptr));
  leases.unpin(leaf);
  EXPECT_TRUE(make_room_for_a_file(nullptr));
  EXPECT_FALSE(is_there(top) || is_there(leaf));
}

TEST_F(LowerTiersTest, NothingGoesForWhatIsWrittenBelowItNorFromADiskThatFails) {
  Node* top = outside();
  Node* leaf = outside(top);
  ASSERT_TRUE(save(top));
  EXPECT_FALSE(make_room_for_a_file(leaf));
  EXPECT_TRUE(in_file(top));
  ASSERT_TRUE(begin_writing(top) && begin_writing(leaf));
  EXPECT_FALSE(make_room_for_a_file(nullptr));  // the leaf goes first, and is on its way
  files->fail(test::Call::kCreate, 1, EIO, /*once=*/false);
  finish(0);
  EXPECT_FALSE(save(leaf) || save(leaf));
  EXPECT_FALSE(lower.disk()->writing());
  EXPECT_FALSE(make_room_for_a_file(nullptr));
  EXPECT_TRUE(in_file(top));
  files->heal();
  lower.disk()->try_again();
  EXPECT_TRUE(make_room_for_a_file(nullptr));
}

TEST_F(LowerTiersTest, ALowerHostCapLeavesWhatPinsHoldNowhereElse) {
  Node* saved = outside();
  Node* alone = outside();
  Node* marked = outside();
  ASSERT_TRUE(save(saved));
  leases.pin(saved);
  leases.pin(alone);
  points.mark_user(marked);
  EXPECT_EQ(lower.kept_host_bytes(), kBytes);
  EXPECT_FALSE(lower.lower_host_cap(kBytes - 1));
  EXPECT_EQ(host->cap(), kLarge);
  EXPECT_TRUE(is_there(alone) && in_memory(alone));
  EXPECT_TRUE(is_there(saved) && !in_memory(saved));  // what could go went
  EXPECT_FALSE(is_there(marked));
  EXPECT_TRUE(lower.lower_host_cap(kBytes));
  EXPECT_EQ(host->cap(), kBytes);
}

TEST_F(LowerTiersTest, ALowerDiskCapLeavesWhatPinsHoldNowhereElseAndAllAboveIt) {
  Node* top = outside();
  Node* leaf = outside(top);
  Node* live = copied();
  ASSERT_TRUE(save(top) && save(leaf) && save(live));
  EXPECT_GT(lower.leave_host_for_disk(leaf), 0u);
  leases.pin(leaf);
  leases.pin(live);
  const std::uint64_t kept = lower.kept_disk_bytes();
  EXPECT_LT(kept, lower.disk()->budget().used());
  const std::uint64_t visits = trie.visits();
  EXPECT_FALSE(lower.lower_disk_cap(kept - 1));
  EXPECT_EQ(trie.visits(), visits) << "however much is known";
  EXPECT_TRUE(is_there(leaf) && in_file(leaf) && in_file(top));
  EXPECT_TRUE(is_there(live) && !in_file(live));
  EXPECT_TRUE(lower.lower_disk_cap(kept));
}

TEST_F(LowerTiersTest, AFileAboveOneThatStaysIsCountedWithIt) {
  Node* top = copied();
  Node* leaf = outside(top);
  ASSERT_TRUE(save(top) && save(leaf));
  EXPECT_GT(lower.leave_host_for_disk(leaf), 0u);
  leases.pin(leaf);
  EXPECT_EQ(lower.kept_disk_bytes(), lower.disk()->budget().used());
}

// The disk refuses to remove it: its bytes count, and no node has them.
TEST_F(LowerTiersTest, AFileThatCannotBeRemovedIsNoFinding) {
  Node* node = copied();
  Node* other = copied();
  ASSERT_TRUE(save(node) && save(other));
  files->fail(test::Call::kRemove, 1, EIO, /*once=*/false);
  EXPECT_TRUE(removal.remove_unlocked(node));
  lower.disk()->sweep();
  EXPECT_EQ(lower.disk()->stats().failed_removes, 1u);
  std::vector<std::string> found;
  lower.check(found, /*quiet=*/true);
  EXPECT_TRUE(found.empty()) << found.front();
  files->heal();
  lower.disk()->try_again();  // it goes with the sweep that every test ends with
}

TEST_F(LowerTiersTest, BytesThatNobodyCountsAreFound) {
  const BlobPtr lost = blob();
  std::vector<std::string> found;
  lower.check(found, /*quiet=*/false);
  EXPECT_TRUE(found.empty());
  lower.check(found, /*quiet=*/true);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found.front().find("host bytes: counted 0, kept 64"), std::string::npos) << found.front();
}

}  // namespace
}  // namespace kvtrie
