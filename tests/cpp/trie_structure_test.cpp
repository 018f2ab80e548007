#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "key_shapes.h"
#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::counting;
using testing::expect_sound;
using testing::kind_of_error;
using testing::letters;
using testing::payload;
using testing::text;
using testing::TextPayload;
using testing::TextTrie;

TEST(Trie, KnowsNothingAtFirst) {
  Trie trie;
  EXPECT_EQ(trie.size(), 0U);
  EXPECT_EQ(trie.find_root("n"), nullptr);
  EXPECT_EQ(trie.match("n", text("abc")).node, nullptr);
  EXPECT_EQ(trie.match("n", {}).length, 0);
  EXPECT_EQ(trie.victim(0), nullptr);
  expect_sound(trie);
}

TEST(Trie, FindsTheBestMatchOverSeveralBranches) {
  TextTrie t;
  t.insert("the cat sat");
  t.insert("the cat naps");
  t.insert("the dog");
  const struct {
    const char* query;
    std::int32_t length;
    const char* edge;  // of the node where the match ends
  } cases[] = {
      {"", 0, ""},
      {"xyz", 0, ""},
      {"th", 2, "the "},
      {"the ", 4, "the "},
      {"the cat ", 8, "cat "},
      {"the cat s", 9, "sat"},
      {"the cat sat", 11, "sat"},
      {"the cat sat on", 11, "sat"},
      {"the dot", 6, "dog"},
  };
  for (const auto& c : cases) {
    const Match found = t.match(c.query);
    EXPECT_EQ(found.length, c.length) << c.query;
    EXPECT_EQ(letters(found.node->tokens()), c.edge) << c.query;
  }
}

TEST(Trie, MatchHasNoSideEffect) {
  TextTrie t;
  Node* node = t.insert("abcdef");
  const auto before = node->last_used();
  t.match("abc");
  t.trie.match("unknown", text("abc"));
  EXPECT_EQ(node->last_used(), before);
  EXPECT_EQ(t.trie.size(), 1U);
  EXPECT_EQ(t.trie.find_root("unknown"), nullptr);
}

TEST(Trie, MatchGoesOnBelowANode) {
  TextTrie t;
  t.insert("abcd");
  Node* ab = t.insert("ab");
  EXPECT_EQ(t.trie.match_below(ab, text("cx")).length, 3);
  EXPECT_EQ(t.trie.match_below(ab, text("x")).length, 2);
  EXPECT_EQ(t.trie.match_below(ab, {}).node, ab);
}

TEST(Trie, SplitsOnTheFirstDifferingToken) {
  TextTrie t;
  Node* lower = t.insert("abcdef");
  Node* leaf = t.insert("abcxyz");
  EXPECT_EQ(letters(lower->tokens()), "def");
  EXPECT_EQ(letters(leaf->tokens()), "xyz");
  EXPECT_EQ(lower->parent(), leaf->parent());
  EXPECT_EQ(letters(lower->parent()->tokens()), "abc");
  EXPECT_EQ(t.trie.size(), 3U);
  EXPECT_EQ(t.trie.token_count(), 9U);
  expect_sound(t.trie);
}

TEST(Trie, SplitDividesThePayloadAndLeavesLocksAndIdentityBelow) {
  TextTrie t;
  Node* node = t.insert("abcdef");
  t.trie.touch(node);
  const auto used = node->last_used();
  t.trie.lock(node);
  Node* upper = t.trie.split(node, 2);
  EXPECT_EQ(payload(upper).text, "ab");
  EXPECT_EQ(payload(node).text, "cdef");
  EXPECT_EQ(upper->last_used(), used);
  EXPECT_EQ(upper->locks(), 0U);
  EXPECT_EQ(node->locks(), 1U);
  EXPECT_TRUE(upper->in_order(0));
  EXPECT_EQ(node->parent(), upper);
  EXPECT_EQ(t.trie.token_count(), 6U);
  expect_sound(t.trie);
}

TEST(Trie, SplitAndAppendGiveTwoSiblings) {
  TextTrie t;
  t.insert("one two");
  t.insert("one three");
  t.insert("one");
  EXPECT_NE(t.at("one two"), nullptr);
  EXPECT_NE(t.at("one three"), nullptr);
  EXPECT_EQ(t.at("one t")->child_count(), 2U);
  EXPECT_EQ(t.at("one")->child_count(), 1U);
  expect_sound(t.trie);
}

TEST(Trie, KeepsItsInvariantsOverManyBranches) {
  TextTrie t;
  std::string talk;
  for (int turn = 0; turn < 40; ++turn) {
    talk += std::string(3, static_cast<char>('a' + turn % 26));
    t.insert(talk);
    t.insert(talk + "!" + std::to_string(turn));
    t.insert(talk.substr(0, talk.size() - 1) + "?");
    expect_sound(t.trie);
  }
  EXPECT_EQ(t.match(talk).length, 120);
}

TEST(Trie, JoinsANodeWithItsOnlyChild) {
  TextTrie t;
  Node* leaf = t.insert("abcdef");
  t.insert("abcdeg");
  Node* top = t.insert("ab");
  Node* middle = leaf->parent();
  t.trie.touch(top);
  const auto used = top->last_used();
  ASSERT_TRUE(t.trie.join_with_child(top));
  EXPECT_EQ(letters(middle->tokens()), "abcde");
  EXPECT_EQ(payload(middle).text, "abcde");
  EXPECT_EQ(middle->start(), 0);
  EXPECT_EQ(middle->last_used(), used);
  EXPECT_EQ(middle->child_count(), 2U);
  EXPECT_EQ(leaf->parent(), middle);
  EXPECT_EQ(t.trie.size(), 3U);
  expect_sound(t.trie);
}

TEST(Trie, DoesNotJoinWhatMustStayApart) {
  TextTrie t(2);
  Node* leaf = t.insert("abcd");
  Node* top = t.insert("ab");
  EXPECT_FALSE(t.trie.join_with_child(leaf));
  EXPECT_FALSE(t.trie.join_with_child(t.trie.root("n")));
  t.trie.lock(top);
  EXPECT_FALSE(t.trie.join_with_child(top));
  t.trie.unlock(top);
  t.trie.join_order(1, leaf);
  EXPECT_FALSE(t.trie.join_with_child(top));
  t.trie.leave_order(1, leaf);
  payload(top).joinable = false;
  EXPECT_FALSE(t.trie.join_with_child(top));
  payload(top).joinable = true;
  t.insert("abx");
  EXPECT_FALSE(t.trie.join_with_child(top));
  EXPECT_EQ(t.trie.size(), 3U);
  expect_sound(t.trie);
}

TEST(Trie, SplitThenJoinGivesBackEdgeAndPayload) {
  for (std::int32_t at = 1; at < 6; ++at) {
    TextTrie t;
    Node* node = t.insert("abcdef");
    ASSERT_TRUE(t.trie.join_with_child(t.trie.split(node, at)));
    EXPECT_EQ(letters(node->tokens()), "abcdef");
    EXPECT_EQ(payload(node).text, "abcdef");
    expect_sound(t.trie);
  }
}

TEST(Trie, RemovesOnlyUnlockedLeaves) {
  TextTrie t;
  Node* leaf = t.insert("abc");
  Node* top = t.insert("a");
  EXPECT_EQ(kind_of_error([&] { t.trie.remove(t.trie.root("n")); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.remove(top); }), ErrorKind::kArgument);
  t.trie.lock(leaf);
  EXPECT_EQ(kind_of_error([&] { t.trie.remove(leaf); }), ErrorKind::kArgument);
  t.trie.unlock(leaf);
  expect_sound(t.trie);
  const auto gone = t.trie.remove(leaf);
  EXPECT_EQ(static_cast<TextPayload&>(*gone).text, "bc");
  EXPECT_TRUE(top->is_leaf());
  EXPECT_EQ(t.trie.token_count(), 1U);
  expect_sound(t.trie);
}

TEST(Trie, RefusesWrongArgumentsAndChangesNothing) {
  TextTrie t;
  Node* leaf = t.insert("abc");
  Node* top = t.insert("a");
  Node* root = t.trie.root("n");
  for (const std::int32_t at : {-1, 0, 1, 3, 4}) {
    EXPECT_EQ(kind_of_error([&] { t.trie.split(leaf, at); }), ErrorKind::kArgument);
  }
  EXPECT_EQ(kind_of_error([&] { t.trie.split(root, 0); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.add_child(top, {}, nullptr); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.add_child(top, text("b"), nullptr); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.extend(top, text("b")); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.extend(root, text("b")); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.join_order(0, leaf); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.join_order(0, root); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.join_order(1, leaf); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.leave_order(0, root); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { t.trie.victim(-1); }), ErrorKind::kArgument);
  EXPECT_EQ(kind_of_error([&] { Trie trie(-1); }), ErrorKind::kArgument);
  EXPECT_EQ(t.trie.size(), 2U);
  EXPECT_EQ(t.trie.token_count(), 3U);
  expect_sound(t.trie);
}

TEST(Trie, AFailingPayloadLeavesTheTreeAsItWas) {
  TextTrie t;
  Node* leaf = t.insert("abcdef");
  Node* top = t.insert("ab");
  payload(leaf).refuse = true;
  EXPECT_EQ(kind_of_error([&] { t.trie.split(leaf, 4); }), ErrorKind::kCacheFull);
  payload(top).refuse = true;
  EXPECT_EQ(kind_of_error([&] { t.trie.join_with_child(top); }), ErrorKind::kCacheFull);
  EXPECT_EQ(letters(top->tokens()), "ab");
  EXPECT_EQ(letters(leaf->tokens()), "cdef");
  EXPECT_EQ(t.trie.size(), 2U);
  expect_sound(t.trie);
}

TEST(Trie, NamespacesShareNothingAndGoWhenTheyAreEmpty) {
  Trie trie;
  Node* a = trie.add_child(trie.root("a"), text("xyz"), nullptr);
  Node* b = trie.add_child(trie.root("b"), text("xy"), nullptr);
  EXPECT_EQ(trie.match("a", text("xyz")).length, 3);
  EXPECT_EQ(trie.match("b", text("xyz")).length, 2);
  EXPECT_EQ(trie.match("c", text("xyz")).length, 0);
  EXPECT_EQ(a->name_space(), "a");
  EXPECT_EQ(b->name_space(), "b");
  trie.lock(trie.root("a"));
  trie.remove(a);
  trie.remove(b);
  EXPECT_EQ(trie.find_root("b"), nullptr);
  ASSERT_NE(trie.find_root("a"), nullptr);
  trie.unlock(trie.find_root("a"));
  EXPECT_EQ(trie.find_root("a"), nullptr);
  expect_sound(trie);
}

TEST(Trie, VisitsNamespacesByNameAndChildrenByToken) {
  Trie trie;
  for (const char* name : {"b", "a"}) {
    for (const char* word : {"z", "m", "a"}) trie.add_child(trie.root(name), text(word), nullptr);
    trie.add_child(trie.find_child(trie.root(name), 'm'), text("q"), nullptr);
  }
  std::string seen;
  trie.visit([&](Node& node) { seen += node.is_root() ? node.name_space() + ":" : letters(node.tokens()); });
  EXPECT_EQ(seen, "a:amqzb:amqz");
}

// Nodes come and go between two pieces, also in places that the walk has passed.
TEST(Trie, AWalkInPiecesMeetsOnceWhatIsThereAllTheTime) {
  std::mt19937_64 random(20261126);
  for (const std::size_t piece : {1U, 7U, 200U}) {
    Trie trie;
    std::map<Node*, std::size_t> met;
    std::vector<Node*> fleeting;
    Token next = 0;
    const auto add = [&] { return trie.add_child(trie.root("n"), Tokens{next++}, nullptr); };
    for (int i = 0; i < 500; ++i) {
      met[add()] = 0;
      fleeting.push_back(add());
    }
    std::size_t most = 0;
    for (NodeWalk walk; !walk.over;) {
      const std::uint64_t before = trie.visits();
      trie.visit_some(walk, piece, [&](Node& node) {
        if (const auto found = met.find(&node); found != met.end()) ++found->second;
      });
      most = std::max<std::size_t>(most, trie.visits() - before);
      std::swap(fleeting.back(), fleeting[random() % fleeting.size()]);
      trie.remove(fleeting.back());
      fleeting.back() = add();
    }
    EXPECT_EQ(most, piece);
    EXPECT_EQ(met.size(), 500U);
    for (const auto& [node, times] : met) EXPECT_EQ(times, 1U);
  }
}

TEST(Trie, ExtendsALeafOneTokenAtATime) {
  TextTrie t;
  Node* leaf = t.insert("a");
  for (Token token = 0; token < 5000; ++token) t.trie.extend(leaf, Tokens{token});
  Tokens all = text("a");
  const Tokens more = counting(5000);
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_EQ(t.trie.match("n", all).length, 5001);
  EXPECT_EQ(t.trie.token_count(), 5001U);
  t.trie.extend(leaf, {});
  EXPECT_EQ(leaf->end(), 5001);
}

TEST(Trie, IsAsDeepAsItHasToBe) {
  constexpr std::int32_t kDepth = 100000;
  Trie trie;
  const Tokens path = counting(kDepth);
  Node* node = trie.root("n");
  for (std::int32_t i = 0; i < kDepth; ++i) {
    node = trie.add_child(node, Tokens{path[static_cast<std::size_t>(i)]}, nullptr);
    trie.join_order(0, node);
  }
  EXPECT_EQ(trie.match("n", path).node, node);
  EXPECT_EQ(node->name_space(), "n");
  expect_sound(trie);
  for (std::int32_t i = kDepth; i > kDepth / 2; --i) {
    Node* oldest = trie.victim(0);
    ASSERT_EQ(oldest->end(), i);
    trie.remove(oldest);
  }
  expect_sound(trie);
}

TEST(Trie, IsAsWideAsItHasToBe) {
  constexpr Token kWidth = 1 << 17;  // wide enough that some children share one 32-bit hash
  Trie trie;
  std::vector<Node*> children;
  Node* above[] = {trie.add_child(trie.root("n"), text("a"), nullptr),
                   trie.add_child(trie.root("n"), text("b"), nullptr)};
  for (Node* parent : above) {
    for (Token token = 0; token < kWidth; ++token) {
      children.push_back(trie.add_child(parent, Tokens{token}, nullptr));
    }
  }
  std::size_t next = 0;
  for (Node* parent : above) {
    for (Token token = 0; token < kWidth; ++token) ASSERT_EQ(trie.find_child(parent, token), children[next++]);
    for (Token token = kWidth; token < 2 * kWidth; ++token) ASSERT_EQ(trie.find_child(parent, token), nullptr);
  }
  expect_sound(trie);
  for (Node* child : children) trie.remove(child);
  EXPECT_EQ(trie.size(), 2U);
  expect_sound(trie);
}

TEST(Trie, BecomesWideAndNarrowAgain) {
  TextTrie t;
  for (int round = 0; round < 3; ++round) {
    for (char c = 'a'; c <= 'z'; ++c) {
      t.insert(std::string("x") + c + "tail");
      expect_sound(t.trie);
    }
    for (char c = 'a'; c <= 'z'; ++c) {
      t.trie.remove(t.at(std::string("x") + c + "tail"));
      expect_sound(t.trie);
    }
  }
}

// Six shapes of keys against a set of keys: what was put in is found, and nothing else ends at a node's end as a key.
TEST(Trie, HoldsEveryShapeOfKeys) {
  for (int shape = 0; shape < oracle::KeyShape::kCount; ++shape) {
    SCOPED_TRACE(oracle::KeyShape::kNames[static_cast<std::size_t>(shape)]);
    oracle::Random random(11);
    oracle::KeyShape keys(shape, random);
    TextTrie t(0);
    std::set<Tokens> known;
    for (int i = 0; i < 400; ++i) {
      const Tokens key = keys.draw(random);
      const Match found = t.trie.match_below(t.trie.root("n"), key);
      Node* node = found.length < found.node->end() ? t.trie.split(found.node, found.length) : found.node;
      const auto rest = std::span<const Token>(key).subspan(static_cast<std::size_t>(found.length));
      if (!rest.empty()) t.trie.add_child(node, rest, nullptr);
      known.insert(key);
    }
    expect_sound(t.trie);
    for (const Tokens& key : known) {
      const Match found = t.trie.match("n", key);
      ASSERT_EQ(found.length, static_cast<std::int32_t>(key.size()));
      ASSERT_EQ(found.node->end(), found.length);
    }
  }
}

}  // namespace
}  // namespace kvtrie
