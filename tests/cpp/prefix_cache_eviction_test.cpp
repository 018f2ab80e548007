// How state leaves the device and the tree: what goes with it, what stays, and what is tidied up behind it.
#include "tiers/eviction.h"

#include <gtest/gtest.h>

#include "device_tree_world.h"

namespace kvtrie {
namespace {

constexpr std::size_t kGoneFull = 0, kGoneWindow = 1, kGoneState = 2;  // caches

class EvictionTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  explicit EvictionTest(DeviceTreeKinds of = {}) : DeviceTreeWorld(std::move(of)) {}
  void TearDown() override { expect_sound(); }
  std::uint32_t held_units(std::size_t cache) const {
    return caches.all[cache]->limit() - caches.all[cache]->free_units();
  }
  void leave_no_host_room() { ASSERT_TRUE(host->set_cap(host->used())); }
  bool has(const Node* node) const {
    const std::vector<Node*> all = nodes();
    return std::find(all.begin(), all.end(), node) != all.end();
  }
  static bool is_outside(const Node* node) { return !state_of(node).on_device(); }
};

// ---- to the host --------------------------------------------------------------------------------------------------

TEST_F(EvictionTest, APageOutTakesAllOfTheNodeOffTheDevice) {
  Node* node = add(add(3), 7);
  put_point(node);
  state_of(node).pending_loads.push_back(std::make_shared<PendingLoad>());
  // The point shares its window with the node.
  EXPECT_EQ(eviction.page_out(node), bytes_of_cells(node) + caches.states[0]->bytes_per_unit());
  EXPECT_TRUE(is_outside(node) && !state_of(node).point().on_device && state_of(node).point().copied());
  EXPECT_EQ(held_units(kGoneFull), 3u);
  EXPECT_EQ(held_units(kGoneWindow), 3u);
  EXPECT_EQ(held_units(kGoneState), 0u);
  EXPECT_EQ(totals.page_outs, 2u) << "the point is one of its own";
  EXPECT_EQ(totals.page_out_bytes,
            bytes_of_cells(node) + bytes_of_cells(kGoneWindow, 3) + caches.states[0]->bytes_per_unit());
  EXPECT_EQ(eviction.page_out(node), 0u) << "it has nothing there any more";
  EXPECT_EQ(totals.evicted_tokens, 0u);
}

TEST_F(EvictionTest, APageOutThatDoesNotFitChangesNothing) {
  Node* node = add(7);
  put_point(node);
  ASSERT_TRUE(host->set_cap(bytes_of_cells(node) + bytes_of_point(node) - 1));
  const std::string before = picture();
  EXPECT_EQ(eviction.page_out(node), 0u);
  EXPECT_EQ(picture(), before);
}

TEST_F(EvictionTest, APageOutOfWhatIsCopiedTakesNoRoom) {
  Node* node = add(7);
  put_point(node);
  ASSERT_TRUE(copies.copy(node, MayLose::kNothing));
  leave_no_host_room();
  EXPECT_GT(eviction.page_out(node), 0u);
  EXPECT_TRUE(is_outside(node));
}

TEST_F(EvictionTest, APointLeavesAloneAndItsNodeStays) {
  Node* node = add(7);
  put_point(node);
  EXPECT_TRUE(eviction.page_out_point(node));
  EXPECT_TRUE(!is_outside(node) && !state_of(node).point().on_device);
  EXPECT_EQ(held_units(kGoneState), 0u);
  EXPECT_EQ(held_units(kGoneWindow), 7u);
  EXPECT_EQ(eviction.page_out(node), bytes_of_cells(node));
  EXPECT_EQ(totals.page_outs, 2u);
}

TEST_F(EvictionTest, APointThatDoesNotFitStaysUntilItIsEvicted) {
  Node* top = add(3);
  Node* node = add(top, 7);
  put_point(top);
  put_point(node);
  points.mark_user(top);
  leave_no_host_room();
  const std::string before = picture();
  EXPECT_FALSE(eviction.page_out_point(top));
  EXPECT_EQ(picture(), before);
  eviction.evict_point(top);
  EXPECT_EQ(totals.dropped_points, 1u);
  EXPECT_EQ(points.user_count(), 0u) << "its mark goes with it";
  EXPECT_EQ(nodes(), std::vector<Node*>{node}) << "what ends nowhere any more joins its child";
  EXPECT_EQ(node->start(), 0);
}

class SavedEvictionTest : public EvictionTest {
 protected:
  SavedEvictionTest() : EvictionTest({.disk = 1 << 20}) {}
};

TEST_F(SavedEvictionTest, WhatLeavesTheDeviceIsWrittenWithAllAboveIt) {
  Node* top = add(3);
  Node* node = add(top, 7);
  put_point(node);
  EXPECT_EQ(places.bytes_being_written(), 0u);
  EXPECT_GT(eviction.page_out(node), 0u);
  EXPECT_EQ(places.bytes_being_written(), behind.pending_bytes());
  EXPECT_GT(places.bytes_being_written(), 0u);
  drain();
  EXPECT_EQ(places.bytes_being_written(), 0u);
  EXPECT_TRUE(behind.is_saved(top) && behind.is_saved(node));
  EXPECT_FALSE(is_outside(top));
}

// ---- else away ----------------------------------------------------------------------------------------------------

TEST_F(EvictionTest, WhatFitsIsEvictedToTheHostAndTheRestOutOfTheTree) {
  Node* first = add(7);
  Node* second = add(5);
  ASSERT_TRUE(host->set_cap(bytes_of_cells(first)));
  EXPECT_EQ(eviction.evict(first), bytes_of_cells(first));
  EXPECT_TRUE(is_outside(first));
  leases.pin(first);  // so that its copies do not make room
  const std::uint64_t bytes = bytes_of_cells(second);
  EXPECT_EQ(eviction.evict(second), bytes);
  EXPECT_EQ(nodes(), std::vector<Node*>{first});
  EXPECT_EQ(totals.evicted_tokens, 5u);
  EXPECT_EQ(held_units(kGoneFull), 0u);
}

TEST_F(EvictionTest, EvictingCountsWhatTheDeviceHadAndNotWhatIsBelowIt) {
  Node* top = add(4);
  Node* leaf = add(top, 6);
  ASSERT_GT(eviction.page_out(leaf), 0u);
  seal();
  const std::uint64_t bytes = bytes_of_cells(top);
  leases.pin(leaf);  // evict() is told what to take; this only keeps the copies
  leave_no_host_room();
  EXPECT_EQ(eviction.evict(top), bytes);
  EXPECT_TRUE(nodes().empty());
  EXPECT_TRUE(leases.pins().empty());
  EXPECT_EQ(totals.evicted_tokens, 10u);
}

TEST_F(EvictionTest, ASubtreeGoesWithItsBytesOfAllTiers) {
  Node* stays = add(2);
  Node* top = add(stays, 4);
  Node* left = add(top, 6);
  Node* right = add(top, 3);
  add(stays, 2);
  put_point(left);
  ASSERT_TRUE(copies.copy(top, MayLose::kNothing));
  ASSERT_GT(eviction.page_out(right), 0u);
  const std::uint64_t device = bytes_of_cells(top) + bytes_of_cells(left) + caches.states[0]->bytes_per_unit();
  const std::uint64_t outside = bytes_of_cells(top) + bytes_of_cells(right);
  EXPECT_EQ(removal.remove_subtree(top), device + outside);
  EXPECT_EQ(totals.evicted_tokens, 13u);
  EXPECT_EQ(totals.dropped_points, 1u);
  EXPECT_EQ(held_units(kGoneFull), 4u);
  EXPECT_EQ(held_units(kGoneState), 0u);
  seal();
  EXPECT_EQ(host->used(), 0u);
}

TEST_F(EvictionTest, TheLastUseOfWhatGoesPassesToItsParent) {
  Node* top = add(4);
  Node* middle = add(top, 4);
  Node* old = add(middle, 4);
  Node* leaf = add(middle, 4);
  state_of(top).last_used_seconds = 2;
  state_of(middle).last_used_seconds = 3;
  state_of(old).last_used_seconds = 1;
  state_of(leaf).last_used_seconds = 5;
  removal.remove_subtree(old, /*tidy=*/false);
  EXPECT_EQ(state_of(middle).last_used_seconds, 3);
  removal.remove_subtree(leaf);
  EXPECT_EQ(state_of(middle).last_used_seconds, 5);
  EXPECT_EQ(state_of(top).last_used_seconds, 2);
  removal.remove_subtree(middle);
  EXPECT_EQ(state_of(top).last_used_seconds, 5);
}

TEST_F(EvictionTest, MarksAndPinsOfASubtreeAreTakenOffAndNoOthers) {
  Node* top = add(4);
  Node* inside = add(top, 4);
  Node* leaf = add(inside, 4);
  Node* beside = add(top, 4);
  for (Node* node : {top, inside, leaf, beside}) points.mark_user(node);
  for (Node* node : {leaf, top, inside, leaf, beside}) leases.pin(node);
  removal.remove_subtree(inside);
  EXPECT_EQ(points.users(), (std::vector<Node*>{top, beside}));
  ASSERT_EQ(leases.pins().size(), 2u);
  EXPECT_EQ(leases.pins()[0].node, top);
  EXPECT_EQ(leases.pins()[1].node, beside);
}

// ---- tidying up ---------------------------------------------------------------------------------------------------

TEST_F(EvictionTest, AParentJoinsItsLastChildUnlessItHasToWait) {
  for (const bool tidy : {false, true}) {
    Node* top = add(4);
    Node* stays = add(top, 4);
    Node* goes = add(top, 4);
    removal.remove_subtree(goes, tidy);
    EXPECT_EQ(has(top), !tidy);
    EXPECT_EQ(stays->start(), tidy ? 0 : 4);
  }
}

TEST_F(EvictionTest, WhatSomebodyHoldsOrMarksOrBranchesOffDoesNotJoin) {
  Node* held = add(4);
  Node* branches = add(held, 4);
  add(branches, 2);
  add(branches, 2);
  const Leases::Hold hold = leases.hold(held);
  removal.try_join(held);
  removal.try_join(branches);
  removal.try_join(trie.root("n"));
  EXPECT_EQ(nodes().size(), 4u);
  leases.let_go(hold);
  put_point(held);
  removal.try_join(held);
  EXPECT_EQ(nodes().size(), 4u);
  removal.drop_point(held, /*tidy=*/false);
  EXPECT_EQ(nodes().size(), 4u);
  removal.try_join(held);
  EXPECT_EQ(nodes().size(), 3u);
}

TEST_F(EvictionTest, ForTheLowerTiersNothingJoins) {
  Node* top = add(4);
  Node* stays = add(top, 4);
  Node* goes = add(top, 4);
  put_point(top);
  points.mark_user(top);
  EXPECT_TRUE(removal.remove_unlocked(goes));
  removal.drop_point(top, /*tidy=*/false);
  EXPECT_TRUE(has(top) && stays->start() == 4);
  EXPECT_FALSE(state_of(top).point().exists() || state_of(top).user());
}

TEST_F(EvictionTest, AShortStepCutsTheTailOff) {
  Node* node = add(10);
  EXPECT_EQ(eviction.split_tail(node, 10), node);
  EXPECT_EQ(eviction.split_tail(node, 12), node);
  EXPECT_EQ(nodes().size(), 1u);
  EXPECT_EQ(eviction.split_tail(node, 3), node);
  EXPECT_EQ(node->start(), 7);
  EXPECT_EQ(eviction.evict(node), bytes_of_cells(node));
  EXPECT_EQ(held_units(kGoneFull), 7u);
}

// Without full attention a node may hold nothing.
class WindowEvictionTest : public EvictionTest {
 protected:
  WindowEvictionTest() : EvictionTest({.attention = {{{4, 0}, 48}}}) {}
};

TEST_F(WindowEvictionTest, WhatHoldsNothingGoesWithWhatIsAboveItThatHoldsNothing) {
  Node* top = add(4);
  Node* middle = add(top, 4);
  Node* leaf = add(middle, 4);
  EXPECT_FALSE(removal.prune(leaf)) << "it has cells";
  drop_cells(leaf, 0);
  drop_cells(middle, 0);
  EXPECT_EQ(eviction.page_out(leaf), 0u) << "nothing to take off the device";
  EXPECT_FALSE(removal.prune(middle)) << "something hangs on it";
  EXPECT_TRUE(removal.prune(leaf));
  EXPECT_EQ(nodes(), std::vector<Node*>{top});
  drop_cells(top, 0);
  EXPECT_TRUE(removal.prune(top)) << "and the root with it";
  EXPECT_TRUE(nodes().empty());
}

TEST_F(WindowEvictionTest, WhatIsOfUseIsNotPruned) {
  Node* copied = add(4);
  ASSERT_TRUE(copies.copy(copied, MayLose::kNothing));
  Node* with_point = add(4);
  put_point(with_point);
  Node* held = add(4);
  const Leases::Hold hold = leases.hold(held);
  for (Node* node : {copied, with_point, held}) {
    drop_cells(node, 0);
    EXPECT_FALSE(removal.prune(node));
  }
  EXPECT_FALSE(removal.prune(trie.root("n")));
  leases.let_go(hold);
  EXPECT_TRUE(removal.prune(held));
  removal.drop_point(with_point, /*tidy=*/false);
  EXPECT_TRUE(has(with_point));
  put_point(with_point);
  removal.drop_point(with_point);  // which prunes
  EXPECT_EQ(nodes(), std::vector<Node*>{copied});
}

TEST_F(WindowEvictionTest, PruningJoinsNothing) {
  Node* top = add(4);
  Node* stays = add(top, 4);
  Node* leaf = add(top, 4);
  drop_cells(leaf, 0);
  EXPECT_TRUE(removal.prune(leaf));
  EXPECT_TRUE(has(top) && stays->start() == 4);
}

TEST_F(EvictionTest, WhereThereIsFullAttentionNothingIsPruned) {
  Node* node = add(4);
  drop_cells(node, kGoneWindow);
  EXPECT_FALSE(removal.prune(node));
}

}  // namespace
}  // namespace kvtrie
