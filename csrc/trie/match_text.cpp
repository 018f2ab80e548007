#include "trie/match_text.h"

#include <algorithm>
#include <string>
#include <vector>

namespace kvtrie {
namespace {

constexpr std::size_t kFewChildren = 16;  // which are looked at one by one

class TextSearch {
 public:
  TextSearch(const Trie& trie, std::span<const Token> tokens, const TokenTexts& texts) : trie_(trie), texts_(texts) {
    borders_.push_back(0);
    for (const Token token : tokens) {
      const std::string_view own = texts.of(token);
      if (own.empty()) break;
      text_ += own;
      borders_.push_back(text_.size());
    }
  }

  void run(const Node* root) {
    add_children(root, 0);
    while (!open_.empty()) {
      const Place place = open_.back();
      open_.pop_back();
      walk(*place.node, place.at);
    }
  }

  // The node and length of the best path; none: null.
  const Node* node() const noexcept { return best_; }
  std::int32_t length() const noexcept { return length_; }
  // How many of the given tokens the path stands for.
  std::size_t replaced() const noexcept {
    return static_cast<std::size_t>(std::lower_bound(borders_.begin(), borders_.end(), reached_) - borders_.begin());
  }

 private:
  struct Place {
    const Node* node;
    std::size_t at;  // of the text: where its edge begins
  };

  void walk(const Node& node, std::size_t at) {
    std::int32_t length = node.start();
    for (const Token token : node.tokens()) {
      const std::string_view own = texts_.of(token);
      if (own.empty() || text_.compare(at, own.size(), own) != 0) return;
      at += own.size();
      consider(node, ++length, at);
    }
    if (at < text_.size()) add_children(&node, at);
  }

  void consider(const Node& node, std::int32_t length, std::size_t at) {
    const bool further = at > reached_;
    const bool later = at == reached_ && best_ != nullptr && node.last_used() > best_->last_used();
    if ((!further && !later) || !std::binary_search(borders_.begin(), borders_.end(), at)) return;
    best_ = &node;
    length_ = length;
    reached_ = at;
  }

  void add_children(const Node* node, std::size_t at) {
    if (node->child_count() <= kFewChildren) {
      for (const Node* child = node->first_child(); child != nullptr; child = child->next_sibling())
        open_.push_back({child, at});
      return;
    }
    const std::size_t longest = std::min(texts_.longest(), text_.size() - at);
    for (std::size_t bytes = 1; bytes <= longest; ++bytes) {
      texts_.visit_spelled(std::string_view(text_).substr(at, bytes), [&](Token token) {
        const Node* child = trie_.find_child(node, token);
        if (child != nullptr) open_.push_back({child, at});
      });
    }
  }

  const Trie& trie_;
  const TokenTexts& texts_;
  std::string text_;
  std::vector<std::size_t> borders_;  // offsets at which one of the given tokens ends, ascending
  std::vector<Place> open_;
  const Node* best_ = nullptr;
  std::int32_t length_ = 0;
  std::size_t reached_ = 0;
};

// The tokens of the path down to `node`, up to `length`.
Tokens path_up_to(const Node* node, std::int32_t length) {
  Tokens tokens(static_cast<std::size_t>(length));
  for (; node != nullptr && !node->is_root(); node = node->parent()) {
    const std::span<const Token> edge = node->tokens();
    const auto count = std::min<std::size_t>(edge.size(), tokens.size() - static_cast<std::size_t>(node->start()));
    std::copy_n(edge.begin(), count, tokens.begin() + node->start());
  }
  return tokens;
}

}  // namespace

TextMatch match_text(const Trie& trie, const Node* root, std::span<const Token> tokens, const TokenTexts& texts) {
  TextMatch result;
  TextSearch search(trie, tokens, texts);
  if (root != nullptr) search.run(root);
  if (search.node() != nullptr) result.tokens = path_up_to(search.node(), search.length());
  result.known = static_cast<std::int32_t>(result.tokens.size());
  const std::size_t replaced = search.node() == nullptr ? 0 : search.replaced();
  result.tokens.insert(result.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(replaced), tokens.end());
  return result;
}

}  // namespace kvtrie
