#include "tree/demand.h"

#include <algorithm>

#include "base/error.h"

namespace kvtrie {

// From the top each would get one more, but no more than the one above it. As none had more than the one above it
// before, that is one more for each, but no more than what the node at `from` has.
bool Demand::ask(Node* node, std::int32_t from) noexcept {
  const Node* above = node;
  while (!above->is_root() && above->start() >= from) above = above->parent();
  const std::uint8_t most = above->is_root() ? after_ : state_of(above).asked();
  bool newly_wanted = false;
  for (; node != above; node = node->parent()) {
    std::uint8_t& asked = state_of(node).asked_;
    if (asked >= most) continue;
    ++asked;
    newly_wanted = newly_wanted || asked == after_;
  }
  return newly_wanted;
}

bool Demand::want(Node* node) noexcept {
  bool newly_wanted = false;
  for (; !node->is_root() && !is_wanted(node); node = node->parent()) {
    state_of(node).asked_ = after_;
    newly_wanted = true;
  }
  return newly_wanted;
}

void Demand::check(const Trie& trie, std::vector<std::string>& findings) const {
  trie.visit([&](const Node& node) {
    if (node.is_root()) return;
    const NodeState& state = state_of(&node);
    const std::uint32_t most = node.parent()->is_root() ? after_ : state_of(node.parent()).asked();
    if (state.asked() < 1 || state.asked() > most) {
      findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': asked for ",
                             std::uint32_t{state.asked()}, " times, allowed 1 to ", most));
    }
    if (state.pins() > 0 && !is_wanted(&node)) {
      findings.push_back(
          cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': pinned, but not wanted"));
    }
  });
}

}  // namespace kvtrie
