#include "trie/token_texts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kvtrie {

TokenTexts::TokenTexts(std::vector<std::string> texts) : texts_(std::move(texts)), next_(texts_.size(), -1) {
  require(texts_.size() <= kMost, "TokenTexts", "texts: got ", texts_.size(), ", allowed ", kMost);
  first_.reserve(texts_.size());
  for (std::size_t i = texts_.size(); i-- > 0;) {
    const std::string& text = texts_[i];
    require(text.size() <= kLongest, "TokenTexts", "texts[", i, "]: got ", text.size(), " bytes, allowed ", kLongest);
    if (text.empty()) continue;
    longest_ = std::max(longest_, text.size());
    Token& first = first_.try_emplace(text, -1).first->second;
    next_[i] = first;
    first = static_cast<Token>(i);
  }
}

std::string_view TokenTexts::of(Token token) const noexcept {
  if (token < 0 || static_cast<std::size_t>(token) >= texts_.size()) return {};
  return texts_[static_cast<std::size_t>(token)];
}

}  // namespace kvtrie
