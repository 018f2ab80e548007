// Pins and holds against a twin that keeps lists of paths and counts everything anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "lease_helpers.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kLeaseSeed = 20261124;

struct LeaseTwin {
  explicit LeaseTwin(Node* end, double when = kNever) : node(end), until(when) {
    for (Node* each = end; !each->is_root(); each = each->parent()) path.insert(each);
  }
  Node* node;
  double until;
  std::set<const Node*> path;
  bool lost = false;
};

bool twin_is_below(const Node* node, const Node* top) {
  for (; node != nullptr; node = node->parent()) {
    if (node == top) return true;
  }
  return false;
}

class LeaseDriver {
 public:
  LeaseDriver() {
    for (int i = 0; i < 6; ++i) add();
  }

  void step() {
    using Action = void (LeaseDriver::*)();
    constexpr Action kActions[] = {
        &LeaseDriver::add,    &LeaseDriver::add,    &LeaseDriver::cut,         &LeaseDriver::join,
        &LeaseDriver::remove, &LeaseDriver::pin,    &LeaseDriver::pin,         &LeaseDriver::pin,
        &LeaseDriver::unpin,  &LeaseDriver::expire, &LeaseDriver::hold,        &LeaseDriver::hold,
        &LeaseDriver::let_go, &LeaseDriver::let_go, &LeaseDriver::set_cap,     &LeaseDriver::others,
        &LeaseDriver::mark,   &LeaseDriver::point,  &LeaseDriver::remove_pins, &LeaseDriver::lose,
    };
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    const std::vector<std::string> findings = world_.findings();
    ASSERT_TRUE(findings.empty()) << findings.front();
    for (const Node* node : nodes_) {
      ASSERT_EQ(node->locks(), expected_locks(node));
      ASSERT_EQ(state_of(node).pins(), pins_at(node));
    }
    compare_lists();
    compare_tokens();
  }

 private:
  Node* pick() { return nodes_[random_() % nodes_.size()]; }

  std::uint32_t pins_at(const Node* node) const {
    std::uint32_t count = 0;
    for (const LeaseTwin& twin : pins_) count += twin.node == node;
    return count;
  }
  std::uint32_t expected_locks(const Node* node) const {
    const auto found = others_.find(node);
    std::uint32_t locks = state_of(node).user() + (found == others_.end() ? 0 : found->second);
    for (const LeaseTwin& twin : pins_) locks += twin.path.contains(node);
    for (const auto& [hold, twin] : holds_) locks += twin.path.contains(node);
    return locks;
  }
  bool is_pinned(const Node* node) const {
    return std::any_of(pins_.begin(), pins_.end(), [&](const LeaseTwin& pin) { return twin_is_below(pin.node, node); });
  }
  std::uint64_t pinned_tokens() const {
    std::uint64_t tokens = 0;
    for (const Node* node : nodes_) tokens += is_pinned(node) ? state_of(node).length() : 0;
    return tokens;
  }
  // One token after the other.
  std::int32_t longest_pin(const Match& match) const {
    std::vector<const Node*> path;
    for (const Node* node = match.node; !node->is_root(); node = node->parent()) path.insert(path.begin(), node);
    std::uint64_t fresh = 0;
    for (const Node* node : path) {
      for (std::int32_t at = node->start(); at < std::min(node->end(), match.length); ++at) {
        fresh += is_pinned(node) ? 0 : 1;
        if (fresh > 0 && pinned_tokens() + fresh > world_.leases.cap()) return at;
      }
    }
    return match.length;
  }

  void compare_lists() {
    const std::vector<Pin>& kept = world_.leases.pins();
    ASSERT_EQ(kept.size(), pins_.size());
    double next = kNever;
    for (std::size_t i = 0; i < pins_.size(); ++i) {
      ASSERT_EQ(kept[i].node, pins_[i].node);
      ASSERT_EQ(kept[i].until, pins_[i].until);
      next = std::min(next, pins_[i].until);
    }
    ASSERT_EQ(world_.leases.next_expiry(), next);
    ASSERT_EQ(world_.leases.holds().size(), holds_.size());
    for (const auto& [hold, twin] : holds_) {
      ASSERT_EQ(hold->node, twin.node);
      ASSERT_EQ(hold->lost, twin.lost);
    }
  }
  void compare_tokens() {
    ASSERT_EQ(world_.leases.pinned_tokens(), pinned_tokens());
    Node* node = pick();
    const auto within = static_cast<std::int32_t>(1 + random_() % state_of(node).length());
    const Match match{node, node->start() + within};
    ASSERT_EQ(world_.leases.longest_pin(match), longest_pin(match)) << "of " << match.length;
  }

  void add() {
    if (nodes_.size() >= 24) return;
    Node* parent = nodes_.empty() || random_() % 3 == 0 ? world_.trie.root("n") : pick();
    nodes_.push_back(world_.add(parent, static_cast<std::int32_t>(1 + random_() % 6)));
  }
  void cut() {
    Node* node = pick();
    const std::uint32_t length = state_of(node).length();
    if (length < 2 || nodes_.size() >= 24) return;
    nodes_.push_back(world_.trie.split(node, node->start() + 1 + static_cast<std::int32_t>(random_() % (length - 1))));
  }
  void join() {
    Node* node = pick();
    if (world_.trie.join_with_child(node)) std::erase(nodes_, node);
  }

  bool only_pins_below(const Node* top) const {
    return std::none_of(nodes_.begin(), nodes_.end(), [&](const Node* node) {
      if (!twin_is_below(node, top)) return false;
      const auto held = [&](const auto& each) { return each.second.path.contains(node); };
      return state_of(node).user() || others_.contains(node) || std::any_of(holds_.begin(), holds_.end(), held);
    });
  }
  void remove_pins_below(const Node* top) {
    world_.leases.remove_below(top);
    std::erase_if(pins_, [&](const LeaseTwin& pin) { return twin_is_below(pin.node, top); });
  }
  void remove_pins() {
    if (random_() % 3 == 0) remove_pins_below(pick());
  }
  void remove() {
    Node* top = pick();
    if (!only_pins_below(top)) return;
    remove_pins_below(top);
    std::vector<Node*> below;
    std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(below),
                 [&](const Node* node) { return twin_is_below(node, top); });
    std::sort(below.begin(), below.end(), [](const Node* a, const Node* b) { return a->end() > b->end(); });
    for (Node* node : below) {
      world_.remove(node);
      std::erase(nodes_, node);
    }
    if (nodes_.empty()) add();
  }

  void pin() {
    Node* node = pick();
    const double until = random_() % 3 == 0 ? kNever : now_ + static_cast<double>(1 + random_() % 20);
    world_.leases.pin(node, until);
    pins_.emplace_back(node, until);
  }
  void unpin() {
    Node* node = pick();
    const auto first = std::find_if(pins_.begin(), pins_.end(), [&](const LeaseTwin& pin) { return pin.node == node; });
    ASSERT_EQ(world_.leases.unpin(node), first != pins_.end());
    if (first != pins_.end()) pins_.erase(first);
  }
  void expire() {
    now_ += static_cast<double>(random_() % 8);
    for (auto pin = pins_.begin(); pin != pins_.end();) {
      if (pin->until > now_) {
        ++pin;
        continue;
      }
      ASSERT_EQ(world_.leases.take_expired(now_), pin->node);
      pin = pins_.erase(pin);
    }
    ASSERT_EQ(world_.leases.take_expired(now_), nullptr);
  }
  void hold() {
    Node* node = pick();
    if (holds_.size() < 8) holds_.emplace_back(world_.leases.hold(node), LeaseTwin(node));
  }
  void let_go() {
    if (holds_.empty()) return;
    const auto which = holds_.begin() + static_cast<std::ptrdiff_t>(random_() % holds_.size());
    world_.leases.let_go(which->first);
    holds_.erase(which);
  }
  // Holds that end there or below it end at the nearest node above it that they had, or at the root.
  void lose() {
    if (random_() % 3 != 0) return;
    const Node* top = pick();
    world_.leases.lose_below(top);
    for (auto& [hold, twin] : holds_) {
      const bool lost = twin_is_below(twin.node, top);
      std::erase_if(twin.path, [&](const Node* each) { return twin_is_below(each, top); });
      while (lost && !twin.node->is_root() && !twin.path.contains(twin.node)) twin.node = twin.node->parent();
      twin.lost = twin.lost || lost;
    }
  }
  void set_cap() { world_.leases.set_cap(random_() % 60); }

  // Locks of sessions.
  void others() {
    Node* node = pick();
    if (others_.contains(node)) {
      world_.trie.unlock(node);
      if (--others_[node] == 0) others_.erase(node);
    } else {
      world_.trie.lock(node);
      ++others_[node];
    }
  }
  void mark() {
    Node* node = pick();
    state_of(node).user() ? static_cast<void>(world_.points.take_off_user(node)) : world_.points.mark_user(node);
  }
  void point() {
    Node* node = pick();
    if (!world_.points.remove(node)) world_.put_point(node, random_() % 2 == 0 ? PointKind::kSpaced : PointKind::kEnd);
  }

  std::mt19937_64 random_{kLeaseSeed};
  LeaseWorld world_;
  std::vector<Node*> nodes_;
  std::vector<LeaseTwin> pins_;  // as they were made
  std::vector<std::pair<Leases::Hold, LeaseTwin>> holds_;
  std::map<const Node*, std::uint32_t> others_;  // locks that are no leases'
  double now_ = 0;
};

TEST(Leases, AgreeWithATwinAfterEveryStep) {
  LeaseDriver driver;
  for (int i = 0; i < 20000; ++i) {
    driver.step();
    if (!::testing::Test::HasFatalFailure()) driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kLeaseSeed << ", step " << i;
  }
}

}  // namespace
}  // namespace kvtrie
