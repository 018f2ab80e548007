// Victims, of all groups or of one, and namespaces that change their group.
#include <algorithm>

#include "base/error.h"
#include "trie/trie.h"

namespace kvtrie {

Trie::Orders Trie::make_orders() const {
  Orders orders;
  orders.reserve(kinds_.size());
  for (std::size_t i = 0; i < kinds_.size(); ++i)
    orders.emplace_back(static_cast<int>(i), kinds_[i].first, kinds_[i].second, clocks_[i]);
  return orders;
}

void Trie::require_flat(int order, std::string_view where) const {
  require_order(order, where);
  require(orders_[static_cast<std::size_t>(order)].shape() != OrderShape::kLeafFirst, where, "order: got ", order,
          ", which is leaf first");
}

// `search` gives the first of one group's order.
template <class Search>
Node* Trie::first_of_all(std::size_t order, const Search& search, const Groups* may) {
  Node* first = may == nullptr || (*may)(0) ? search(orders_[order]) : nullptr;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i] == nullptr || (may != nullptr && !(*may)(static_cast<Group>(i + 1)))) continue;
    Node* found = search((*groups_[i])[order]);
    if (found != nullptr && (first == nullptr || orders_[order].goes_before(found, first))) first = found;
  }
  return first;
}

Node* Trie::victim(int order) {
  require_order(order, "Trie.victim");
  return first_of_all(static_cast<std::size_t>(order), [](VictimOrder& each) { return each.victim(); });
}

Node* Trie::victim_among(int order, const Groups& may) {
  require_order(order, "Trie.victim_among");
  return first_of_all(
      static_cast<std::size_t>(order), [](VictimOrder& each) { return each.victim(); }, &may);
}

Node* Trie::victim(int order, const std::function<bool(Node*)>& may_go) {
  require_flat(order, "Trie.victim");
  return first_of_all(static_cast<std::size_t>(order), [&](VictimOrder& each) { return each.victim(may_go); });
}

Node* Trie::victim_of(Group group, int order) {
  require_order(order, "Trie.victim_of");
  return orders_in(group)[static_cast<std::size_t>(order)].victim();
}

Node* Trie::victim_of(Group group, int order, const std::function<bool(Node*)>& may_go) {
  require_flat(order, "Trie.victim_of");
  return orders_in(group)[static_cast<std::size_t>(order)].victim(may_go);
}

bool Trie::goes_before(int order, Node* a, Node* b) const {
  require_order(order, "Trie.goes_before");
  return orders_[static_cast<std::size_t>(order)].goes_before(a, b);
}

std::size_t Trie::members(int order) const {
  require_order(order, "Trie.members");
  std::size_t members = orders_[static_cast<std::size_t>(order)].members();
  for (const std::unique_ptr<Orders>& group : groups_) {
    if (group != nullptr) members += (*group)[static_cast<std::size_t>(order)].members();
  }
  return members;
}

// Everything that needs memory is done before anything changes.
void Trie::set_group(Node* root, Group group) {
  require(root->is_root(), "Trie.set_group", "root: got a node below one");
  const Group before = root->group();
  if (group == before) return;
  if (group > groups_.size()) groups_.resize(group);
  if (group > 0 && groups_[group - 1U] == nullptr) groups_[group - 1U] = std::make_unique<Orders>(make_orders());
  std::vector<Node*> nodes{root};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child = nodes[i]->first_child_; child != nullptr; child = child->siblings_.next) nodes.push_back(child);
  }
  std::vector<std::vector<Node*>> members(orders_.size());
  for (std::size_t order = 0; order < orders_.size(); ++order) {
    const auto is_member = [&](const Node* node) {
      return !node->is_root() && node->in_order(static_cast<int>(order));
    };
    std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(members[order]), is_member);
    const VictimOrder& from = orders_in(before)[order];
    std::sort(members[order].begin(), members[order].end(), [&](Node* a, Node* b) { return from.goes_before(a, b); });
    orders_in(group)[order].reserve_more(members[order].size());
  }
  for (std::size_t order = 0; order < orders_.size(); ++order)
    orders_in(before)[order].hand_over(members[order], orders_in(group)[order]);
  for (Node* node : nodes) node->group_ = group;
  if (before > 0) groups_[before - 1U] = nullptr;
}

}  // namespace kvtrie
