// The memory of the index of suffixes: it comes in pieces, nothing is lost when it does, and none need be there.
#include "trie/suffix_room.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "failing_allocations.h"
#include "suffix_helpers.h"
#include "trie/suffix_index.h"

namespace kvtrie {
namespace {

// It grows with what it has, up to what it may have, and never beyond; what the goal of 40 bytes a token leaves for
// nodes is theirs.
TEST(SuffixRoom, TakesMemoryAsTokensCome) {
  constexpr std::size_t kRoom = 1 << 16, kEmpty = std::size_t{300} << 10;  // the first pieces
  Trie trie;
  trie.index_suffixes(kRoom);
  EXPECT_LT(trie.suffixes()->bytes(), kEmpty);
  std::mt19937_64 random(7);
  std::size_t before = 0, grown = 0;
  for (int i = 0; i < 200; ++i) {
    Tokens tokens(1000);
    for (Token& token : tokens) token = static_cast<Token>(random() % 50);
    testing::add_path(trie, "n", tokens);
    const std::size_t bytes = trie.suffixes()->bytes(), places = trie.suffixes()->size();
    EXPECT_LE(bytes, kEmpty + 40 * places);
    grown += bytes > before ? 1 : 0;
    before = bytes;
    if (i % 20 == 0) testing::expect_sound(trie);
  }
  EXPECT_GT(grown, 5);  // in pieces
  EXPECT_LT(before, std::size_t{30} << 16);
  EXPECT_LE(trie.suffixes()->size(), trie.suffixes()->capacity());
  testing::expect_sound(trie);
}

// Chains that were begun when it had fewer heads are looked through, too, behind those that came later; and they go.
TEST(SuffixRoom, FindsWhatCameBeforeItGrew) {
  constexpr Token kMany = 40000;
  Trie trie;
  trie.index_suffixes(1 << 16);
  const Tokens all = testing::counting(kMany);
  Node* root = trie.root("n");
  const auto say = [&](Token end, Token next) {
    return testing::add_path(trie, "n", Tokens{end, kMany + 1, kMany + 2, kMany + 3, next});
  };
  say(kMany + 10, 1);
  say(kMany + 11, 1);
  testing::add_path(trie, "n", all);
  Node* latest = say(kMany + 12, 2);
  const auto behind_words = [&] {
    return trie.suffixes()->continuation(root, Tokens{kMany + 1, kMany + 2, kMany + 3}, 1);
  };
  EXPECT_EQ(behind_words(), Tokens{1});  // two of the first table, one of the last
  for (Token at = 3; at < kMany; at += 101)
    EXPECT_EQ(trie.suffixes()->continuation(root, Tokens{all[at - 3], all[at - 2], all[at - 1]}, 1), Tokens{all[at]});
  testing::expect_sound(trie);
  trie.remove(trie.match_below(root, all).node);
  EXPECT_LT(trie.suffixes()->size(), 100U);
  EXPECT_EQ(trie.suffixes()->continuation(root, Tokens{all[0], all[1], all[2]}, 1), Tokens{});
  EXPECT_EQ(behind_words(), Tokens{1});
  trie.remove(latest);
  EXPECT_EQ(behind_words(), Tokens{1});
  testing::expect_sound(trie);
}

// Where memory ends it keeps to what it has: the oldest tokens go, none is wrong, and it grows when there is some
// again.
TEST(SuffixRoom, GoesOnWithoutMemory) {
  constexpr Token kMany = 20000;
  Trie trie;
  const Tokens all = testing::counting(kMany), more = testing::counting(100);
  Node* node = testing::add_path(trie, "n", all);
  Node* other = testing::add_path(trie, "other", more);
  std::size_t least = kMany, most = 0;
  for (std::uint64_t n = 1; n < 60; n += 2) {
    SuffixIndex index(1 << 15);
    testing::arm_allocations(n, /*lasting=*/true, testing::Allocating::kThisThread);
    index.grew(node, 0);
    testing::disarm_allocations();
    least = std::min(least, index.size());
    most = std::max(most, index.size());
    std::vector<std::string> findings;
    index.check(findings);
    EXPECT_EQ(findings, std::vector<std::string>{}) << n;
    if (index.size() > 100) {
      EXPECT_EQ(index.continuation(trie.root("n"), std::span(all).subspan(kMany - 20, 10), 1), Tokens{all[kMany - 10]});
    }
    index.grew(other, 0);
    EXPECT_EQ(index.continuation(trie.root("other"), std::span(more).first(10), 1), Tokens{more[10]}) << n;
  }
  EXPECT_EQ(least, 0U);
  EXPECT_EQ(most, std::size_t{kMany});
}

}  // namespace
}  // namespace kvtrie
