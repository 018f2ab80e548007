// Trie::check: recounts everything the tree keeps, from the roots down, and says what does not agree.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trie/trie.h"

namespace kvtrie {

using State = OrderSlot::State;

class TrieCheck {
 public:
  explicit TrieCheck(const Trie& trie) : trie_(trie), members_(trie.orders_.size()), listed_(trie.orders_.size()) {}

  std::vector<std::string> run() {
    check_roots();
    trie_.visit([this](Node& node) { check_node(node); });
    expect(nodes_ == trie_.size_, "size: kept ", trie_.size_, ", counted ", nodes_);
    expect(tokens_ == trie_.token_count_, "token_count: kept ", trie_.token_count_, ", counted ", tokens_);
    expect(indexed_ == trie_.index_.size(), "child index: kept ", trie_.index_.size(), ", counted ", indexed_);
    expect(nodes_ + trie_.roots_.size() == trie_.pool_.live(), "pool: kept ", trie_.pool_.live(), " nodes, counted ",
           nodes_ + trie_.roots_.size());
    for (int order = 0; order < trie_.orders(); ++order) check_list(order);
    return std::move(findings_);
  }

 private:
  template <class... Parts>
  void expect(bool ok, const Parts&... parts) {
    if (!ok) findings_.push_back(cat("[Trie.check] ", parts...));
  }

  template <class... Parts>
  void expect_of(const Node& node, bool ok, const Parts&... parts) {
    if (!ok) expect(false, "node ", node.name_space(), "[", node.start(), ",", node.end(), "): ", parts...);
  }

  void check_roots() {
    for (const auto& [key, root] : trie_.roots_) {
      expect(root->is_root() && root->name_ == &key, "root ", key, ": not linked to its name");
      expect(root->start() == 0 && root->end() == 0, "root ", key, ": has tokens");
      expect(root->payload_ == nullptr, "root ", key, ": has a payload");
    }
  }

  void check_node(const Node& node) {
    check_children(node);
    for (int order = 0; order < trie_.orders(); ++order) check_slot(node, order);
    if (node.is_root()) return;
    ++nodes_;
    tokens_ += node.tokens().size();
    expect_of(node, !node.tokens().empty(), "has no tokens");
    expect_of(node, node.start() == node.parent()->end(), "parent ends at ", node.parent()->end());
    expect_of(node, node.last_used_ <= trie_.now_, "used at ", node.last_used_, ", now ", trie_.now_);
  }

  void check_children(const Node& node) {
    std::vector<Token> firsts;
    const Node* previous = nullptr;
    for (const Node* child = node.first_child_; child != nullptr; child = child->next_sibling_) {
      expect_of(node, child->parent_ == &node, "a child has another parent");
      expect_of(node, child->previous_sibling_ == previous, "sibling links disagree");
      expect_of(node, trie_.find_child(&node, child->edge_.front()) == child, "child ", child->edge_.front(),
                " is not found");
      firsts.push_back(child->edge_.front());
      previous = child;
    }
    std::sort(firsts.begin(), firsts.end());
    expect_of(node, std::adjacent_find(firsts.begin(), firsts.end()) == firsts.end(),
              "two children start with the same token");
    expect_of(node, firsts.size() == node.child_count_, "keeps ", node.child_count(), " children, has ", firsts.size());
    const bool may_be_narrow = firsts.size() < ChildIndex::kWide;
    const bool may_be_wide = firsts.size() > ChildIndex::kNarrow;
    expect_of(node, node.indexed_ ? may_be_wide : may_be_narrow, "wrong kind for ", firsts.size(), " children");
    if (node.indexed_) indexed_ += firsts.size();
  }

  void check_slot(const Node& node, int order) {
    std::uint32_t holders = 0;
    for (const Node* child = node.first_child_; child != nullptr; child = child->next_sibling_) {
      if (child->in_order(order) || child->locks_ > 0) ++holders;
    }
    const OrderSlot& slot = node.slot(order);
    expect_of(node, slot.holders == holders, "order ", order, " keeps ", slot.holders, " holders, has ", holders);
    expect_of(node, slot.state == State::kOut || !node.is_root(), "a root is a member");
    expect_of(node, slot.state == State::kOut || slot.age <= trie_.now_, "age ", slot.age, ", now ", trie_.now_);
    expect_of(node, (slot.state == State::kLocked) == (slot.state != State::kOut && node.locks_ > 0), "order ", order,
              ": locks and state disagree");
    expect_of(node, slot.state != State::kParked || holders > 0, "parked in order ", order, " and not held");
    if (slot.state != State::kListed) {
      expect_of(node, slot.previous == nullptr && slot.next == nullptr, "linked in order ", order, ", not listed");
    }
    if (slot.state != State::kOut) ++members_[order];
    if (slot.state == State::kListed) ++listed_[order];
  }

  void check_list(int order) {
    const VictimOrder& list = trie_.orders_[static_cast<std::size_t>(order)];
    expect(list.members_ == members_[order], "order ", order, ": keeps ", list.members_, " members, has ",
           members_[order]);
    std::size_t count = 0;
    Node* previous = nullptr;
    for (Node* node = list.oldest_; node != nullptr && count <= members_[order]; node = node->slot(order).next) {
      ++count;
      expect_of(*node, node->slot(order).state == State::kListed, "on the list of order ", order, ", not listed");
      expect_of(*node, node->slot(order).previous == previous, "list links disagree in order ", order);
      expect_of(*node, previous == nullptr || list.goes_before(previous, node), "out of place in order ", order);
      previous = node;
    }
    expect(list.latest_ == previous, "order ", order, ": the latest is not the end of the list");
    expect(count == listed_[order], "order ", order, ": list of ", count, ", listed members ", listed_[order]);
  }

  const Trie& trie_;
  std::size_t nodes_ = 0;
  std::uint64_t tokens_ = 0;
  std::size_t indexed_ = 0;
  std::vector<std::size_t> members_;
  std::vector<std::size_t> listed_;
  std::vector<std::string> findings_;
};

std::vector<std::string> Trie::check() const { return TrieCheck(*this).run(); }

}  // namespace kvtrie
