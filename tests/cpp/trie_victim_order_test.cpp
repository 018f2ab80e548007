#include "trie/victim_order.h"

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::expect_sound;
using testing::letters;
using testing::text;
using testing::TextTrie;
using testing::victim;
using Words = std::vector<std::string>;

TEST(VictimOrder, TheLeastRecentlyUsedLeafGoesFirst) {
  TextTrie t;
  for (const char* word : {"a", "b", "c", "d"}) t.insert(word);
  t.trie.touch(t.at("b"));
  EXPECT_EQ(t.evict_all(), (Words{"a", "c", "d", "b"}));
}

TEST(VictimOrder, AskingTwiceGivesTheSameVictim) {
  TextTrie t;
  t.insert("ab");
  t.insert("a");
  EXPECT_EQ(victim(t), "b");
  EXPECT_EQ(victim(t), "b");
  expect_sound(t.trie);
}

TEST(VictimOrder, ABranchPointIsAsOldAsTheLastUseBelowIt) {
  TextTrie t;
  t.insert("ax");  // a, x
  t.insert("ay");
  t.insert("b");
  t.trie.touch(t.at("ay"));
  EXPECT_EQ(t.evict_all(), (Words{"x", "b", "y", "a"}));
}

TEST(VictimOrder, OnlyTheTouchedNodeIsUsed) {
  TextTrie t;
  Node* leaf = t.insert("abc");
  Node* middle = t.insert("ab");
  Node* top = t.insert("a");
  const auto before = std::pair(middle->last_used(), top->last_used());
  t.trie.touch(leaf);
  EXPECT_EQ(std::pair(middle->last_used(), top->last_used()), before);
  EXPECT_GT(leaf->last_used(), middle->last_used());
}

TEST(VictimOrder, TouchingAnInnerNodeOutlivesItsChildren) {
  TextTrie t;
  t.insert("ax");
  t.insert("ay");
  t.insert("b");
  EXPECT_EQ(victim(t), "x");  // parks a
  t.trie.touch(t.at("a"));
  EXPECT_EQ(t.evict_all(), (Words{"x", "y", "b", "a"}));
}

TEST(VictimOrder, ALockedNodeAndAllAboveItStay) {
  TextTrie t;
  Node* leaf = t.insert("abc");
  t.insert("ab");
  t.insert("a");
  t.insert("z");
  t.trie.lock(leaf);
  t.trie.lock(leaf);
  EXPECT_EQ(t.evict_all(), Words{"z"});
  t.trie.unlock(leaf);
  EXPECT_EQ(victim(t), "");
  t.trie.unlock(leaf);
  EXPECT_EQ(t.evict_all(), (Words{"c", "b", "a"}));
}

TEST(VictimOrder, ALockedInnerNodeStaysWithoutItsChildren) {
  TextTrie t;
  t.insert("ab");
  Node* top = t.insert("a");
  t.trie.lock(top);
  EXPECT_EQ(t.evict_all(), Words{"b"});
  EXPECT_TRUE(top->is_leaf());
  t.trie.unlock(top);
  EXPECT_EQ(t.evict_all(), Words{"a"});
}

TEST(VictimOrder, TheLastUnlockIsAUse) {
  TextTrie t;
  Node* a = t.insert("a");
  t.trie.lock(a);
  t.insert("b");
  t.trie.unlock(a);
  EXPECT_EQ(t.evict_all(), (Words{"b", "a"}));
}

TEST(VictimOrder, ALockedChildWithoutStateHoldsItsParent) {
  TextTrie t;
  Node* top = t.insert("a");
  t.insert("z");
  Node* fresh = t.trie.add_child(top, text("b"), nullptr);
  t.trie.lock(fresh);
  EXPECT_EQ(t.evict_all(), Words{"z"});
  t.insert("y");
  t.trie.unlock(fresh);  // a use: the parent is younger than y now
  EXPECT_FALSE(fresh->in_order(0));
  EXPECT_EQ(victim(t), "y");
  t.trie.remove(t.trie.victim(0));
  EXPECT_EQ(victim(t), "a");
  EXPECT_FALSE(t.trie.victim(0)->is_leaf());  // the owner deals with the child that has nothing to evict
  expect_sound(t.trie);
}

TEST(VictimOrder, BothHalvesOfASplitHaveOneAge) {
  TextTrie t;
  Node* lower = t.insert("abcd");
  t.insert("z");
  Node* upper = t.trie.split(lower, 2);
  EXPECT_EQ(t.evict_all(), (Words{"cd", "ab", "z"}));
  (void)upper;
}

TEST(VictimOrder, JoiningKeepsTheLaterAge) {
  TextTrie t;
  Node* leaf = t.insert("ab");
  Node* top = t.insert("a");
  t.insert("z");
  t.trie.touch(top);
  ASSERT_TRUE(t.trie.join_with_child(top));
  EXPECT_EQ(t.evict_all(), (Words{"z", "ab"}));
  (void)leaf;
}

TEST(VictimOrder, ALeafThatIsNotTheVictimMayGo) {
  TextTrie t;
  t.insert("ax");
  t.insert("ay");
  t.insert("b");
  t.insert("c");
  EXPECT_EQ(victim(t), "x");
  t.trie.touch(t.at("b"));
  t.trie.remove(t.at("ay"));
  expect_sound(t.trie);
  t.trie.remove(t.at("ax"));
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"a", "c", "b"}));
}

TEST(VictimOrder, DemotionGoesFromLeavesUpAndKeepsTheOrderBelow) {
  TextTrie t(2);
  t.insert("abx");
  t.insert("aby");
  t.insert("c");
  Words demoted;
  while (Node* node = t.trie.victim(0)) {
    demoted.push_back(letters(node->tokens()));
    t.trie.leave_order(0, node);
    t.trie.join_order(1, node);
    expect_sound(t.trie);
  }
  EXPECT_EQ(demoted, (Words{"x", "y", "ab", "c"}));
  EXPECT_EQ(t.trie.members(0), 0U);
  EXPECT_EQ(t.trie.members(1), 4U);
  Words gone;
  while (Node* node = t.trie.victim(1)) {
    gone.push_back(letters(node->tokens()));
    t.trie.remove(node);
  }
  EXPECT_EQ(gone, demoted);
}

TEST(VictimOrder, AMemberMayBelongBelowMembersOfAnotherOrder) {
  TextTrie t(2);
  Node* leaf = t.insert("ab");
  Node* top = t.insert("a");
  t.trie.leave_order(0, leaf);
  t.trie.join_order(1, leaf);
  EXPECT_EQ(t.trie.victim(0), top);  // nothing of order 0 below it, but not a leaf
  EXPECT_EQ(t.trie.victim(1), leaf);
  expect_sound(t.trie);
}

TEST(VictimOrder, PageInFromTheTopLeavesTheRestInOrder) {
  TextTrie t(2);
  Node* c = t.insert("abc");
  Node* b = t.insert("ab");
  Node* a = t.insert("a");
  for (Node* node : {c, b, a}) {
    t.trie.leave_order(0, node);
    t.trie.join_order(1, node);
  }
  EXPECT_EQ(t.trie.victim(1), c);
  for (Node* node : {a, b}) {
    t.trie.leave_order(1, node);
    t.trie.join_order(0, node);
    expect_sound(t.trie);
  }
  EXPECT_EQ(t.trie.victim(1), c);
  EXPECT_EQ(t.trie.victim(0), b);
}

TEST(VictimOrder, ParkedMembersThatLeaveOutOfTurnPutTheirParentsWhereTheirAgeBelongs) {
  TextTrie t;
  for (const char* word : {"pcd", "pc", "p", "qef", "qe", "q"}) t.insert(word);
  for (const char* word : {"p", "pc", "q", "qe", "pcd", "qef"}) t.trie.touch(t.at(word));
  EXPECT_EQ(victim(t), "d");  // parks p, pc, q and qe
  for (const char* word : {"qe", "pc"}) t.trie.leave_order(0, t.at(word));
  expect_sound(t.trie);
  EXPECT_EQ(victim(t), "p");
  t.trie.join_order(0, t.at("qe"));
  EXPECT_EQ(victim(t), "p");
  t.trie.leave_order(0, t.at("p"));
  EXPECT_EQ(victim(t), "d");  // parks q
  t.trie.leave_order(0, t.at("qe"));
  EXPECT_EQ(victim(t), "d");  // q has the age of qe now
  expect_sound(t.trie);
}

TEST(VictimOrder, AParentIsPlacedBehindOlderMembersThatCameBackBefore) {
  TextTrie t;
  for (const char* word : {"pcd", "pc", "p", "qef", "qe", "q"}) t.insert(word);
  for (const char* word : {"p", "pc", "q", "qe", "pcd", "qef"}) t.trie.touch(t.at(word));
  EXPECT_EQ(victim(t), "d");
  for (const char* word : {"pc", "qe"}) t.trie.leave_order(0, t.at(word));
  expect_sound(t.trie);
  std::string order;
  while (Node* node = t.trie.victim(0)) {
    order += letters(node->tokens());
    t.trie.leave_order(0, node);
  }
  EXPECT_EQ(order, "pqdf");
}

TEST(VictimOrder, ManyChildrenOfOneNodeGoInTheOrderOfTheirUse) {
  constexpr Token kCount = 1 << 16;
  Trie trie;
  Node* top = trie.add_child(trie.root("n"), text("top"), nullptr);
  trie.join_order(0, top);
  for (Token token = 0; token < kCount; ++token) trie.join_order(0, trie.add_child(top, Tokens{token}, nullptr));
  for (Token token = 0; token < kCount; ++token) {
    Node* oldest = trie.victim(0);
    ASSERT_EQ(oldest->tokens()[0], token);
    trie.remove(oldest);
  }
  EXPECT_EQ(trie.victim(0), top);
  expect_sound(trie);
}

}  // namespace
}  // namespace kvtrie
