// SuffixIndex::continuation: the places that agree furthest, and their votes.
#include <algorithm>
#include <iterator>
#include <utility>

#include "trie/continuation.h"
#include "trie/suffix_index.h"
#include "trie/suffix_windows.h"

namespace kvtrie {

struct SuffixIndex::Found {
  const Node* node;
  std::int32_t end;
  Vote vote;  // what was used last behind it
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
  const ChainHeads& heads = heads_[level];
  const std::uint64_t hash = mix(windows.hash(level) ^ shelf.salt);
  for (std::size_t table = heads.tables(); table-- > 0;) {
    Id id = heads[heads.begin_of(table) + place_of(hash, heads.size_of(table))];
    for (; id != 0 && compared < kCompared; id = link(level, id).next) {
      const Block& block = blocks_[id / kBlock];
      if (block.root != root) continue;
      const std::int32_t end = block.from + static_cast<std::int32_t>(id % kBlock) + 1;
      const std::size_t length = common_suffix(block.node, end, tokens);
      if (length < kWindow[level]) continue;
      ++compared;
      if (length < furthest) continue;
      std::optional<Found> found = found_at(block, end, most);
      if (!found) continue;
      if (length > furthest) best.clear();
      furthest = length;
      best.push_back(*std::move(found));
    }
  }
  return best;
}

// None where nothing follows that place.
std::optional<SuffixIndex::Found> SuffixIndex::found_at(const Block& block, std::int32_t end, std::size_t most) {
  const Node* node = UpwardTokens(block.node, end).node();
  Found found{node, end, {continuation_behind(node, end, most), 0, true}};
  if (found.vote.tokens.empty()) return std::nullopt;
  found.vote.last_used = (end < node->end() ? node : last_used_child(node))->last_used();
  return found;
}

Tokens SuffixIndex::continuation(const Node* from, std::span<const Token> rest, std::size_t most) const {
  std::vector<Tokens> ways = continuations(from, rest, most, 1);
  return ways.empty() ? Tokens{} : std::move(ways.front());
}

std::vector<Tokens> SuffixIndex::continuations(const Node* from, std::span<const Token> rest, std::size_t most,
                                               std::size_t count) const {
  const Node* root = from;
  while (!root->is_root()) root = root->parent();
  const auto shelf = shelves_.find(root);
  if (shelf == shelves_.end() || most == 0) return {};
  const Tokens tokens = last_tokens(from, rest, kCompared);
  std::vector<Found> places;
  for (std::size_t level = kLevels; level-- > 0 && places.empty();)
    places = longest(level, shelf->second, root, tokens, most);
  std::vector<Vote> votes;
  votes.reserve(places.size());
  for (Found& each : places) votes.push_back(std::move(each.vote));
  Tokens first = elected(votes, 0, most);
  if (count < 2) return alternatives(std::move(first), {}, most, count);
  votes.clear();
  for (const Found& each : places) {
    std::vector<Vote> own = ways_behind(each.node, each.end, most, kVotes - std::min(kVotes, votes.size()));
    std::move(own.begin(), own.end(), std::back_inserter(votes));
  }
  return alternatives(std::move(first), votes, most, count);
}

}  // namespace kvtrie
