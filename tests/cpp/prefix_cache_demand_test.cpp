// How often tokens were asked for: who counts, what is wanted, and a naive count beside random sessions.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tree/demand.h"
#include "tree_walks.h"

namespace kvtrie {
namespace {

// A tree of tokens alone.
struct DemandWorld : TreeWalks {
  explicit DemandWorld(std::uint32_t after) : demand(after) {}

  static std::unique_ptr<NodeState> state(std::int32_t from, std::int32_t to) {
    return std::make_unique<NodeState>(from, to, 0);
  }
  // The node where the tokens end: what is known of them is walked, the rest is made.
  Node* reach(const Tokens& tokens) {
    const Match match = trie.match("n", tokens);
    Node* node = match.length == 0 ? trie.root("n") : match.node;
    if (node->end() > match.length) node = trie.split(node, match.length);
    if (match.length == length(tokens)) return node;
    return trie.add_child(node, std::span(tokens).subspan(static_cast<std::size_t>(match.length)),
                          state(match.length, length(tokens)));
  }
  // A session at `from` of these tokens goes on to their end: known ones are asked for, new ones are its own.
  bool come_down(const Tokens& tokens, std::int32_t from = 0) {
    const std::int32_t known = std::max(from, trie.match("n", tokens).length);
    Node* node = reach(tokens);
    if (known < node->end() && known > 0) node = node->parent();
    return known > from && demand.ask(node, from);
  }
  std::vector<int> asked() const {  // of each node, parents first
    std::vector<int> all;
    for (const Node* node : nodes_of(trie)) all.push_back(state_of(node).asked());
    return all;
  }
  std::vector<std::string> findings() const {
    std::vector<std::string> findings = trie.check();
    demand.check(trie, findings);
    return findings;
  }
  static std::int32_t length(const Tokens& tokens) { return static_cast<std::int32_t>(tokens.size()); }

  Trie trie;
  Demand demand;
};

class DemandTest : public ::testing::Test, public DemandWorld {
 protected:
  DemandTest() : DemandWorld(3) {}
  void TearDown() override { EXPECT_EQ(findings(), std::vector<std::string>{}); }
  using Counts = std::vector<int>;
};

TEST_F(DemandTest, EachSessionCountsOnceForWhatItReaches) {
  EXPECT_FALSE(come_down({1, 2, 3, 4}));
  EXPECT_EQ(asked(), Counts{1});
  EXPECT_FALSE(come_down({1, 2, 3, 4, 5}));
  EXPECT_EQ(asked(), (Counts{2, 1}));
  EXPECT_TRUE(come_down({1, 2, 7}));  // of what is known of it
  EXPECT_EQ(asked(), (Counts{3, 2, 1, 1}));
  EXPECT_TRUE(demand.is_wanted(trie.match("n", Tokens{1, 2}).node));
  EXPECT_FALSE(demand.is_wanted(trie.match("n", Tokens{1, 2, 3}).node));
}

TEST_F(DemandTest, ItStopsWhereMoreMakesNoDifference) {
  for (int i = 0; i < 9; ++i) EXPECT_EQ(come_down({1, 2}), i == 2) << i;
  EXPECT_EQ(asked(), Counts{3});
}

TEST_F(DemandTest, WhatASessionReachesAgainIsNeverAskedForMoreThanWhatItHangsBelow) {
  come_down({1, 2, 3, 4});
  reach({1, 2});
  EXPECT_FALSE(come_down({1, 2, 3, 4}, 2));
  EXPECT_EQ(asked(), (Counts{1, 1}));
  come_down({1, 2});
  EXPECT_FALSE(come_down({1, 2, 3, 4}, 2));
  EXPECT_EQ(asked(), (Counts{2, 2}));
}

TEST_F(DemandTest, HalvesHaveWhatTheWholeHadAndOnlyEqualNodesJoin) {
  come_down({1, 2, 3, 4});
  come_down({1, 2, 3, 4});
  Node* upper = reach({1, 2});
  EXPECT_EQ(asked(), (Counts{2, 2}));
  come_down({1, 2});
  EXPECT_EQ(asked(), (Counts{3, 2}));
  EXPECT_FALSE(trie.join_with_child(upper));
  EXPECT_TRUE(come_down({1, 2, 3, 4}));
  EXPECT_TRUE(trie.join_with_child(upper));
  EXPECT_EQ(asked(), Counts{3});
}

TEST_F(DemandTest, WhatAUserKeepsIsWantedWithAllAboveIt) {
  Node* leaf = reach({1, 2, 3});
  Node* top = reach({1});
  EXPECT_TRUE(demand.want(top));
  EXPECT_FALSE(demand.is_wanted(leaf));
  EXPECT_TRUE(demand.want(leaf));
  EXPECT_FALSE(demand.want(leaf));
  EXPECT_TRUE(demand.is_wanted(leaf) && demand.is_wanted(top));
}

TEST_F(DemandTest, OnlyWhatNobodyElseAskedForIsNew) {
  Node* node = reach({1, 2});
  EXPECT_TRUE(Demand::is_new(node));
  come_down({1, 2});
  EXPECT_FALSE(Demand::is_new(node));
}

TEST(Demand, OfOneHoldsNothingBack) {
  DemandWorld world(1);
  EXPECT_FALSE(world.demand.holds_back());
  Node* node = world.reach({1});
  EXPECT_TRUE(world.demand.is_wanted(node));
  EXPECT_FALSE(world.come_down({1}));
  EXPECT_TRUE(Demand::is_new(node));  // may grow, as ever
}

// The naive count: of each prefix, by its tokens.
struct NaiveDemand {
  void come_down(const Tokens& tokens, std::int32_t from) {
    for (auto end = static_cast<std::size_t>(from) + 1; end <= tokens.size(); ++end) {
      const std::uint32_t most = end == 1 ? after : asked.at({tokens.begin(), tokens.begin() + at(end - 1)});
      std::uint32_t& count = asked[{tokens.begin(), tokens.begin() + at(end)}];
      count = std::min(count + 1, most);
    }
  }
  static std::ptrdiff_t at(std::size_t end) { return static_cast<std::ptrdiff_t>(end); }

  std::uint32_t after;
  std::map<Tokens, std::uint32_t> asked;
};

TEST(Demand, CountsAsANaiveTwinDoes) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const auto after = static_cast<std::uint32_t>(random() % 4 + 1);
    DemandWorld world(after);
    NaiveDemand twin{after, {}};
    for (int step = 0; step < 120; ++step) {
      Tokens tokens(random() % 8 + 1);
      for (Token& token : tokens) token = static_cast<Token>(random() % 2);
      const auto known = static_cast<std::uint64_t>(world.trie.match("n", tokens).length);
      const auto from = random() % 3 == 0 ? static_cast<std::int32_t>(random() % (known + 1)) : 0;
      if (from > 0) world.reach({tokens.begin(), tokens.begin() + from});  // where the session stands
      world.come_down(tokens, from);
      twin.come_down(tokens, from);
      for (Node* node : world.nodes_of(world.trie)) {
        if (random() % 4 == 0) world.trie.join_with_child(node);
        if (random() % 4 == 0) break;
      }
      for (const Node* node : world.nodes_of(world.trie)) {
        const Tokens path = path_tokens(node);
        for (auto end = node->start() + 1; end <= node->end(); ++end)
          ASSERT_EQ(twin.asked.at({path.begin(), path.begin() + end}), state_of(node).asked()) << "seed " << seed;
      }
      ASSERT_EQ(world.findings(), std::vector<std::string>{}) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvtrie
