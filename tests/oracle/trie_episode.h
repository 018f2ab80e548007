// One random episode of the trie beside its naive twin: the operations, the pairs of nodes, the comparison.
//
// Orders 0 and 1 are leaf first, order 2 is flat, order 3 one of ends (order_shape.h).
//
// In the *tiers* regime membership is kept as the prefix cache keeps it (order 0 is closed towards the roots, order 1
// holds what was demoted from it, only members of order 0 and roots are locked), and no victim may have a lock below
// it. In the *wild* regime anything the interface allows is done. Throws std::runtime_error at the first difference.
#pragma once

#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "key_shapes.h"
#include "naive_trie.h"
#include "trie/suffix_index.h"
#include "trie/trie.h"

namespace kvtrie::oracle {

inline constexpr std::size_t kSmall = 64;             // nodes
inline constexpr std::size_t kAmplePlaces = 100'000;  // for all tokens there may be

inline void expect(bool ok, std::string_view what) {
  if (!ok) throw std::runtime_error(std::string(what));
}

// The tokens of its range, copied: any wrong cut or join shows.
class RangePayload final : public Payload {
 public:
  RangePayload(std::int32_t start, Tokens tokens, int mark, double cost)
      : start(start), tokens(std::move(tokens)), mark(mark), cost(cost) {}

  std::unique_ptr<Payload> split_front(std::int32_t at) override {
    const auto border = tokens.begin() + (at - start);
    auto front = std::make_unique<RangePayload>(start, Tokens(tokens.begin(), border), mark, cost);
    tokens.erase(tokens.begin(), border);
    start = at;
    return front;
  }
  void join(Payload& child) override {
    auto& below = static_cast<RangePayload&>(child);
    tokens.insert(tokens.end(), below.tokens.begin(), below.tokens.end());
  }
  bool can_join(const Payload& child) const override { return static_cast<const RangePayload&>(child).mark == mark; }
  double recompute_cost() const noexcept override { return cost; }

  std::int32_t start;
  Tokens tokens;
  int mark;
  double cost;
};

struct Regime {
  VictimPolicy policy = VictimPolicy::kLru;
  bool tiers = true;
  std::size_t most_nodes = 40;
  int shape = 0;
  std::size_t victim_percent = 100;  // how often victims are asked for after a step
  std::size_t insert_percent = 25;
  std::size_t suffix_places = 0;  // room of the index of suffixes; 0: none
  bool suffixes_late = false;     // it is made in the middle, and reads what is there in pieces
  std::size_t order_percent = 0;  // changes of membership out of turn, beside the usual ones

  std::string text() const {
    return cat(name_of(policy), ", ", tiers ? "tiers" : "wild", ", keys ",
               KeyShape::kNames[static_cast<std::size_t>(shape)], ", nodes ", most_nodes);
  }
};

class Episode {
 public:
  Episode(const Regime& regime, Random& random)
      : regime_(regime),
        random_(random),
        keys_(regime.shape, random),
        trie_(kTiers, regime.policy, kOthers),
        twin_({OrderShape::kLeafFirst, OrderShape::kLeafFirst, kOthers[0], kOthers[1]}, regime.policy) {
    if (regime.suffix_places > 0 && !regime.suffixes_late) trie_.index_suffixes(regime.suffix_places);
  }

  void run(std::size_t operations) {
    for (std::size_t i = 0; i < operations && !random_.used_up(); ++i) {
      step();
      if (twin_.nodes().size() <= kSmall || i % 64 == 0) compare();
      if (chance(random_, regime_.victim_percent)) compare_victims();
    }
    drain();
  }

 private:
  static constexpr int kTiers = 2;
  static constexpr OrderShape kOthers[] = {OrderShape::kFlat, OrderShape::kFlat};
  static constexpr int kOrders = kTiers + 2;
  static constexpr double kCosts[] = {0.25, 1, 1, 3, 40};

  void step() {
    if (regime_.suffixes_late) read_suffixes();
    if (twin_.nodes().size() > regime_.most_nodes) return evict();
    if (chance(random_, regime_.insert_percent)) return insert();
    if (chance(random_, regime_.order_percent)) return change_order();
    switch (below(random_, 17)) {
      case 0:
        return match();
      case 1:
        return match_below();
      case 2:
        return split();
      case 3:
        return extend();
      case 4:
        return lock();
      case 5:
      case 6:
        return unlock();
      case 7:
        return touch();
      case 8:
        return join_with_child();
      case 9:
        return remove_any();
      case 10:
        return change_order();
      case 11:
        return misuse();
      case 12:
        return change_flat_order();
      case 13:
        return park();
      case 14:
        return evict_flat();
      default:
        return evict();
    }
  }

  // --- pairs of nodes

  Node* real(const NaiveNode* node) const { return real_.at(node); }
  NaiveNode* twin(const Node* node) const { return node == nullptr ? nullptr : twin_of_.at(node); }

  void pair(Node* node, NaiveNode* naive) {
    real_[naive] = node;
    twin_of_[node] = naive;
  }
  void unpair(const NaiveNode* naive) {
    twin_of_.erase(real_.at(naive));
    real_.erase(naive);
  }

  NaiveNode* any_node() {
    const auto& nodes = twin_.nodes();
    return nodes.empty() ? nullptr : nodes[below(random_, nodes.size())].get();
  }

  NaiveNode* root(const std::string& name) {
    Node* node = trie_.root(name);
    NaiveNode* naive = twin_.root(name);
    pair(node, naive);
    return naive;
  }

  std::string any_name() { return std::string(1, static_cast<char>('a' + below(random_, 3))); }

  // A known path as it is, cut short or drawn out, or a new one.
  Tokens query(const std::string& name) {
    const NaiveNode* node = any_node();
    if (node == nullptr || node->name_space != name || chance(random_, 40)) return keys_.draw(random_);
    Tokens tokens = node->path;
    if (!tokens.empty() && chance(random_, 50)) tokens.resize(below(random_, tokens.size()));
    if (chance(random_, 50)) {
      const Tokens more = keys_.draw(random_);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    return tokens;
  }

  // --- operations

  void insert() {
    const std::string name = any_name();
    const Tokens tokens = query(name);
    if (tokens.empty()) return;
    root(name);
    const Match found = trie_.match(name, tokens);
    const NaiveTrie::Match naive = twin_.match(name, tokens);
    expect(twin(found.node) == naive.node && found.length == naive.length, "insert: match differs");
    NaiveNode* parent = naive.node;
    if (naive.length < parent->end()) parent = split_at(parent, naive.length);
    if (regime_.tiers) promote(parent);
    const Tokens rest(tokens.begin() + naive.length, tokens.end());
    if (!rest.empty()) {
      parent = add(parent, rest);
    } else if (parent->parent != nullptr) {
      trie_.touch(real(parent));
      twin_.touch(parent);
    }
    if (regime_.tiers && parent->parent != nullptr && !parent->age[0]) join(0, parent);
  }

  NaiveNode* add(NaiveNode* parent, const Tokens& edge) {
    const int mark = chance(random_, 80) ? 0 : 1;
    const double cost = kCosts[below(random_, std::size(kCosts))];
    auto payload = std::make_unique<RangePayload>(parent->end(), edge, mark, cost);
    Node* child = trie_.add_child(real(parent), edge, std::move(payload));
    NaiveNode* naive = twin_.add_child(parent, edge, mark, cost);
    pair(child, naive);
    if (!regime_.tiers && chance(random_, 70)) join(below(random_, kTiers), naive);
    for (std::size_t order = kTiers; order < kOrders; ++order) {
      if (chance(random_, 50)) join(order, naive);
    }
    if (regime_.tiers && chance(random_, 50)) join(0, naive);
    if (chance(random_, 70)) recall(naive, edge.size());
    return naive;
  }

  NaiveNode* split_at(NaiveNode* node, std::int32_t at) {
    Node* upper = trie_.split(real(node), at);
    NaiveNode* naive = twin_.split(node, at);
    pair(upper, naive);
    return naive;
  }

  void join(std::size_t order, NaiveNode* node) {
    trie_.join_order(static_cast<int>(order), real(node));
    twin_.join_order(order, node);
  }
  void leave(std::size_t order, NaiveNode* node) {
    trie_.leave_order(static_cast<int>(order), real(node));
    twin_.leave_order(order, node);
  }

  // Of one of its orders, if any.
  void recall(NaiveNode* leaf, std::size_t count) {
    const std::size_t order = leaf->age[0] ? 0 : 1;
    if (!leaf->age[order]) return;
    trie_.recall(static_cast<int>(order), real(leaf), count);
    const auto uppers = twin_.recall(order, leaf, static_cast<std::int32_t>(count));
    Node* upper = real(leaf)->parent();
    for (auto each = uppers.rbegin(); each != uppers.rend(); ++each, upper = upper->parent()) pair(upper, *each);
  }

  // Page-in: the path comes from order 1 to order 0, from the top.
  void promote(NaiveNode* node) {
    std::vector<NaiveNode*> path;
    for (; node->parent != nullptr; node = node->parent) path.push_back(node);
    for (; !path.empty(); path.pop_back()) {
      if (path.back()->age[1]) leave(1, path.back());
      if (!path.back()->age[0]) join(0, path.back());
    }
  }

  void match() {
    const std::string name = any_name();
    const Tokens tokens = query(name);
    const Match found = trie_.match(name, tokens);
    const NaiveTrie::Match naive = twin_.match(name, tokens);
    expect(twin(found.node) == naive.node && found.length == naive.length, "match differs");
  }

  void match_below() {
    NaiveNode* from = any_node();
    if (from == nullptr) return;
    const Tokens rest = keys_.draw(random_);
    Tokens whole = from->path;
    whole.insert(whole.end(), rest.begin(), rest.end());
    const Match found = trie_.match_below(real(from), rest);
    const NaiveTrie::Match naive = twin_.match(from->name_space, whole);
    expect(twin(found.node) == naive.node && found.length == naive.length, "match_below differs");
  }

  void split() {
    NaiveNode* node = any_node();
    if (node == nullptr || node->end() - node->start < 2) return;
    split_at(node,
             node->start + 1 +
                 static_cast<std::int32_t>(below(random_, static_cast<std::size_t>(node->end() - node->start - 1))));
  }

  void extend() {
    NaiveNode* leaf = any_node();
    if (leaf == nullptr || leaf->parent == nullptr || !real(leaf)->is_leaf()) return;
    const Tokens more = chance(random_, 70) ? Tokens{static_cast<Token>(below(random_, 4))} : keys_.draw(random_);
    trie_.extend(real(leaf), more);
    auto& payload = static_cast<RangePayload&>(*real(leaf)->payload());
    payload.tokens.insert(payload.tokens.end(), more.begin(), more.end());
    twin_.extend(leaf, more);
    if (chance(random_, 70)) recall(leaf, more.size());
  }

  void lock() {
    NaiveNode* node = any_node();
    if (node == nullptr || locked_.size() > regime_.most_nodes / 4) return;
    if (regime_.tiers && node->parent != nullptr && !node->age[0]) return;
    trie_.lock(real(node));
    twin_.lock(node);
    locked_.push_back(node);
  }

  void unlock() {
    if (locked_.empty()) return;
    const std::size_t which = below(random_, locked_.size());
    NaiveNode* node = std::exchange(locked_[which], locked_.back());
    locked_.pop_back();
    Node* present = real(node);
    const bool goes = node->parent == nullptr && node->locks == 1 && twin_.children(node).empty();
    if (goes) unpair(node);
    trie_.unlock(present);
    twin_.unlock(node);
  }

  void touch() {
    NaiveNode* node = any_node();
    if (node == nullptr) return;
    trie_.touch(real(node));
    twin_.touch(node);
  }

  void join_with_child() {
    NaiveNode* node = any_node();
    if (node == nullptr) return;
    const bool expected = twin_.can_join(node), reading = trie_.reads_suffixes();
    const bool joined = trie_.join_with_child(real(node));
    expect(joined == expected || (reading && expected), "join_with_child: one said yes");
    if (!joined) return;
    unpair(node);
    twin_.join_with_child(node);
  }

  void read_suffixes() {
    if (trie_.suffixes() != nullptr) {
      if (trie_.reads_suffixes() && chance(random_, 20)) trie_.read_suffixes(1 + below(random_, 20));
    } else if (regime_.suffix_places > 0 && chance(random_, 1)) {
      trie_.index_suffixes(regime_.suffix_places);
    }
  }

  void remove(NaiveNode* leaf) {
    NaiveNode* parent = leaf->parent;
    Node* present = real(leaf);
    unpair(leaf);
    if (parent->parent == nullptr && parent->locks == 0 && twin_.children(parent).size() == 1) unpair(parent);
    const auto payload = trie_.remove(present);
    expect(static_cast<RangePayload&>(*payload).tokens == leaf->edge(), "remove: another payload");
    twin_.remove(leaf);
  }

  void remove_any() {
    NaiveNode* leaf = any_node();
    if (leaf == nullptr || leaf->parent == nullptr || leaf->locks > 0 || !real(leaf)->is_leaf()) return;
    remove(leaf);
  }

  void change_order() {
    NaiveNode* node = any_node();
    if (node == nullptr || node->parent == nullptr) return;
    if (regime_.tiers) return promote(node);
    const std::size_t order = below(random_, kTiers);
    node->age[order] ? leave(order, node) : join(order, node);
  }

  std::size_t any_flat_order() { return kTiers + below(random_, kOrders - kTiers); }

  void change_flat_order() {
    NaiveNode* node = any_node();
    if (node == nullptr || node->parent == nullptr) return;
    const std::size_t order = any_flat_order();
    node->age[order] ? leave(order, node) : join(order, node);
  }

  void park() {
    NaiveNode* node = any_node();
    const std::size_t order = any_flat_order();
    if (node == nullptr || node->parent == nullptr) return;
    if (chance(random_, 40)) {
      trie_.relist(static_cast<int>(order), real(node));
      twin_.relist(order, node);
    } else if (node->member(order)) {
      trie_.park(static_cast<int>(order), real(node));
      twin_.park(order, node);
    }
  }

  // The victim among some of the members: out of the order, parked, or used again.
  void evict_flat() {
    const std::size_t order = any_flat_order();
    const std::size_t share = below(random_, 4), which = below(random_, 3);
    NaiveNode* node = victim_among(order, [&](const NaiveNode* each) {
      return share == 0 || static_cast<std::size_t>(each->end()) % (share + 1) == which % (share + 1);
    });
    if (node == nullptr) return;
    if (chance(random_, 60)) return leave(order, node);
    trie_.park(static_cast<int>(order), real(node));
    twin_.park(order, node);
  }

  // A victim of order 0 is demoted to order 1, one of order 1 goes away.
  void evict() {
    const std::size_t order = below(random_, kTiers);
    NaiveNode* node = victim(order);
    if (node == nullptr) return;
    if (real(node)->is_leaf() && (order == 1 || chance(random_, 30))) return remove(node);
    leave(order, node);
    if (order == 0 && !node->age[1]) join(1, node);
  }

  template <class Call>
  static void expect_refused(const Call& call, const std::string& what) {
    try {
      call();
    } catch (const Error& error) {
      return expect(error.kind() == ErrorKind::kArgument, what + ": another kind of error");
    }
    throw std::runtime_error(what + ": not refused");
  }

  // Wrong calls change nothing; that is seen by the comparison that follows.
  void misuse() {
    NaiveNode* naive = any_node();
    if (naive == nullptr) return;
    Node* node = real(naive);
    expect_refused([&] { trie_.split(node, node->start()); }, "split at the start");
    expect_refused([&] { trie_.split(node, node->end()); }, "split at the end");
    expect_refused([&] { trie_.add_child(node, {}, nullptr); }, "empty edge");
    expect_refused([&] { trie_.join_order(kOrders, node); }, "unknown order");
    expect_refused([&] { trie_.recall(0, node, 0); }, "recall of nothing");
    expect_refused([&] { trie_.park(0, node); }, "park in an order that is leaf first");
    expect_refused([&] { trie_.relist(1, node); }, "relist in an order that is leaf first");
    expect_refused([&] { trie_.victim(0, [](Node*) { return true; }); }, "question to an order that is leaf first");
    if (!naive->member(kTiers)) expect_refused([&] { trie_.park(kTiers, node); }, "park of no member");
    if (!node->is_leaf() || node->is_root()) {
      expect_refused([&] { trie_.extend(node, Tokens{1}); }, "extend of an inner node");
      expect_refused([&] { trie_.remove(node); }, "remove of an inner node");
    } else if (node->locks() > 0) {
      expect_refused([&] { trie_.remove(node); }, "remove of a locked node");
    }
    if (node->first_child() != nullptr) {
      const Tokens twice{node->first_child()->tokens()[0]};
      expect_refused([&] { trie_.add_child(node, twice, nullptr); }, "second child with one first token");
    }
    for (int order = 0; order < kOrders; ++order) {
      if (node->is_root() || node->in_order(order)) {
        expect_refused([&] { trie_.join_order(order, node); }, "join of a member or root");
      } else {
        expect_refused([&] { trie_.leave_order(order, node); }, "leave of no member");
      }
    }
  }

  // --- comparison

  NaiveNode* victim(std::size_t order) {
    NaiveNode* expected = twin_.victim(order);
    NaiveNode* found = twin(trie_.victim(static_cast<int>(order)));
    expect(found == expected, cat("victim of order ", order, " differs"));
    if (regime_.tiers && found != nullptr && order < kTiers)
      expect(!twin_.has_lock_below(found), "a victim has a lock below it");
    return found;
  }

  template <class MayGo>
  NaiveNode* victim_among(std::size_t order, const MayGo& may_go) {
    NaiveNode* expected = twin_.victim(order, [&](NaiveNode* node) { return may_go(node); });
    Node* found = trie_.victim(static_cast<int>(order), [&](Node* node) { return may_go(twin(node)); });
    expect(twin(found) == expected, cat("victim of order ", order, " among some differs"));
    return expected;
  }

  void compare_victims() {
    for (std::size_t order = 0; order < kOrders; ++order) victim(order);
  }

  void compare() {
    const auto findings = trie_.check();
    if (!findings.empty()) throw std::runtime_error(findings.front());
    if (const SuffixIndex* suffixes = trie_.suffixes();
        suffixes != nullptr && suffixes->capacity() >= kAmplePlaces && !trie_.reads_suffixes())
      expect(suffixes->size() == trie_.token_count(), "tokens are not in the index of suffixes");
    std::size_t seen = 0;
    trie_.visit([&](Node& node) {
      ++seen;
      compare_node(node, *twin(&node));
    });
    expect(seen == twin_.nodes().size(), "number of nodes differs");
  }

  void compare_node(const Node& node, const NaiveNode& naive) {
    const Tokens edge(node.tokens().begin(), node.tokens().end());
    expect(node.start() == naive.start && edge == naive.edge(), "edge differs");
    expect(node.is_root() == (naive.parent == nullptr), "root differs");
    expect(node.is_root() || twin(node.parent()) == naive.parent, "parent differs");
    expect(node.name_space() == naive.name_space, "namespace differs");
    expect(node.locks() == naive.locks, "locks differ");
    expect(node.last_used() == naive.last_used, "last use differs");
    for (int order = 0; order < kOrders; ++order) {
      const auto at = static_cast<std::size_t>(order);
      expect(node.in_order(order) == naive.age[at].has_value(), "membership differs");
      expect(trie_.in_first_use(order, &node) == twin_.in_first_use(at, &naive), "first use differs");
    }
    if (node.is_root()) return;
    const auto& payload = static_cast<const RangePayload&>(*node.payload());
    expect(payload.start == naive.start && payload.tokens == edge && payload.mark == naive.mark, "payload differs");
  }

  // Everything goes: unlocked, evicted in order, the rest removed leaf by leaf. Nothing may be left.
  void drain() {
    while (!locked_.empty()) unlock();
    compare();
    for (auto& node : twin_.nodes()) {
      for (std::size_t order = kTiers; order < kOrders; ++order) {
        trie_.relist(static_cast<int>(order), real(node.get()));
        twin_.relist(order, node.get());
      }
    }
    for (std::size_t order = 0; order < kOrders; ++order) {
      while (NaiveNode* node = victim(order)) leave(order, node);
      expect(trie_.members(static_cast<int>(order)) == 0, "members are left without a victim");
    }
    while (!twin_.nodes().empty()) {
      NaiveNode* node = twin_.nodes().back().get();
      while (!twin_.children(node).empty()) node = twin_.children(node).front();
      if (node->parent != nullptr) {
        remove(node);
      } else {
        lock_and_drop(node);
      }
    }
    compare();
    expect(trie_.size() == 0 && trie_.token_count() == 0, "something is left");
  }

  // A root that never had a child goes with its last lock.
  void lock_and_drop(NaiveNode* root) {
    trie_.lock(real(root));
    twin_.lock(root);
    locked_.push_back(root);
    unlock();
  }

  Regime regime_;
  Random& random_;
  KeyShape keys_;
  Trie trie_;
  NaiveTrie twin_;
  std::unordered_map<const NaiveNode*, Node*> real_;
  std::unordered_map<const Node*, NaiveNode*> twin_of_;
  std::vector<NaiveNode*> locked_;  // one entry per lock
};

}  // namespace kvtrie::oracle
