// Which conversations are open, and whose state others may go on from.
#include "tree/live_sessions.h"

#include <gtest/gtest.h>

#include <vector>

#include "planner_world.h"

namespace kvtrie {
namespace {

class LiveSessionsTest : public ::testing::Test {
 protected:
  LiveSessionsTest() : world_({"states", {}, 1}), node_(world_.add(world_.root(), 10)) {}

  Cursor& stand(std::int32_t computed) {
    world_.stand(node_, computed);
    return *world_.live.back();
  }

  PlannerWorld world_;
  Node* node_;
};

TEST_F(LiveSessionsTest, OnlyOneThatIsAtTheEndBetweenTwoStepsServes) {
  EXPECT_EQ(world_.sessions.standing_at(node_), nullptr);
  Cursor& cursor = stand(10);
  EXPECT_EQ(world_.sessions.standing_at(node_), &cursor);
  cursor.computed = 11;
  EXPECT_EQ(world_.sessions.standing_at(node_), nullptr) << "it is beyond";
  cursor.computed = 10;
  cursor.publish = false;
  EXPECT_EQ(world_.sessions.standing_at(node_), nullptr) << "what it computes is its own";
  cursor.publish = true;
  cursor.open_step = reinterpret_cast<OpenStep*>(&cursor);  // never looked at
  EXPECT_EQ(world_.sessions.standing_at(node_), nullptr) << "its states are on their way";
  cursor.open_step = nullptr;
  cursor.failed = true;
  EXPECT_EQ(world_.sessions.standing_at(node_), nullptr);
  EXPECT_TRUE(world_.sessions.any_failed());
}

TEST_F(LiveSessionsTest, AnotherOneServesWhereTheFirstDoesNot) {
  stand(11);
  Cursor& second = stand(10);
  EXPECT_EQ(world_.sessions.standing_at(node_), &second);
}

// Whose state is shared decides which units others hold too, so it may not depend on where memory was free.
TEST(LiveSessions, AreInTheOrderInWhichTheyWereOpened) {
  Cursor cursors[3];
  LiveSessions sessions;
  for (const std::size_t i : {1, 2, 0}) sessions.add(&cursors[i]);
  EXPECT_EQ(std::vector<Cursor*>(sessions.begin(), sessions.end()),
            (std::vector<Cursor*>{&cursors[1], &cursors[2], &cursors[0]}));
  sessions.remove(&cursors[2]);
  EXPECT_EQ(std::vector<Cursor*>(sessions.begin(), sessions.end()), (std::vector<Cursor*>{&cursors[1], &cursors[0]}));
}

TEST_F(LiveSessionsTest, VisitsWhereEachStandsAndWhatItIsOnItsWayTo) {
  Node* below = world_.add(node_, 5);
  Cursor& cursor = stand(10);
  cursor.ahead = below;
  stand(10);
  std::multiset<const Node*> visited;
  world_.sessions.visit_nodes([&](const Node* node) { visited.insert(node); });
  EXPECT_EQ(visited, (std::multiset<const Node*>{node_, node_, below}));
}

TEST_F(LiveSessionsTest, TailsAreSharedUntilEachIsPublishedTakenBackOrClosed) {
  LiveSessions& sessions = world_.sessions;
  Cursor &first = stand(12), &second = stand(15), &third = stand(15);
  EXPECT_FALSE(sessions.tails_are_shared());
  first.tail_shared_to = 12, second.tail_shared_to = third.tail_shared_to = 14;
  EXPECT_TRUE(sessions.tails_are_shared());
  first.computed = node_->end();
  second.node = world_.add(node_, 5);
  EXPECT_TRUE(sessions.tails_are_shared());
  sessions.remove(&third);
  EXPECT_FALSE(sessions.tails_are_shared());
}

}  // namespace
}  // namespace kvtrie
