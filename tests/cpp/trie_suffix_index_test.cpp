// The index of suffixes: against looking through every path (tests/oracle/naive_suffixes.h).
#include "trie/suffix_index.h"

#include <gtest/gtest.h>

#include <random>

#include "naive_suffixes.h"
#include "suffix_helpers.h"
#include "trie/continuation.h"

namespace kvtrie {
namespace {

using oracle::NaiveSuffixes;
using testing::add_path;
using testing::letters;
using testing::text;

std::string behind(const Trie& trie, std::string_view name_space, std::string_view words, std::size_t most = 8) {
  Node* root = trie.find_root(name_space);
  return letters(trie.suffixes()->continuation(root, text(words), most));
}

TEST(SuffixIndex, GoesOnWhereAnyPathDid) {
  Trie trie;
  trie.index_suffixes(1000);
  add_path(trie, "n", text("the cat sat on the mat"));
  add_path(trie, "n", text("a dog and a cat sat down"));
  EXPECT_EQ(behind(trie, "n", "my cat sat"), " down");          // " cat sat": both, the later one by its use
  EXPECT_EQ(behind(trie, "n", "see the cat sat"), " on the ");  // four more letters agree
  EXPECT_EQ(behind(trie, "n", "xy"), "");
  EXPECT_EQ(behind(trie, "n", "xat"), "");
  EXPECT_EQ(behind(trie, "n", "my mat"), "");  // nothing follows there
  EXPECT_EQ(behind(trie, "n", "the cat sat", 3), " on");
  EXPECT_EQ(behind(trie, "n", "the cat sat", 0), "");
  testing::expect_sound(trie);
}

TEST(SuffixIndex, ManyWinOverTheLatest) {
  Trie trie;
  trie.index_suffixes(1000);
  for (const char* each : {"1 say yes please", "2 say yes thanks", "3 say yes please", "4 say no"})
    add_path(trie, "n", text(each));
  EXPECT_EQ(behind(trie, "n", "5 say", 4), " yes");
  EXPECT_EQ(behind(trie, "n", "5 say", 20), " yes please");
  EXPECT_EQ(behind(trie, "n", "5 say n", 20), "o");
}

TEST(SuffixIndex, OtherNamespacesAreUnknown) {
  Trie trie;
  trie.index_suffixes(1000);
  add_path(trie, "a", text("the secret word"));
  trie.lock(trie.root("b"));
  EXPECT_EQ(behind(trie, "b", "the secret"), "");
  add_path(trie, "b", text("no secret at all"));
  EXPECT_EQ(behind(trie, "b", "the secret"), " at all");
  EXPECT_EQ(behind(trie, "a", "no secret"), " word");
  testing::expect_sound(trie);
}

TEST(SuffixIndex, NeverProposesMedia) {
  Trie trie;
  trie.index_suffixes(1000);
  add_path(trie, "n", {1, 2, 3, 4, -7, -7, 5});
  Node* root = trie.root("n");
  EXPECT_EQ(trie.suffixes()->continuation(root, Tokens{1, 2, 3}, 9), (Tokens{4}));
  EXPECT_EQ(trie.suffixes()->continuation(root, Tokens{2, 3, 4}, 9), (Tokens{}));
  EXPECT_EQ(trie.suffixes()->continuation(root, Tokens{4, -7, -7}, 9), (Tokens{5}));
}

TEST(SuffixIndex, ReadsWhatWasThereBefore) {
  Trie trie;
  Node* old = add_path(trie, "n", text("said long ago"));
  add_path(trie, "n", text("said today"));
  trie.index_suffixes(1000);
  EXPECT_TRUE(trie.reads_suffixes());
  EXPECT_EQ(trie.suffixes()->size(), 0U);
  while (trie.read_suffixes(7)) testing::expect_sound(trie);
  EXPECT_EQ(behind(trie, "n", "was long"), " ago");
  EXPECT_EQ(trie.suffixes()->size(), trie.token_count());
  trie.remove(old);
  EXPECT_EQ(behind(trie, "n", "was long"), "");
  testing::expect_sound(trie);
  EXPECT_EQ(testing::kind_of_error([&] { trie.index_suffixes(10); }), ErrorKind::kArgument);
}

// Each call reads so many tokens and nodes at most, also of one long node, and all of them read the tree.
TEST(SuffixIndex, ReadsWhatWasThereInPieces) {
  constexpr std::size_t kPiece = 100, kPaths = 60, kLength = 70, kLong = 5000;
  Trie trie;
  for (std::size_t i = 0; i < kPaths; ++i) {
    Tokens path{static_cast<Token>(100 + i)};
    while (path.size() < kLength) path.push_back(static_cast<Token>(path.size() % 7));
    add_path(trie, i % 2 == 0 ? "a" : "b", path);
  }
  add_path(trie, "a", testing::counting(kLong));
  trie.index_suffixes(1 << 14);
  std::size_t calls = 0;
  for (bool more = true; more; ++calls) {
    const std::size_t before = trie.suffixes()->size();
    const std::uint64_t met = trie.visits();
    more = trie.read_suffixes(kPiece);
    EXPECT_LE(trie.suffixes()->size() - before + (trie.visits() - met), kPiece);
  }
  EXPECT_EQ(trie.suffixes()->size(), trie.token_count());
  EXPECT_LE(calls, (trie.token_count() + 4 * (trie.size() + 3)) / kPiece + 1);
  EXPECT_FALSE(trie.read_suffixes(kPiece));
  testing::expect_sound(trie);
}

// Where there is no room for all, those that were used last are there, and what comes meanwhile.
TEST(SuffixIndex, ReadsTheLatestFirst) {
  Trie trie;
  for (Token i = 0; i < 100; ++i) {
    Tokens path(SuffixIndex::kBlock, i);
    path.front() = 1000 + i;
    add_path(trie, "n", path);
  }
  trie.index_suffixes(20 * SuffixIndex::kBlock);
  add_path(trie, "n", Tokens(SuffixIndex::kBlock, 500));
  while (trie.read_suffixes(50)) testing::expect_sound(trie);
  const auto known = [&](Token i) {
    return trie.suffixes()->continuation(trie.root("n"), Tokens{i, i, i}, 1) == Tokens{i};
  };
  EXPECT_TRUE(known(500));
  for (Token i = 0; i < 45; ++i) EXPECT_FALSE(known(i)) << i;
  for (Token i = 90; i < 100; ++i) EXPECT_TRUE(known(i)) << i;  // of the last eighth of all uses
  EXPECT_EQ(trie.suffixes()->size(), 20 * SuffixIndex::kBlock);
  EXPECT_FALSE(trie.read_suffixes(50));
  add_path(trie, "n", Tokens(SuffixIndex::kBlock, 501));  // what comes later displaces the oldest
  EXPECT_TRUE(known(501));
  testing::expect_sound(trie);
}

// A namespace that fills the index while it is read leaves the others their share.
TEST(SuffixIndex, ReadsEverybodysShare) {
  Trie trie;
  for (Token i = 0; i < 50; ++i) {
    Tokens path(SuffixIndex::kBlock, i);
    path.front() = 1000 + i;
    add_path(trie, "quiet", path);
  }
  add_path(trie, "flood", testing::counting(100 * SuffixIndex::kBlock));
  trie.index_suffixes(40 * SuffixIndex::kBlock);
  while (trie.read_suffixes(64)) testing::expect_sound(trie);
  std::size_t quiet = 0;
  trie.suffixes()->visit([&](const Node& node, std::int32_t) { quiet += node.name_space() == "quiet" ? 1 : 0; });
  EXPECT_GE(quiet, 19 * SuffixIndex::kBlock);
  EXPECT_EQ(trie.suffixes()->size(), 40 * SuffixIndex::kBlock);
}

TEST(SuffixIndex, RoomIsRefusedByName) {
  EXPECT_EQ(testing::kind_of_error([] { SuffixIndex(0); }), ErrorKind::kArgument);
  EXPECT_EQ(testing::kind_of_error([] { SuffixIndex(SuffixIndex::kMost + 1); }), ErrorKind::kArgument);
}

TEST(SuffixIndex, TheOldestGoesFirst) {
  Trie trie;
  trie.index_suffixes(3 * SuffixIndex::kBlock);
  for (const char* each : {"1: sixteen long..", "2: sixteen long..", "3: sixteen long.."}) {
    add_path(trie, "n", text(std::string_view(each).substr(0, 16)));
  }
  EXPECT_EQ(behind(trie, "n", "1: si", 3), "xte");
  add_path(trie, "n", text("4: something"));
  EXPECT_EQ(behind(trie, "n", "1: si", 3), "xte");  // by the other two
  EXPECT_EQ(behind(trie, "n", "\n1:", 3), "");
  EXPECT_EQ(behind(trie, "n", "\n2: ", 3), "six");
  EXPECT_EQ(trie.suffixes()->size(), 2 * SuffixIndex::kBlock + 12);
  testing::expect_sound(trie);
}

// A namespace that floods the index displaces itself, once it has more than its share.
TEST(SuffixIndex, AFloodTakesNoMoreThanItsShare) {
  Trie trie;
  trie.index_suffixes(8 * SuffixIndex::kBlock);
  add_path(trie, "quiet", testing::counting(3 * SuffixIndex::kBlock));
  add_path(trie, "flood", testing::counting(100 * SuffixIndex::kBlock));
  EXPECT_EQ(trie.suffixes()->size(), 8 * SuffixIndex::kBlock);
  for (Token token = 2; token + 1 < static_cast<Token>(3 * SuffixIndex::kBlock); ++token)
    EXPECT_EQ(trie.suffixes()->continuation(trie.root("quiet"), Tokens{token - 2, token - 1, token}, 1),
              (Tokens{token + 1}));
  testing::expect_sound(trie);
}

// Random trees beside the twin: tokens come, nodes split, join, grow and go, namespaces come and go.
class Driver {
 public:
  // `late`: steps before there is an index, which then reads what is there a few tokens at a time.
  Driver(std::uint64_t seed, std::size_t places, std::size_t longest, int late)
      : random_(seed), places_(places), ample_(places == kAmple), longest_(longest), late_(late) {
    if (late == 0) trie_.index_suffixes(places);
  }
  static constexpr std::size_t kAmple = 1 << 14;

  void step() {
    if (++steps_ == late_) trie_.index_suffixes(places_);
    if (trie_.reads_suffixes() && below(2) == 0) trie_.read_suffixes(1 + below(12));
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return insert();
      case 3:
        return extend();
      case 4:
        return split();
      case 5:
        return join();
      case 6:
        return remove();
      default:
        return touch();
    }
  }

  void compare() {
    testing::expect_sound(trie_);
    if (trie_.suffixes() == nullptr) return;
    const SuffixIndex& index = *trie_.suffixes();
    const auto places = NaiveSuffixes::places_of(index), all = NaiveSuffixes::places_of(trie_);
    EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end()) << "a place is there twice";
    EXPECT_TRUE(std::includes(all.begin(), all.end(), places.begin(), places.end()));
    if (trie_.reads_suffixes()) {
      ++readings_;
    } else {
      EXPECT_TRUE(!ample_ || places == all) << "not every token of the tree is there";
    }
    for (int i = 0; i < 3; ++i) ask(places);
  }

  int answers() const { return answers_; }
  int readings() const { return readings_; }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  Token any_token() { return below(60) == 0 ? -5 : static_cast<Token>(below(3)); }

  // Often a piece of another path, so that long windows agree, too.
  Tokens any_tokens() {
    Tokens tokens;
    const std::size_t length = below(longest_) + 1;
    while (tokens.size() < length) {
      if (written_.empty() || below(3) == 0) {
        tokens.push_back(any_token());
        continue;
      }
      const Tokens& other = written_[below(written_.size())];
      const std::size_t from = below(other.size());
      tokens.insert(tokens.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
    tokens.resize(length);
    written_.push_back(tokens);
    return tokens;
  }

  std::string any_name() { return std::string(1, static_cast<char>('a' + below(3))); }

  Node* any_node(bool leaf) {
    std::vector<Node*> nodes;
    trie_.visit([&](Node& node) {
      if (!node.is_root() && (!leaf || node.is_leaf())) nodes.push_back(&node);
    });
    return nodes.empty() ? nullptr : nodes[below(nodes.size())];
  }

  void insert() {
    const std::string name = any_name();
    Tokens tokens = any_tokens();
    Node* above = any_node(false);
    if (above != nullptr && below(2) == 0 && above->name_space() == name) {
      const Tokens path = NaiveSuffixes::path_of(above);
      tokens.insert(tokens.begin(), path.begin(), path.begin() + static_cast<std::ptrdiff_t>(below(path.size()) + 1));
    }
    const auto known = static_cast<std::size_t>(trie_.match(name, tokens).length);
    add_path(trie_, name, tokens);
    twin_.added(name, tokens, known);
  }

  void extend() {
    Node* leaf = any_node(true);
    if (leaf == nullptr) return;
    const Tokens more = any_tokens();
    testing::payload(leaf).text += letters(more);
    const auto known = static_cast<std::size_t>(leaf->end());
    trie_.extend(leaf, more);
    twin_.added(leaf->name_space(), NaiveSuffixes::path_of(leaf), known);
  }

  void split() {
    Node* node = any_node(false);
    if (node == nullptr || node->tokens().size() < 2) return;
    trie_.split(node, node->start() + static_cast<std::int32_t>(below(node->tokens().size() - 1)) + 1);
  }

  void join() {
    if (Node* node = any_node(false)) trie_.join_with_child(node);
  }

  void remove() {
    for (std::size_t i = below(4); i < 4; ++i)
      if (Node* leaf = any_node(true)) trie_.remove(leaf);
  }

  void touch() {
    if (Node* node = any_node(false)) trie_.touch(node);
  }

  void ask(const std::vector<NaiveSuffixes::Place>& places) {
    Node* from = any_node(false);
    if (from == nullptr) return;
    Tokens rest = below(2) == 0 ? any_tokens() : Tokens{};
    Tokens asked = NaiveSuffixes::path_of(from);
    asked.insert(asked.end(), rest.begin(), rest.end());
    const std::size_t most = below(6);
    const Tokens found = trie_.suffixes()->continuation(from, rest, most);
    if (late_ == 0) {
      EXPECT_EQ(found, twin_.continuation(trie_, places, from->name_space(), asked, most));
    } else if (places.size() < SuffixIndex::kCompared) {  // of equal ones that came at unknown times any may be first
      EXPECT_EQ(found.empty(), twin_.continuation(trie_, places, from->name_space(), asked, most).empty());
    }
    answers_ += found.empty() ? 0 : 1;
  }

  std::mt19937_64 random_;
  const std::size_t places_;
  const bool ample_;
  const std::size_t longest_;
  const int late_;
  int steps_ = 0, readings_ = 0;
  Trie trie_{0};
  NaiveSuffixes twin_;
  std::vector<Tokens> written_{{1, 2, 1}};
  int answers_ = 0;
};

TEST(SuffixIndex, RandomTreesAgreeWithLookingThroughAllPaths) {
  int answers = 0;
  for (std::uint64_t seed = 1; seed <= 48; ++seed) {
    const std::size_t places = seed % 3 == 0 ? Driver::kAmple : seed % 3 == 1 ? 5 * SuffixIndex::kBlock : 1;
    Driver driver(seed, seed % 2 == 0 ? Driver::kAmple : places, seed % 4 < 2 ? 8 : 45, 0);
    for (int i = 0; i < 120 && !::testing::Test::HasFailure(); ++i) {
      driver.step();
      driver.compare();
    }
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
    answers += driver.answers();
  }
  EXPECT_GT(answers, 2000);
}

TEST(SuffixIndex, RandomTreesAreReadWhileTheyChange) {
  int answers = 0, readings = 0;
  for (std::uint64_t seed = 1; seed <= 48; ++seed) {
    const std::size_t places = seed % 4 == 0 ? 5 * SuffixIndex::kBlock : Driver::kAmple;
    Driver driver(seed, places, seed % 4 < 2 ? 8 : 45, 20 + static_cast<int>(seed % 3) * 20);
    for (int i = 0; i < 160 && !::testing::Test::HasFailure(); ++i) {
      driver.step();
      driver.compare();
    }
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
    answers += driver.answers();
    readings += driver.readings();
  }
  EXPECT_GT(answers, 1000);
  EXPECT_GT(readings, 500);
}

}  // namespace
}  // namespace kvtrie
