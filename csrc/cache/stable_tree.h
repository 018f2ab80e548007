// An ordered tree (std::map or std::set) whose nodes are kept for reuse: after `reserve(n)` it can hold n nodes without
// allocating, so that giving cells back never fails.
//
// Invariant: nodes in the tree + spare nodes >= the largest n reserved; `spare_` has capacity for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvtrie {

template <class Tree>
class StableTree {
 public:
  using Iterator = typename Tree::iterator;
  using Node = typename Tree::node_type;

  // Throws std::bad_alloc with nothing changed but spare nodes. `make(i)` gives the i-th of a row of distinct entries.
  template <class Make>
  void reserve(std::size_t nodes, Make make) {
    const std::size_t have = tree_.size() + spare_.size();
    if (nodes <= have) return;
    nodes = std::max(nodes, have + have / 2);
    spare_.reserve(nodes);
    Tree fresh;
    for (std::size_t i = have; i < nodes; ++i) fresh.insert(make(i - have));
    while (!fresh.empty()) spare_.push_back(fresh.extract(fresh.begin()));
  }

  Node take() noexcept {
    Node node = std::move(spare_.back());
    spare_.pop_back();
    return node;
  }
  Iterator insert(Iterator hint, Node&& node) noexcept { return tree_.insert(hint, std::move(node)); }
  void erase(Iterator at) noexcept { spare_.push_back(tree_.extract(at)); }
  void clear() noexcept {
    while (!tree_.empty()) erase(tree_.begin());
  }

  Tree& operator*() noexcept { return tree_; }
  Tree* operator->() noexcept { return &tree_; }
  const Tree& operator*() const noexcept { return tree_; }
  const Tree* operator->() const noexcept { return &tree_; }

 private:
  Tree tree_;
  std::vector<Node> spare_;
};

}  // namespace kvtrie
