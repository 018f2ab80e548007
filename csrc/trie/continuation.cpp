#include "trie/continuation.h"

#include <algorithm>

namespace kvtrie {

const Node* last_used_child(const Node* node) noexcept {
  const Node* last = node->first_child();
  for (const Node* each = last; each != nullptr; each = each->next_sibling())
    if (each->last_used() > last->last_used()) last = each;
  return last;
}

namespace {

// Whether more may follow.
bool append(Tokens& tokens, std::span<const Token> edge, std::size_t most) {
  const std::span<const Token> some = edge.first(std::min(edge.size(), most - tokens.size()));
  const auto end = std::find_if(some.begin(), some.end(), [](Token token) { return token < 0; });
  tokens.insert(tokens.end(), some.begin(), end);
  return end == some.end() && tokens.size() < most;
}

}  // namespace

Tokens continuation_behind(const Node* node, std::int32_t end, std::size_t most) {
  Tokens tokens;
  if (most == 0) return tokens;
  const auto known = static_cast<std::size_t>(end - node->start());
  if (!append(tokens, node->tokens().subspan(known), most)) return tokens;
  for (node = last_used_child(node); node != nullptr; node = last_used_child(node))
    if (!append(tokens, node->tokens(), most)) break;
  return tokens;
}

Tokens continuation(const Trie& trie, Node* from, std::span<const Token> rest, std::size_t most) {
  const Match match = trie.match_below(from, rest);
  const auto length = from->end() + static_cast<std::int32_t>(rest.size());
  return match.length < length ? Tokens{} : continuation_behind(match.node, length, most);
}

}  // namespace kvtrie
