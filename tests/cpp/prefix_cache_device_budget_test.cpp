// In which order things go for a claim, what never goes, and that a refused claim changes nothing.
#include "tiers/device_budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "device_tree_world.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

constexpr std::size_t kRoomFull = 0, kRoomWindow = 1, kRoomState = 2;  // caches
constexpr double kAny = std::numeric_limits<double>::infinity();

class RoomTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  // All of the pools is in use by four nodes of 8 tokens and two points.
  static DeviceTreeKinds small() { return {.attention = {{{}, 32}, {{4, 0}, 32}}, .slots = 2}; }
  explicit RoomTest(DeviceTreeKinds of = small()) : DeviceTreeWorld(std::move(of)) {}
  void TearDown() override { expect_sound(); }

  Needs needs(std::uint32_t full, std::uint32_t window = 0, std::uint32_t states = 0) const {
    Needs all = caches.no_needs();
    const std::uint32_t given[] = {full, window, states};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = given[i];
    return all;
  }
  std::uint32_t free_of(std::size_t cache) const { return caches.all[cache]->free_units(); }
  std::uint32_t cells_of(const Node* node, std::size_t cache) const {
    return state_of(node).held[cache].device_tokens();
  }
  static bool is_there(const Node* node) { return state_of(node).on_device(); }
  static bool has_point_there(const Node* node) {
    return state_of(node).point().exists() && state_of(node).point().on_device;
  }
  // What the refusal of a claim says, which has changed nothing.
  CacheFullCounts refusal(const Needs& wanted) {
    const std::string before = picture();
    CacheFullCounts counts;
    for (const bool asked : {true, false}) {
      try {
        asked ? device_budget.require_room(wanted) : device_budget.make_room(wanted);
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kCacheFull);
        counts = error.cache_full();
      }
      EXPECT_EQ(picture(), before);
    }
    return counts;
  }
  // A session of the caches that stands there, on a path that is held as that of a call.
  SequenceId stand(Node* node, std::size_t cache) {
    leases.hold(node);
    CausalCache& owner = *caches.attention[cache];
    const SequenceId id = owner.open_sequence();
    const SpanList window = window_at(node, cache);
    owner.start_at(id, window.begin_position());
    owner.borrow(id, window, window.begin_position(), window.end_position());
    return id;
  }
};

// ---- the order ----------------------------------------------------------------------------------------------------

TEST_F(RoomTest, WhatIsFreeIsTakenAndNothingGoes) {
  add(8);
  const std::string before = picture();
  device_budget.make_room(needs(24, 24, 2));
  EXPECT_EQ(picture(), before);
}

TEST_F(RoomTest, FirstGoWindowCellsThatNoPointNeedsOldestFirst) {
  Node* old = add(8);
  Node* young = add(8);
  put_point(young);
  trie.touch(old);
  trie.touch(young);
  trie.touch(old);  // so `young` is older now
  device_budget.make_room(needs(0, 32 - 16 + 4));
  EXPECT_EQ(cells_of(young, kRoomWindow), 3u) << "those that its point needs";
  EXPECT_EQ(cells_of(old, kRoomWindow), 8u);
  device_budget.make_room(needs(0, 32 - 3));
  EXPECT_EQ(cells_of(old, kRoomWindow), 0u);
  EXPECT_TRUE(has_point_there(young) && is_there(old));
}

TEST_F(RoomTest, CellsOfAWindowGoFromTheFrontAndGetACopy) {
  Node* node = add(8);
  device_budget.make_room(needs(0, 32 - 8 + 3));  // in steps of one token: four go
  EXPECT_EQ(cells_of(node, kRoomWindow), 4u);
  EXPECT_EQ(state_of(node).held[kRoomWindow].cells.front().begin_position(), 4);
  ASSERT_EQ(state_of(node).held[kRoomWindow].slices.size(), 1u);
  EXPECT_EQ(state_of(node).held[kRoomWindow].slices.front().to, 4);
  EXPECT_TRUE(node->in_order(kHostOrder));
}

// Each allocation fails once on the way; what went until then went whole.
TEST_F(RoomTest, CellsOfAWindowGoWholeOrNotWhereMemoryIsShort) {
  Node* node = add(8);
  std::uint64_t failed = 0;
  while (cells_of(node, kRoomWindow) > 0) {
    const Needs wanted = needs(0, free_of(kRoomWindow) + 1);
    std::uint64_t n = 1;
    while (testing::runs_out_of_memory(n, [&] { device_budget.make_room(wanted); })) {
      ++n;
      expect_sound();
    }
    failed += n - 1;
  }
  EXPECT_GT(failed, 0u);
}

TEST_F(RoomTest, ThenGoPointsByKindAndTheStatesOfTheRestStay) {
  Node* user = add(8);
  Node* end = add(8);
  put_point(user, PointKind::kSpaced);
  put_point(end, PointKind::kEnd);
  points.mark_user(user);
  device_budget.make_room(needs(0, 0, 1));
  EXPECT_TRUE(has_point_there(user) && !has_point_there(end));
  EXPECT_TRUE(state_of(end).point().copied()) << "to the host, where it fits";
  device_budget.make_room(needs(0, 0, 2));
  EXPECT_FALSE(has_point_there(user));
  EXPECT_TRUE(is_there(user) && is_there(end));
  EXPECT_EQ(cells_of(user, kRoomWindow) + cells_of(end, kRoomWindow), 16u);
}

TEST_F(RoomTest, PointsGoForTheirWindowsOnlyWhenOtherCellsDoNotDo) {
  Node* node = add(8);
  put_point(node);
  device_budget.make_room(needs(0, 32 - 3));
  EXPECT_TRUE(has_point_there(node));
  device_budget.make_room(needs(0, 32 - 2));
  EXPECT_FALSE(has_point_there(node));
  EXPECT_GE(free_of(kRoomWindow), 30u);
}

TEST_F(RoomTest, ThenGoLeavesByThePolicyTailFirst) {
  Node* top = add(8);
  Node* leaf = add(top, 8);
  Node* young = add(8);
  trie.touch(top);
  trie.touch(leaf);
  trie.touch(young);
  device_budget.make_room(needs(32 - 24 + 3));
  EXPECT_TRUE(is_there(top) && is_there(young));
  ASSERT_EQ(nodes().size(), 4u) << "cut: what is left of the leaf, and its tail outside";
  EXPECT_EQ(leaf->start(), 13);
  EXPECT_FALSE(is_there(leaf));
  EXPECT_TRUE(is_there(leaf->parent()));
  device_budget.make_room(needs(32 - 8));
  EXPECT_TRUE(!is_there(top) && is_there(young));
  EXPECT_EQ(places.device_tokens(), 8u);
}

TEST_F(RoomTest, PointsGoBeforeLeavesThatWouldTakeTheirPointsAlong) {
  Node* leaf = add(8);
  Node* young = add(8);
  put_point(leaf, PointKind::kEnd);
  put_point(young, PointKind::kSpaced);
  device_budget.make_room(needs(24, 0, 1));
  EXPECT_FALSE(has_point_there(young)) << "it is worth less, and the leaf's own would have done";
  EXPECT_TRUE(!is_there(leaf) && is_there(young));
}

class SteppedRoomTest : public RoomTest {
 protected:
  static DeviceTreeKinds stepped() {
    DeviceTreeKinds of = small();
    of.growth = 5;
    return of;
  }
  SteppedRoomTest() : RoomTest(stepped()) {}
};

TEST_F(SteppedRoomTest, LeavesAndCellsGoInStepsOfSomeTokens) {
  Node* node = add(16);
  device_budget.make_room(needs(17));
  EXPECT_EQ(free_of(kRoomFull), 16u + 5);
  EXPECT_EQ(node->start(), 11);
  device_budget.make_room(needs(21 + 8));
  EXPECT_EQ(free_of(kRoomFull), 21u + 8) << "as much as is missing where that is more";
  device_budget.make_room(needs(0, free_of(kRoomWindow) + 1));
  EXPECT_EQ(free_of(kRoomWindow), 32u) << "and no more than there is";
}

TEST_F(RoomTest, LastGoWhatUsersMarkedTheOldestMarkFirst) {
  Node* first = add(8);
  Node* second = add(8);
  Node* plain = add(8);
  points.mark_user(second);
  points.mark_user(first);
  trie.touch(second);
  device_budget.make_room(needs(16));
  EXPECT_FALSE(is_there(plain));
  EXPECT_EQ(points.users(), (std::vector<Node*>{second, first}));
  device_budget.make_room(needs(24));
  EXPECT_FALSE(is_there(second));
  EXPECT_EQ(points.users(), std::vector<Node*>{first});
  device_budget.make_room(needs(32));
  EXPECT_EQ(places.device_tokens(), 0u);
}

// ---- never --------------------------------------------------------------------------------------------------------

TEST_F(RoomTest, PathsOfPinsAndCallsAreLiveAndCountOnce) {
  Node* top = add(4);
  Node* pinned = add(top, 6);
  Node* held = add(top, 3);
  Node* rest = add(held, 5);
  EXPECT_EQ(device_budget.freeable_tokens(), 18u);
  leases.pin(pinned);
  leases.pin(pinned);
  EXPECT_EQ(device_budget.freeable_tokens(), 8u);
  const Leases::Hold hold = leases.hold(held);
  EXPECT_EQ(device_budget.freeable_tokens(), 5u);
  EXPECT_EQ(device_budget.freeable_tokens(rest), 0u) << "another one that counts as live";
  EXPECT_EQ(device_budget.freeable_tokens(top), 5u);
  EXPECT_EQ(device_budget.freeable_tokens(), 5u) << "for one question only";
  EXPECT_EQ(device_budget.freeable_bytes(), bytes_of_cells(rest));
  leases.let_go(hold);
  leases.unpin(pinned);
  EXPECT_EQ(device_budget.freeable_tokens(), 8u) << "one of two pins is left";
}

TEST_F(RoomTest, ARefusalCountsWhatWouldGoAndChangesNothing) {
  leases.pin(add(add(4), 6));
  Node* other = add(9);
  put_point(other);
  points.mark_user(other);
  const CacheFullCounts counts = refusal(needs(23, 1, 1));
  EXPECT_EQ(counts.needed, 23u);
  EXPECT_EQ(counts.free, 13u);
  EXPECT_EQ(counts.freeable, 9u);
  EXPECT_EQ(counts.held_live, 10u);
  device_budget.make_room(needs(22));
}

TEST_F(RoomTest, APinnedPointKeepsItsStateAndItsWindow) {
  Node* node = add(8);
  put_point(node);
  leases.pin(node);
  put_point(add(8));
  CacheFullCounts counts = refusal(needs(0, 0, 2));
  EXPECT_EQ(counts.needed, 2u);
  EXPECT_EQ(counts.free, 0u);
  EXPECT_EQ(counts.freeable, 1u);
  EXPECT_EQ(counts.held_live, 1u);
  counts = refusal(needs(0, 30));
  EXPECT_EQ(counts.free, 16u);
  EXPECT_EQ(counts.freeable, 13u);
  EXPECT_EQ(counts.held_live, 3u);
  EXPECT_TRUE(device_budget.points_fit(needs(0, 29, 1)));
  EXPECT_FALSE(device_budget.points_fit(needs(0, 30, 1)));
  EXPECT_FALSE(device_budget.points_fit(needs(0, 29, 2)));
  device_budget.make_room(needs(0, 29, 1));
}

TEST_F(RoomTest, ALiveSequenceKeepsItsCellsWhateverTheTreeLetsGoOf) {
  Node* node = add(8);
  const SequenceId id = stand(node, kRoomWindow);
  const CacheFullCounts counts = refusal(needs(0, 30));
  EXPECT_EQ(counts.freeable, 5u);
  EXPECT_EQ(counts.held_live, 3u);
  device_budget.make_room(needs(0, 29));
  EXPECT_EQ(caches.attention[kRoomWindow]->spans(id).front().position, 5);
  EXPECT_TRUE(caches.attention[kRoomWindow]->can_resume(id, 8));
  caches.attention[kRoomWindow]->close_sequence(id);
  device_budget.make_room(needs(0, 32));
  EXPECT_EQ(cells_of(node, kRoomWindow), 0u) << "nobody stands on them any more";
}

TEST_F(RoomTest, WhatAPageInBuildsOnIsKeptUntilItIsDone) {
  Node* kept = add(8);
  Node* other = add(8);
  put_point(kept);
  put_point(other);
  InUse in_use{kept, std::vector<std::vector<SpanList>>(caches.attention.size())};
  in_use.windows[kRoomWindow].push_back(state_of(other).held[kRoomWindow].cells.front().share(0, 2));
  device_budget.keep(std::move(in_use));
  EXPECT_EQ(refusal(needs(0, 0, 2)).freeable, 1u);
  EXPECT_EQ(refusal(needs(0, 32 - 4)).freeable, 16u - 3 - 2);
  device_budget.make_room(needs(0, 32 - 5, 1));
  EXPECT_TRUE(has_point_there(kept) && !has_point_there(other));
  EXPECT_EQ(try_free_slots(kRoomState, 2, kAny), 1u);
  device_budget.keep_nothing();
  EXPECT_EQ(try_free_slots(kRoomState, 2, kAny), 2u);
  device_budget.make_room(needs(0, 32));
}

// ---- asked --------------------------------------------------------------------------------------------------------

TEST_F(RoomTest, SlotsAreFreedByPointsThatAreWorthLess) {
  Node* spaced = add(8);
  Node* end = add(8);
  put_point(spaced, PointKind::kSpaced);
  put_point(end, PointKind::kBranch);
  EXPECT_EQ(try_free_slots(kRoomState, 2, 0.01), 0u);
  EXPECT_EQ(try_free_slots(kRoomState, 2, 0.9), 1u);
  EXPECT_TRUE(!has_point_there(spaced) && has_point_there(end));
  EXPECT_EQ(try_free_slots(kRoomState, 1, kAny), 1u) << "that is free already";
  EXPECT_TRUE(has_point_there(end));
  const Leases::Hold hold = leases.hold(end);
  const HeldState standing = state_of(end).point().held[kRoomState].share();
  EXPECT_EQ(try_free_slots(kRoomState, 2, kAny), 1u) << "a session stands on it: it frees nothing";
  EXPECT_TRUE(has_point_there(end));
  EXPECT_EQ(refusal(needs(0, 0, 2)).freeable, 0u);
  leases.let_go(hold);
}

TEST_F(RoomTest, BytesOutsideAreThoseOfNodesThatNobodyHoldsThere) {
  Node* top = add(4);
  Node* live = add(top, 3);
  Node* gone = add(top, 5);
  put_point(gone);
  ASSERT_TRUE(copies.copy(top, MayLose::kNothing));
  ASSERT_GT(eviction.page_out(live), 0u);
  ASSERT_GT(eviction.page_out(gone), 0u);
  leases.pin(live);
  EXPECT_EQ(device_budget.freeable_bytes(), 0u);
  std::uint64_t bytes = bytes_of_cells(gone);
  for (const BlobSlice& copy : state_of(gone).point().copies) bytes += copy.blob == nullptr ? 0 : copy.blob->bytes();
  EXPECT_EQ(device_budget.freeable_outside_bytes(), bytes) << "copies of what is on the device are not counted";
}

TEST_F(RoomTest, APageInFitsUpToWhereItsFullAttentionDoes) {
  constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
  Node* top = add(8);
  Node* leaf = add(top, 12);
  ASSERT_GT(eviction.page_out(leaf), 0u);
  add(10);
  Fetch fetch;
  fetch.needs = needs(12);
  fetch.resident = 8;
  EXPECT_EQ(device_budget.fitting_length({{top, leaf}, 20}, fetch), kAll) << "nothing to fetch";
  fetch.nodes = {leaf};
  EXPECT_EQ(device_budget.fitting_length({{top, leaf}, 20}, fetch), kAll);
  leases.pin(add(9));
  EXPECT_EQ(free_of(kRoomFull), 5u);
  fetch.needs = needs(16);
  EXPECT_EQ(device_budget.fitting_length({{top, leaf}, 20}, fetch), 8 + 5 + 10) << "the path itself does not go for it";
  fetch.needs = needs(15);
  EXPECT_EQ(device_budget.fitting_length({{top, leaf}, 20}, fetch), kAll);
}

class BareRoomTest : public RoomTest {
 protected:
  BareRoomTest() : RoomTest({.attention = {{{4, 0}, 16}}, .recurrent = 0, .host = 0}) {}
};

TEST_F(BareRoomTest, ANodeWhoseLastCellsWentGoesToo) {
  Node* top = add(4);
  Node* leaf = add(top, 4);
  trie.touch(top);
  device_budget.make_room(needs(16 - 6));  // in steps of one token: three go
  ASSERT_EQ(nodes().size(), 2u);
  EXPECT_EQ(cells_of(leaf, 0), 1u);
  device_budget.make_room(needs(16 - 4));
  EXPECT_EQ(nodes(), std::vector<Node*>{top});
}

class UnevenRoomTest : public RoomTest {
 protected:
  UnevenRoomTest() : RoomTest({.attention = {{{}, 32}, {{}, 20}}, .recurrent = 0}) {}
};

TEST_F(UnevenRoomTest, TheFullestCacheSaysWhatIsMissing) {
  Node* node = add(8);
  leases.pin(add(8));
  EXPECT_EQ(device_budget.freeable_bytes(), 8 * caches.bytes_per_token());
  EXPECT_EQ(refusal(needs(4, 13)).free, 4u);
  EXPECT_EQ(refusal(needs(25, 4)).free, 16u);
  device_budget.make_room(needs(20, 6));
  EXPECT_EQ(places.device_tokens(), 12u);
  EXPECT_EQ(node->start(), 4) << "in one step";
}

// A fork of what no node has yet, of which one has become a node: the other one holds its cells still.
TEST_F(UnevenRoomTest, WhileTailsAreSharedANodeFreesWhatItAloneHoldsInEveryCache) {
  Node* shared = add(6);
  add(4);
  const SpanList other = state_of(shared).held[0].cells.front().share(1, 6);
  const SpanList more = state_of(shared).held[1].cells.front().share(4, 6);
  EXPECT_EQ(device_budget.freeable_tokens(), 10u);
  Cursor sharer;
  sharer.node = trie.root("n");
  sharer.computed = sharer.tail_shared_to = 6;
  sessions.add(&sharer);
  EXPECT_EQ(device_budget.freeable_tokens(), 5u) << "one cell of the first cache, four of the other one";
  EXPECT_EQ(refusal(needs(32 - 4)).freeable, 5u);
  device_budget.make_room(needs(32 - 5));
  sessions.remove(&sharer);
}

}  // namespace
}  // namespace kvtrie
