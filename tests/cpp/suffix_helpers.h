// For the tests of the index of suffixes: paths of a trie.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "trie_helpers.h"

namespace kvtrie::testing {

// Adds what is missing, splitting where it has to; that is a use. The node where `tokens` end.
inline Node* add_path(Trie& trie, std::string_view name_space, const Tokens& tokens) {
  Node* root = trie.root(name_space);
  const Match match = trie.match_below(root, tokens);
  Node* node = match.length < match.node->end() ? trie.split(match.node, match.length) : match.node;
  const auto rest = std::span<const Token>(tokens).subspan(static_cast<std::size_t>(match.length));
  if (!rest.empty()) node = trie.add_child(node, rest, std::make_unique<TextPayload>(letters(rest), node->end()));
  trie.touch(node);
  return node;
}

}  // namespace kvtrie::testing
