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

namespace {

struct Begun {
  const Node* node;  // whose edge is still to be gone along, from `end` on
  std::int32_t end;
  Tokens tokens;  // before that
};

// The children, at most `count`, that were used last: the last one at the end.
std::vector<const Node*> last_used_children(const Node* node, std::size_t count) {
  std::vector<const Node*> children;
  for (const Node* each = node->first_child(); each != nullptr; each = each->next_sibling()) children.push_back(each);
  const auto later = [](const Node* a, const Node* b) { return a->last_used() > b->last_used(); };
  const auto end = children.begin() + static_cast<std::ptrdiff_t>(std::min(count, children.size()));
  std::partial_sort(children.begin(), end, children.end(), later);
  children.erase(end, children.end());
  std::reverse(children.begin(), children.end());
  return children;
}

}  // namespace

std::vector<Vote> ways_behind(const Node* node, std::int32_t end, std::size_t most, std::size_t count) {
  std::vector<Vote> votes;
  std::vector<Begun> open;
  open.push_back({node, end, {}});
  while (!open.empty() && votes.size() < count) {
    Begun at = std::move(open.back());
    open.pop_back();
    const bool more =
        append(at.tokens, at.node->tokens().subspan(static_cast<std::size_t>(at.end - at.node->start())), most);
    if (more && !at.node->is_leaf()) {
      for (const Node* child : last_used_children(at.node, count)) open.push_back({child, child->start(), at.tokens});
    } else if (!at.tokens.empty()) {
      votes.push_back({std::move(at.tokens), at.node->last_used(), true});
    }
  }
  return votes;
}

std::vector<Tokens> continuations(const Trie& trie, Node* from, std::span<const Token> rest, std::size_t most,
                                  std::size_t count) {
  const Match match = trie.match_below(from, rest);
  const auto length = from->end() + static_cast<std::int32_t>(rest.size());
  if (match.length < length || most == 0) return {};
  std::vector<Vote> votes = count > 1 ? ways_behind(match.node, length, most, kVotes) : std::vector<Vote>{};
  return alternatives(continuation_behind(match.node, length, most), votes, most, count);
}

Tokens continuation(const Trie& trie, Node* from, std::span<const Token> rest, std::size_t most) {
  const Match match = trie.match_below(from, rest);
  const auto length = from->end() + static_cast<std::int32_t>(rest.size());
  return match.length < length ? Tokens{} : continuation_behind(match.node, length, most);
}

}  // namespace kvtrie
