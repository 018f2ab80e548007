// The trie's naive twin: a list of whole paths, searched from end to end for every question.
//
// It keeps the definitions and none of the mechanisms: a match is the best of all paths, a child is found by looking at
// every node, and a victim is the oldest of all members that nothing holds. A node is known by its address here; the
// driver pairs it with the real one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trie/edge.h"

namespace kvtrie::oracle {

struct NaiveNode {
  std::string name_space;
  Tokens path;  // from the root to the node's end
  std::int32_t start = 0;
  NaiveNode* parent = nullptr;
  std::uint32_t locks = 0;
  std::uint64_t last_used = 0;
  std::vector<std::optional<std::uint64_t>> age;  // per order; none: no member
  int mark = 0;                                   // payloads of one mark may be joined
  bool held = false;                              // scratch of victim()

  std::int32_t end() const { return static_cast<std::int32_t>(path.size()); }
  Tokens edge() const { return {path.begin() + start, path.end()}; }
  bool holds(std::size_t order) const { return age[order].has_value() || locks > 0; }
};

class NaiveTrie {
 public:
  struct Match {
    NaiveNode* node = nullptr;
    std::int32_t length = 0;
  };

  explicit NaiveTrie(std::size_t orders) : orders_(orders) {}

  const std::vector<std::unique_ptr<NaiveNode>>& nodes() const { return nodes_; }  // roots included

  NaiveNode* root(const std::string& name) {
    for (auto& node : nodes_) {
      if (node->parent == nullptr && node->name_space == name) return node.get();
    }
    return make(name, {}, 0, nullptr);
  }

  std::vector<NaiveNode*> children(const NaiveNode* parent) const {
    std::vector<NaiveNode*> found;
    for (auto& node : nodes_) {
      if (node->parent == parent) found.push_back(node.get());
    }
    return found;
  }

  // The longest common beginning with any path, and the node inside whose edge it ends.
  Match match(const std::string& name, const Tokens& tokens) const {
    Match best;
    for (auto& node : nodes_) {
      if (node->name_space != name) continue;
      const auto pair = std::mismatch(node->path.begin(), node->path.end(), tokens.begin(), tokens.end());
      const auto length = static_cast<std::int32_t>(pair.first - node->path.begin());
      if (best.node == nullptr || length > best.length) best = {node.get(), length};
    }
    if (best.node == nullptr) return best;
    while (best.node->parent != nullptr && best.node->start >= best.length) best.node = best.node->parent;
    return best;
  }

  NaiveNode* add_child(NaiveNode* parent, const Tokens& edge, int mark) {
    Tokens path = parent->path;
    path.insert(path.end(), edge.begin(), edge.end());
    NaiveNode* child = make(parent->name_space, std::move(path), parent->end(), parent);
    child->mark = mark;
    return child;
  }

  NaiveNode* split(NaiveNode* node, std::int32_t at) {
    NaiveNode* upper =
        make(node->name_space, Tokens(node->path.begin(), node->path.begin() + at), node->start, node->parent);
    upper->last_used = node->last_used;
    upper->age = node->age;
    upper->mark = node->mark;
    node->start = at;
    node->parent = upper;
    return upper;
  }

  bool can_join(const NaiveNode* node) const {
    if (node->parent == nullptr || node->locks > 0) return false;
    const auto below = children(node);
    if (below.size() != 1 || below[0]->mark != node->mark) return false;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (node->age[order].has_value() != below[0]->age[order].has_value()) return false;
    }
    return true;
  }

  // REQUIRES: can_join. Returns the child, into which `node` went.
  NaiveNode* join_with_child(NaiveNode* node) {
    NaiveNode* child = children(node)[0];
    child->start = node->start;
    child->parent = node->parent;
    child->last_used = std::max(child->last_used, node->last_used);
    for (std::size_t order = 0; order < orders_; ++order)
      child->age[order] = std::max(child->age[order], node->age[order]);
    erase(node);
    return child;
  }

  void remove(NaiveNode* leaf) {
    for (std::size_t order = 0; order < orders_; ++order) {
      if (leaf->age[order]) leave_order(order, leaf);
    }
    NaiveNode* parent = leaf->parent;
    erase(leaf);
    drop_if_unused(parent);
  }

  void lock(NaiveNode* node) { ++node->locks; }

  void unlock(NaiveNode* node) {
    if (--node->locks > 0) return;
    touch(node);
    for (std::size_t order = 0; order < orders_; ++order) {
      if (!node->age[order] && node->parent != nullptr) pass_age(order, node->parent, now_);
    }
    drop_if_unused(node);
  }

  void touch(NaiveNode* node) {
    node->last_used = ++now_;
    for (auto& age : node->age) {
      if (age) age = now_;
    }
  }

  void join_order(std::size_t order, NaiveNode* node) { node->age[order] = ++now_; }

  void leave_order(std::size_t order, NaiveNode* node) {
    if (node->locks == 0 && node->parent != nullptr) pass_age(order, node->parent, *node->age[order]);
    node->age[order].reset();
  }

  NaiveNode* victim(std::size_t order) const {
    for (auto& node : nodes_) node->held = false;
    for (auto& node : nodes_) {
      if (node->parent != nullptr && node->holds(order)) node->parent->held = true;
    }
    NaiveNode* oldest = nullptr;
    for (auto& node : nodes_) {
      if (!node->age[order] || node->locks > 0 || node->held) continue;
      const bool older = oldest == nullptr || *node->age[order] < *oldest->age[order];
      const bool deeper = oldest != nullptr && node->age[order] == oldest->age[order] && node->start > oldest->start;
      if (older || deeper) oldest = node.get();
    }
    return oldest;
  }

  bool has_lock_below(const NaiveNode* above) const {
    for (auto& node : nodes_) {
      if (node->locks == 0) continue;
      for (const NaiveNode* at = node.get(); at != nullptr; at = at->parent) {
        if (at == above) return true;
      }
    }
    return false;
  }

 private:
  NaiveNode* make(std::string name, Tokens path, std::int32_t start, NaiveNode* parent) {
    auto node = std::make_unique<NaiveNode>();
    node->name_space = std::move(name);
    node->path = std::move(path);
    node->start = start;
    node->parent = parent;
    node->age.resize(orders_);
    nodes_.push_back(std::move(node));
    return nodes_.back().get();
  }

  void erase(const NaiveNode* gone) {
    std::erase_if(nodes_, [gone](const auto& node) { return node.get() == gone; });
  }

  void drop_if_unused(NaiveNode* root) {
    if (root->parent == nullptr && root->locks == 0 && children(root).empty()) erase(root);
  }

  static void pass_age(std::size_t order, NaiveNode* parent, std::uint64_t age) {
    if (parent->age[order]) parent->age[order] = std::max(*parent->age[order], age);
  }

  std::size_t orders_;
  std::uint64_t now_ = 0;
  std::vector<std::unique_ptr<NaiveNode>> nodes_;
};

}  // namespace kvtrie::oracle
