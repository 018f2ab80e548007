#include "tree/summary.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "tree/node_state.h"

namespace kvtrie {
namespace {

constexpr auto kBlock = static_cast<std::int32_t>(kFingerprintBlock);

bool ends_a_block(const Node& node) { return node.start() / kBlock < node.end() / kBlock; }

// Of one edge: its last block, and those 1, 2, 4, 8, ... in front of it.
void add_edge(std::span<const Token> tokens, PathFingerprint& state, std::vector<Fingerprint>& found) {
  std::vector<Fingerprint> blocks;
  state.feed(tokens, [&](std::size_t, Fingerprint each) { blocks.push_back(each); });
  for (std::size_t back = 0; back < blocks.size(); back = std::max<std::size_t>(1, 2 * back))
    found.push_back(blocks[blocks.size() - 1 - back]);
}

}  // namespace

void Summary::look(const Node& node) {
  if (!ends_a_block(node)) return;
  latest_.push(state_of(&node).last_used_seconds);
  if (latest_.size() > most_) latest_.pop();
}

// Of several that were used at the same time, as many as there were in the first walk.
void Summary::take(const Node& node) {
  const double used = state_of(&node).last_used_seconds;
  if (latest_.empty() || used < latest_.top() || !ends_a_block(node)) return;
  if (used == latest_.top()) latest_.pop();
  add_path(&node, used);
}

void Summary::take_live(const Node* node) { add_path(node, std::numeric_limits<double>::infinity()); }

// The path down to `node`, from where it leaves those that were taken.
void Summary::add_path(const Node* node, double used) {
  std::vector<const Node*> path;
  for (; !node->is_root() && !ends_.contains(node); node = node->parent()) path.push_back(node);
  PathFingerprint state = node->is_root() ? PathFingerprint(node->name_space()) : ends_.at(node);
  paths_.push_back({used, {}});
  for (; !path.empty(); path.pop_back()) {
    add_edge(path.back()->tokens(), state, paths_.back().found);
    ends_.emplace(path.back(), state);
  }
}

std::vector<Fingerprint> Summary::finish() {
  std::stable_sort(paths_.begin(), paths_.end(), [](const Path& a, const Path& b) { return a.used > b.used; });
  std::unordered_set<Fingerprint> all;
  for (const Path& path : paths_) {
    for (const Fingerprint each : path.found) {
      if (all.size() < most_) all.insert(each);
    }
  }
  return {all.begin(), all.end()};
}

}  // namespace kvtrie
