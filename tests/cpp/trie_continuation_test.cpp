// What the tree knows behind a path: against going on token by token over a list of all nodes.
#include <gtest/gtest.h>

#include <random>

#include "trie/continuation.h"
#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::add;
using testing::letters;
using testing::text;

struct Known {
  Tokens path;  // to its end
  std::size_t start;
  std::uint64_t last_used;
};

Tokens path_of(const Node* node) {
  Tokens tokens;
  for (; !node->is_root(); node = node->parent())
    tokens.insert(tokens.begin(), node->tokens().begin(), node->tokens().end());
  return tokens;
}

std::vector<Known> all_nodes(const Trie& trie) {
  std::vector<Known> nodes;
  trie.visit([&](Node& node) {
    if (!node.is_root()) nodes.push_back({path_of(&node), static_cast<std::size_t>(node.start()), node.last_used()});
  });
  return nodes;
}

// The node that has the token at the end of `path`, of several the one used last.
const Known* next_of(const std::vector<Known>& nodes, const Tokens& path) {
  const Known* found = nullptr;
  for (const Known& each : nodes) {
    const bool covers = each.start <= path.size() && path.size() < each.path.size();
    if (!covers || !std::equal(path.begin(), path.end(), each.path.begin())) continue;
    if (found == nullptr || each.last_used > found->last_used) found = &each;
  }
  return found;
}

Tokens naive(const std::vector<Known>& nodes, Tokens path, std::size_t most) {
  Tokens more;
  while (more.size() < most) {
    const Known* next = next_of(nodes, path);
    if (next == nullptr || next->path[path.size()] < 0) break;
    more.push_back(next->path[path.size()]);
    path.push_back(more.back());
  }
  return more;
}

TEST(Continuation, FollowsWhatWasUsedLast) {
  Trie trie;
  add(trie, text("asked again: monday"));
  add(trie, text("asked again: today"));
  Node* const root = trie.root("default");
  EXPECT_EQ(letters(continuation(trie, root, text("asked aga"), 100)), "in: today");
  EXPECT_EQ(letters(continuation(trie, root, text("asked aga"), 5)), "in: t");
  EXPECT_EQ(letters(continuation(trie, root, text("asked again: m"), 100)), "onday");
  EXPECT_EQ(letters(continuation(trie, root, text("asked by"), 100)), "");
  EXPECT_EQ(letters(continuation(trie, root, text("asked again: today"), 100)), "");
  EXPECT_EQ(letters(continuation(trie, root, text("asked"), 0)), "");
  add(trie, text("asked again: monday"));
  EXPECT_EQ(letters(continuation(trie, root, text("asked aga"), 100)), "in: monday");
  EXPECT_EQ(letters(continuation(trie, trie.root("other"), text("asked"), 100)), "");
}

TEST(Continuation, EndsBeforeMedia) {
  Trie trie;
  add(trie, {1, 2, -7, -7, 3});
  EXPECT_EQ(continuation(trie, trie.root("default"), Tokens{1}, 100), (Tokens{2}));
  EXPECT_EQ(continuation(trie, trie.root("default"), Tokens{1, 2}, 100), (Tokens{}));
  EXPECT_EQ(continuation(trie, trie.root("default"), Tokens{1, 2, -7, -7}, 100), (Tokens{3}));
}

TEST(Continuation, RandomTreesAgreeWithTokenByToken) {
  std::mt19937_64 random(40);
  for (int round = 0; round < 60; ++round) {
    Trie trie;
    std::vector<Tokens> paths;
    for (int i = 0; i < 25; ++i) {
      Tokens asked = testing::add_random_path(trie, paths, random);
      if (random() % 3 == 0) asked.push_back(static_cast<Token>(random() % 3));
      const std::size_t most = random() % 9;
      EXPECT_EQ(continuation(trie, trie.root("default"), asked, most), naive(all_nodes(trie), asked, most));
    }
  }
}

}  // namespace
}  // namespace kvtrie
