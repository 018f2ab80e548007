// Trie::check: recounts everything the tree keeps, from the roots down, and says what does not agree.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trie/suffix_index.h"
#include "trie/trie.h"

namespace kvtrie {

using State = OrderState::State;

class TrieCheck {
 public:
  explicit TrieCheck(const Trie& trie)
      : trie_(trie),
        members_(trie.groups_.size() + 1, std::vector<std::size_t>(trie.orders_.size())),
        listed_(members_),
        ranked_(trie.groups_.size() + 1, std::vector<Ranked>(trie.orders_.size())) {}

  std::vector<std::string> run() {
    check_roots();
    trie_.visit([this](Node& node) { check_node(node); });
    expect(nodes_ == trie_.size_, "size: kept ", trie_.size_, ", counted ", nodes_);
    expect(tokens_ == trie_.token_count_, "token_count: kept ", trie_.token_count_, ", counted ", tokens_);
    expect(indexed_ == trie_.index_.size(), "child index: kept ", trie_.index_.size(), ", counted ", indexed_);
    expect(nodes_ + trie_.roots_.size() == trie_.pool_.live(), "pool: kept ", trie_.pool_.live(), " nodes, counted ",
           nodes_ + trie_.roots_.size());
    for (std::size_t group = 0; group <= trie_.groups_.size(); ++group) {
      if (group > 0 && trie_.groups_[group - 1] == nullptr) continue;
      for (int order = 0; order < trie_.orders(); ++order) check_order(static_cast<Group>(group), order);
    }
    return std::move(findings_);
  }

 private:
  // The counts of a RankedOrder.
  struct Ranked {
    std::uint64_t tokens = 0, protected_tokens = 0;
    std::size_t protected_members = 0, protected_free = 0;
  };

  template <class... Words>
  void expect(bool ok, const Words&... words) {
    if (!ok) findings_.push_back(cat("[Trie.check] ", words...));
  }

  template <class... Words>
  void expect_of(const Node& node, bool ok, const Words&... words) {
    if (!ok) expect(false, "node ", node.name_space(), "[", node.start(), ",", node.end(), "): ", words...);
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
    for (int order = 0; order < trie_.orders(); ++order) check_state(node, order);
    if (node.is_root()) return;
    ++nodes_;
    tokens_ += node.tokens().size();
    expect_of(node, !node.tokens().empty(), "has no tokens");
    expect_of(node, node.group() == node.parent()->group(), "in group ", node.group(), ", its parent is not");
    expect_of(node, node.start() == node.parent()->end(), "parent ends at ", node.parent()->end());
    expect_of(node, node.last_used_ <= trie_.now_, "used at ", node.last_used_, ", now ", trie_.now_);
  }

  void check_children(const Node& node) {
    std::vector<Token> firsts;
    const Node* previous = nullptr;
    for (const Node* child = node.first_child_; child != nullptr; child = child->siblings_.next) {
      expect_of(node, child->parent_ == &node, "a child has another parent");
      expect_of(node, child->siblings_.previous == previous, "sibling links disagree");
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

  void check_state(const Node& node, int order) {
    const VictimOrder& kept = trie_.orders_in(node.group())[static_cast<std::size_t>(order)];
    const bool leaf_first = kept.shape() == OrderShape::kLeafFirst;
    std::uint32_t holders = 0;
    for (const Node* child = node.first_child_; child != nullptr; child = child->siblings_.next) {
      if (leaf_first && (child->in_order(order) || child->locks_ > 0)) ++holders;
    }
    const OrderState own = node.state(order);
    const State state = own.state;
    expect_of(node, own.holders == holders, "order ", order, " keeps ", std::uint32_t{own.holders}, " holders, has ",
              holders);
    expect_of(node, state == State::kOut || !node.is_root(), "a root is a member");
    expect_of(node, (state == State::kLocked) == (leaf_first && state != State::kOut && node.locks_ > 0), "order ",
              order, ": locks and state disagree");
    expect_of(node, state != State::kParked || holders > 0 || !leaf_first, "parked in order ", order, " and not held");
    if (state != State::kOut) ++members_[node.group()][order];
    if (state == State::kListed) ++listed_[node.group()][order];
    if (state != State::kOut) kept.by_rank_ ? check_ranked(node, order, kept.ranked_) : check_recent(node, order);
  }

  void check_recent(const Node& node, int order) {
    const RecencyPlace& place = node.recency(order);
    expect_of(node, place.age <= trie_.now_, "age ", place.age, " in order ", order, ", now ", trie_.now_);
    if (node.state(order).state == State::kListed) return;
    expect_of(node, place.previous == nullptr && place.next == nullptr, "linked in order ", order, ", not listed");
  }

  void check_ranked(const Node& node, int order, const RankedOrder& ranked) {
    const OrderState own = node.state(order);
    const RankPlace& place = node.rank(order);
    const bool in_segments = ranked.policy_ == VictimPolicy::kSlru;
    expect_of(node, place.age <= *ranked.now_, "age ", place.age, " in order ", order, ", now ", *ranked.now_);
    expect_of(node, place.uses > 0, "never used in order ", order);
    expect_of(node, in_segments || own.segment == OrderState::Segment::kProbation, "in a segment of order ", order);
    expect_of(node, !in_segments || place.priority == 0, "priority ", place.priority, " in order ", order);
    expect_of(node, own.state != State::kListed || own.holders == 0, "listed in order ", order, " and held");
    const bool guarded = own.segment == OrderState::Segment::kProtected;
    Ranked& counted = ranked_[node.group()][static_cast<std::size_t>(order)];
    const std::uint64_t tokens = node.tokens().size();
    counted.tokens += tokens;
    counted.protected_tokens += guarded ? tokens : 0;
    counted.protected_members += guarded ? 1 : 0;
    counted.protected_free += guarded && own.state == State::kListed ? 1 : 0;
    if (!guarded && own.state != State::kListed) return;
    const auto& entries = (guarded ? ranked.protected_ : ranked.candidates_).entries_;
    expect_of(node, place.entry < entries.size() && entries[place.entry].node == &node,
              "not at its place in the heap of order ", order);
  }

  void check_order(Group group, int order) {
    const auto at = static_cast<std::size_t>(order);
    const VictimOrder& kept = trie_.orders_in(group)[at];
    expect(kept.members() == members_[group][at], "order ", order, ": keeps ", kept.members(), " members, has ",
           members_[group][at]);
    kept.by_rank_ ? check_heaps(group, at, kept.ranked_) : check_list(group, at, kept.recency_);
  }

  void check_list(Group group, std::size_t order, const RecencyOrder& list) {
    std::size_t count = 0;
    Node* previous = nullptr;
    const auto next = [&](Node* node) { return static_cast<Node*>(node->recency(static_cast<int>(order)).next); };
    for (Node* node = list.oldest_; node != nullptr && count <= members_[group][order]; node = next(node)) {
      ++count;
      expect_of(*node, node->state(static_cast<int>(order)).state == State::kListed, "on the list of order ", order,
                ", not listed");
      expect_of(*node, node->recency(static_cast<int>(order)).previous == previous, "list links disagree in order ",
                order);
      expect_of(*node, previous == nullptr || list.goes_before(previous, node), "out of place in order ", order);
      previous = node;
    }
    expect(list.latest_ == previous, "order ", order, ": the latest is not the end of the list");
    expect(count == listed_[group][order], "order ", order, ": list of ", count, ", listed members ",
           listed_[group][order]);
  }

  void check_heaps(Group group, std::size_t order, const RankedOrder& ranked) {
    const Ranked& counted = ranked_[group][order];
    const std::size_t candidates = listed_[group][order] - counted.protected_free;
    expect(ranked.candidates_.size() == candidates, "order ", order, ": heap of ", ranked.candidates_.size(),
           ", members that could go ", candidates);
    expect(ranked.protected_.size() == counted.protected_members, "order ", order, ": heap of ",
           ranked.protected_.size(), ", protected members ", counted.protected_members);
    expect(ranked.protected_free_ == counted.protected_free, "order ", order, ": keeps ", ranked.protected_free_,
           " protected that could go, has ", counted.protected_free);
    expect(ranked.tokens_ == counted.tokens, "order ", order, ": keeps ", ranked.tokens_, " tokens, has ",
           counted.tokens);
    expect(ranked.protected_tokens_ == counted.protected_tokens, "order ", order, ": keeps ", ranked.protected_tokens_,
           " protected tokens, has ", counted.protected_tokens);
    check_heap(order, ranked.candidates_);
    check_heap(order, ranked.protected_);
  }

  void check_heap(std::size_t order, const RankedHeap& heap) {
    for (std::size_t place = 0; place < heap.entries_.size(); ++place) {
      const RankedHeap::Entry& entry = heap.entries_[place];
      const RankPlace& own = entry.node->rank(static_cast<int>(order));
      expect_of(*entry.node, entry.priority == own.priority && entry.age == own.age, "another key in order ", order);
      const RankedHeap::Entry& above = heap.entries_[place == 0 ? 0 : (place - 1) / RankedHeap::kWays];
      expect_of(*entry.node, !RankedHeap::goes_before(entry, above), "out of place in order ", order);
    }
  }

  const Trie& trie_;
  std::size_t nodes_ = 0;
  std::uint64_t tokens_ = 0;
  std::size_t indexed_ = 0;
  std::vector<std::vector<std::size_t>> members_;  // of each group and order, like the next two
  std::vector<std::vector<std::size_t>> listed_;
  std::vector<std::vector<Ranked>> ranked_;
  std::vector<std::string> findings_;
};

std::vector<std::string> Trie::check() const {
  std::vector<std::string> findings = TrieCheck(*this).run();
  if (suffixes_ != nullptr) suffixes_->check(findings);
  return findings;
}

}  // namespace kvtrie
