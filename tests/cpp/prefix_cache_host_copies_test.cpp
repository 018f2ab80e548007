// What is copied to host memory, what is not copied again, and each ending of what does not fit.
#include <gtest/gtest.h>

#include "device_tree_world.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

constexpr std::size_t kCopiedFull = 0, kCopiedWindow = 1, kCopiedState = 2;  // caches

class HostCopiesTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  explicit HostCopiesTest(DeviceTreeKinds of = {}) : DeviceTreeWorld(std::move(of)) {}
  void TearDown() override {
    if (queue != nullptr) drain();
    expect_sound();
  }

  static std::vector<BlobSlice> slices(const Node* node, std::size_t cache) {
    return state_of(node).held[cache].slices;
  }
  // A copy of some of a node's cells, as an earlier call may have left it.
  void copy_some(Node* node, std::size_t cache, std::int32_t from, std::int32_t to) {
    const SpanList some = state_of(node).held[cache].cells.front().share(from, to);
    state_of(node).held[cache].add(*copies.store_cells(node, cache, some));
    places.settle(node);
  }
  // A node outside the device, whose bytes are in host memory and nowhere else.
  Node* add_outside(std::int32_t tokens) {
    Node* node = add(tokens);
    EXPECT_GT(eviction.page_out(node), 0u);
    seal();
    return node;
  }
  void leave_room_for(std::uint64_t bytes) { ASSERT_TRUE(host->set_cap(host->used() + bytes)); }
  void expect_nothing_copied(Node* node, MayLose may_lose) {
    const std::string before = picture();
    EXPECT_FALSE(copies.copy(node, may_lose));
    EXPECT_EQ(picture(), before);
  }
};

// ---- what is copied -----------------------------------------------------------------------------------------------

TEST_F(HostCopiesTest, ACopyCoversTheNodeAndHasTheBytesThatTheCachesHold) {
  Node* top = add(3);
  Node* node = add(top, 40);
  EXPECT_FALSE(copies.is_copied(node));
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_TRUE(copies.is_copied(node));
  EXPECT_FALSE(copies.is_copied(top));
  for (const std::size_t i : {kCopiedFull, kCopiedWindow}) {
    ASSERT_EQ(slices(node, i).size(), 1u);
    EXPECT_TRUE(slices(node, i).front().whole());
    EXPECT_TRUE(state_of(node).held[i].without_slice(3, 43).empty());
    EXPECT_EQ(state_of(node).held[i].device_tokens(), 40u) << "a copy takes nothing away";
    BlobSlice moved = slices(node, i).front();
    EXPECT_TRUE(is_right(node, i, moved));
    --moved.first;
    --moved.to;
    EXPECT_FALSE(is_right(node, i, moved)) << "or bytes do not say their position";
  }
  EXPECT_TRUE(node->in_order(kHostOrder));
  EXPECT_EQ(totals.page_out_bytes, bytes_of_cells(node));
  EXPECT_EQ(host->used(), bytes_of_cells(node));
}

TEST_F(HostCopiesTest, OnlyGapsAreCopied) {
  Node* node = add(12);
  copy_some(node, kCopiedFull, 2, 4);
  copy_some(node, kCopiedFull, 7, 8);
  copy_some(node, kCopiedWindow, 0, 12);
  const BlobPtr first = slices(node, kCopiedFull)[0].blob, second = slices(node, kCopiedFull)[1].blob;
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  std::vector<std::pair<std::int32_t, std::int32_t>> ranges;
  for (const BlobSlice& slice : slices(node, kCopiedFull)) ranges.emplace_back(slice.from, slice.to);
  const std::vector<std::pair<std::int32_t, std::int32_t>> expected{{0, 2}, {2, 4}, {4, 7}, {7, 8}, {8, 12}};
  EXPECT_EQ(ranges, expected);
  EXPECT_EQ(slices(node, kCopiedFull)[1].blob, first);
  EXPECT_EQ(slices(node, kCopiedFull)[3].blob, second);
  EXPECT_EQ(slices(node, kCopiedWindow).size(), 1u);
  EXPECT_EQ(totals.page_out_bytes, bytes_of_cells(kCopiedFull, 9)) << "of what this call copied";
}

TEST_F(HostCopiesTest, WhatIsCopiedIsNotCopiedAgain) {
  Node* node = add(8);
  put_point(node);
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  const std::string before = picture();
  leave_room_for(0);
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_TRUE(copies.copy_point(node, MayLose::kNothing));
  EXPECT_TRUE(copies.make_copies(node, nullptr));
  EXPECT_EQ(picture(), before);
}

struct CountedHostCopiesTest : HostCopiesTest {
  CountedHostCopiesTest() : HostCopiesTest(kinds_counted()) {
    for (const auto& cache : caches.all) cache->count_owners();
  }
  static DeviceTreeKinds kinds_counted() {
    DeviceTreeKinds kinds;
    kinds.counted = true;
    return kinds;
  }
  void limit_host(std::uint64_t bytes) {
    Needs all;
    for (const LayerCache* cache : caches.all) all.push_back(cache->capacity());
    const Group group = quotas.set("n", {all, bytes, 0}, {caches.no_needs(), 0, 0});
    trie.set_group(trie.find_root("n"), group);
    places.reserve_groups(group + 1U);
    points.reserve_groups(group + 1U);
    leases.reserve_groups(group + 1U);
  }
};

// Found by oracle_prefix_cache --kinds dense --seed 971 --operations 500.
TEST_F(CountedHostCopiesTest, CopiesThatWentForTheOthersAreMadeAgainOrNothingIs) {
  limit_host(kinds.host);
  Node* node = add(12);
  copy_some(node, kCopiedFull, 0, 8);
  const std::uint64_t all = bytes_of_cells(node), before = host->used();
  seal();
  limit_host(all - 1);
  EXPECT_FALSE(copies.copy(node, MayLose::kNothing));
  EXPECT_LE(host->used(), before);
  limit_host(all);
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_TRUE(copies.is_copied(node));
  EXPECT_EQ(host->used(), all);
}

TEST_F(HostCopiesTest, OfAWindowWhatIsLeftIsCopiedWithItsHoles) {
  Node* node = add(9);
  std::vector<SpanList>& cells = state_of(node).held[kCopiedWindow].cells;
  SpanList back = cells.front().split(6);
  cells.front().truncate(2);
  cells.push_back(std::move(back));
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  ASSERT_EQ(slices(node, kCopiedWindow).size(), 2u);
  const std::pair<std::int32_t, std::int32_t> hole{2, 6};
  EXPECT_EQ(state_of(node).held[kCopiedWindow].without_slice(0, 9), std::vector{hole});
  EXPECT_EQ(totals.page_out_bytes, bytes_of_cells(kCopiedFull, 9) + bytes_of_cells(kCopiedWindow, 5));
}

TEST_F(HostCopiesTest, ACutNodeIsCopiedWhereItsHalvesLackIt) {
  Node* node = add(10);
  copy_some(node, kCopiedFull, 3, 7);
  Node* upper = trie.split(node, 5);
  EXPECT_TRUE(copies.copy(upper, MayLose::kNothing));
  EXPECT_EQ(slices(upper, kCopiedFull).size(), 2u);
  EXPECT_EQ(slices(node, kCopiedFull).size(), 1u);
  EXPECT_EQ(slices(upper, kCopiedFull)[1].blob, slices(node, kCopiedFull)[0].blob);
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_EQ(totals.page_out_bytes, bytes_of_cells(kCopiedFull, 6) + bytes_of_cells(kCopiedWindow, 10));
}

// ---- restore points -----------------------------------------------------------------------------------------------

TEST_F(HostCopiesTest, APointIsCopiedWithItsWindowAndItsState) {
  Node* node = add(add(3), 2);  // its window begins in the node above
  put_point(node);
  const std::uint64_t bytes = bytes_of_point(node);
  EXPECT_EQ(bytes, bytes_of_cells(kCopiedWindow, 3) + caches.states[0]->bytes_per_unit());
  EXPECT_TRUE(copies.copy_point(node, MayLose::kNothing));
  const RestorePoint& point = state_of(node).point();
  EXPECT_TRUE(point.copied() && point.on_device);
  EXPECT_EQ(point.copies[kCopiedFull].blob, nullptr);
  EXPECT_EQ(point.copies[kCopiedWindow].from, 2);
  EXPECT_EQ(point.copies[kCopiedWindow].to, 5);
  EXPECT_EQ(bytes_of(point.copies[kCopiedState].blob).size(), caches.states[0]->bytes_per_unit());
  EXPECT_EQ(totals.page_out_bytes, bytes);
  EXPECT_EQ(host->used(), bytes);
  EXPECT_TRUE(slices(node, kCopiedFull).empty() && !copies.is_copied(node)) << "the node's own cells are not";
  EXPECT_TRUE(node->in_order(kHostOrder));
}

TEST_F(HostCopiesTest, APointOneByteTooLargeIsNotCopiedAtAll) {
  Node* node = add(6);
  put_point(node);
  leave_room_for(bytes_of_point(node) - 1);  // so its window would fit
  const std::string before = picture();
  EXPECT_FALSE(copies.copy_point(node, MayLose::kAnything));
  EXPECT_EQ(picture(), before);
  leave_room_for(bytes_of_point(node));
  EXPECT_TRUE(copies.copy_point(node, MayLose::kAnything));
}

TEST_F(HostCopiesTest, ANodeIsCopiedWithItsPoint) {
  Node* node = add(6);
  put_point(node);
  const std::uint64_t bytes = bytes_of_cells(node) + bytes_of_point(node);
  leave_room_for(bytes - 1);
  expect_nothing_copied(node, MayLose::kAnything);
  leave_room_for(bytes);
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_TRUE(state_of(node).point().copied());
  EXPECT_EQ(totals.page_out_bytes, bytes);
}

class ChunkCopiesTest : public HostCopiesTest {
 protected:
  ChunkCopiesTest() : HostCopiesTest({.attention = {{{}, 32}, {{0, 4}, 32}}, .recurrent = 0}) {}
};

TEST_F(ChunkCopiesTest, APointThatSeesNothingHasNoBytes) {
  Node* node = add(8);
  put_point(node);
  ASSERT_EQ(bytes_of_point(node), 0u);
  EXPECT_FALSE(copies.is_copied(node));
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  EXPECT_TRUE(copies.is_copied(node));
  leave_room_for(0);
  EXPECT_TRUE(copies.copy_point(node, MayLose::kNothing));
  EXPECT_EQ(totals.page_out_bytes, bytes_of_cells(node));
}

class BlockCopiesTest : public HostCopiesTest {
 protected:
  BlockCopiesTest() : HostCopiesTest({.recurrent = 1, .blocks = 1}) {}
};

TEST_F(BlockCopiesTest, AStateOfSeveralSlotsIsOneImage) {
  Node* node = add(10);  // three blocks of 4
  put_point(node);
  EXPECT_TRUE(copies.copy_point(node, MayLose::kNothing));
  const BlobSlice& copy = state_of(node).point().copies[3];
  EXPECT_EQ(copy.blob->bytes(), 3 * caches.states[1]->bytes_per_unit());
  EXPECT_EQ(copy.blob->sections().size(), 3u);
  EXPECT_EQ(totals.page_out_bytes, bytes_of_point(node));
}

// ---- what does not fit --------------------------------------------------------------------------------------------

TEST_F(HostCopiesTest, WhatIsNowhereElseGoesOnlyWhereItMay) {
  Node* other = add_outside(6);
  Node* node = add(6);
  leave_room_for(bytes_of_cells(node) - 1);
  expect_nothing_copied(node, MayLose::kNothing);
  EXPECT_FALSE(copies.make_copies(node, nullptr));
  EXPECT_EQ(nodes().size(), 2u);
  EXPECT_TRUE(copies.copy(node, MayLose::kAnything));
  EXPECT_EQ(nodes(), std::vector<Node*>{node});
  EXPECT_NE(other, node);
  EXPECT_EQ(host->used(), bytes_of_cells(node));
}

TEST_F(HostCopiesTest, WhatPinsHoldNowhereElseIsInTheWay) {
  leases.pin(add_outside(6));
  Node* node = add(6);
  leave_room_for(bytes_of_cells(node) - 1);
  expect_nothing_copied(node, MayLose::kAnything);
}

class NoHostCopiesTest : public HostCopiesTest {
 protected:
  NoHostCopiesTest() : HostCopiesTest({.host = 0}) {}
};

TEST_F(NoHostCopiesTest, WithoutAHostTierNothingIsCopied) {
  Node* node = add(6);
  put_point(node);
  expect_nothing_copied(node, MayLose::kAnything);
  EXPECT_FALSE(copies.copy_point(node, MayLose::kAnything));
  EXPECT_FALSE(copies.make_copies(node, nullptr));
  EXPECT_FALSE(copies.is_copied(node));
  EXPECT_TRUE(copies.all_sealed());
}

// Whatever was copied before is right, counted, and found by who makes room; a further call goes on from there.
TEST_F(BlockCopiesTest, WhereMemoryIsShortWhatWasCopiedStaysAndAPointIsWhole) {
  std::uint64_t refused = 0, some = 0;
  for (std::uint64_t failing = 1;; ++failing) {
    Node* node = add(6);
    put_point(node);
    const std::uint64_t before = totals.page_out_bytes, used = host->used();
    bool copied = false;
    const bool threw = testing::runs_out_of_memory(failing, [&] { copied = copies.copy(node, MayLose::kNothing); });
    seal();
    ASSERT_EQ(findings(), std::vector<std::string>{}) << "allocation " << failing;
    ASSERT_TRUE(has_right_bytes(node)) << "allocation " << failing;
    refused += copied ? 0 : 1;
    some += !copied && host->used() > used ? 1 : 0;
    const bool last = copied && !threw;
    ASSERT_TRUE(copies.copy(node, MayLose::kNothing));
    seal();
    ASSERT_EQ(totals.page_out_bytes - before, bytes_of_cells(node) + bytes_of_point(node)) << "allocation " << failing;
    ASSERT_EQ(host->used() - used, totals.page_out_bytes - before) << "allocation " << failing;
    removal.remove_subtree(node);
    if (last) break;
  }
  EXPECT_GT(refused, 10u);
  EXPECT_GT(some, 2u);
}

// ---- until the bytes have arrived ---------------------------------------------------------------------------------

TEST_F(HostCopiesTest, ABlobStaysUntilItIsTakenToBeSealedWhoeverLetsGoOfIt) {
  Node* node = add(6);
  put_point(node);
  EXPECT_TRUE(copies.all_sealed());
  EXPECT_TRUE(copies.copy(node, MayLose::kNothing));
  const std::uint64_t used = host->used();
  EXPECT_FALSE(copies.all_sealed());
  const BlobPtr blob = slices(node, kCopiedFull).front().blob;
  EXPECT_EQ(blob->state(), Blob::State::kFilling);
  removal.remove_subtree(node);
  EXPECT_EQ(host->used(), used);
  {
    const std::vector<BlobPtr> taken = copies.take_unsealed();
    EXPECT_EQ(taken.size(), 4u) << "of two caches, of the point's window and of its state";
    EXPECT_EQ(taken.front(), blob);
    EXPECT_TRUE(copies.all_sealed() && copies.take_unsealed().empty());
    for (const BlobPtr& each : taken) each->seal();
  }
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
  EXPECT_EQ(host->used(), blob->bytes());
}

class SavedCopiesTest : public HostCopiesTest {
 protected:
  SavedCopiesTest() : HostCopiesTest({.disk = 1 << 20}) {}
};

TEST_F(SavedCopiesTest, WhatTheQueueSealsIsNotSealedByTheCallAndTheRestIs) {
  Node* node = add(6);
  put_point(node);
  Node* other = add(5);
  ASSERT_TRUE(copies.copy(other, MayLose::kNothing));
  const BlobPtr own = slices(other, kCopiedWindow).front().blob;
  EXPECT_TRUE(behind.save_path(node));
  EXPECT_TRUE(copies.is_copied(node));
  std::vector<BlobPtr> left = copies.take_unsealed();
  EXPECT_EQ(left, blobs_of(other));
  for (const BlobPtr& blob : left) blob->seal();
  drain();
  EXPECT_TRUE(behind.is_saved(node) && !behind.is_saved(other));
  for (const BlobPtr& blob : blobs_of(node)) EXPECT_EQ(blob->state(), Blob::State::kSealed);
}

TEST_F(SavedCopiesTest, ABlobThatIsLeftToOthersIsTheOnlyOneThatGoes) {
  Node* node = add(6);
  ASSERT_TRUE(copies.copy(node, MayLose::kNothing));
  copies.leave_sealing(slices(node, kCopiedFull).front().blob);
  copies.leave_sealing(nullptr);  // none of these
  EXPECT_EQ(copies.take_unsealed(), std::vector{slices(node, kCopiedWindow).front().blob});
  slices(node, kCopiedFull).front().blob->seal();
  slices(node, kCopiedWindow).front().blob->seal();
}

}  // namespace
}  // namespace kvtrie
