// The spelling of each token of a vocabulary: bytes by token, and tokens by bytes.
//
// Several tokens may spell the same. One that spells nothing (a special token whose text nobody may write, an id that
// the vocabulary lacks) is never found by its bytes. Any bytes are allowed, so that a caller can give tokens of their
// own kind, such as special ones, bytes that no text has.
//
// Threads: immutable. Cost: O(bytes of the vocabulary) to make, O(bytes) to look up. Errors: kArgument for more than
// 2^24 tokens, or one of more than kLongest bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trie/edge.h"

namespace kvtrie {

class TokenTexts {
 public:
  static constexpr std::size_t kLongest = 4096, kMost = std::size_t{1} << 24;

  explicit TokenTexts(std::vector<std::string> texts);  // of the tokens 0, 1, ...
  TokenTexts(const TokenTexts&) = delete;
  TokenTexts& operator=(const TokenTexts&) = delete;

  std::size_t size() const noexcept { return texts_.size(); }
  std::size_t longest() const noexcept { return longest_; }  // bytes of one token
  // Empty for a token that spells nothing, or is none of the vocabulary's.
  std::string_view of(Token token) const noexcept;
  // Calls `each` with every token that spells exactly these bytes.
  template <class Each>
  void visit_spelled(std::string_view bytes, const Each& each) const {
    const auto found = first_.find(bytes);
    if (found == first_.end()) return;
    for (Token token = found->second; token >= 0; token = next_[static_cast<std::size_t>(token)]) each(token);
  }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, Token> first_;  // refers to texts_
  std::vector<Token> next_;                            // another token that spells the same; -1: none
  std::size_t longest_ = 0;
};

}  // namespace kvtrie
