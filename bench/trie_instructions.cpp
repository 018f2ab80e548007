// A fixed piece of work on the radix tree, for counting instructions (instructions_main.h): match, insert, split, lock,
// extend or evict, on so many leaves.
//
// Tree: 16 shared prefixes of 512 tokens, below each its share of leaves of 64 tokens. Leaves are drawn with a fixed
// seed; nothing depends on addresses or the clock.
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "instructions_main.h"
#include "trie/trie.h"

namespace kvtrie {
namespace {

using bench::kTimes;
constexpr std::size_t kPrefixes = 16, kPrefixTokens = 512, kLeafTokens = 64;

Tokens path(std::size_t leaf) {
  Tokens tokens(kPrefixTokens + kLeafTokens);
  const std::size_t prefix = leaf % kPrefixes;
  for (std::size_t i = 0; i < kPrefixTokens; ++i) tokens[i] = static_cast<Token>(prefix * 1000 + i);
  for (std::size_t i = 0; i < kLeafTokens; ++i) tokens[kPrefixTokens + i] = static_cast<Token>(leaf + i);
  return tokens;
}

Node* insert(Trie& trie, const Tokens& tokens) {
  const Match known = trie.match_below(trie.root("n"), tokens);
  Node* node = known.length < known.node->end() ? trie.split(known.node, known.length) : known.node;
  const auto rest = std::span<const Token>(tokens).subspan(static_cast<std::size_t>(known.length));
  if (rest.empty()) return node;
  node = trie.add_child(node, rest, nullptr);
  trie.join_order(0, node);
  return node;
}

struct Work {
  explicit Work(std::size_t leaves) {
    for (std::size_t prefix = 0; prefix < kPrefixes; ++prefix) {
      const Tokens tokens = path(prefix);
      insert(trie, {tokens.begin(), tokens.begin() + kPrefixTokens});
    }
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) nodes.push_back(insert(trie, path(leaf)));
    for (std::size_t i = 0; i < leaves; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    order.resize(kTimes);
    for (std::size_t i = 0; i < kTimes; ++i) fresh.push_back(path(leaves + i));
    for (const std::size_t leaf : order) known.push_back(path(leaf));
    before = trie.size();
  }

  Trie trie{1};
  std::vector<Node*> nodes;        // the leaves
  std::vector<std::size_t> order;  // kTimes leaves, drawn
  std::vector<Tokens> known;       // their paths
  std::vector<Tokens> fresh;       // paths of leaves that are not there
  std::size_t before = 0;          // nodes
  std::size_t done = 0;
};

void match(Work& work) {
  for (const Tokens& tokens : work.known) work.done += work.trie.match("n", tokens).length == 576 ? 1 : 0;
}

void insert_all(Work& work) {
  for (const Tokens& tokens : work.fresh) insert(work.trie, tokens);
  work.done = work.trie.size() - work.before;
}

void split(Work& work) {
  for (const std::size_t leaf : work.order) work.trie.split(work.nodes[leaf], 544);
  work.done = work.trie.size() - work.before;
}

void lock(Work& work) {
  for (const std::size_t leaf : work.order) {
    work.trie.lock(work.nodes[leaf]);
    work.trie.unlock(work.nodes[leaf]);
    work.done += work.nodes[leaf]->locks() == 0 ? 1 : 0;
  }
}

void extend(Work& work) {
  const Token one = 7;
  for (const std::size_t leaf : work.order) {
    work.trie.extend(work.nodes[leaf], {&one, 1});
    work.done += work.nodes[leaf]->end() == 577 ? 1 : 0;
  }
}

void evict(Work& work) {
  for (std::size_t i = 0; i < kTimes; ++i) work.trie.remove(work.trie.victim(0));
  work.done = work.before - work.trie.size();
}

template <void (*Run)(Work&)>
std::size_t counted(std::size_t leaves) {
  return bench::counted<Run>(Work(leaves));
}
constexpr bench::Operation kOperations[] = {{"match", counted<match>},   {"insert", counted<insert_all>},
                                            {"split", counted<split>},   {"lock", counted<lock>},
                                            {"extend", counted<extend>}, {"evict", counted<evict>}};

}  // namespace
}  // namespace kvtrie

int main(int argc, char** argv) { return kvtrie::bench::run_operations(argc, argv, kvtrie::kOperations); }
