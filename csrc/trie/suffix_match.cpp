// SuffixIndex::continuation: the places that agree furthest, and their votes.
#include <algorithm>
#include <optional>

#include "trie/continuation.h"
#include "trie/suffix_index.h"
#include "trie/suffix_windows.h"

namespace kvtrie {

struct SuffixIndex::Found {
  Tokens tokens;  // behind it
  std::uint64_t last_used = 0;
  bool agrees = true;  // with what was chosen so far
};

namespace {

// The last tokens of the path to `from` and `rest`, at most `count`.
Tokens last_tokens(const Node* from, std::span<const Token> rest, std::size_t count) {
  Tokens tokens(rest.rbegin(), rest.rbegin() + static_cast<std::ptrdiff_t>(std::min(rest.size(), count)));
  for (UpwardTokens up(from, from->end()); tokens.size() < count && !up.over();) tokens.push_back(up.take());
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

// How many tokens before `end` are the last ones of `tokens`.
std::size_t common_suffix(const Node* node, std::int32_t end, std::span<const Token> tokens) noexcept {
  UpwardTokens up(node, end);
  std::size_t length = 0;
  while (length < tokens.size() && !up.over() && up.take() == tokens[tokens.size() - 1 - length]) ++length;
  return length;
}

}  // namespace

// The places of that window's chain that agree furthest, of those that something follows; none where none does.
std::vector<SuffixIndex::Found> SuffixIndex::longest(std::size_t level, const Shelf& shelf, const Node* root,
                                                     std::span<const Token> tokens, std::size_t most) const {
  std::vector<Found> best;
  const Windows windows(tokens);
  if (!windows.full(level)) return best;
  std::size_t furthest = kWindow[level], compared = 0;
  Id id = heads_[level][place_of(mix(windows.hash(level) ^ shelf.salt), heads_[level].size())];
  for (; id != 0 && compared < kCompared; id = link(level, id).next) {
    const Block& block = blocks_[id / kBlock];
    if (block.root != root) continue;
    const std::int32_t end = block.from + static_cast<std::int32_t>(id % kBlock) + 1;
    const std::size_t length = common_suffix(block.node, end, tokens);
    if (length < kWindow[level]) continue;
    ++compared;
    if (length < furthest) continue;
    const Node* node = UpwardTokens(block.node, end).node();
    Found found{continuation_behind(node, end, most), 0, true};
    if (found.tokens.empty()) continue;
    found.last_used = (end < node->end() ? node : last_used_child(node))->last_used();
    if (length > furthest) best.clear();
    furthest = length;
    best.push_back(std::move(found));
  }
  return best;
}

Tokens SuffixIndex::continuation(const Node* from, std::span<const Token> rest, std::size_t most) const {
  Tokens chosen;
  const Node* root = from;
  while (!root->is_root()) root = root->parent();
  const auto shelf = shelves_.find(root);
  if (shelf == shelves_.end() || most == 0) return chosen;
  const Tokens tokens = last_tokens(from, rest, kCompared);
  std::vector<Found> votes;
  for (std::size_t level = kLevels; level-- > 0 && votes.empty();)
    votes = longest(level, shelf->second, root, tokens, most);
  while (chosen.size() < most) {
    const std::optional<Token> next = elected(votes, chosen.size());
    if (!next) break;
    chosen.push_back(*next);
  }
  return chosen;
}

// The token that most of those that agree go on with, of several the one that was used last; the others agree no
// longer.
std::optional<Token> SuffixIndex::elected(std::vector<Found>& votes, std::size_t at) {
  struct Party {
    Token token;
    std::size_t votes;
    std::uint64_t last_used;
  };
  std::vector<Party> parties;
  for (const Found& each : votes) {
    if (!each.agrees || at >= each.tokens.size()) continue;
    const auto same = [&](const Party& party) { return party.token == each.tokens[at]; };
    auto party = std::find_if(parties.begin(), parties.end(), same);
    if (party == parties.end()) party = parties.insert(party, {each.tokens[at], 0, 0});
    ++party->votes;
    party->last_used = std::max(party->last_used, each.last_used);
  }
  if (parties.empty()) return std::nullopt;
  const auto behind = [](const Party& a, const Party& b) {
    return a.votes != b.votes ? a.votes < b.votes : a.last_used < b.last_used;
  };
  const Token token = std::max_element(parties.begin(), parties.end(), behind)->token;
  for (Found& each : votes) each.agrees = each.agrees && at < each.tokens.size() && each.tokens[at] == token;
  return token;
}

}  // namespace kvtrie
