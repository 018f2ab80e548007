#include "prefix_cache/summary.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "prefix_cache/node_state.h"

namespace kvtrie {
namespace {

struct Used {
  double when;
  const Node* node;

  friend bool operator<(const Used& a, const Used& b) { return a.when < b.when; }
};

// All nodes, as a heap: the one that was used last is its top.
std::vector<Used> by_use(const Trie& trie, std::span<Node* const> live) {
  std::vector<Used> found;
  for (const Node* node : live)
    if (!node->is_root()) found.push_back({std::numeric_limits<double>::infinity(), node});
  trie.visit([&](const Node& node) {
    if (!node.is_root()) found.push_back({state_of(&node).last_used_seconds, &node});
  });
  std::make_heap(found.begin(), found.end());
  return found;
}

class Summary {
 public:
  explicit Summary(std::size_t most) : most_(most) {}

  // The path down to `node`, from where it leaves those that were added.
  void add(const Node* node) {
    std::vector<const Node*> path;
    for (; !node->is_root() && !ends_.contains(node); node = node->parent()) path.push_back(node);
    PathFingerprint state = node->is_root() ? PathFingerprint(node->name_space()) : ends_.at(node);
    for (; !path.empty(); path.pop_back()) {
      add_edge(path.back()->tokens(), state);
      ends_.emplace(path.back(), state);
    }
  }

  bool full() const { return found_.size() >= most_; }
  std::vector<Fingerprint> take() const { return {found_.begin(), found_.end()}; }

 private:
  void add_edge(std::span<const Token> tokens, PathFingerprint& state) {
    std::vector<Fingerprint> blocks;
    state.feed(tokens, [&](std::size_t, Fingerprint each) { blocks.push_back(each); });
    for (std::size_t back = 0; back < blocks.size(); back = std::max<std::size_t>(1, 2 * back))
      add(blocks[blocks.size() - 1 - back]);
  }

  void add(Fingerprint each) {
    if (!full()) found_.insert(each);
  }

  const std::size_t most_;
  std::unordered_set<Fingerprint> found_;
  std::unordered_map<const Node*, PathFingerprint> ends_;  // of the nodes that were added
};

}  // namespace

std::vector<Fingerprint> summarise(const Trie& trie, std::span<Node* const> live, std::size_t most) {
  Summary summary(most);
  std::vector<Used> ahead = by_use(trie, live);
  while (!summary.full() && !ahead.empty()) {
    std::pop_heap(ahead.begin(), ahead.end());
    summary.add(ahead.back().node);
    ahead.pop_back();
  }
  return summary.take();
}

}  // namespace kvtrie
