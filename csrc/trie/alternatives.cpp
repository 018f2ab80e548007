#include "trie/alternatives.h"

#include <algorithm>
#include <optional>

namespace kvtrie {
namespace {

struct Party {
  std::size_t votes = 0;
  std::uint64_t last_used = 0;

  void join(const Vote& vote) noexcept {
    ++votes;
    last_used = std::max(last_used, vote.last_used);
  }
  bool is_behind(const Party& other) const noexcept {
    return votes != other.votes ? votes < other.votes : last_used < other.last_used;
  }
};

std::optional<Token> elected_at(std::span<const Vote> votes, std::size_t at) {
  std::vector<std::pair<Token, Party>> parties;
  for (const Vote& each : votes) {
    if (!each.agrees || at >= each.tokens.size()) continue;
    const auto same = [&](const auto& party) { return party.first == each.tokens[at]; };
    auto party = std::find_if(parties.begin(), parties.end(), same);
    if (party == parties.end()) party = parties.insert(party, {each.tokens[at], {}});
    party->second.join(each);
  }
  if (parties.empty()) return std::nullopt;
  const auto behind = [](const auto& a, const auto& b) { return a.second.is_behind(b.second); };
  return std::max_element(parties.begin(), parties.end(), behind)->first;
}

std::size_t common(std::span<const Token> a, std::span<const Token> b) noexcept {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// The tokens of each vote up to the first that no way has, that one included; 0: some way has all of them.
std::vector<std::size_t> partings(std::span<const Vote> votes, std::span<const Tokens> ways) {
  std::vector<std::size_t> lengths;
  for (const Vote& vote : votes) {
    std::size_t length = 0;
    for (const Tokens& way : ways) length = std::max(length, common(vote.tokens, way));
    const bool ends = std::any_of(ways.begin(), ways.end(), [&](const Tokens& way) {
      return way.size() == length && common(vote.tokens, way) == length;
    });
    lengths.push_back(length == vote.tokens.size() || ends ? 0 : length + 1);
  }
  return lengths;
}

// The next way begins as this vote up to its parting; none: no vote parts.
std::optional<std::size_t> strongest(std::span<const Vote> votes, std::span<const std::size_t> lengths) {
  std::optional<std::size_t> best;
  Party most;
  for (std::size_t i = 0; i < votes.size(); ++i) {
    if (lengths[i] == 0) continue;
    Party party;
    for (std::size_t j = 0; j < votes.size(); ++j)
      if (lengths[j] == lengths[i] && common(votes[j].tokens, votes[i].tokens) >= lengths[i]) party.join(votes[j]);
    if (!best || most.is_behind(party)) best = i, most = party;
  }
  return best;
}

}  // namespace

Tokens elected(std::span<Vote> votes, std::size_t at, std::size_t most) {
  Tokens chosen;
  for (; at < most; ++at) {
    const std::optional<Token> next = elected_at(votes, at);
    if (!next) break;
    chosen.push_back(*next);
    for (Vote& each : votes) each.agrees = each.agrees && at < each.tokens.size() && each.tokens[at] == *next;
  }
  return chosen;
}

std::vector<Tokens> alternatives(Tokens first, std::span<Vote> votes, std::size_t most, std::size_t count) {
  std::vector<Tokens> ways;
  if (first.empty() || count == 0) return ways;
  for (Vote& each : votes) each.tokens.resize(std::min(each.tokens.size(), most));
  ways.push_back(std::move(first));
  while (ways.size() < count) {
    const std::vector<std::size_t> lengths = partings(votes, ways);
    const std::optional<std::size_t> best = strongest(votes, lengths);
    if (!best) break;
    const Token* const begin = votes[*best].tokens.data();
    Tokens way(begin, begin + lengths[*best]);
    for (Vote& each : votes) each.agrees = common(each.tokens, way) == way.size();
    const Tokens rest = elected(votes, way.size(), most);
    way.insert(way.end(), rest.begin(), rest.end());
    ways.push_back(std::move(way));
  }
  return ways;
}

}  // namespace kvtrie
