// The index of suffixes (trie/suffix_index.h): what tokens cost that come and go, and a look-up, beside the tree alone.
//
//     trie_suffixes_bench --benchmark_filter='Grow.*'
//
// Text: sentences of 12 tokens, drawn from 4,000 of which few are frequent, so that windows recur as they do in texts.
// Tree: paths of 1,000 tokens of it in four namespaces, a million tokens in all. `/0` has no index, `/1` one with room
// for them. An iteration is all of them; `ns_per_token` is its time over its tokens, making the text left out.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "trie/suffix_index.h"
#include "trie/trie.h"

namespace kvtrie {
namespace {

constexpr std::size_t kTokens = 1'000'000, kPath = 1'000, kSentence = 12, kSentences = 4'000;

const std::vector<Tokens>& paths() {
  static const std::vector<Tokens> made = [] {
    std::mt19937_64 random(40);
    std::vector<Tokens> sentences(kSentences);
    for (Tokens& each : sentences)
      for (std::size_t i = 0; i < kSentence; ++i) each.push_back(static_cast<Token>(random() % 32'000));
    std::vector<Tokens> all(kTokens / kPath);
    for (Tokens& path : all) {
      path.push_back(static_cast<Token>(&path - all.data()));
      while (path.size() < kPath) {
        const double share = std::pow(static_cast<double>(random() % 1'000'000) / 1e6, 3.0);
        const Tokens& next = sentences[static_cast<std::size_t>(share * kSentences)];
        path.insert(path.end(), next.begin(), next.end());
      }
      path.resize(kPath);
    }
    return all;
  }();
  return made;
}

std::unique_ptr<Trie> empty_tree(bool indexed) {
  auto trie = std::make_unique<Trie>(1);
  if (indexed) trie->index_suffixes(kTokens + kTokens / 8);
  return trie;
}

Node* add(Trie& trie, std::size_t path, std::size_t tokens) {
  Node* root = trie.root(std::string(1, static_cast<char>('a' + path % 4)));
  Node* node = trie.add_child(root, std::span<const Token>(paths()[path]).first(tokens), nullptr);
  trie.join_order(0, node);
  return node;
}

void report(benchmark::State& state, const Trie& trie) {
  state.counters["ns_per_token"] = benchmark::Counter(
      static_cast<double>(kTokens) / 1e9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  if (trie.suffixes() == nullptr) return;
  state.counters["bytes_per_token"] =
      static_cast<double>(trie.suffixes()->bytes()) / static_cast<double>(trie.suffixes()->capacity());
}

// Whole paths, as prompts come.
void BM_Prompts(benchmark::State& state) {
  paths();
  std::unique_ptr<Trie> trie;
  for (auto _ : state) {
    state.PauseTiming();
    trie = empty_tree(state.range(0) != 0);
    state.ResumeTiming();
    for (std::size_t path = 0; path < paths().size(); ++path) add(*trie, path, kPath);
  }
  report(state, *trie);
}
BENCHMARK(BM_Prompts)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// A token at a time, in turns, as answers come.
void BM_Grow(benchmark::State& state) {
  paths();
  std::unique_ptr<Trie> trie;
  for (auto _ : state) {
    state.PauseTiming();
    trie = empty_tree(state.range(0) != 0);
    std::vector<Node*> leaves;
    for (std::size_t path = 0; path < paths().size(); ++path) leaves.push_back(add(*trie, path, 1));
    state.ResumeTiming();
    for (std::size_t at = 1; at < kPath; ++at)
      for (std::size_t path = 0; path < leaves.size(); ++path) trie->extend(leaves[path], {&paths()[path][at], 1});
  }
  report(state, *trie);
}
BENCHMARK(BM_Grow)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Into an index that has no room left: the oldest goes for each that comes.
void BM_GrowFull(benchmark::State& state) {
  paths();
  std::unique_ptr<Trie> trie;
  for (auto _ : state) {
    state.PauseTiming();
    trie = std::make_unique<Trie>(1);
    trie->index_suffixes(kTokens / 10);
    std::vector<Node*> leaves;
    for (std::size_t path = 0; path < paths().size(); ++path) leaves.push_back(add(*trie, path, 1));
    state.ResumeTiming();
    for (std::size_t at = 1; at < kPath; ++at)
      for (std::size_t path = 0; path < leaves.size(); ++path) trie->extend(leaves[path], {&paths()[path][at], 1});
  }
  report(state, *trie);
}
BENCHMARK(BM_GrowFull)->Unit(benchmark::kMillisecond);

void BM_Remove(benchmark::State& state) {
  paths();
  std::unique_ptr<Trie> trie;
  for (auto _ : state) {
    state.PauseTiming();
    trie = empty_tree(state.range(0) != 0);
    std::vector<Node*> leaves;
    for (std::size_t path = 0; path < paths().size(); ++path) leaves.push_back(add(*trie, path, kPath));
    state.ResumeTiming();
    for (Node* leaf : leaves) trie->remove(leaf);
  }
  report(state, *trie);
}
BENCHMARK(BM_Remove)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Of 15 tokens, inside sentences at random places; `found` is the share of those that give some.
void BM_LookUp(benchmark::State& state) {
  static const std::unique_ptr<Trie> trie = [] {
    auto made = empty_tree(true);
    for (std::size_t path = 0; path < paths().size(); ++path) add(*made, path, kPath);
    return made;
  }();
  std::mt19937_64 random(1);
  Node* root = trie->root("a");
  std::size_t found = 0, asked = 0;
  for (auto _ : state) {
    const Tokens& path = paths()[4 * (random() % (paths().size() / 4))];
    const auto at = 200 + static_cast<std::ptrdiff_t>(random() % 700);
    const Tokens last(path.begin() + at - 64, path.begin() + at);
    found += trie->suffixes()->continuation(root, last, 15).empty() ? 0 : 1;
    ++asked;
  }
  state.counters["found"] = static_cast<double>(found) / static_cast<double>(asked);
}
BENCHMARK(BM_LookUp);

}  // namespace
}  // namespace kvtrie

BENCHMARK_MAIN();
