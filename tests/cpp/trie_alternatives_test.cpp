// Several ways to go on: against counting the votes of every beginning, and against the tree itself.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "trie/alternatives.h"
#include "trie/continuation.h"
#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::add;
using testing::letters;
using testing::text;

bool begins_with(const Tokens& whole, const Tokens& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

std::vector<std::string> in_letters(const std::vector<Tokens>& ways) {
  std::vector<std::string> found;
  for (const Tokens& way : ways) found.push_back(letters(way));
  return found;
}

using Ways = std::vector<std::string>;

Ways of_votes(const char* first, const std::vector<std::pair<const char*, std::uint64_t>>& known, std::size_t count,
              std::size_t most = 100) {
  std::vector<Vote> votes;
  for (const auto& [tokens, last_used] : known) votes.push_back({text(tokens), last_used, true});
  return in_letters(alternatives(text(first), votes, most, count));
}

TEST(Alternatives, PartWhereMostVotesDo) {
  const std::vector<std::pair<const char*, std::uint64_t>> known{{"abcd", 4}, {"abce", 3}, {"axyz", 2}, {"axq", 1}};
  EXPECT_EQ(of_votes("abcd", known, 1), (Ways{"abcd"}));
  EXPECT_EQ(of_votes("abcd", known, 2), (Ways{"abcd", "axyz"}));
  EXPECT_EQ(of_votes("abcd", known, 3), (Ways{"abcd", "axyz", "abce"}));
  EXPECT_EQ(of_votes("abcd", known, 9), (Ways{"abcd", "axyz", "abce", "axq"}));
  EXPECT_EQ(of_votes("abc", known, 9, 3), (Ways{"abc", "axy", "axq"}));
  EXPECT_EQ(of_votes("", known, 9), Ways{});
  EXPECT_EQ(of_votes("ab", known, 9), (Ways{"ab", "axyz", "axq"}));  // none goes on behind one that ends
}

struct Count {
  std::size_t votes = 0, first = 0;
  std::uint64_t last_used = 0;
};

// The beginning that has more votes, was used later, or comes first.
bool better(const Count& a, const Count& b) {
  if (a.votes != b.votes) return a.votes > b.votes;
  return a.last_used != b.last_used ? a.last_used > b.last_used : a.first < b.first;
}

std::vector<Tokens> naive(const Tokens& first, const std::vector<Vote>& votes, std::size_t most, std::size_t count) {
  std::map<Tokens, Count> beginnings;
  for (std::size_t i = 0; i < votes.size(); ++i) {
    for (std::size_t length = 1; length <= std::min(most, votes[i].tokens.size()); ++length) {
      Count& each = beginnings[Tokens(votes[i].tokens.begin(), votes[i].tokens.begin() + static_cast<int>(length))];
      if (each.votes++ == 0) each.first = i;
      each.last_used = std::max(each.last_used, votes[i].last_used);
    }
  }
  std::vector<Tokens> ways{first};
  const auto best_of = [&](const auto& allowed) {
    const Tokens* best = nullptr;
    for (const auto& [tokens, own] : beginnings)
      if (allowed(tokens) && (best == nullptr || better(own, beginnings[*best]))) best = &tokens;
    return best == nullptr ? Tokens{} : *best;
  };
  while (ways.size() < count) {
    Tokens way = best_of([&](const Tokens& tokens) {
      const Tokens above(tokens.begin(), tokens.end() - 1);
      bool parts = false;
      for (const Tokens& each : ways) {
        if (begins_with(each, tokens) || each == above) return false;
        parts = parts || begins_with(each, above);
      }
      return parts;
    });
    if (way.empty()) break;
    for (Tokens more = way; !more.empty();) {
      way = more;
      more = best_of([&](const Tokens& tokens) { return tokens.size() == way.size() + 1 && begins_with(tokens, way); });
    }
    ways.push_back(way);
  }
  return ways;
}

TEST(Alternatives, RandomVotesAgreeWithCountingEveryBeginning) {
  std::mt19937_64 random(41);
  for (int round = 0; round < 400; ++round) {
    std::vector<Vote> votes(random() % 12 + 1);
    for (Vote& each : votes) {
      each.tokens.resize(random() % 6 + 1);
      for (Token& token : each.tokens) token = static_cast<Token>(random() % 3);
      each.last_used = random() % 5;
    }
    const std::size_t most = random() % 7 + 1, count = random() % 5 + 1;
    Tokens first = votes[random() % votes.size()].tokens;
    first.resize(std::min(first.size(), most));
    const std::vector<Tokens> wanted = naive(first, votes, most, count);
    EXPECT_EQ(alternatives(first, votes, most, count), wanted);
  }
}

// ---- of a tree ------------------------------------------------------------------------------------------------------

TEST(Alternatives, OfATreeAreWhatMostPathsGoOnWith) {
  Trie trie;
  for (const char* each : {"asked: red, dark", "asked: red, light", "asked: blue", "asked: green"})
    add(trie, text(each));
  Node* const root = trie.root("default");
  EXPECT_EQ(in_letters(continuations(trie, root, text("asked: "), 100, 3)), (Ways{"green", "red, light", "blue"}));
  EXPECT_EQ(in_letters(continuations(trie, root, text("asked: "), 100, 9)),
            (Ways{"green", "red, light", "blue", "red, dark"}));
  EXPECT_EQ(in_letters(continuations(trie, root, text("asked: "), 3, 9)), (Ways{"gre", "blu", "red"}));
  EXPECT_EQ(in_letters(continuations(trie, root, text("asked: b"), 100, 9)), (Ways{"lue"}));
  EXPECT_EQ(continuations(trie, root, text("asked by"), 100, 9), std::vector<Tokens>{});
  EXPECT_EQ(continuations(trie, root, text("asked"), 0, 9), std::vector<Tokens>{});
  EXPECT_EQ(continuations(trie, root, text("asked"), 9, 0), std::vector<Tokens>{});
}

// With fewer than 64 ends: the first is `continuation`, all are known, and each that is known is there.
TEST(Alternatives, RandomTreesHaveAllWays) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 60; ++round) {
    Trie trie;
    std::vector<Tokens> paths;
    for (int i = 0; i < 25; ++i) {
      Tokens asked = testing::add_random_path(trie, paths, random);
      const std::size_t most = random() % 9;
      const Tokens first = continuation(trie, trie.root("default"), asked, most);
      const std::vector<Tokens> ways = continuations(trie, trie.root("default"), asked, most, 100);
      ASSERT_EQ(ways.empty(), first.empty());
      if (ways.empty()) continue;
      EXPECT_EQ(ways.front(), first);
      std::vector<Tokens> known;
      for (const Tokens& path : paths) {
        if (!begins_with(path, asked)) continue;
        const auto from = path.begin() + static_cast<std::ptrdiff_t>(asked.size());
        Tokens rest(from, std::find_if(from, path.end(), [](Token token) { return token < 0; }));
        rest.resize(std::min(rest.size(), most));
        known.push_back(rest);
      }
      for (std::size_t a = 0; a < ways.size(); ++a) {
        EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const Tokens& each) { return each == ways[a]; }));
        for (std::size_t b = 0; b < ways.size(); ++b) EXPECT_TRUE(a == b || !begins_with(ways[b], ways[a]));
      }
      for (const Tokens& each : known) {
        EXPECT_TRUE(std::any_of(ways.begin(), ways.end(),
                                [&](const Tokens& way) { return begins_with(way, each) || begins_with(each, way); }) ||
                    each.empty());
      }
      const std::size_t some = random() % 4;
      std::vector<Tokens> fewer = ways;
      fewer.resize(std::min(ways.size(), some));
      EXPECT_EQ(continuations(trie, trie.root("default"), asked, most, some), fewer);
    }
  }
}

}  // namespace
}  // namespace kvtrie
