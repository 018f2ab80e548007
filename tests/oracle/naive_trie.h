// The trie's naive twin: a list of whole paths, searched from end to end for every question.
//
// It keeps the definitions and none of the mechanisms: a match is the best of all paths, a child is found by looking at
// every node, a victim is the first, by the policy's own words, of all members that nothing holds, and what left is
// remembered by its whole path. A node is known by its address here; the driver pairs it with the real one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trie/edge.h"
#include "trie/ghost_table.h"
#include "trie/order_shape.h"
#include "trie/victim_policy.h"

namespace kvtrie::oracle {

// What a policy other than lru remembers of a member.
struct NaiveRank {
  std::uint32_t uses = 0;
  double priority = 0;  // of `cost`
  bool is_protected = false;
  bool since_join = false;  // locked since it joined
  bool parked = false;      // in an order that is not leaf first; with lru, too

  static NaiveRank larger(const NaiveRank& a, const NaiveRank& b) {
    return {std::max(a.uses, b.uses), std::max(a.priority, b.priority), a.is_protected || b.is_protected, b.since_join,
            a.parked && b.parked};
  }
};

struct NaiveNode {
  std::string name_space;
  Tokens path;  // from the root to the node's end
  std::int32_t start = 0;
  NaiveNode* parent = nullptr;
  std::uint32_t locks = 0;
  std::uint64_t last_used = 0;
  std::vector<std::optional<std::uint64_t>> age;  // per order; none: no member
  std::vector<NaiveRank> rank;                    // per order
  int mark = 0;                                   // payloads of one mark may be joined
  double cost = 1;                                // what the payload says

  std::int32_t end() const { return static_cast<std::int32_t>(path.size()); }
  Tokens edge() const { return {path.begin() + start, path.end()}; }
  bool member(std::size_t order) const { return age[order].has_value(); }
  bool holds(std::size_t order) const { return age[order].has_value() || locks > 0; }
};

class NaiveTrie {
 public:
  struct Match {
    NaiveNode* node = nullptr;
    std::int32_t length = 0;
  };

  explicit NaiveTrie(std::vector<OrderShape> shapes, VictimPolicy policy = VictimPolicy::kLru)
      : orders_(shapes.size()),
        shapes_(std::move(shapes)),
        policy_(policy),
        floor_(orders_),
        just_joined_(orders_),
        ghosts_(orders_),
        gone_(orders_) {}

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

  NaiveNode* add_child(NaiveNode* parent, const Tokens& edge, int mark, double cost) {
    Tokens path = parent->path;
    path.insert(path.end(), edge.begin(), edge.end());
    NaiveNode* child = make(parent->name_space, std::move(path), parent->end(), parent);
    child->mark = mark;
    child->cost = cost;
    return child;
  }

  static void extend(NaiveNode* leaf, const Tokens& more) {
    leaf->path.insert(leaf->path.end(), more.begin(), more.end());
  }

  NaiveNode* split(NaiveNode* node, std::int32_t at) {
    NaiveNode* upper =
        make(node->name_space, Tokens(node->path.begin(), node->path.begin() + at), node->start, node->parent);
    upper->last_used = node->last_used;
    upper->age = node->age;
    upper->rank = node->rank;
    for (NaiveRank& rank : upper->rank) rank.since_join = false;
    upper->mark = node->mark;
    upper->cost = node->cost;
    node->start = at;
    node->parent = upper;
    return upper;
  }

  bool can_join(const NaiveNode* node) const {
    if (node->parent == nullptr || node->locks > 0) return false;
    const auto below = children(node);
    if (below.size() != 1 || below[0]->mark != node->mark) return false;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (leaf_first(order) && node->member(order) != below[0]->member(order)) return false;
      if (node->member(order) && below[0]->member(order) && differ(node->rank[order].uses, below[0]->rank[order].uses))
        return false;
    }
    return true;
  }

  // REQUIRES: can_join. Returns the child, into which `node` went.
  NaiveNode* join_with_child(NaiveNode* node) {
    NaiveNode* child = children(node)[0];
    child->start = node->start;
    child->parent = node->parent;
    child->last_used = std::max(child->last_used, node->last_used);
    child->cost = node->cost;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (!leaf_first(order) && !node->member(order)) continue;
      if (!leaf_first(order) && !child->member(order)) {
        child->age[order] = node->age[order];
        child->rank[order] = node->rank[order];
        child->rank[order].since_join = false;
        continue;
      }
      const bool upper_parked = node->rank[order].parked, lower_parked = child->rank[order].parked;
      if (upper_parked == lower_parked) child->age[order] = std::max(child->age[order], node->age[order]);
      if (lower_parked && !upper_parked) child->age[order] = node->age[order];
      child->rank[order] = NaiveRank::larger(node->rank[order], child->rank[order]);
    }
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

  void lock(NaiveNode* node) {
    if (++node->locks > 1) return;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (node->age[order]) node->rank[order].since_join = just_joined_[order] == node;
    }
  }

  void unlock(NaiveNode* node) {
    if (--node->locks > 0) return;
    node->last_used = ++now_;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (node->age[order]) {
        use(order, node, node->rank[order].since_join ? 0 : 1);
      } else if (leaf_first(order) && node->parent != nullptr) {
        pass_age(order, node->parent, ++clock_);
      }
    }
    drop_if_unused(node);
  }

  void touch(NaiveNode* node) {
    node->last_used = ++now_;
    for (std::size_t order = 0; order < orders_; ++order) {
      if (node->age[order]) use(order, node, 1);
    }
  }

  void join_order(std::size_t order, NaiveNode* node) {
    ++now_;
    const std::uint32_t before = remembered(order, *node, node->end());
    node->rank[order] = {before, 0, false, node->locks > 0, false};
    use(order, node, 1);
    node->rank[order].is_protected = before > 0;
    just_joined_[order] = node;
  }

  void leave_order(std::size_t order, NaiveNode* node) {
    if (policy_ == VictimPolicy::kCost && node == first(order)) {
      floor_[order] = std::max(floor_[order], node->rank[order].priority);
    }
    if (leaf_first(order) && node->locks == 0 && node->parent != nullptr)
      pass_age(order, node->parent, *node->age[order]);
    node->age[order].reset();
    node->rank[order].parked = false;
    ghosts_[order][{node->name_space, node->path}] = {node->rank[order].uses, gone_[order]++};
    if (just_joined_[order] == node) just_joined_[order] = nullptr;
  }

  // The upper halves that were cut off, from the top.
  std::vector<NaiveNode*> recall(std::size_t order, NaiveNode* leaf, std::int32_t count) {
    std::vector<std::pair<std::int32_t, std::uint32_t>> known;
    for (std::int32_t end = leaf->end() - count + 1; end <= leaf->end(); ++end) {
      if (const std::uint32_t uses = remembered(order, *leaf, end)) known.emplace_back(end, uses);
    }
    std::vector<NaiveNode*> uppers;
    for (std::size_t i = 0; i < known.size(); ++i) {
      const auto& [end, uses] = known[i];
      if (i + 1 < known.size() && !differ(uses, known[i + 1].second)) continue;
      NaiveNode* node = leaf;
      if (end < leaf->end()) uppers.push_back(node = split(leaf, end));
      node->rank[order].uses = uses + 1;
      node->rank[order].priority = floor_[order] + (uses + 1) * node->cost;
      node->rank[order].is_protected = true;
    }
    return uppers;
  }

  bool in_first_use(std::size_t order, const NaiveNode* node) const {
    return policy_ == VictimPolicy::kLru || (node->age[order] && node->locks > 0 && node->rank[order].since_join);
  }

  NaiveNode* victim(std::size_t order) {
    if (policy_ == VictimPolicy::kSlru) demote_overflow(order);
    return first(order);
  }

  NaiveNode* victim(std::size_t order, const std::function<bool(NaiveNode*)>& may_go) {
    NaiveNode* found = victim(order);
    for (; found != nullptr && !may_go(found); found = victim(order)) passed_.insert(found);
    passed_.clear();
    return found;
  }

  void park(std::size_t order, NaiveNode* node) { node->rank[order].parked = true; }

  void relist(std::size_t order, NaiveNode* node) {
    ++now_;
    if (!node->member(order) || !node->rank[order].parked) return;
    node->rank[order].parked = false;
    node->age[order] = ++clock_;
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
  struct Ghost {
    std::uint32_t uses = 0;
    std::uint64_t number = 0;  // of all that left
  };

  // What is known of the path to the node, up to `end`; from then on it is not.
  std::uint32_t remembered(std::size_t order, const NaiveNode& node, std::int32_t end) {
    if (policy_ == VictimPolicy::kLru) return 0;
    const auto found = ghosts_[order].find({node.name_space, Tokens(node.path.begin(), node.path.begin() + end)});
    if (found == ghosts_[order].end()) return 0;
    const Ghost ghost = found->second;
    ghosts_[order].erase(found);
    return gone_[order] - ghost.number <= GhostTable::kLeast ? ghost.uses : 0;
  }

  bool differ(std::uint32_t a, std::uint32_t b) const {
    if (policy_ == VictimPolicy::kLru) return false;
    return policy_ == VictimPolicy::kSlru ? (a > 1) != (b > 1) : a != b;
  }

  NaiveNode* make(std::string name, Tokens path, std::int32_t start, NaiveNode* parent) {
    auto node = std::make_unique<NaiveNode>();
    node->name_space = std::move(name);
    node->path = std::move(path);
    node->start = start;
    node->parent = parent;
    node->age.resize(orders_);
    node->rank.resize(orders_);
    nodes_.push_back(std::move(node));
    return nodes_.back().get();
  }

  void erase(const NaiveNode* gone) {
    for (const NaiveNode*& node : just_joined_) {
      if (node == gone) node = nullptr;
    }
    std::erase_if(nodes_, [gone](const auto& node) { return node.get() == gone; });
  }

  void drop_if_unused(NaiveNode* root) {
    if (root->parent == nullptr && root->locks == 0 && children(root).empty()) erase(root);
  }

  static void pass_age(std::size_t order, NaiveNode* parent, std::uint64_t age) {
    if (parent->age[order]) parent->age[order] = std::max(*parent->age[order], age);
  }

  void use(std::size_t order, NaiveNode* node, std::uint32_t count) {
    NaiveRank& rank = node->rank[order];
    node->age[order] = ++clock_;
    rank.parked = false;
    rank.uses += count;
    rank.priority = floor_[order] + rank.uses * node->cost;
    if (count > 0) rank.is_protected = true;
    just_joined_[order] = nullptr;
  }

  bool leaf_first(std::size_t order) const { return shapes_[order] == OrderShape::kLeafFirst; }

  static std::uint64_t tokens_of(const NaiveNode& node) { return static_cast<std::uint64_t>(node.end() - node.start); }

  // Members that are unlocked and not held; where that does not matter, those that are not parked. None that was
  // passed.
  std::vector<NaiveNode*> could_go(std::size_t order) const {
    if (!leaf_first(order)) return not_parked(order);
    std::set<const NaiveNode*> held;
    for (auto& node : nodes_) {
      if (node->holds(order)) held.insert(node->parent);
    }
    std::vector<NaiveNode*> found;
    for (auto& node : nodes_) {
      if (node->age[order] && node->locks == 0 && !held.contains(node.get())) found.push_back(node.get());
    }
    return found;
  }

  std::vector<NaiveNode*> not_parked(std::size_t order) const {
    std::vector<NaiveNode*> found;
    for (auto& node : nodes_) {
      if (node->member(order) && !node->rank[order].parked && !passed_.contains(node.get()))
        found.push_back(node.get());
    }
    return found;
  }

  static bool older(std::size_t order, const NaiveNode& a, const NaiveNode& b) {
    return a.age[order] < b.age[order] || (a.age[order] == b.age[order] && a.start > b.start);
  }

  bool goes_before(std::size_t order, const NaiveNode& a, const NaiveNode& b) const {
    const NaiveRank &x = a.rank[order], &y = b.rank[order];
    if (policy_ == VictimPolicy::kSlru && x.is_protected != y.is_protected) return y.is_protected;
    if (policy_ == VictimPolicy::kCost && x.priority != y.priority) return x.priority < y.priority;
    return older(order, a, b);
  }

  NaiveNode* first(std::size_t order) const {
    NaiveNode* found = nullptr;
    for (NaiveNode* node : could_go(order)) {
      if (found == nullptr || goes_before(order, *node, *found)) found = node;
    }
    return found;
  }

  // The oldest protected member becomes the latest on probation, while more than 4/5 of the tokens are protected, and
  // while nothing on probation could go but something protected could.
  void demote_overflow(std::size_t order) {
    while (overflows(order)) {
      NaiveNode* oldest = nullptr;
      for (auto& node : nodes_) {
        if (!node->age[order] || !node->rank[order].is_protected) continue;
        if (oldest == nullptr || older(order, *node, *oldest)) oldest = node.get();
      }
      oldest->rank[order].is_protected = false;
      oldest->age[order] = ++clock_;
    }
  }

  bool overflows(std::size_t order) const {
    std::uint64_t all = 0, guarded = 0;
    for (auto& node : nodes_) {
      if (!node->age[order]) continue;
      all += tokens_of(*node);
      if (node->rank[order].is_protected) guarded += tokens_of(*node);
    }
    if (guarded * 5 > all * 4) return true;
    const NaiveNode* next = first(order);
    return next != nullptr && next->rank[order].is_protected;
  }

  std::size_t orders_;
  std::vector<OrderShape> shapes_;
  VictimPolicy policy_;
  std::set<const NaiveNode*> passed_;          // by the search that is on
  std::uint64_t now_ = 0;                      // of last uses
  std::uint64_t clock_ = 0;                    // of ages
  std::vector<double> floor_;                  // per order: the greatest priority of a victim that left
  std::vector<const NaiveNode*> just_joined_;  // per order: while nothing was used since it joined
  std::vector<std::map<std::pair<std::string, Tokens>, Ghost>> ghosts_;  // per order
  std::vector<std::uint64_t> gone_;                                      // per order
  std::vector<std::unique_ptr<NaiveNode>> nodes_;
};

}  // namespace kvtrie::oracle
