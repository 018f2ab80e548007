// The radix tree alone: match, insert, split, lock, extend, uses and eviction from 1e3 to 1e6 leaves, and what a leaf
// costs. Rows of one policy say which: `BM_EvictAll<kCost>/1000`; the others run with lru.
//
//     trie_bench --benchmark_filter='Match.*'
//
// Tree: 64 prompts of 256 tokens, below each its share of topics of 256 tokens, below each topic 8 leaves of 64 tokens,
// so that every path has 576 tokens. `hot` asks for one path again and again, `cold` for paths drawn at random.
// `overhead_bytes_per_leaf` is all memory but the tokens, inner nodes included, over the number of leaves.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "trie/trie.h"

namespace kvtrie {
namespace {

using enum VictimPolicy;

constexpr std::int64_t kPrompts = 64;
constexpr std::int64_t kLeavesPerTopic = 8;
constexpr std::size_t kPromptTokens = 256;
constexpr std::size_t kTopicTokens = 256;
constexpr std::size_t kLeafTokens = 64;

// Tokens that depend on `number` only and differ from the first one on.
void put_tokens(Tokens& out, std::size_t count, std::uint64_t number) {
  out.push_back(static_cast<Token>(number));
  std::uint64_t x = number * 0x9e3779b97f4a7c15U + 1;
  for (std::size_t i = 1; i < count; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    out.push_back(static_cast<Token>(x % 128000));
  }
}

Tokens path(std::int64_t leaf) {
  const std::int64_t topic = leaf / kLeavesPerTopic;
  Tokens tokens;
  put_tokens(tokens, kPromptTokens, static_cast<std::uint64_t>(topic % kPrompts));
  put_tokens(tokens, kTopicTokens, static_cast<std::uint64_t>(topic));
  put_tokens(tokens, kLeafTokens, static_cast<std::uint64_t>(leaf));
  return tokens;
}

Node* insert(Trie& trie, const Tokens& tokens) {
  const Match known = trie.match_below(trie.root("n"), tokens);
  Node* node = known.length < known.node->end() ? trie.split(known.node, known.length) : known.node;
  const auto rest = std::span<const Token>(tokens).subspan(static_cast<std::size_t>(known.length));
  if (rest.empty()) return node;
  // Whole levels at once, so that prompts and topics end where they do even before they branch.
  std::size_t done = 0;
  while (done < rest.size()) {
    const std::size_t at = static_cast<std::size_t>(known.length) + done;
    const std::size_t level =
        at < kPromptTokens + kTopicTokens ? kPromptTokens - at % kPromptTokens : rest.size() - done;
    node = trie.add_child(node, rest.subspan(done, level), nullptr);
    trie.join_order(0, node);
    done += level;
  }
  return node;
}

std::unique_ptr<Trie> make_tree(std::int64_t leaves, VictimPolicy policy = VictimPolicy::kLru) {
  auto trie = std::make_unique<Trie>(1, policy);
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) insert(*trie, path(leaf));
  return trie;
}

// Built once for each size and shared by the benchmarks that leave it as it was.
Trie& tree(std::int64_t leaves, VictimPolicy policy = VictimPolicy::kLru) {
  static std::int64_t size = 0;
  static VictimPolicy order = VictimPolicy::kLru;
  static std::unique_ptr<Trie> kept;
  if (size != leaves || order != policy) {
    kept.reset();
    kept = make_tree(leaves, policy);
    size = leaves;
    order = policy;
  }
  return *kept;
}

std::vector<Tokens> random_paths(std::int64_t leaves) {
  std::mt19937_64 random(1);
  std::vector<Tokens> paths;
  paths.reserve(4096);
  for (int i = 0; i < 4096; ++i)
    paths.push_back(path(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(leaves))));
  return paths;
}

std::size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void BM_MatchHot(benchmark::State& state) {
  Trie& trie = tree(state.range(0));
  const Tokens tokens = path(state.range(0) / 2);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(trie.match("n", tokens));
}

void BM_MatchCold(benchmark::State& state) {
  Trie& trie = tree(state.range(0));
  const std::vector<Tokens> paths = random_paths(state.range(0));
  std::size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(trie.match("n", paths[next]));
    next = (next + 1) % paths.size();
  }
}

// A use of one leaf after another, drawn at random.
template <VictimPolicy kPolicy>
void BM_Touch(benchmark::State& state) {
  Trie& trie = tree(state.range(0), kPolicy);
  std::vector<Node*> nodes;
  for (const Tokens& tokens : random_paths(state.range(0))) nodes.push_back(trie.match("n", tokens).node);
  std::size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    trie.touch(nodes[next]);
    next = (next + 1) % nodes.size();
  }
}

template <VictimPolicy kPolicy>
void BM_LockUnlock(benchmark::State& state) {
  Trie& trie = tree(state.range(0), kPolicy);
  std::vector<Node*> nodes;
  for (const Tokens& tokens : random_paths(state.range(0))) nodes.push_back(trie.match("n", tokens).node);
  std::size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    trie.lock(nodes[next]);
    trie.unlock(nodes[next]);
    next = (next + 1) % nodes.size();
  }
}

void BM_SplitAndJoin(benchmark::State& state) {
  Trie& trie = tree(state.range(0));
  Node* leaf = trie.match("n", path(state.range(0) / 2)).node;
  for ([[maybe_unused]] auto _ : state) trie.join_with_child(trie.split(leaf, 544));
}

void BM_Insert(benchmark::State& state) {
  std::vector<Tokens> paths;
  for (std::int64_t leaf = 0; leaf < std::min<std::int64_t>(state.range(0), 100000); ++leaf)
    paths.push_back(path(leaf));
  const std::int64_t before = state.range(0) - static_cast<std::int64_t>(paths.size());
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    auto trie = std::make_unique<Trie>(1);
    for (std::int64_t leaf = 0; leaf < before; ++leaf) insert(*trie, path(leaf + state.range(0)));
    state.ResumeTiming();
    for (const Tokens& tokens : paths) insert(*trie, tokens);
    state.PauseTiming();
    trie.reset();
    state.ResumeTiming();
  }
  state.counters["per_leaf"] = benchmark::Counter(
      static_cast<double>(paths.size()), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Everything goes: leaves and, after their last child, topics and prompts.
template <VictimPolicy kPolicy>
void BM_EvictAll(benchmark::State& state) {
  std::size_t nodes = 0;
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    std::unique_ptr<Trie> trie = make_tree(state.range(0), kPolicy);
    std::vector<Node*> used;
    for (const Tokens& tokens : random_paths(state.range(0))) used.push_back(trie->match("n", tokens).node);
    for (Node* node : used) trie->touch(node);
    nodes = trie->size();
    state.ResumeTiming();
    while (Node* node = trie->victim(0)) trie->remove(node);
    state.PauseTiming();
    trie.reset();
    state.ResumeTiming();
  }
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(nodes), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

template <VictimPolicy kPolicy>
void BM_BytesPerLeaf(benchmark::State& state) {
  double overhead = 0;
  for ([[maybe_unused]] auto _ : state) {
    const std::size_t before = heap_bytes();
    const std::unique_ptr<Trie> trie = make_tree(state.range(0), kPolicy);
    const std::size_t after = heap_bytes() + trie->node_bytes();
    const double tokens = static_cast<double>(trie->token_count()) * sizeof(Token);
    overhead = (static_cast<double>(after - before) - tokens) / static_cast<double>(state.range(0));
  }
  state.counters["overhead_bytes_per_leaf"] = overhead;
}

// One edge of 131072 tokens, as a long prompt has.
void BM_MatchLong(benchmark::State& state) {
  Trie trie(1);
  Tokens tokens;
  put_tokens(tokens, 131072, 1);
  trie.add_child(trie.root("n"), tokens, nullptr);
  const Tokens query = tokens;
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(trie.match("n", query));
}

void BM_SplitAndJoinLong(benchmark::State& state) {
  Trie trie(1);
  Tokens tokens;
  put_tokens(tokens, 131072, 1);
  Node* leaf = trie.add_child(trie.root("n"), tokens, nullptr);
  for ([[maybe_unused]] auto _ : state)
    trie.join_with_child(trie.split(leaf, static_cast<std::int32_t>(state.range(0))));
}

void BM_Extend(benchmark::State& state) {
  Trie trie(1);
  Tokens tokens;
  put_tokens(tokens, 1024, 1);
  Node* leaf = trie.add_child(trie.root("n"), tokens, nullptr);
  const Token one = 7;
  for ([[maybe_unused]] auto _ : state) trie.extend(leaf, {&one, 1});
}

// A chain of nodes of one token each: victims come from the far end.
void BM_EvictDeepChain(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    Trie trie(1);
    Node* node = trie.root("n");
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      const Token token = static_cast<Token>(i);
      node = trie.add_child(node, {&token, 1}, nullptr);
      trie.join_order(0, node);
    }
    state.ResumeTiming();
    while (Node* oldest = trie.victim(0)) trie.remove(oldest);
  }
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t leaves : {1000, 10000, 100000, 1000000}) bench->Arg(leaves);
}

BENCHMARK(BM_MatchHot)->Apply(sizes);
BENCHMARK(BM_MatchCold)->Apply(sizes);
BENCHMARK(BM_LockUnlock<kLru>)->Apply(sizes);
BENCHMARK(BM_LockUnlock<kSlru>)->Apply(sizes);
BENCHMARK(BM_LockUnlock<kCost>)->Apply(sizes);
BENCHMARK(BM_Touch<kLru>)->Apply(sizes);
BENCHMARK(BM_Touch<kSlru>)->Apply(sizes);
BENCHMARK(BM_Touch<kCost>)->Apply(sizes);
BENCHMARK(BM_SplitAndJoin)->Apply(sizes);
BENCHMARK(BM_Insert)->Apply(sizes)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EvictAll<kLru>)->Apply(sizes)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EvictAll<kSlru>)->Apply(sizes)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EvictAll<kCost>)->Apply(sizes)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_BytesPerLeaf<kLru>)->Apply(sizes)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_BytesPerLeaf<kSlru>)->Apply(sizes)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_MatchLong)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_SplitAndJoinLong)->Arg(100)->Arg(65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Extend);
BENCHMARK(BM_EvictDeepChain)->Arg(100000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvtrie

int main(int argc, char** argv) {
  // Else a free now and then gives the system what an earlier benchmark had left, megabytes at a time.
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
