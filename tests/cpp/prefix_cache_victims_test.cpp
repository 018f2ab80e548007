// Who goes next, and which tail of a path nobody else uses: each shape of it, and random trees against the definition.
#include <gtest/gtest.h>

#include <random>

#include "device_tree_world.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kTailSeeds[] = {20261124, 7, 8};

class VictimTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  VictimTest() : DeviceTreeWorld({.attention = {{{}, 512}}, .recurrent = 0}) {}
  Node* tail(const Tokens& tokens) const { return eviction.own_tail("n", tokens); }
  Node* tail(const Node* node) const { return tail(path_tokens(node)); }
  static Tokens path(const Node* node, std::int32_t length, int beyond = 0) {
    Tokens tokens = path_tokens(node);
    tokens.resize(static_cast<std::size_t>(length));
    tokens.insert(tokens.end(), static_cast<std::size_t>(beyond), -1000);
    return tokens;
  }

  // Of the nodes from the match up to the root the highest below which there is one line, and nothing that is held.
  Node* highest_line(const Match& match) const {
    Node* found = nullptr;
    for (Node* node = match.node; !node->is_root(); node = node->parent()) {
      const std::vector<Node*> below = subtree(node);
      const bool line = std::all_of(below.begin(), below.end(), [](const Node* each) {
        return each->child_count() <= 1 && each->locks() == (state_of(each).user() ? 1u : 0u);
      });
      if (line) found = node;
    }
    return found;
  }
  Node* expected(const Tokens& tokens) const {
    const Match match = trie.match("n", tokens);
    if (match.node == nullptr || match.length == 0) return nullptr;
    const bool whole = match.length == static_cast<std::int32_t>(tokens.size());
    const bool at_a_leafs_end = match.node->is_leaf() && match.length == match.node->end();
    return whole || at_a_leafs_end ? highest_line(match) : nullptr;
  }
};

// A half that is on the device again has no lock of its own, and nothing on the device below it.
TEST_F(VictimTest, HalvesOfWhatIsPinnedOutsideTheDeviceAreNoVictims) {
  Node* node = add(10);
  ASSERT_GT(eviction.page_out(node), 0u);
  leases.pin(node);
  const Leases::Hold hold = leases.hold(node);
  trie.split(node, 6);
  Node* top = trie.split(node->parent(), 3);
  come_back(top);
  EXPECT_EQ(eviction.next_victim(), nullptr);
  EXPECT_EQ(top->locks(), 2u) << "for the pin and for the hold";
  lower.make_host_room(host->cap(), MayLose::kAnything);
  EXPECT_EQ(trie.match("n", path_tokens(node)).length, 10);
  leases.unpin(node);
  leases.let_go(hold);
  EXPECT_EQ(top->locks(), 0u);
  EXPECT_EQ(eviction.next_victim(), top);
  EXPECT_TRUE(findings().empty());
}

// ---- own tails ----------------------------------------------------------------------------------------------------

TEST_F(VictimTest, WhatIsNotKnownHasNoTail) {
  EXPECT_EQ(eviction.own_tail("nobody", Tokens{1, 2}), nullptr);
  add(4);
  EXPECT_EQ(tail(Tokens{}), nullptr);
  EXPECT_EQ(tail(Tokens{-5}), nullptr);
}

TEST_F(VictimTest, ASingleLineIsOwnFromTheRootOnWhereverInItTheTokensEnd) {
  Node* top = add(4);
  Node* middle = add(top, 4);
  Node* leaf = add(middle, 4);
  for (const std::int32_t length : {1, 4, 6, 8, 12}) EXPECT_EQ(tail(path(leaf, length)), top) << length;
}

TEST_F(VictimTest, ItBeginsBelowTheLastBranch) {
  Node* top = add(4);
  Node* branch = add(top, 4);
  Node* left = add(branch, 4);
  Node* leaf = add(left, 4);
  Node* right = add(branch, 4);
  EXPECT_EQ(tail(leaf), left);
  EXPECT_EQ(tail(right), right);
  EXPECT_EQ(tail(path(leaf, 10)), left);
  EXPECT_EQ(tail(branch), nullptr) << "others go on from it";
  EXPECT_EQ(tail(path(top, 2)), nullptr);
}

TEST_F(VictimTest, TokensThatDivergeAreAnotherBranchUnlessTheyOnlyGoOn) {
  Node* top = add(4);
  Node* leaf = add(top, 4);
  EXPECT_EQ(tail(path(leaf, 8, 3)), top) << "what is not known yet follows the leaf";
  EXPECT_EQ(tail(path(leaf, 6, 3)), nullptr) << "inside the leaf";
  EXPECT_EQ(tail(path(leaf, 4, 3)), nullptr) << "where something else goes on";
}

TEST_F(VictimTest, WhatIsHeldOnTheTailOrBelowItIsNotOwn) {
  Node* top = add(4);
  Node* middle = add(top, 4);
  Node* leaf = add(middle, 4);
  trie.lock(leaf);
  EXPECT_EQ(tail(leaf), nullptr);
  EXPECT_EQ(tail(path(middle, 6)), nullptr) << "held below";
  trie.unlock(leaf);
  trie.lock(top);
  EXPECT_EQ(tail(leaf), middle) << "held above";
  EXPECT_EQ(tail(top), nullptr);
  trie.unlock(top);
}

TEST_F(VictimTest, AMarkHoldsNothingBackButALockBesidesIt) {
  Node* top = add(4);
  Node* leaf = add(top, 4);
  points.mark_user(top);
  points.mark_user(leaf);
  EXPECT_EQ(tail(leaf), top);
  leases.pin(leaf);
  EXPECT_EQ(tail(leaf), nullptr);
  leases.unpin(leaf);
  trie.lock(top);
  EXPECT_EQ(tail(leaf), leaf);
  trie.unlock(top);
}

TEST_F(VictimTest, RandomTreesAgreeWithTheDefinition) {
  for (const std::uint64_t seed : kTailSeeds) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::size_t found = 0;
    for (int tree = 0; tree < 200; ++tree) {
      std::vector<Node*> all{add(1 + static_cast<std::int32_t>(random() % 4))};
      while (all.size() < 2 + random() % 8)
        all.push_back(add(all[random() % all.size()], 1 + static_cast<std::int32_t>(random() % 4)));
      std::vector<Node*> locked;
      for (Node* node : all) {
        if (random() % 4 == 0) points.mark_user(node);
        if (random() % 8 == 0) locked.push_back(node);
      }
      for (Node* node : locked) trie.lock(node);
      for (int i = 0; i < 30; ++i) {
        const Node* node = all[random() % all.size()];
        const auto length = 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(node->end()));
        const Tokens tokens = path(node, length, random() % 3 == 0 ? 1 : 0);
        ASSERT_EQ(tail(tokens), expected(tokens)) << "tree " << tree << ", " << length << " tokens";
        found += expected(tokens) != nullptr ? 1 : 0;
      }
      for (Node* node : locked) trie.unlock(node);
      removal.remove_subtree(all.front());
      ASSERT_EQ(nodes().size(), 0u);
    }
    EXPECT_GT(found, 1000u);
  }
}

// ---- who is next --------------------------------------------------------------------------------------------------

TEST_F(VictimTest, VictimsAreLeavesInTheOrderOfTheirUseThenMarksFallOldestFirst) {
  Node* top = add(4);
  Node* first = add(top, 4);
  Node* second = add(top, 4);
  Node* old_mark = add(4);
  Node* new_mark = add(4);
  Node* pinned = add(4);
  points.mark_user(old_mark);
  points.mark_user(new_mark);
  leases.pin(pinned);
  trie.touch(first);
  std::vector<Node*> gone;
  std::vector<std::size_t> marks;
  for (Node* victim = nullptr; (victim = eviction.next_victim()) != nullptr;) {
    gone.push_back(victim);
    marks.push_back(points.user_count());
    removal.remove_subtree(victim, /*tidy=*/false);
  }
  EXPECT_EQ(gone, (std::vector<Node*>{second, first, top, old_mark, new_mark}));
  EXPECT_EQ(marks, (std::vector<std::size_t>{2, 2, 2, 1, 0}));
  EXPECT_EQ(nodes(), std::vector<Node*>{pinned});
}

TEST_F(VictimTest, OutsideTheOldestLeafThatNobodyHoldsIsNext) {
  EXPECT_EQ(eviction.outside_victim(), nullptr);
  Node* top = add(4);
  Node* oldest = add(top, 4);
  Node* young = add(top, 4);
  Node* held = add(top, 4);
  add(top, 4);  // on the device
  for (Node* node : {oldest, young, held}) ASSERT_GT(eviction.page_out(node), 0u);
  const Leases::Hold hold = leases.hold(held);
  trie.touch(oldest);
  trie.touch(young);
  EXPECT_EQ(eviction.outside_victim(), oldest);
  trie.touch(oldest);
  EXPECT_EQ(eviction.outside_victim(), young);
  trie.touch(young);
  leases.let_go(hold);
  trie.touch(held);
  removal.remove_subtree(oldest, false);
  removal.remove_subtree(young, false);
  EXPECT_EQ(eviction.outside_victim(), held);
}

TEST_F(VictimTest, OutsideANodeWaitsForWhatIsBelowIt) {
  Node* top = add(4);
  Node* leaf = add(top, 4);
  for (Node* node : {leaf, top}) ASSERT_GT(eviction.page_out(node), 0u);
  trie.touch(leaf);  // so `top` is older
  EXPECT_EQ(eviction.outside_victim(), leaf);
  removal.remove_subtree(leaf);
  EXPECT_EQ(eviction.outside_victim(), top);
}

TEST_F(VictimTest, ASubtreeThatIsLockedAnywhereIsRefused) {
  Node* top = add(4);
  Node* middle = add(top, 4);
  Node* leaf = add(middle, 4);
  add(middle, 4);
  trie.lock(leaf);
  const std::string before = picture();
  for (Node* node : {top, middle, leaf}) {
    EXPECT_TRUE(removal.subtree_is_locked(node));
    EXPECT_FALSE(removal.remove_unlocked(node));
  }
  EXPECT_EQ(picture(), before);
  trie.unlock(leaf);
  EXPECT_FALSE(removal.subtree_is_locked(top));
  EXPECT_TRUE(removal.remove_unlocked(middle));
  EXPECT_EQ(nodes(), std::vector<Node*>{top});
}

}  // namespace
}  // namespace kvtrie
