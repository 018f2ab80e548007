#include "plan/explain.h"

#include <algorithm>
#include <unordered_map>

#include "plan/planner.h"
#include "tree/cost_model.h"

namespace kvtrie {

const char* name_of(MatchEnd end) noexcept {
  switch (end) {
    case MatchEnd::kDiffers:
      return "differs";
    case MatchEnd::kTreeEnds:
      return "tree_ends";
    case MatchEnd::kWholeKnown:
      return "whole_known";
    case MatchEnd::kUnknown:
      break;
  }
  return "unknown";
}

namespace {

std::uint64_t hash_run(std::span<const Token> tokens) noexcept {
  std::uint64_t hash = 0x9E3779B97F4A7C15;
  for (const Token token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xBF58476D1CE4E5B9;
    hash ^= hash >> 29;
  }
  return hash;
}

// The runs of `least` tokens in a text: where each first begins.
std::unordered_map<std::uint64_t, std::int32_t> first_runs(std::span<const Token> text, std::size_t least) {
  std::unordered_map<std::uint64_t, std::int32_t> runs;
  for (std::size_t at = 0; at + least <= text.size(); ++at)
    runs.try_emplace(hash_run(text.subspan(at, least)), static_cast<std::int32_t>(at));
  return runs;
}

std::int32_t agreeing(std::span<const Token> a, std::span<const Token> b) noexcept {
  return static_cast<std::int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// The children of a node, kLookedAt of them at most: those that were added last.
template <class Each>
void visit_children(const Node* node, const Each& each) {
  std::size_t left = Explanation::kLookedAt;
  for (Node* child = node->first_child(); child != nullptr && left > 0; child = child->next_sibling(), --left)
    each(child);
}

Node* latest_used_child(const Node* node) noexcept {
  Node* latest = nullptr;
  visit_children(node, [&](Node* child) {
    if (latest == nullptr || child->last_used() > latest->last_used()) latest = child;
  });
  return latest;
}

// Where the path's match ends; the path itself may go on behind it.
Match match_on(const Path& path, Node* root) noexcept {
  Match match{root, path.matched};
  for (Node* node : path.nodes) {
    if (node->start() >= path.matched) break;
    match.node = node;
  }
  return match;
}

// The nodes whose edges begin where the match ends, the latest used first, kBranches at most.
std::vector<const Node*> branches_at(const Match& match) {
  std::vector<const Node*> found;
  if (match.length < match.node->end()) {
    found.push_back(match.node);
    return found;
  }
  visit_children(match.node, [&](Node* child) { found.push_back(child); });
  const std::size_t count = std::min(found.size(), Explanation::kBranches);
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), found.end(),
                    [](const Node* a, const Node* b) { return a->last_used() > b->last_used(); });
  found.resize(count);
  return found;
}

bool is_nearer(const Rejoin& a, const Rejoin& b) noexcept {
  if (a.tokens == 0 || b.tokens == 0) return a.tokens > b.tokens;
  return a.prompt + a.known < b.prompt + b.known;
}

}  // namespace

Tokens continuation(const Node* node, std::int32_t at, std::size_t count) {
  Tokens found;
  while (node != nullptr && found.size() < count) {
    const std::span<const Token> edge = node->tokens().subspan(static_cast<std::size_t>(at - node->start()));
    const std::size_t taken = std::min(edge.size(), count - found.size());
    found.insert(found.end(), edge.begin(), edge.begin() + static_cast<std::ptrdiff_t>(taken));
    at = node->end();
    node = latest_used_child(node);
  }
  return found;
}

Rejoin find_rejoin(std::span<const Token> prompt, std::span<const Token> known, std::int32_t least) {
  const auto run = static_cast<std::size_t>(least);
  const auto runs = first_runs(known, run);
  Rejoin best;
  for (std::size_t at = 0; at + run <= prompt.size(); ++at) {
    const auto offset = static_cast<std::int32_t>(at);
    if (best.tokens > 0 && offset >= best.prompt + best.known) break;
    const auto found = runs.find(hash_run(prompt.subspan(at, run)));
    if (found == runs.end()) continue;
    const auto there = static_cast<std::size_t>(found->second);
    const Rejoin other{offset, found->second, agreeing(prompt.subspan(at), known.subspan(there))};
    if (other.tokens >= least && is_nearer(other, best)) best = other;
  }
  return best;
}

void explain_match(Node* root, const Path& path, std::span<const Token> prompt, Explanation& explanation) {
  if (root == nullptr || root->is_leaf()) return;
  const Match match = match_on(path, root);
  const std::span<const Token> rest = prompt.subspan(static_cast<std::size_t>(match.length));
  const bool inside = match.length < match.node->end();
  explanation.branches = inside ? 1 : match.node->child_count();
  explanation.end = rest.empty()                ? MatchEnd::kWholeKnown
                    : explanation.branches == 0 ? MatchEnd::kTreeEnds
                                                : MatchEnd::kDiffers;
  if (explanation.end != MatchEnd::kDiffers) return;
  for (const Node* branch : branches_at(match)) {
    Tokens known = continuation(branch, match.length, Explanation::kKnown);
    const Rejoin found = find_rejoin(rest.first(std::min(rest.size(), Explanation::kKnown)), known);
    if (!explanation.known.empty() && !is_nearer(found, explanation.rejoin)) continue;
    explanation.known = std::move(known);
    explanation.rejoin = found;
  }
}

std::vector<CacheReach> reach_of_each(const CacheTable& caches, const Planner& planner, const Path& path,
                                      std::int32_t limit) {
  std::vector<std::int32_t> kept;
  if (!caches.states.empty()) kept = planner.kept_lengths(path);
  kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(std::min(kept.size(), Explanation::kKept)));
  std::vector<CacheReach> reaches;
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    CacheReach& reach = reaches.emplace_back();
    reach.layers = caches.all[i]->layers();
    reach.deepest = planner.reach_alone(path, i, limit);
    reach.states = i >= caches.attention.size();
    if (reach.states) {
      reach.kept = kept;
    } else {
      const Visibility& sees = caches.attention[i]->visibility();
      reach.window = sees.window, reach.chunk = sees.chunk;
    }
  }
  return reaches;
}

void add_seconds(const CostModel& costs, Explanation& explanation) {
  const ReusePlan& plan = explanation.plan;
  if (const std::optional<double> each = costs.seconds_per_token())
    explanation.compute_seconds = *each * (explanation.length - plan.reusable);
  if (plan.bytes_moved == 0) {
    explanation.load_seconds = 0;
  } else if (const std::optional<double> each = costs.seconds_per_byte(plan.tier)) {
    explanation.load_seconds = *each * static_cast<double>(plan.bytes_moved);
  }
}

}  // namespace kvtrie
