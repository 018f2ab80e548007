// Small words for the trie's tests: tokens from text, a payload that carries its tokens, paths of nodes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trie/trie.h"

namespace kvtrie::testing {

inline Tokens text(std::string_view letters) { return {letters.begin(), letters.end()}; }
inline std::string letters(std::span<const Token> tokens) { return {tokens.begin(), tokens.end()}; }

inline Tokens counting(std::size_t count, Token first = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Carries what its node's edge should say.
class TextPayload final : public Payload {
 public:
  explicit TextPayload(std::string text, std::int32_t start) : text(std::move(text)), start(start) {}

  std::unique_ptr<Payload> split_front(std::int32_t at) override {
    if (refuse) throw Error(ErrorKind::kCacheFull, "[TextPayload] refused");
    const auto count = static_cast<std::size_t>(at - start);
    auto front = std::make_unique<TextPayload>(text.substr(0, count), start);
    front->cost = cost;
    text.erase(0, count);
    start = at;
    return front;
  }
  void join(Payload& child) override {
    if (refuse) throw Error(ErrorKind::kCacheFull, "[TextPayload] refused");
    text += static_cast<TextPayload&>(child).text;
  }
  bool can_join(const Payload&) const override { return joinable; }
  double recompute_cost() const noexcept override { return cost; }

  std::string text;
  std::int32_t start;
  double cost = 1;
  bool joinable = true;
  bool refuse = false;
};

inline TextPayload& payload(const Node* node) { return static_cast<TextPayload&>(*node->payload()); }

inline void expect_sound(const Trie& trie) { EXPECT_EQ(trie.check(), std::vector<std::string>{}); }

template <class Call>
ErrorKind kind_of_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kInternal;
}

// A trie of one namespace, spoken to in letters. Every node is a member of order 0.
class TextTrie {
 public:
  explicit TextTrie(int orders = 1, VictimPolicy policy = VictimPolicy::kLru) : trie(orders, policy) {}

  // Adds what is missing, splitting where it has to; returns the node where `word` ends.
  Node* insert(std::string_view word) {
    const Tokens tokens = text(word);
    Node* root = trie.root("n");
    const Match known = trie.match_below(root, tokens);
    Node* node = known.length < known.node->end() ? trie.split(known.node, known.length) : known.node;
    const std::string_view rest = word.substr(static_cast<std::size_t>(known.length));
    if (rest.empty()) return node;
    Node* leaf = trie.add_child(node, text(rest), std::make_unique<TextPayload>(std::string(rest), node->end()));
    if (trie.orders() > 0) trie.join_order(0, leaf);
    return leaf;
  }

  Match match(std::string_view word) const { return trie.match("n", text(word)); }
  // The node that ends exactly at `word`.
  Node* at(std::string_view word) const {
    const Match found = match(word);
    return found.length == static_cast<std::int32_t>(word.size()) && found.node->end() == found.length ? found.node
                                                                                                       : nullptr;
  }

  // Removes victims of order 0 until there is none; their edges, in the order in which they went.
  std::vector<std::string> evict_all() {
    std::vector<std::string> gone;
    while (Node* node = trie.victim(0)) {
      gone.push_back(letters(node->tokens()));
      trie.remove(node);
    }
    return gone;
  }

  Trie trie;
};

// The edge of the node that goes first, or "" where none can go.
inline std::string victim(TextTrie& t, int order = 0) {
  Node* node = t.trie.victim(order);
  return node == nullptr ? "" : letters(node->tokens());
}

// A path of the namespace "default", and a use of it.
inline void add(Trie& trie, const Tokens& tokens) {
  Match match = trie.match("default", tokens);
  Node* node = match.node;
  if (node == nullptr) node = trie.root("default");
  if (match.node != nullptr && match.length < node->end()) node = trie.split(node, match.length);
  const auto rest = std::span<const Token>(tokens).subspan(static_cast<std::size_t>(match.length));
  if (!rest.empty()) node = trie.add_child(node, rest, std::make_unique<TextPayload>(letters(rest), node->end()));
  trie.lock(node);
  trie.unlock(node);  // that is a use
}

// Adds one of at most 12 tokens, few of them different and some of media, to the trie and to `paths`; the beginning of
// one of these.
inline Tokens add_random_path(Trie& trie, std::vector<Tokens>& paths, std::mt19937_64& random) {
  Tokens tokens(random() % 12 + 1);
  for (Token& token : tokens) token = static_cast<Token>(random() % 3) - (random() % 40 == 0 ? 5 : 0);
  add(trie, tokens);
  paths.push_back(std::move(tokens));
  Tokens asked = paths[random() % paths.size()];
  asked.resize(random() % (asked.size() + 1));
  return asked;
}

}  // namespace kvtrie::testing
