// The policies other than lru: what goes first, what counts as a use, and what splits, joins and locks do to it.
#include "trie/victim_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::expect_sound;
using testing::kind_of_error;
using testing::letters;
using testing::payload;
using testing::text;
using testing::TextTrie;
using testing::victim;
using Words = std::vector<std::string>;

constexpr VictimPolicy kRanked[] = {VictimPolicy::kSlru, VictimPolicy::kCost};

void use(TextTrie& t, std::string_view word, int times = 1) {
  for (int i = 0; i < times; ++i) t.trie.touch(t.at(word));
}

void lock_and_unlock(TextTrie& t, Node* node) {
  t.trie.lock(node);
  t.trie.unlock(node);
}

// Unrelated words that are used once each while `room` of them fit: what a sweep over documents does.
Words sweep(TextTrie& t, int count, std::size_t room) {
  Words gone;
  for (int i = 0; i < count; ++i) {
    while (t.trie.size() >= room) {
      Node* node = t.trie.victim(0);
      gone.push_back(letters(node->tokens()));
      t.trie.remove(node);
    }
    t.insert(std::string(1, static_cast<char>('A' + i)) + "-");
  }
  expect_sound(t.trie);
  return gone;
}

TEST(VictimPolicy, HasOneNameEach) {
  for (const char* name : {"lru", "slru", "cost"}) EXPECT_STREQ(name_of(policy_from_name(name)), name);
  try {
    policy_from_name("LRU");
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    EXPECT_STREQ(error.what(), "[VictimPolicy] policy: got 'LRU', allowed lru, slru, cost");
  }
}

TEST(VictimPolicy, LeavesGoFirstUnderEveryPolicy) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    t.insert("abc");
    t.insert("ab");
    t.insert("a");
    use(t, "abc", 5);
    EXPECT_EQ(t.evict_all(), (Words{"c", "b", "a"})) << name_of(policy);
  }
}

TEST(VictimPolicy, AgeDecidesAmongEquals) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    for (const char* word : {"a", "b", "c"}) t.insert(word);
    EXPECT_EQ(t.evict_all(), (Words{"a", "b", "c"})) << name_of(policy);
  }
}

TEST(VictimPolicy, ALockedNodeAndAllAboveItStay) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    Node* leaf = t.insert("abc");
    t.insert("ab");
    t.insert("a");
    t.insert("z");
    use(t, "z", 3);
    t.trie.lock(leaf);
    t.trie.lock(leaf);
    EXPECT_EQ(t.evict_all(), Words{"z"}) << name_of(policy);
    t.trie.unlock(leaf);
    EXPECT_EQ(victim(t), "");
    t.trie.unlock(leaf);
    EXPECT_EQ(t.evict_all(), (Words{"c", "b", "a"})) << name_of(policy);
  }
}

TEST(VictimPolicy, AUseWhileLockedCounts) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    Node* a = t.insert("a");
    t.trie.lock(a);
    t.trie.touch(a);
    t.insert("b");
    t.trie.unlock(a);
    for (const char* word : {"c", "d", "e", "f"}) t.insert(word);
    EXPECT_EQ(t.evict_all().back(), "a") << name_of(policy);
  }
}

TEST(VictimPolicy, TheLastUnlockIsAUse) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    Node* a = t.insert("a");
    t.insert("b");  // so that the lock is no part of the join
    lock_and_unlock(t, a);
    for (const char* word : {"c", "d", "e", "f"}) t.insert(word);
    EXPECT_EQ(t.evict_all().back(), "a") << name_of(policy);
  }
}

TEST(VictimPolicy, AStayThatBeginsWithTheJoinIsOneUse) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    Node* a = t.insert("a");
    t.trie.lock(a);
    t.insert("b");
    t.trie.lock(a);
    t.trie.unlock(a);
    t.trie.unlock(a);
    t.insert("c");
    EXPECT_EQ(t.evict_all(), (Words{"b", "a", "c"})) << name_of(policy);
  }
}

TEST(VictimPolicy, ANodeAtThePlaceOfOneThatJoinedAndWentDidNotJoin) {
  TextTrie t(1, VictimPolicy::kCost);
  Node* lower = t.insert("abcd");
  Node* gone = t.insert("x");
  t.trie.remove(gone);
  Node* upper = t.trie.split(lower, 2);
  ASSERT_EQ(upper, gone) << "the pool uses the place again";
  lock_and_unlock(t, upper);
  t.insert("z");
  t.trie.remove(lower);
  EXPECT_EQ(t.evict_all(), (Words{"z", "ab"}));
}

TEST(VictimPolicy, ANodeThatJoinsWhileLockedIsUsedOnce) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    Node* a = t.trie.add_child(t.trie.root("n"), text("a"), nullptr);
    t.trie.lock(a);
    t.trie.join_order(0, a);
    t.trie.unlock(a);
    t.insert("b");
    EXPECT_EQ(t.evict_all(), (Words{"a", "b"})) << name_of(policy);
  }
}

TEST(VictimPolicy, OrdersCountForThemselves) {
  TextTrie t(2, VictimPolicy::kCost);
  Node* a = t.insert("a");
  Node* b = t.insert("b");
  use(t, "a", 9);
  t.trie.leave_order(0, a);
  t.trie.join_order(1, a);
  t.trie.leave_order(0, b);
  t.trie.join_order(1, b);
  EXPECT_EQ(victim(t, 1), "a") << "what was used elsewhere does not count";
  use(t, "a");
  EXPECT_EQ(victim(t, 1), "b");
  expect_sound(t.trie);
}

TEST(VictimPolicy, ABranchPointHasItsOwnRankAndTheAgeOfItsLastChild) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("ax");
  t.insert("ay");
  t.insert("b");
  use(t, "ay", 5);
  t.trie.remove(t.at("ax"));
  t.trie.remove(t.at("ay"));
  EXPECT_EQ(t.evict_all(), (Words{"b", "a"})) << "used once each, but a is as old as y";
}

TEST(VictimPolicy, AMillionUsesLaterTheOrderHolds) {
  for (const VictimPolicy policy : kRanked) {
    TextTrie t(1, policy);
    for (const char* word : {"a", "b", "c", "d", "e"}) t.insert(word);
    Node* nodes[] = {t.at("a"), t.at("b"), t.at("c"), t.at("d"), t.at("e")};
    for (int i = 0; i < 1000000; ++i) t.trie.touch(nodes[static_cast<std::size_t>(i) % 5]);
    expect_sound(t.trie);
    EXPECT_EQ(t.evict_all().size(), 5U);
  }
}

TEST(Slru, AScanTakesNothingThatWasUsedAgain) {
  TextTrie t(1, VictimPolicy::kSlru);
  for (const char* word : {"x1", "y1", "z1"}) t.insert(word);
  for (const char* word : {"x1", "y1", "z1"}) use(t, word);
  const Words gone = sweep(t, 26, 6);
  EXPECT_EQ(gone.size(), 23U);
  for (const char* word : {"x1", "y1", "z1"}) EXPECT_NE(t.at(word), nullptr) << word;

  TextTrie lru(1, VictimPolicy::kLru);
  for (const char* word : {"x1", "y1", "z1"}) lru.insert(word);
  for (const char* word : {"x1", "y1", "z1"}) use(lru, word);
  sweep(lru, 26, 6);
  EXPECT_EQ(lru.at("x1"), nullptr) << "lru would lose it";
}

TEST(Slru, ProbationGoesFirstThenTheOldestProtected) {
  TextTrie t(1, VictimPolicy::kSlru);
  for (const char* word : {"a", "b", "cccc", "d"}) t.insert(word);
  use(t, "b");
  use(t, "a");
  EXPECT_EQ(victim(t), "cccc");
  t.trie.remove(t.trie.victim(0));
  EXPECT_EQ(t.evict_all(), (Words{"d", "b", "a"}));
}

TEST(Slru, NoMoreThanFourFifthsOfTheTokensAreProtected) {
  TextTrie t(1, VictimPolicy::kSlru);
  for (const char* word : {"aaaa", "bbbb", "cccc", "dddd", "eeee"}) t.insert(word);
  for (const char* word : {"aaaa", "bbbb", "cccc", "dddd"}) use(t, word);
  EXPECT_EQ(victim(t), "eeee") << "16 of 20 tokens are protected";
  use(t, "eeee");
  EXPECT_EQ(victim(t), "aaaa") << "the oldest protected one is demoted";
  t.insert("ffff");
  EXPECT_EQ(victim(t), "aaaa") << "demoted as the latest on probation, before what comes after";
  use(t, "aaaa");
  EXPECT_EQ(victim(t), "ffff") << "protected again, and bbbb is demoted behind ffff";
  expect_sound(t.trie);
}

TEST(Slru, GrowthOfAProtectedLeafCounts) {
  TextTrie t(1, VictimPolicy::kSlru);
  for (const char* word : {"aa", "bb"}) t.insert(word);
  use(t, "aa");
  EXPECT_EQ(victim(t), "bb");
  t.trie.extend(t.at("aa"), text("aaaaaa"));
  expect_sound(t.trie);
  t.insert("c");
  EXPECT_EQ(victim(t), "bb") << "8 of 10 tokens";
  t.trie.extend(t.at("aaaaaaaa"), text("aaaaaaaaaaaaaaaa"));
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"bb", "c", "aaaaaaaaaaaaaaaaaaaaaaaa"})) << "demoted behind c";
}

TEST(Slru, SplitAndJoinKeepTheSegment) {
  TextTrie t(1, VictimPolicy::kSlru);
  Node* lower = t.insert("abcd");
  t.insert("zzzz");
  use(t, "abcd");
  Node* upper = t.trie.split(lower, 2);
  expect_sound(t.trie);
  EXPECT_EQ(victim(t), "zzzz");
  ASSERT_TRUE(t.trie.join_with_child(upper));
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"zzzz", "abcd"}));
}

TEST(Slru, WhatWasUsedAgainDoesNotJoinWhatWasNot) {
  TextTrie t(1, VictimPolicy::kSlru);
  t.insert("ab");
  Node* top = t.insert("a");
  use(t, "a");
  EXPECT_FALSE(t.trie.join_with_child(top));
  use(t, "ab", 3);
  ASSERT_TRUE(t.trie.join_with_child(top)) << "both were used again";
  expect_sound(t.trie);
  t.insert("zz");
  EXPECT_EQ(t.evict_all(), (Words{"zz", "ab"}));
}

TEST(Cost, TheLeastUsedGoesFirstHoweverRecent) {
  TextTrie t(1, VictimPolicy::kCost);
  for (const char* word : {"a", "b", "c"}) t.insert(word);
  use(t, "a", 3);
  use(t, "b", 1);
  use(t, "c", 2);
  EXPECT_EQ(t.evict_all(), (Words{"b", "c", "a"}));
}

TEST(Cost, ASplitGivesBothHalvesTheCountAndAJoinKeepsTheLarger) {
  TextTrie t(1, VictimPolicy::kCost);
  Node* lower = t.insert("abcd");
  use(t, "abcd", 4);
  Node* upper = t.trie.split(lower, 2);
  t.insert("y");
  use(t, "y", 3);
  t.insert("z");
  use(t, "z", 5);
  t.trie.remove(t.trie.victim(0));
  EXPECT_EQ(t.evict_all(), (Words{"cd", "ab", "z"})) << "y, used 4 times, went before both halves, used 5 times";
  (void)upper;
}

TEST(Cost, OnlyWhatWasUsedAsOftenJoins) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("ab");
  Node* top = t.insert("a");
  use(t, "a", 3);
  use(t, "ab", 2);
  EXPECT_FALSE(t.trie.join_with_child(top));
  use(t, "ab");
  t.insert("z");
  use(t, "z", 2);
  ASSERT_TRUE(t.trie.join_with_child(top));
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"z", "ab"}));
}

// ---- what left is remembered ----------------------------------------------------------------------------------------

void evict(TextTrie& t, std::string_view word) { t.trie.remove(t.at(word)); }

TEST(Remembering, WhatComesBackGoesOnFromItsUses) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("a");
  use(t, "a", 3);
  evict(t, "a");
  t.insert("b");
  use(t, "b", 2);
  t.insert("a");  // 4 uses and one more
  use(t, "b");
  t.insert("c");
  use(t, "c", 2);
  EXPECT_EQ(t.evict_all(), (Words{"c", "b", "a"}));
}

TEST(Remembering, LeavingAndJoiningAgainIsOneUseMore) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("a");
  use(t, "a", 9);
  evict(t, "a");
  t.insert("a");
  t.trie.leave_order(0, t.at("a"));
  t.trie.join_order(0, t.at("a"));
  t.insert("b");
  use(t, "b", 10);  // 11, and a has 12
  EXPECT_EQ(t.evict_all(), (Words{"b", "a"}));
}

TEST(Remembering, SlruProtectsWhatComesBackAndLruKnowsNothing) {
  for (const VictimPolicy policy : {VictimPolicy::kSlru, VictimPolicy::kLru}) {
    TextTrie t(1, policy);
    t.insert("aa");
    evict(t, "aa");
    t.insert("aa");
    for (const char* word : {"b", "c", "d"}) t.insert(word);
    EXPECT_EQ(victim(t), policy == VictimPolicy::kSlru ? "b" : "aa");
  }
}

TEST(Remembering, APathIsKnownByItsWholeLengthAndNamespace) {
  TextTrie t(1, VictimPolicy::kSlru);
  t.insert("xa");
  evict(t, "xa");
  t.insert("ya");
  Node* other = t.trie.add_child(t.trie.root("m"), text("xa"), nullptr);
  t.trie.join_order(0, other);
  for (const char* word : {"b", "c"}) t.insert(word);
  EXPECT_EQ(t.evict_all(), (Words{"ya", "xa", "b", "c"})) << "nothing of this was known";
}

TEST(Remembering, RecallCutsALeafWhereWhatWasKnownEnds) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("abc");
  use(t, "abc", 4);
  Node* upper = t.trie.split(t.at("abc"), 2);
  use(t, "ab");
  evict(t, "abc");       // 5 uses
  t.trie.remove(upper);  // 6
  Node* leaf = t.insert("abcdef");
  t.trie.recall(0, leaf, 6);
  expect_sound(t.trie);
  ASSERT_NE(t.at("ab"), nullptr);
  ASSERT_NE(t.at("abc"), nullptr);
  EXPECT_EQ(letters(leaf->tokens()), "def") << "the leaf keeps its identity";
  EXPECT_EQ(payload(leaf).text, "def");
  t.insert("z");
  use(t, "z", 5);  // 6
  EXPECT_EQ(t.evict_all(), (Words{"def", "c", "z", "ab"})) << "c: 6 uses before z, ab: 7";
}

TEST(Remembering, PartsWithAsManyUsesStayOne) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("abcd");
  t.trie.split(t.at("abcd"), 2);
  evict(t, "abcd");
  evict(t, "ab");
  Node* leaf = t.insert("abcdef");
  t.trie.recall(0, leaf, 6);
  EXPECT_EQ(t.trie.size(), 2U);
  EXPECT_NE(t.at("abcd"), nullptr);
  expect_sound(t.trie);
}

TEST(Remembering, RecallLooksAtWhatWasAppended) {
  TextTrie t(1, VictimPolicy::kSlru);
  t.insert("abcd");
  evict(t, "abcd");
  Node* leaf = t.insert("ab");
  t.trie.recall(0, leaf, 2);
  t.trie.extend(leaf, text("cdef"));
  t.trie.recall(0, leaf, 4);
  expect_sound(t.trie);
  EXPECT_EQ(letters(leaf->tokens()), "ef");
  EXPECT_EQ(kind_of_error([&] { t.trie.recall(0, leaf, 3); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.recall(0, t.at("abcd"), 1); }), ErrorKind::kArgument);
}

TEST(Remembering, OnlyTheLatestThatLeftAreKnown) {
  GhostTable table;
  table.reserve(1);
  ASSERT_EQ(table.capacity(), GhostTable::kLeast);
  const auto path = [](std::size_t i) { return step_path(path_of_root("n"), static_cast<Token>(i)); };
  for (std::size_t i = 0; i < 3 * GhostTable::kLeast; ++i) table.remember(path(i), static_cast<std::uint32_t>(i + 1));
  EXPECT_EQ(table.size(), GhostTable::kLeast);
  EXPECT_EQ(table.recall(path(2 * GhostTable::kLeast - 1)), 0U);
  for (std::size_t i = 2 * GhostTable::kLeast; i < 3 * GhostTable::kLeast; ++i) {
    ASSERT_EQ(table.recall(path(i)), i + 1);
    ASSERT_EQ(table.recall(path(i)), 0U) << "once";
  }
  EXPECT_EQ(table.size(), 0U);
}

TEST(Remembering, ATableThatGrowsKeepsWhatItKnows) {
  GhostTable table;
  table.reserve(0);
  const auto path = [](std::size_t i) { return step_path(path_of_root("n"), static_cast<Token>(i)); };
  for (std::size_t i = 0; i < 1500; ++i) table.remember(path(i), 7);
  for (std::size_t i = 1000; i < 1100; ++i) EXPECT_EQ(table.recall(path(i)), 7U);
  table.reserve(1025);
  EXPECT_EQ(table.capacity(), 4096U);
  EXPECT_EQ(table.size(), GhostTable::kLeast - 100);
  EXPECT_EQ(table.recall(path(475)), 0U);
  EXPECT_EQ(table.recall(path(476)), 7U);
  EXPECT_EQ(table.recall(path(1499)), 7U);
}

TEST(Remembering, AStepOfAPathCanBeUndone) {
  PathHash path = path_of_root("n");
  for (const Token token : {0, 1, -1, 2147483647, -2147483647 - 1}) {
    EXPECT_EQ(step_path_back(step_path(path, token), token), path);
    path = step_path(path, token);
  }
}

TEST(Cost, TheCheapestToRecomputeGoesFirst) {
  TextTrie t(1, VictimPolicy::kCost);
  const struct {
    const char* word;
    double cost;
  } words[] = {{"a", 3}, {"b", 1}, {"c", 2}};
  for (const auto& each : words) {
    payload(t.insert(each.word)).cost = each.cost;
    use(t, each.word);
  }
  EXPECT_EQ(t.evict_all(), (Words{"b", "c", "a"}));
}

TEST(Cost, FrequencyMultipliesCost) {
  TextTrie t(1, VictimPolicy::kCost);
  payload(t.insert("a")).cost = 5;
  use(t, "a");  // 2 * 5
  t.insert("b");
  use(t, "b", 8);  // 9 * 1
  t.insert("c");
  use(t, "c", 11);  // 12 * 1
  EXPECT_EQ(t.evict_all(), (Words{"b", "a", "c"}));
}

TEST(Cost, WhatIsNotUsedAnyMoreIsOvertaken) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("old");
  use(t, "old", 9);  // 10
  const Words gone = sweep(t, 26, 2);
  EXPECT_EQ(gone[8], "I-");
  EXPECT_EQ(gone[9], "old") << "each victim raises what comes after it by 1";
}

TEST(Cost, OnlyAVictimThatLeavesRaisesWhatComes) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("a");
  t.insert("b");
  use(t, "b", 4);  // 5
  for (int i = 0; i < 10; ++i) EXPECT_EQ(victim(t), "a");
  t.trie.remove(t.at("b"));  // out of turn
  t.insert("c");
  EXPECT_EQ(t.evict_all(), (Words{"a", "c"}));
  t.insert("d");
  EXPECT_EQ(victim(t), "d");
  expect_sound(t.trie);
}

TEST(Cost, ACostThatIsNoCostCountsAsNone) {
  TextTrie t(1, VictimPolicy::kCost);
  t.insert("a");
  for (const double cost : {-1.0, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    payload(t.insert("b")).cost = cost;
    use(t, "b");
    expect_sound(t.trie);
    EXPECT_EQ(victim(t), "b");
  }
  payload(t.at("b")).cost = std::numeric_limits<double>::infinity();
  use(t, "b");
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"a", "b"}));
  t.insert("c");
  expect_sound(t.trie);
}

TEST(Cost, ASplitKeepsThePriorityUntilTheNextUse) {
  TextTrie t(1, VictimPolicy::kCost);
  Node* lower = t.insert("abcd");
  use(t, "abcd", 3);  // 4
  t.insert("z");
  use(t, "z", 2);  // 3
  Node* upper = t.trie.split(lower, 2);
  payload(upper).cost = 0;
  expect_sound(t.trie);
  EXPECT_EQ(t.evict_all(), (Words{"z", "cd", "ab"}));
}

}  // namespace
}  // namespace kvtrie
