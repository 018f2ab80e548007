// Orders whose members do not hold each other: what may go, what is parked, what becomes of cuts and joins.
#include "trie/order_shape.h"

#include <gtest/gtest.h>

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::expect_sound;
using testing::kind_of_error;
using testing::letters;
using testing::text;

constexpr OrderShape kShapes[] = {OrderShape::kFlat};
constexpr int kCells = 1;  // an order

// One path a-b-c, all members of the flat order.
class OrderShapes : public ::testing::TestWithParam<VictimPolicy> {
 protected:
  OrderShapes() : trie(1, GetParam(), kShapes) {
    a = add(trie.root("n"), "aa");
    b = add(a, "bb");
    c = add(b, "cc");
    for (Node* node : {a, b, c}) trie.join_order(kCells, node);
  }

  Node* add(Node* parent, std::string_view edge) {
    auto payload = std::make_unique<testing::TextPayload>(std::string(edge), parent->end());
    return trie.add_child(parent, text(edge), std::move(payload));
  }
  Node* first(int order) { return trie.victim(order); }

  Trie trie;
  Node *a, *b, *c;
};

TEST_P(OrderShapes, InnerAndLockedMembersMayGo) {
  trie.lock(c);
  EXPECT_EQ(first(kCells), a);
  trie.leave_order(kCells, a);
  EXPECT_EQ(first(kCells), b);
  trie.leave_order(kCells, b);
  EXPECT_EQ(first(kCells), c);
  expect_sound(trie);
  trie.unlock(c);
}

TEST_P(OrderShapes, AUseMakesTheLatest) {
  trie.touch(a);
  EXPECT_EQ(first(kCells), b);
  trie.lock(b);
  trie.unlock(b);
  EXPECT_EQ(first(kCells), c);
  expect_sound(trie);
}

TEST_P(OrderShapes, ASearchPassesOverMembersAndLeavesThemWhereTheyAre) {
  EXPECT_EQ(trie.victim(kCells, [&](Node* node) { return node == c; }), c);
  EXPECT_EQ(trie.victim(kCells, [](Node*) { return false; }), nullptr);
  expect_sound(trie);
  EXPECT_EQ(first(kCells), a);
}

TEST_P(OrderShapes, AParkedMemberIsNotFoundUntilItIsUsedOrListedAgain) {
  trie.park(kCells, a);
  trie.park(kCells, b);
  expect_sound(trie);
  EXPECT_EQ(first(kCells), c);
  trie.relist(kCells, b);
  EXPECT_EQ(first(kCells), c);  // b is the latest
  trie.leave_order(kCells, c);
  EXPECT_EQ(first(kCells), b);
  trie.leave_order(kCells, b);
  EXPECT_EQ(first(kCells), nullptr);
  EXPECT_TRUE(a->in_order(kCells));
  trie.touch(a);
  EXPECT_EQ(first(kCells), a);
  trie.relist(kCells, b);  // no member: nothing
  EXPECT_FALSE(b->in_order(kCells));
  expect_sound(trie);
}

TEST_P(OrderShapes, CutsKeepBothHalves) {
  trie.park(kCells, c);
  Node* upper = trie.split(c, 5);
  expect_sound(trie);
  EXPECT_TRUE(upper->in_order(kCells));
  for (Node* node : {a, b}) trie.leave_order(kCells, node);
  EXPECT_EQ(first(kCells), nullptr);  // both halves are parked
}

TEST_P(OrderShapes, AJoinOfOneThatIsParkedIsListed) {
  trie.park(kCells, c);
  EXPECT_TRUE(trie.join_with_child(b));
  expect_sound(trie);
  EXPECT_EQ(c->start(), 2);
  trie.leave_order(kCells, a);
  EXPECT_EQ(first(kCells), c);  // as b was listed
}

TEST_P(OrderShapes, AFlatMemberGoesOnInAChildThatIsNone) {
  trie.leave_order(kCells, c);
  EXPECT_TRUE(trie.join_with_child(b));
  expect_sound(trie);
  EXPECT_TRUE(c->in_order(kCells));
  trie.leave_order(kCells, a);
  EXPECT_EQ(first(kCells), c);
  EXPECT_TRUE(trie.join_with_child(a));  // no member
  expect_sound(trie);
  EXPECT_EQ(c->start(), 0);
}

TEST_P(OrderShapes, OrdersThatAreLeafFirstAreNotAskedLikeThis) {
  trie.join_order(0, a);
  trie.leave_order(kCells, c);
  EXPECT_EQ(kind_of_error([&] { trie.park(0, a); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { trie.relist(0, a); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { trie.victim(0, [](Node*) { return true; }); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { trie.park(kCells, c); }), ErrorKind::kArgument);  // no member
}

INSTANTIATE_TEST_SUITE_P(Policies, OrderShapes,
                         ::testing::Values(VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kvtrie
