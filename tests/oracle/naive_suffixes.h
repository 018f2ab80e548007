// The index of suffixes, naively: every place is a whole path, looked through one by one.
//
// Which places there are is what the tree has, or, where the index had no room for all, what it says that it has; when
// each came is told by whoever adds tokens. Threads: none of its own. Units: tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trie/suffix_index.h"
#include "trie/trie.h"

namespace kvtrie::oracle {

class NaiveSuffixes {
 public:
  using Place = std::pair<std::string, Tokens>;  // the namespace, and the path to behind its last token

  // The tokens of `path` from `from` on are new.
  void added(const std::string& name_space, const Tokens& path, std::size_t from) {
    for (std::size_t end = from + 1; end <= path.size(); ++end) came_[{name_space, first(path, end)}] = ++now_;
  }

  // Every place of the tree, each once.
  static std::vector<Place> places_of(const Trie& trie) {
    std::vector<Place> places;
    trie.visit([&](Node& node) {
      const Tokens path = path_of(&node);
      for (std::int32_t end = node.start() + 1; end <= node.end(); ++end)
        places.emplace_back(node.name_space(), first(path, static_cast<std::size_t>(end)));
    });
    std::sort(places.begin(), places.end());
    return places;
  }
  static std::vector<Place> places_of(const SuffixIndex& index) {
    std::vector<Place> places;
    index.visit([&](const Node& node, std::int32_t end) {
      places.emplace_back(node.name_space(), first(path_of(&node), static_cast<std::size_t>(end)));
    });
    std::sort(places.begin(), places.end());
    return places;
  }

  // What follows the longest end of `tokens` that one of `places` has; by the rules of suffix_index.h.
  Tokens continuation(const Trie& trie, const std::vector<Place>& places, const std::string& name_space,
                      const Tokens& tokens, std::size_t most) const {
    const std::vector<Known> nodes = all_nodes(trie);
    for (std::size_t level = SuffixIndex::kWindow.size(); level-- > 0;) {
      std::vector<Vote> votes = furthest(nodes, places, name_space, tokens, SuffixIndex::kWindow[level], most);
      if (!votes.empty()) return elect(std::move(votes), most);
    }
    return {};
  }

  static std::size_t common_end(const Tokens& a, const Tokens& b) {
    const auto [end, other] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
    return std::min<std::size_t>(static_cast<std::size_t>(end - a.rbegin()), SuffixIndex::kCompared);
  }

  static Tokens path_of(const Node* node) {
    Tokens tokens;
    for (; !node->is_root(); node = node->parent())
      tokens.insert(tokens.begin(), node->tokens().begin(), node->tokens().end());
    return tokens;
  }

 private:
  struct Known {  // a node
    std::string name_space;
    Tokens path;  // to its end
    std::size_t start;
    std::uint64_t last_used;
  };
  struct Vote {
    Tokens tokens;
    std::uint64_t last_used;
  };

  static Tokens first(const Tokens& path, std::size_t count) {
    return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  static std::vector<Known> all_nodes(const Trie& trie) {
    std::vector<Known> nodes;
    trie.visit([&](Node& node) {
      if (!node.is_root())
        nodes.push_back({node.name_space(), path_of(&node), static_cast<std::size_t>(node.start()), node.last_used()});
    });
    return nodes;
  }

  // The node that has the token behind `path`, of several the one used last.
  static const Known* next_of(const std::vector<Known>& nodes, const Place& place) {
    const Known* found = nullptr;
    for (const Known& each : nodes) {
      const auto& [name_space, path] = place;
      const bool covers = each.name_space == name_space && each.start <= path.size() && path.size() < each.path.size();
      if (!covers || !std::equal(path.begin(), path.end(), each.path.begin())) continue;
      if (found == nullptr || each.last_used > found->last_used) found = &each;
    }
    return found;
  }

  static Vote vote_of(const std::vector<Known>& nodes, Place place, std::size_t most) {
    Vote vote{{}, 0};
    while (vote.tokens.size() < most) {
      const Known* next = next_of(nodes, place);
      if (next == nullptr || next->path[place.second.size()] < 0) break;
      if (vote.tokens.empty()) vote.last_used = next->last_used;
      vote.tokens.push_back(next->path[place.second.size()]);
      place.second.push_back(vote.tokens.back());
    }
    return vote;
  }

  std::vector<Vote> furthest(const std::vector<Known>& nodes, const std::vector<Place>& places,
                             const std::string& name_space, const Tokens& tokens, std::size_t window,
                             std::size_t most) const {
    std::vector<std::pair<std::uint64_t, const Place*>> alike;
    for (const Place& place : places)
      if (place.first == name_space && common_end(place.second, tokens) >= window)
        alike.emplace_back(came_.at(place), &place);
    std::sort(alike.rbegin(), alike.rend());
    if (alike.size() > SuffixIndex::kCompared) alike.resize(SuffixIndex::kCompared);
    std::vector<Vote> votes;
    std::size_t longest = 0;
    for (const auto& [came, place] : alike) {
      const std::size_t length = common_end(place->second, tokens);
      Vote vote = vote_of(nodes, *place, most);
      if (vote.tokens.empty() || length < longest) continue;
      if (length > longest) votes.clear();
      longest = length;
      votes.push_back(std::move(vote));
    }
    return votes;
  }

  // Most votes, then the latest use, then the place that came last, which is the first of them.
  static Tokens elect(std::vector<Vote> votes, std::size_t most) {
    Tokens chosen;
    while (chosen.size() < most && !votes.empty()) {
      std::map<Token, std::pair<std::size_t, std::uint64_t>> parties;  // votes, the latest use
      for (const Vote& vote : votes) {
        auto& [count, last_used] = parties[vote.tokens[chosen.size()]];
        ++count;
        last_used = std::max(last_used, vote.last_used);
      }
      const auto weaker = [&](const Vote& a, const Vote& b) {
        return parties.at(a.tokens[chosen.size()]) < parties.at(b.tokens[chosen.size()]);
      };
      const Token next = std::max_element(votes.begin(), votes.end(), weaker)->tokens[chosen.size()];
      chosen.push_back(next);
      std::erase_if(votes, [&](const Vote& vote) {
        return vote.tokens[chosen.size() - 1] != next || vote.tokens.size() <= chosen.size();
      });
    }
    return chosen;
  }

  std::map<Place, std::uint64_t> came_;
  std::uint64_t now_ = 0;
};

}  // namespace kvtrie::oracle
