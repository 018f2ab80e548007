// The same text in known tokens: against trying every prefix of every known path.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "trie/match_text.h"
#include "trie_helpers.h"

namespace kvtrie {
namespace {

std::string spelled(const Tokens& tokens, const TokenTexts& texts) {
  std::string text;
  for (const Token token : tokens) text += texts.of(token);
  return text;
}

// Every length at which a known path spells the beginning of the text and ends at a border of its own tokens.
std::size_t naive_reach(const std::vector<Tokens>& known, const Tokens& prompt, const TokenTexts& texts) {
  const std::string text = spelled(prompt, texts);
  std::set<std::size_t> borders{0};
  std::string so_far;
  for (const Token token : prompt) borders.insert((so_far += texts.of(token)).size());
  std::size_t reach = 0;
  for (const Tokens& path : known) {
    std::string bytes;
    for (const Token token : path) {
      bytes += texts.of(token);
      if (text.compare(0, bytes.size(), bytes) != 0) break;
      if (borders.count(bytes.size()) != 0) reach = std::max(reach, bytes.size());
    }
  }
  return reach;
}

void insert_path(Trie& trie, const Tokens& path) {
  Match match = trie.match("n", path);
  Node* node = match.node == nullptr ? trie.root("n") : match.node;
  if (match.length < node->end()) node = trie.split(node, match.length);
  const auto rest = std::span(path).subspan(static_cast<std::size_t>(match.length));
  if (!rest.empty())
    trie.add_child(node, rest, std::make_unique<testing::TextPayload>(testing::letters(rest), match.length));
}

TEST(MatchText, AgreesWithTryingEveryKnownPath) {
  std::mt19937 random(170'301);
  const std::vector<std::string> words = {"a", "b", "ab", "ba", "aa", "aab", "bb", "", "abba", "a"};  // two spell "a"
  const TokenTexts texts(words);
  int changed = 0;
  for (int round = 0; round < 3000; ++round) {
    Trie trie;
    std::vector<Tokens> known;
    const auto any = [&](std::size_t most) {
      Tokens tokens(1 + random() % most);
      for (Token& token : tokens) {
        do token = static_cast<Token>(random() % words.size());
        while (words[static_cast<std::size_t>(token)].empty());
      }
      return tokens;
    };
    const std::size_t count = random() % 30;
    for (std::size_t i = 0; i < count; ++i) {
      Tokens path = any(8);
      if (!known.empty() && random() % 2 == 0) {
        const Tokens& other = known[random() % known.size()];
        path.insert(path.begin(), other.begin(), other.begin() + static_cast<std::ptrdiff_t>(random() % other.size()));
      }
      insert_path(trie, path);
      known.push_back(path);
    }
    Tokens prompt = any(12);
    const TextMatch found = match_text(trie, trie.find_root("n"), prompt, texts);
    ASSERT_EQ(spelled(found.tokens, texts), spelled(prompt, texts)) << round;
    const Tokens path(found.tokens.begin(), found.tokens.begin() + found.known);
    ASSERT_EQ(trie.match("n", path).length, found.known) << round;
    ASSERT_EQ(spelled(path, texts).size(), naive_reach(known, prompt, texts)) << round;
    const std::size_t rest = found.tokens.size() - path.size();  // as it was
    ASSERT_TRUE(
        std::equal(prompt.end() - static_cast<std::ptrdiff_t>(rest), prompt.end(), found.tokens.begin() + found.known));
    ASSERT_GE(spelled(path, texts).size(),
              spelled(Tokens(prompt.begin(), prompt.begin() + trie.match("n", prompt).length), texts).size());
    changed += found.tokens != prompt ? 1 : 0;
  }
  EXPECT_GT(changed, 200);
}

// More children than are looked at one by one, and tokens of the same bytes.
TEST(MatchText, ANodeWithManyChildren) {
  std::vector<std::string> words;
  for (int i = 0; i < 400; ++i) words.push_back("w" + std::to_string(i));
  words.push_back("w39");  // again
  words.push_back("w");
  words.push_back("39");
  const TokenTexts texts(words);
  Trie trie;
  for (Token token = 0; token < 400; ++token) {
    if (token != 39) insert_path(trie, {token, 1});
  }
  insert_path(trie, {400, 2, 3});
  const TextMatch found = match_text(trie, trie.find_root("n"), Tokens{39, 2, 3, 4}, texts);
  EXPECT_EQ(found.tokens, (Tokens{400, 2, 3, 4}));
  EXPECT_EQ(found.known, 3);
  insert_path(trie, {401, 402, 2, 3, 4});
  EXPECT_EQ(match_text(trie, trie.find_root("n"), Tokens{39, 2, 3, 4}, texts).tokens, (Tokens{401, 402, 2, 3, 4}));
}

TEST(MatchText, ATokenThatSpellsNothingEndsIt) {
  const TokenTexts texts({"a", "b", "ab", ""});
  Trie trie;
  insert_path(trie, {0, 1, 0, 1, 3, 0});
  const Tokens prompt{2, 3, 2};
  const TextMatch found = match_text(trie, trie.find_root("n"), prompt, texts);
  EXPECT_EQ(found.tokens, (Tokens{0, 1, 3, 2}));
  EXPECT_EQ(match_text(trie, nullptr, prompt, texts).tokens, prompt);
  EXPECT_EQ(match_text(trie, trie.find_root("n"), Tokens{-7, 900}, texts).tokens, (Tokens{-7, 900}));
}

TEST(MatchText, TheOneUsedLastWhereBothLeadAsFar) {
  const TokenTexts texts({"a", "b", "ab"});
  Trie trie;
  insert_path(trie, {0, 1});
  insert_path(trie, {2});
  trie.touch(trie.match("n", Tokens{0, 1}).node);
  EXPECT_EQ(match_text(trie, trie.find_root("n"), Tokens{2, 0}, texts).tokens, (Tokens{0, 1, 0}));
  trie.touch(trie.match("n", Tokens{2}).node);
  EXPECT_EQ(match_text(trie, trie.find_root("n"), Tokens{2, 0}, texts).tokens, (Tokens{2, 0}));
}

TEST(TokenTexts, RefusesWhatIsTooLong) {
  EXPECT_THROW(TokenTexts({std::string(TokenTexts::kLongest + 1, 'x')}), Error);
  const TokenTexts texts({"x", "", "x"});
  std::set<Token> found;
  texts.visit_spelled("x", [&](Token token) { found.insert(token); });
  EXPECT_EQ(found, (std::set<Token>{0, 2}));
  EXPECT_EQ(texts.of(1), "");
  EXPECT_EQ(texts.of(-1), "");
  EXPECT_EQ(texts.of(3), "");
}

}  // namespace
}  // namespace kvtrie
