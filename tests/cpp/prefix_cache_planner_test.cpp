// Paths made by hand: what the planner says about each, and what loading is worth.
#include "plan/planner.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planner_world.h"

namespace kvtrie {
namespace {

constexpr std::int32_t kWindowOf8 = 8;

Reach reach_of(PlannerWorld& world, Node* node, std::int32_t limit, bool device_only = false) {
  return world.planner.reach(world.planner.path_to(node, node->end()), 0, limit, {}, device_only);
}

TEST(Planner, FullAttentionReachesTheLimitWhereverItIs) {
  PlannerWorld world({"full", {{}}});
  Node* top = world.add(world.root(), 10);
  Node* leaf = world.add(top, 10, /*on_device=*/false);
  EXPECT_EQ(reach_of(world, leaf, 20).target, 20);
  EXPECT_EQ(reach_of(world, leaf, 20).reason, ReasonCode::kNone);
  EXPECT_EQ(reach_of(world, leaf, 19).reason, ReasonCode::kLastToken);
  EXPECT_EQ(reach_of(world, leaf, 20, /*device_only=*/true).target, 10);
  EXPECT_EQ(reach_of(world, leaf, 20, /*device_only=*/true).reason, ReasonCode::kNoRoom);
  const Fetch fetch = world.planner.missing(world.planner.path_to(leaf, 20), 0, 17);
  EXPECT_EQ(fetch.nodes, std::vector<Node*>{leaf});
  EXPECT_EQ(fetch.resident, 10);
  EXPECT_EQ(fetch.needs, Needs{7});
  EXPECT_EQ(fetch.bytes, 7 * world.caches.bytes_per_token());
}

TEST(Planner, AWindowGoesOnWhereAllThatItSeesIsHeld) {
  PlannerWorld world({"window", {{kWindowOf8, 0}}});
  Node* top = world.add(world.root(), 20);
  Node* leaf = world.add(top, 20);
  world.hold(top, 0, 0, 12);
  world.copy(top, 0, 12, 20);
  world.hold(leaf, 0, 24, 40);
  EXPECT_EQ(reach_of(world, leaf, 40).target, 40);
  EXPECT_EQ(reach_of(world, leaf, 30).target, 20);  // the query at 30 sees from 23 on
  EXPECT_EQ(reach_of(world, leaf, 30).reason, ReasonCode::kWindow);
  EXPECT_EQ(reach_of(world, leaf, 30, /*device_only=*/true).target, 12);
  const Fetch fetch = world.planner.missing(world.planner.path_to(leaf, 40), 0, 20);
  ASSERT_EQ(fetch.windows[0].size(), 1u);
  EXPECT_EQ(fetch.windows[0][0].node, top);
  EXPECT_EQ(fetch.windows[0][0].from, 13);
  EXPECT_EQ(fetch.needs, Needs{7});
}

// The session holds what lies before.
TEST(Planner, WhatLiesBeforeTheSessionIsItsOwn) {
  PlannerWorld world({"window", {{kWindowOf8, 0}}});
  Node* top = world.add(world.root(), 20);
  Node* leaf = world.add(top, 20);
  world.hold(leaf, 0, 20, 25);
  const Path path = world.planner.find_path(top, leaf->tokens());
  EXPECT_EQ(path.nodes, std::vector<Node*>{leaf});
  EXPECT_EQ(world.planner.reach(path, 20, 40, {}, false).target, 25);
  EXPECT_EQ(reach_of(world, leaf, 40).target, 0);
}

TEST(Planner, AChunkBeginsAnew) {
  PlannerWorld world({"chunk", {{0, 16}}});
  Node* leaf = world.add(world.root(), 40);
  EXPECT_EQ(reach_of(world, leaf, 40).target, 32);
  world.copy(leaf, 0, 32, 36);
  EXPECT_EQ(reach_of(world, leaf, 40).target, 36);
}

TEST(Planner, StatesServeAtTheirOwnLengths) {
  PlannerWorld world({"recurrent", {{}}, 1});
  Node* top = world.add(world.root(), 10);
  Node* leaf = world.add(top, 10);
  EXPECT_EQ(reach_of(world, leaf, 20).target, 0);
  EXPECT_EQ(reach_of(world, leaf, 20).reason, ReasonCode::kNoState);
  world.put_point(top, /*on_device=*/false, /*copied=*/true);
  EXPECT_EQ(reach_of(world, leaf, 20).target, 10);
  EXPECT_EQ(reach_of(world, leaf, 20, /*device_only=*/true).target, 0);
  const Fetch fetch = world.planner.missing(world.planner.path_to(leaf, 20), 0, 10);
  EXPECT_EQ(fetch.point, top);
  EXPECT_EQ(fetch.needs, (Needs{0, 1}));
  world.stand(leaf, 20);
  EXPECT_EQ(reach_of(world, leaf, 20, /*device_only=*/true).target, 20);
  EXPECT_EQ(reach_of(world, leaf, 19).target, 10);
}

TEST(Planner, ASessionServesOnlyWhereItStandsSoundAndShared) {
  PlannerWorld world({"recurrent", {}, 1});
  Node* leaf = world.add(world.root(), 10);
  world.stand(leaf, 11);
  world.stand(leaf, 10, /*publish=*/false);
  world.stand(leaf, 10, /*publish=*/true, /*failed=*/true);
  EXPECT_EQ(reach_of(world, leaf, 10).target, 0);
  world.stand(leaf, 10);
  EXPECT_EQ(reach_of(world, leaf, 10).target, 10);
}

TEST(Planner, WhatIsKeptFurtherDownIsCut) {
  PlannerWorld world({"blocks", {{}}, 0, {4}});
  Node* top = world.add(world.root(), 10);
  Node* leaf = world.add(top, 10);
  world.put_point(leaf, /*on_device=*/true, /*copied=*/false);
  const Path path = world.planner.find_path(world.root(), top->tokens());
  EXPECT_EQ(path.matched, 10);
  EXPECT_EQ(path.nodes, (std::vector<Node*>{top, leaf}));
  EXPECT_EQ(world.planner.reach(path, 0, 10, {}, false).target, 8);
  EXPECT_EQ(world.planner.point_for(path.nodes, 8), leaf);
  EXPECT_EQ(world.planner.restorable_length(leaf, 15), 12);
}

// The node that the match ends in has a live session at its end, and behind it is something outside.
// No state is needed there: what is taken for one would be marked as gone back to, or become a restore point.
TEST(Planner, NothingServesBeforeTheFirstToken) {
  PlannerWorld world({"states", {}, 1, {4}});
  Node* node = world.add(world.root(), 16);
  world.put_point(node, /*on_device=*/true, /*copied=*/false);
  world.stand(node, 16);
  Node* const nodes[] = {node};
  EXPECT_EQ(world.planner.point_for(nodes, 0), nullptr);
  EXPECT_EQ(world.planner.live_for(nodes, 0), nullptr);
  EXPECT_EQ(world.planner.point_for(nodes, 16), node);
  EXPECT_EQ(world.planner.live_for(nodes, 16), node);
}

TEST(Planner, NothingBehindTheMatchIsReached) {
  PlannerWorld world({"recurrent", {{}}, 1});
  Node* node = world.add(world.root(), Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  world.add(node, 10, /*on_device=*/false);
  world.stand(node, 10);
  const Path path = world.planner.find_path(world.root(), Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 77, 78});
  EXPECT_EQ(path.matched, 9);
  for (const bool device_only : {false, true}) {
    const Reach reach = world.planner.reach(path, 0, 10, {}, device_only);
    EXPECT_EQ(reach.target, 0) << "the session has a state at 10, where its tokens are others";
    EXPECT_EQ(reach.reason, ReasonCode::kNoState);
  }
}

TEST(Planner, NoLengthCutsASpan) {
  PlannerWorld world({"window", {{}, {kWindowOf8, 0}}});
  Node* leaf = world.add(world.root(), 40);
  world.hold(leaf, 1, 0, 22);
  const std::pair<std::int32_t, std::int32_t> spans[] = {{5, 9}, {18, 25}, {30, 40}};
  const Path path = world.planner.path_to(leaf, 40);
  const AtomicSpans atomic(spans, 40);
  EXPECT_EQ(world.planner.reach(path, 0, 8, atomic, false).target, 5);
  EXPECT_EQ(world.planner.reach(path, 0, 8, atomic, false).reason, ReasonCode::kAtomic);
  EXPECT_EQ(world.planner.reach(path, 0, 39, atomic, false).target, 18);  // 30, then the window ends at 22
}

TEST(Planner, LoadsWhatComputingIsMeasuredToBeSlowerThan) {
  for (const LoadPolicy load : {LoadPolicy::kAuto, LoadPolicy::kAlways}) {
    PlannerWorld world({"window", {{}, {kWindowOf8, 0}}}, load);
    Node* top = world.add(world.root(), 100);
    Node* leaf = world.add(top, 100, /*on_device=*/false);
    world.copy(leaf, 1, 100, 200);
    const Fetch fetch = world.planner.missing(world.planner.path_to(leaf, 200), 0, 200);
    EXPECT_EQ(fetch.bytes, 100 * world.caches.bytes_per_token() + 7 * world.caches.attention[1]->bytes_per_unit());
    EXPECT_EQ(world.planner.worth_loading(fetch, 200), 200) << "nothing is known";
    for (int i = 0; i < 10; ++i) {
      world.costs.computed(100, 0, 1.0);
      world.costs.loaded(Tier::kHost, fetch.bytes, 0.1);
    }
    EXPECT_EQ(world.planner.worth_loading(fetch, 200), 200);
    for (int i = 0; i < 20; ++i) world.costs.loaded(Tier::kHost, fetch.bytes, 100.0);
    EXPECT_EQ(world.planner.worth_loading(fetch, 200), load == LoadPolicy::kAlways ? 200 : 100);
  }
}

// What lies before a gap is of no use to the query at the end.
TEST(Planner, AWindowEndsAtAGap) {
  PlannerWorld world({"window", {{kWindowOf8, 0}}});
  Node* top = world.add(world.root(), 10);
  Node* leaf = world.add(top, 3);
  world.hold(top, 0, 0, 7);
  world.hold(top, 0, 8, 10);
  world.hold(leaf, 0, 10, 13);
  const std::vector<HeldState> held = world.planner.windows_at(leaf);
  EXPECT_EQ(held[0].cells().begin_position(), 8);
  EXPECT_EQ(held[0].cells().end_position(), 13);
  const InUse use = world.planner.use_of(world.planner.path_to(leaf, 13), 0, 13);
  std::uint32_t cells = 0;
  for (const SpanList& list : use.windows[0]) cells += list.length();
  EXPECT_EQ(cells, 5u);
}

}  // namespace
}  // namespace kvtrie
