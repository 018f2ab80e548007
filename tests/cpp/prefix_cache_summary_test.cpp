// Fingerprints of paths and summaries of trees: against naive answers, at random.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>

#include "coding_process.h"
#include "tree/summary.h"

namespace kvtrie {
namespace {

using test::Process;

constexpr auto kBlock = static_cast<std::int32_t>(kFingerprintBlock);

TEST(Fingerprints, AreOfAllTokensUpToABlocksEnd) {
  const Tokens tokens = test::prompt(300, 1);
  const std::vector<Fingerprint> all = fingerprints("n", tokens);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_TRUE(fingerprints("n", std::span(tokens).first(63)).empty());
  for (std::size_t count = 64; count < tokens.size(); ++count) {
    const std::vector<Fingerprint> some = fingerprints("n", std::span(tokens).first(count));
    ASSERT_EQ(some.size(), count / 64);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
  for (std::size_t at = 0; at < tokens.size(); ++at) {  // any other token changes all from its block on
    Tokens other = tokens;
    ++other[at];
    const std::vector<Fingerprint> changed = fingerprints("n", other);
    for (std::size_t block = 0; block < all.size(); ++block) EXPECT_EQ(changed[block] == all[block], block < at / 64);
  }
  EXPECT_NE(fingerprints("m", tokens)[0], all[0]);
  EXPECT_NE(fingerprints("", tokens)[0], all[0]);
}

// The values are those of the xxhash package of Python, by the formula in trie/fingerprint.h.
TEST(Fingerprints, AreTheSameForGood) {
  Tokens tokens(128);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(i);
  const std::vector<Fingerprint> found = fingerprints("default", tokens);
  EXPECT_EQ(found, (std::vector<Fingerprint>{4898773672296435222u, 6594201846123620277u}));
}

TEST(Fingerprints, EndInFrontOfMedia) {
  Tokens tokens = test::prompt(300, 1);
  const std::vector<Fingerprint> all = fingerprints("n", tokens);
  tokens[130] = -5;
  EXPECT_EQ(fingerprints("n", tokens), std::vector(all.begin(), all.begin() + 2));
}

TEST(Fingerprints, DoNotDependOnHowTheyCome) {
  std::mt19937 random(180'001);
  const Tokens tokens = test::prompt(1000, 2);
  for (int round = 0; round < 100; ++round) {
    PathFingerprint path("n");
    std::vector<Fingerprint> found;
    for (std::size_t at = 0; at < tokens.size();) {
      const std::size_t count = std::min<std::size_t>(random() % 150, tokens.size() - at);
      path.feed(std::span(tokens).subspan(at, count), [&](std::size_t length, Fingerprint each) {
        EXPECT_EQ(length, (found.size() + 1) * kFingerprintBlock);
        found.push_back(each);
      });
      at += count;
    }
    EXPECT_EQ(found, fingerprints("n", tokens));
  }
}

// All that a summary of everything has: of every node the last block, and those 1, 2, 4, ... in front of it.
std::set<Fingerprint> naive(const PrefixCache& cache) {
  std::set<Fingerprint> all;
  const std::vector<NodeInfo> nodes = cache.nodes();
  for (const NodeInfo& node : nodes) {
    if (node.parent < 0) continue;
    Tokens path = node.tokens;
    for (std::int32_t at = node.parent; at >= 0; at = nodes[static_cast<std::size_t>(at)].parent) {
      const Tokens& above = nodes[static_cast<std::size_t>(at)].tokens;
      path.insert(path.begin(), above.begin(), above.end());
    }
    const std::vector<Fingerprint> known = fingerprints(node.name_space, path);
    for (std::int32_t block = node.start / kBlock; block < node.end / kBlock; ++block) {
      const auto back = static_cast<std::uint32_t>(node.end / kBlock - 1 - block);
      if (back == 0 || std::has_single_bit(back)) all.insert(known[static_cast<std::size_t>(block)]);
    }
  }
  return all;
}

TEST(Summary, HasEveryNodesEndAndBlocksInFrontOfIt) {
  std::mt19937 random(180'002);
  for (int world = 0; world < 20; ++world) {
    Process process(test::kDense, nullptr, {}, 6000);
    std::vector<Tokens> known;
    for (int turn = 0; turn < 12; ++turn) {
      Tokens prompt;
      if (!known.empty() && random() % 4 > 0) {
        const Tokens& before = known[random() % known.size()];
        prompt.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(random() % (before.size() + 1)));
      }
      for (std::size_t i = 1 + random() % 900; i > 0; --i) prompt.push_back(static_cast<Token>(random() % 1000));
      if (prompt.size() > 3000) continue;
      process.time += 1;
      process.chat(prompt, random() % 3 == 0 ? "n" : "m");
      known.push_back(prompt);
      if (random() % 3 == 0) process.cache->page_out_bytes(1);
      const std::vector<Fingerprint> summary = process.cache->summary(100'000);
      const std::set<Fingerprint> all = naive(*process.cache);
      ASSERT_EQ(std::set(summary.begin(), summary.end()), all) << "world " << world << ", turn " << turn;
      ASSERT_EQ(summary.size(), all.size());
      for (const std::size_t most : {std::size_t{0}, std::size_t{1}, all.size() / 2, all.size()}) {
        const std::vector<Fingerprint> some = process.cache->summary(most);
        ASSERT_EQ(some.size(), std::min(most, all.size()));
        for (const Fingerprint each : some) ASSERT_TRUE(all.contains(each));
      }
    }
  }
}

TEST(Summary, TellsWhatIsLeftToComputeWithinAFactorOfTwo) {
  std::mt19937 random(180'003);
  Process process(test::kDense, nullptr, {}, 6000);
  const Tokens known = test::prompt(4000, 3);
  process.chat(known);
  const std::vector<Fingerprint> summary = process.cache->summary(1000);
  const std::set<Fingerprint> has(summary.begin(), summary.end());
  EXPECT_LT(has.size(), 10u);
  for (int round = 0; round < 500; ++round) {
    const std::size_t same = random() % known.size();
    Tokens prompt(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(same));
    prompt.resize(known.size(), 9'999'999);
    const std::vector<Fingerprint> own = fingerprints("n", prompt);
    std::size_t found = own.size();
    while (found > 0 && !has.contains(own[found - 1])) --found;
    EXPECT_LE(found * kFingerprintBlock, same);
    EXPECT_LE(known.size() - found * kFingerprintBlock, 2 * (known.size() - same) + 3 * kFingerprintBlock) << same;
  }
}

TEST(Summary, KeepsWhatWasUsedLast) {
  Process process(test::kDense, nullptr, {}, 6000);
  std::vector<Tokens> prompts;
  for (std::uint32_t i = 0; i < 10; ++i) {
    prompts.push_back(test::prompt(200, 100 + i));
    process.time += 1;
    process.chat(prompts.back());
  }
  const auto has = [&](std::size_t i, std::size_t most) {
    const std::vector<Fingerprint> summary = process.cache->summary(most);
    return std::find(summary.begin(), summary.end(), fingerprints("n", prompts[i]).back()) != summary.end();
  };
  EXPECT_TRUE(has(9, 3));
  EXPECT_FALSE(has(0, 3));
  const SessionPtr live = process.cache->begin("n", prompts[0]);  // a live one comes first
  EXPECT_TRUE(has(0, 1));
  EXPECT_FALSE(has(9, 1));
  live->close();
  EXPECT_TRUE(has(9, 6) && has(0, 6)) << "used at the same time, three each";
}

}  // namespace
}  // namespace kvtrie
