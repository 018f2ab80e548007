// Replays against a naive twin that knows one symbol at a time, and what a request longer than the caches, windows,
// states and namespaces do to the counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/error.h"
#include "replay/trace_replay.h"

namespace kvtrie {
namespace {

// One node for each symbol; the least recently used leaf goes first, of equals the deepest. The tree gives the symbols
// of one edge one age: so where symbols follow each other without a branch, the later use counts for all of them.
class NaiveLru {
 public:
  NaiveLru(std::size_t capacity, bool whole) : capacity_(capacity), whole_(whole) {}

  std::int64_t serve(const std::string& name_space, const Tokens& prompt, const Tokens& output) {
    ++now_;
    Tokens all(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(std::min(prompt.size(), capacity_)));
    Item* root = &roots_[name_space];
    const std::size_t reused = compute(root, all, whole_ ? all.size() : all.size() - 1);
    const std::size_t more = std::min(output.size(), capacity_ - all.size());
    all.insert(all.end(), output.begin(), output.begin() + static_cast<std::ptrdiff_t>(more));
    if (more > 0) compute(root, all, all.size() - 1);
    mark(walk(root, all, all.size()).first, false);
    return static_cast<std::int64_t>(reused);
  }

 private:
  struct Item {
    Item* above = nullptr;
    Token symbol = 0;
    std::size_t depth = 0;
    std::uint64_t age = 0;
    bool live = false;
    std::map<Token, std::unique_ptr<Item>> below;
  };

  static std::pair<Item*, std::size_t> walk(Item* item, const Tokens& all, std::size_t limit) {
    std::size_t known = 0;
    while (known < limit && item->below.count(all[known]) != 0) item = item->below.at(all[known++]).get();
    return {item, known};
  }

  // Takes what is known of all[0, limit) and finds room for the rest first, known or not. Returns what it took.
  std::size_t compute(Item* root, const Tokens& all, std::size_t limit) {
    const auto [deepest, known] = walk(root, all, limit);
    mark(deepest, true);
    while (capacity_ - count_ < all.size() - known) evict();
    Item* item = deepest;
    for (std::size_t i = known; i < all.size(); ++i) {
      std::unique_ptr<Item>& next = item->below[all[i]];
      if (next == nullptr) {
        next = std::make_unique<Item>();
        next->above = item;
        next->symbol = all[i];
        next->depth = i + 1;
        ++count_;
      }
      item = next.get();
    }
    mark(item, true);
    return known;
  }

  // The path to the item: live, or used now and idle. Then what hangs below it in a single line is as young.
  void mark(Item* end, bool live) {
    for (Item* each = end; each != nullptr; each = each->above) {
      each->live = live;
      each->age = now_;
    }
    if (!live && end->above != nullptr) refresh(end);
  }

  void refresh(Item* item) {
    for (; item->below.size() == 1; item = item->below.begin()->second.get()) {
      Item& next = *item->below.begin()->second;
      next.age = std::max(next.age, item->age);
    }
  }

  void evict() {
    std::vector<Item*> open;
    for (auto& [name, root] : roots_) open.push_back(&root);
    Item* victim = nullptr;
    while (!open.empty()) {
      Item* item = open.back();
      open.pop_back();
      for (auto& [symbol, child] : item->below) open.push_back(child.get());
      if (item->above == nullptr || item->live || !item->below.empty()) continue;
      const bool first =
          victim == nullptr || item->age < victim->age || (item->age == victim->age && item->depth > victim->depth);
      if (first) victim = item;
    }
    Item* above = victim->above;
    above->below.erase(victim->symbol);
    --count_;
    if (above->above != nullptr && !above->live) refresh(above);
  }

  std::size_t capacity_, count_ = 0;
  bool whole_;
  std::uint64_t now_ = 0;
  std::map<std::string, Item> roots_;
};

Tokens random_symbols(std::mt19937& random, std::size_t longest) {
  Tokens tokens(1 + random() % longest);
  for (Token& token : tokens) token = static_cast<Token>(random() % 3);
  return tokens;
}

ReplayOptions options_of(std::uint32_t capacity, bool whole = true) {
  ReplayOptions options;
  options.capacity = capacity;
  options.whole = whole;
  return options;
}

Tokens range(Token begin, Token end) {
  Tokens tokens;
  for (Token token = begin; token < end; ++token) tokens.push_back(token);
  return tokens;
}

TEST(Replay, CountsWhatANaiveTwinCounts) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t capacity = 4 + random() % 40;
    const bool whole = random() % 2 == 0;
    Replay replay(options_of(capacity, whole));
    NaiveLru twin(capacity, whole);
    for (int request = 0; request < 150; ++request) {
      const std::string name = random() % 4 == 0 ? "a" : "b";
      const Tokens prompt = random_symbols(random, 12);
      const Tokens output = random() % 2 == 0 ? Tokens{} : random_symbols(random, 4);
      const Served served = replay.serve(name, prompt, output, request);
      ASSERT_EQ(served.reused, twin.serve(name, prompt, output)) << "seed " << seed << ", request " << request;
      ASSERT_EQ(served.requested, static_cast<std::int64_t>(prompt.size()));
      ASSERT_LE(served.reused, served.matched);
    }
    const auto faults = replay.check();
    ASSERT_TRUE(faults.empty()) << faults.front();
    ASSERT_LE(replay.stats().device_tokens, capacity);
    ASSERT_EQ(replay.stats().sessions, 0u);
  }
}

TEST(Replay, WholeAndNot) {
  Replay whole(options_of(100, true)), rest(options_of(100, false));
  const Tokens prompt = range(0, 10);
  whole.serve("n", prompt, {}, 0);
  rest.serve("n", prompt, {}, 0);
  EXPECT_EQ(whole.serve("n", prompt, {}, 1).reused, 10);
  EXPECT_EQ(rest.serve("n", prompt, {}, 1).reused, 9);
  EXPECT_EQ(whole.serve("other", prompt, {}, 1).matched, 0);
}

TEST(Replay, WhatWasGeneratedIsKnownToTheNextTurn) {
  Replay replay(options_of(100));
  replay.serve("n", range(0, 10), range(10, 15), 0);
  EXPECT_EQ(replay.serve("n", range(0, 20), {}, 1).reused, 15);
}

TEST(Replay, ARequestLongerThanTheCacheCountsInFull) {
  Replay replay(options_of(8));
  const Served first = replay.serve("n", range(0, 20), range(20, 30), 0);
  EXPECT_EQ(first.requested, 20);
  EXPECT_EQ(first.reused, 0);
  const Served again = replay.serve("n", range(0, 20), {}, 1);
  EXPECT_EQ(again.requested, 20);
  EXPECT_EQ(again.reused, 8);
  EXPECT_EQ(replay.stats().device_tokens, 8u);
  EXPECT_EQ(replay.stats().evicted_tokens, 0u);
}

TEST(Replay, EveryPolicyKeepsTheInvariants) {
  for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost}) {
    ReplayOptions options = options_of(30);
    options.policy = policy;
    Replay replay(options);
    std::mt19937 random(7);
    std::int64_t reused = 0;
    for (int request = 0; request < 400; ++request) {
      reused += replay.serve("n", random_symbols(random, 12), random_symbols(random, 3), request).reused;
    }
    EXPECT_GT(reused, 0) << name_of(policy);
    const auto faults = replay.check();
    EXPECT_TRUE(faults.empty()) << name_of(policy) << ": " << faults.front();
  }
}

// A hybrid reuses up to a restore point, a window where its cells are still held: never more than full attention does.
TEST(Replay, OtherKindsReuseNoMoreThanFullAttention) {
  ReplayOptions dense = options_of(600), window = dense, hybrid = dense;
  window.window = 16;
  window.window_capacity = 200;
  window.chunk = 32;
  hybrid.slots = 6;
  hybrid.checkpoint_every = 8;
  Replay full(dense), windowed(window), recurrent(hybrid);
  std::mt19937 random(3);
  std::int64_t sums[3] = {0, 0, 0};
  for (int request = 0; request < 200; ++request) {
    const Tokens prompt = random_symbols(random, 60);
    Replay* all[3] = {&full, &windowed, &recurrent};
    for (int i = 0; i < 3; ++i) {
      const Served served = all[i]->serve("n", prompt, {}, request);
      EXPECT_LE(served.reused, served.matched);
      sums[i] += served.reused;
    }
  }
  EXPECT_GT(sums[1], 0);
  EXPECT_GT(sums[2], 0);
  EXPECT_LE(sums[1], sums[0]);
  EXPECT_LE(sums[2], sums[0]);
  for (Replay* each : {&full, &windowed, &recurrent}) EXPECT_TRUE(each->check().empty()) << each->check().front();
}

// One before the prompt's last symbol and one where the session ends. A second one before the end would serve nothing
// that the end does not, and take the place of another conversation's.
TEST(Replay, AnAnswerLeavesOneRestorePoint) {
  ReplayOptions options = options_of(600);
  options.slots = 20;
  Replay replay(options);
  std::mt19937 random(4);
  replay.serve("n", random_symbols(random, 60), Tokens(40, 1), 0);
  EXPECT_EQ(replay.stats().restore_points, 2u);
}

TEST(Replay, RefusesOptionsThatCannotWork) {
  const auto refused = [](auto change) {
    ReplayOptions options = options_of(100);
    change(options);
    EXPECT_THROW(Replay{options}, Error);
  };
  refused([](ReplayOptions& o) { o.capacity = 0; });
  refused([](ReplayOptions& o) { o.capacity = ~std::uint32_t{0}; });
  refused([](ReplayOptions& o) { o.window = 16, o.window_capacity = 16; });
  refused([](ReplayOptions& o) { o.slots = 1; });
  refused([](ReplayOptions& o) { o.slots = 4, o.checkpoint_every = 0; });
  Replay replay(options_of(100));
  EXPECT_THROW(replay.serve("n", {}, {}, 0), Error);
  EXPECT_THROW(replay.serve("n", Tokens{-3}, {}, 0), Error);
  EXPECT_EQ(replay.stats().nodes, 0u);
}

}  // namespace
}  // namespace kvtrie
