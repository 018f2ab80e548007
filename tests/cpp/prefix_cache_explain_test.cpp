// Why no more of a prompt would be reused: against naive answers, over every kind of cache, at random.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "coding_process.h"
#include "plan/explain.h"

namespace kvtrie {
namespace {

using test::kEvery;
using test::Kinds;
using test::Process;

// Every pair of offsets is tried.
Rejoin naive_rejoin(const Tokens& prompt, const Tokens& known, std::int32_t least) {
  Rejoin best;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(prompt.size()); ++i) {
    for (std::int32_t j = 0; j < static_cast<std::int32_t>(known.size()); ++j) {
      std::int32_t same = 0;
      while (i + same < static_cast<std::int32_t>(prompt.size()) &&
             j + same < static_cast<std::int32_t>(known.size()) &&
             prompt[static_cast<std::size_t>(i + same)] == known[static_cast<std::size_t>(j + same)])
        ++same;
      if (same >= least && (best.tokens == 0 || i + j < best.prompt + best.known)) best = {i, j, same};
    }
  }
  return best;
}

TEST(Rejoin, IsTheNearestOfAll) {
  std::mt19937 random(160'001);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto letters = static_cast<Token>(2 + random() % 3);
    const auto text = [&](std::size_t length) {
      Tokens tokens(length);
      for (Token& token : tokens) token = static_cast<Token>(random()) % letters;
      return tokens;
    };
    Tokens prompt = text(random() % 40), known = text(random() % 40);
    if (random() % 2 == 0) {  // the same behind it
      const Tokens more = text(random() % 20);
      prompt.insert(prompt.end(), more.begin(), more.end());
      known.insert(known.end(), more.begin(), more.end());
    }
    const auto least = static_cast<std::int32_t>(1 + random() % 8);
    const Rejoin naive = naive_rejoin(prompt, known, least), rejoin = find_rejoin(prompt, known, least);
    ASSERT_EQ(naive.tokens > 0, rejoin.tokens > 0) << round;
    ASSERT_EQ(naive.prompt + naive.known, rejoin.prompt + rejoin.known) << round;
    ASSERT_GE(rejoin.tokens, rejoin.tokens == 0 ? 0 : least);
    for (std::int32_t i = 0; i < rejoin.tokens; ++i)
      ASSERT_EQ(prompt[static_cast<std::size_t>(rejoin.prompt + i)], known[static_cast<std::size_t>(rejoin.known + i)]);
    found += rejoin.tokens > 0 ? 1 : 0;
  }
  EXPECT_GT(found, 1000);
}

class Explain : public ::testing::TestWithParam<Kinds> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Explain, ::testing::ValuesIn(kEvery),
                         [](const auto& info) { return std::string(info.param.name); });

std::size_t in_common(const Tokens& a, const Tokens& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// What must hold of every answer, given all that is known.
void expect_explains(const Explanation& found, const PrefixCache& cache, const Tokens& prompt,
                     const std::vector<Tokens>& known) {
  const ReusePlan plan = cache.plan("n", prompt);
  EXPECT_EQ(found.plan.matched, plan.matched);
  EXPECT_EQ(found.plan.reusable, plan.reusable);
  EXPECT_EQ(found.plan.reason.code, plan.reason.code);
  EXPECT_EQ(found.plan.bytes_moved, plan.bytes_moved);
  EXPECT_EQ(found.length, static_cast<std::int32_t>(prompt.size()));

  const auto matched = static_cast<std::size_t>(plan.matched);
  std::set<Token> follow;  // what is known behind the match
  std::size_t longest = 0;
  for (const Tokens& each : known) {
    const std::size_t common = in_common(prompt, each);
    longest = std::max(longest, common);
    if (common == matched && each.size() > common) follow.insert(each[common]);
  }
  EXPECT_EQ(matched, longest);
  EXPECT_EQ(found.branches, follow.size());
  const MatchEnd end = matched == prompt.size() ? MatchEnd::kWholeKnown
                       : follow.empty()         ? MatchEnd::kTreeEnds
                                                : MatchEnd::kDiffers;
  EXPECT_EQ(found.end, end);
  EXPECT_EQ(found.known.empty(), end != MatchEnd::kDiffers);

  const Tokens rest(prompt.begin() + plan.matched, prompt.end());
  Tokens path(prompt.begin(), prompt.begin() + plan.matched);
  path.insert(path.end(), found.known.begin(), found.known.end());
  const bool is_known =
      std::any_of(known.begin(), known.end(), [&](const Tokens& each) { return in_common(path, each) == path.size(); });
  EXPECT_TRUE(is_known);
  if (end == MatchEnd::kDiffers) {
    EXPECT_NE(found.known[0], rest[0]);
    const Rejoin naive = naive_rejoin(rest, found.known, 8);
    EXPECT_EQ(naive.prompt + naive.known, found.rejoin.prompt + found.rejoin.known);
  }
}

// The caches go together, so each by itself gets at least as far.
void expect_reaches(const Explanation& found, const PrefixCache& cache) {
  ASSERT_EQ(found.caches.size(), cache.caches().size() + cache.states().size());
  for (const CacheReach& reach : found.caches) {
    EXPECT_GE(reach.deepest, found.plan.reusable);
    EXPECT_LE(reach.deepest, found.plan.matched);
    EXPECT_EQ(reach.kept.empty() || reach.states, true);
    if (!reach.states && reach.window == 0 && reach.chunk == 0) {
      EXPECT_EQ(reach.deepest, found.plan.matched);
    }
    for (const std::int32_t kept : reach.kept) EXPECT_LE(kept, found.plan.matched);
  }
  // Of one cache alone it is the plan, but for the last token.
  if (found.caches.size() == 1 && found.plan.matched < found.length) {
    EXPECT_EQ(found.caches[0].deepest, found.plan.reusable);
  }
}

TEST_P(Explain, AgreesWithTryingEverything) {
  std::mt19937 random(160'002);
  int differing = 0, short_of_match = 0;
  for (int world = 0; world < 150; ++world) {
    PrefixCacheOptions options;
    options.checkpoint_every = 16;
    Kinds kinds = GetParam();
    kinds.window_cells = world % 2 == 0 ? 300 : 4096;
    Process process(kinds, nullptr, options, 600);
    std::vector<Tokens> known;
    for (int turn = 0; turn < 10; ++turn) {
      Tokens prompt;
      if (!known.empty() && random() % 5 > 0) {
        const Tokens& before = known[random() % known.size()];
        prompt.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(random() % (before.size() + 1)));
        if (prompt.size() < before.size() && random() % 2 == 0) {  // another word in its place, and on as before
          prompt.push_back(777);
          prompt.insert(prompt.end(), before.begin() + static_cast<std::ptrdiff_t>(prompt.size()), before.end());
        }
      }
      for (std::size_t i = prompt.empty() ? 1 : random() % 2 * (random() % 120); i > 0; --i)
        prompt.push_back(static_cast<Token>(random() % 5));
      if (prompt.empty()) continue;
      if (prompt.size() > 500) break;
      const Explanation found = process.cache->explain("n", prompt);
      if (known.empty()) {
        EXPECT_EQ(found.end, MatchEnd::kUnknown);
      } else if (process.cache->stats().evicted_tokens == 0) {
        expect_explains(found, *process.cache, prompt, known);
        expect_reaches(found, *process.cache);
        differing += found.end == MatchEnd::kDiffers ? 1 : 0;
        short_of_match += found.plan.reusable < found.plan.matched ? 1 : 0;
      }
      EXPECT_EQ(process.cache->explain("of another", prompt).end, MatchEnd::kUnknown);
      process.chat(prompt);
      known.push_back(prompt);
      if (random() % 3 == 0) process.cache->page_out("n", known[random() % known.size()]);
    }
  }
  EXPECT_GT(differing, 100);
  EXPECT_GT(short_of_match, 0);
}

TEST(ExplainTest, NamesTheBranchThatAgreesAgainSoonest) {
  Process process(test::kDense, nullptr);
  Tokens shared = test::prompt(50, 1), behind = test::prompt(60, 2);
  const auto with = [&](Tokens middle) {
    Tokens tokens = shared;
    tokens.insert(tokens.end(), middle.begin(), middle.end());
    tokens.insert(tokens.end(), behind.begin(), behind.end());
    return tokens;
  };
  process.chat(with({1, 1, 1, 1, 1, 1}));
  process.chat(with({2, 2}));
  Tokens unrelated = shared;
  for (Token i = 0; i < 100; ++i) unrelated.push_back(5000 + i);
  process.chat(unrelated);  // used last
  const Explanation found = process.cache->explain("n", with({3, 3}));
  EXPECT_EQ(found.end, MatchEnd::kDiffers);
  EXPECT_EQ(found.branches, 3u);
  EXPECT_EQ(found.known[0], 2);
  EXPECT_EQ(found.rejoin.prompt, 2);
  EXPECT_EQ(found.rejoin.known, 2);
  EXPECT_EQ(found.rejoin.tokens, 60);
  Tokens other = shared;
  for (Token i = 0; i < 20; ++i) other.push_back(9000 + i);
  EXPECT_EQ(process.cache->explain("n", other).known[0], 5000);  // none agrees again: the one that was used last
}

TEST(ExplainTest, SecondsComeFromWhatWasMeasured) {
  PrefixCacheOptions options;
  double now = 0;
  options.clock = [&] { return now; };
  Process process(test::kDense, nullptr, options);
  EXPECT_FALSE(process.cache->explain("n", test::prompt(10, 1)).compute_seconds.has_value());
  for (Token turn = 0; turn < 20; ++turn) {
    const Tokens tokens = test::prompt(100, turn + 1);
    const SessionPtr session = process.cache->begin("n", tokens);
    const StepPtr step = session->next_prefill(100);
    now += 2;  // of 100 tokens
    process.compute(*step, "n", tokens);
    session->close();
  }
  const Explanation found = process.cache->explain("n", test::prompt(50, 99));
  ASSERT_TRUE(found.compute_seconds.has_value());
  EXPECT_NEAR(*found.compute_seconds, 1.0, 0.05);
  EXPECT_EQ(found.load_seconds, 0.0);
}

TEST(ExplainTest, RefusesWhatPlanRefuses) {
  Process process(test::kDense, nullptr);
  EXPECT_THROW(process.cache->explain("n", {}), Error);
  EXPECT_THROW(process.cache->explain("n", Tokens{1, -5}), Error);
  process.cache->close();
  EXPECT_THROW(process.cache->explain("n", Tokens{1}), Error);
}

}  // namespace
}  // namespace kvtrie
