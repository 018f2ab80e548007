// Unused state: what a sweep gives away, what holds it back, and when the next one is due.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "lease_helpers.h"
#include "tree/expiry.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kExpirySeed = 20261124;

struct ExpiryWorld : LeaseWorld {
  static constexpr double kTtl = 64;

  // As whoever removes a leaf does it.
  void remove_unused(Node* leaf) {
    ASSERT_TRUE(leaf->is_leaf());
    Node* above = leaf->parent();
    if (!above->is_root())
      state_of(above).last_used_seconds = std::max(state_of(above).last_used_seconds, state_of(leaf).last_used_seconds);
    points.take_off_user(leaf);
    remove(leaf);
  }
  // In pieces of so many nodes.
  std::vector<Node*> sweep(double now) {
    std::vector<Node*> removed;
    while (!expiry.sweep_some(now, piece, [&](Node* leaf) {
      removed.push_back(leaf);
      remove_unused(leaf);
    })) {
      EXPECT_TRUE(expiry.due(now)) << "it is not over";
    }
    return removed;
  }

  Expiry expiry{trie, kTtl};
  std::size_t piece = 1000;
};

class ExpiryTest : public ::testing::Test, public ExpiryWorld {
 protected:
  void TearDown() override { EXPECT_EQ(findings(), std::vector<std::string>{}); }

  Node* add_used(Node* parent, double at) {
    Node* node = parent == nullptr ? add(2) : add(parent, 2);
    state_of(node).last_used_seconds = at;
    return node;
  }
  using Nodes = std::vector<Node*>;
};

TEST_F(ExpiryTest, AParentGoesAfterItsLastChildAndStaysBelowWhatIsUsed) {
  Node* a = add_used(nullptr, 3);
  Node* b = add_used(a, 4);
  Node* e = add_used(b, 5);
  Node* c = add_used(a, 12);
  Node* d = add_used(c, 70);
  EXPECT_EQ(sweep(100), (Nodes{e, b}));
  EXPECT_EQ(expiry.next_expiry(leases), 70 + kTtl);
  EXPECT_EQ(sweep(70 + kTtl), (Nodes{d, c, a}));
}

TEST_F(ExpiryTest, LocksHoldItAndAMarkOfAUserDoesNot) {
  Node* pinned = add_used(nullptr, 0);
  Node* held = add_used(nullptr, 0);
  Node* of_session = add_used(nullptr, 0);
  Node* marked = add_used(nullptr, 0);
  Node* marked_and_held = add_used(nullptr, 0);
  leases.pin(pinned);
  const Leases::Hold hold = leases.hold(held), second = leases.hold(marked_and_held);
  trie.lock(of_session);
  points.mark_user(marked);
  points.mark_user(marked_and_held);
  EXPECT_EQ(sweep(1000), Nodes{marked});
  leases.unpin(pinned);
  leases.let_go(hold);
  leases.let_go(second);
  trie.unlock(of_session);
  EXPECT_EQ(sweep(2000).size(), 4u);
}

TEST_F(ExpiryTest, ItIsOverAfterExactlyTheTimeToLive) {
  Node* node = add_used(nullptr, 10);
  EXPECT_EQ(sweep(10 + kTtl - 0.5), Nodes{});
  EXPECT_EQ(sweep(10 + kTtl), Nodes{node});
}

TEST_F(ExpiryTest, SweepsAreDueWhenTheOldestIsOverAndNotMoreOftenThan64TimesInOneTtl) {
  EXPECT_TRUE(expiry.due(0)) << "nothing was looked at yet";
  add_used(nullptr, 10);
  add_used(nullptr, 30);
  sweep(40);
  EXPECT_FALSE(expiry.due(10 + kTtl - 0.5));
  EXPECT_TRUE(expiry.due(10 + kTtl));
  add_used(nullptr, 10.25);  // over a moment after the sweep
  sweep(10 + kTtl);
  EXPECT_EQ(expiry.next_expiry(leases), 10 + kTtl + kTtl / 64);
  sweep(500);
  EXPECT_EQ(expiry.next_expiry(leases), 500 + kTtl) << "nothing is left";
}

TEST_F(ExpiryTest, APinMayBeOverBefore) {
  Node* node = add_used(nullptr, 0);
  sweep(0);
  leases.pin(node, 5);
  EXPECT_EQ(expiry.next_expiry(leases), 5);
  EXPECT_FALSE(expiry.due(5)) << "that is no reason to look at all nodes";
  leases.unpin(node);
  EXPECT_EQ(expiry.next_expiry(leases), kTtl);
}

TEST_F(ExpiryTest, WithoutATimeToLiveOnlyPinsExpire) {
  const Expiry none(trie, std::nullopt);
  Node* node = add_used(nullptr, 0);
  EXPECT_FALSE(none.due(1e30));
  EXPECT_EQ(none.next_expiry(leases), kNever);
  leases.pin(node, 7);
  EXPECT_EQ(none.next_expiry(leases), 7);
}

TEST_F(ExpiryTest, ASweepThatFailedIsDueAgain) {
  add_used(nullptr, 0);
  add_used(nullptr, 0);
  sweep(0);
  std::size_t asked = 0;
  const auto fail_at_the_second = [&](Node* leaf) {
    if (++asked == 2) throw std::runtime_error("no memory");
    remove_unused(leaf);
  };
  EXPECT_THROW(expiry.sweep_some(100, 1000, fail_at_the_second), std::runtime_error);
  EXPECT_TRUE(expiry.due(100));
  EXPECT_EQ(sweep(100).size(), 1u);
  EXPECT_EQ(trie.size(), 0u);
  EXPECT_FALSE(expiry.due(100));
}

// ---- against a twin -----------------------------------------------------------------------------------------------

// Last uses in a map, locks counted anew, and leaves taken off as long as there is one that may go.
class ExpiryDriver {
 public:
  ExpiryDriver() {
    for (int i = 0; i < 6; ++i) add();
  }

  void step() {
    using Action = void (ExpiryDriver::*)();
    constexpr Action kActions[] = {&ExpiryDriver::add,  &ExpiryDriver::add,  &ExpiryDriver::add,  &ExpiryDriver::use,
                                   &ExpiryDriver::use,  &ExpiryDriver::use,  &ExpiryDriver::pin,  &ExpiryDriver::hold,
                                   &ExpiryDriver::hold, &ExpiryDriver::mark, &ExpiryDriver::cut,  &ExpiryDriver::let_go,
                                   &ExpiryDriver::wait, &ExpiryDriver::wait, &ExpiryDriver::wait, &ExpiryDriver::unpin};
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    const std::vector<std::string> findings = world_.findings();
    ASSERT_TRUE(findings.empty()) << findings.front();
    for (const auto& [node, used] : used_) ASSERT_EQ(state_of(node).last_used_seconds, used);
    ASSERT_EQ(world_.trie.size(), used_.size());
    ASSERT_EQ(world_.expiry.next_expiry(world_.leases), std::min(next_sweep_, world_.leases.next_expiry()));
  }

  std::size_t sweeps() const { return sweeps_; }
  std::size_t removed() const { return removed_; }

 private:
  using Uses = std::map<Node*, double>;

  Node* pick() {
    auto each = used_.begin();
    std::advance(each, static_cast<std::ptrdiff_t>(random_() % used_.size()));
    return each->first;
  }
  static bool has_child(const Uses& nodes, const Node* parent) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const auto& each) { return each.first->parent() == parent; });
  }
  // Held by something that is at it or below it, but for a mark of a user.
  bool is_held(const Node* node) const {
    const auto below = [&](const Lease& lease) { return is_at_or_below(lease.node, node); };
    const auto& pins = world_.leases.pins();
    const auto& holds = world_.leases.holds();
    return std::any_of(pins.begin(), pins.end(), below) || std::any_of(holds.begin(), holds.end(), below);
  }

  void add() {
    if (used_.size() >= 40) return;
    const auto tokens = static_cast<std::int32_t>(1 + random_() % 4);
    Node* node = used_.empty() || random_() % 4 == 0 ? world_.add(tokens) : world_.add(pick(), tokens);
    state_of(node).last_used_seconds = used_[node] = now_;
  }
  void use() {
    if (!used_.empty()) use(pick());
  }
  void use(Node* node) { state_of(node).last_used_seconds = used_[node] = now_; }
  void cut() {
    if (used_.empty()) return;
    Node* node = pick();
    if (state_of(node).length() < 2) return;
    Node* upper = world_.trie.split(node, node->start() + 1);
    used_[upper] = used_[node];
  }
  void pin() {
    if (!used_.empty() && world_.leases.pins().size() < 4)
      world_.leases.pin(pick(), now_ + static_cast<double>(1 + random_() % 100));
  }
  void unpin() {
    if (!used_.empty()) world_.leases.unpin(pick());
  }
  void hold() {
    if (!used_.empty() && holds_.size() < 3) holds_.push_back(world_.leases.hold(pick()));
  }
  void let_go() {
    if (holds_.empty()) return;
    std::swap(holds_.back(), holds_[random_() % holds_.size()]);
    world_.leases.let_go(holds_.back());
    holds_.pop_back();
  }
  void mark() {
    if (used_.empty()) return;
    Node* node = pick();
    if (!world_.points.take_off_user(node)) world_.points.mark_user(node);
  }

  // Time goes by, and a call begins.
  void wait() {
    now_ += static_cast<double>(random_() % 40) / 2;
    while (Node* node = world_.leases.take_expired(now_)) use(node);
    ASSERT_EQ(world_.expiry.due(now_), now_ >= next_sweep_);
    if (world_.expiry.due(now_)) sweep();
  }
  void sweep() {
    const std::set<Node*> expected = take_unused();
    world_.piece = 1 + random_() % 20;
    const std::vector<Node*> removed = world_.sweep(now_);
    ASSERT_EQ(std::set<Node*>(removed.begin(), removed.end()), expected);
    ASSERT_EQ(removed.size(), expected.size());
    double next = now_ + ExpiryWorld::kTtl;
    for (const auto& [node, used] : used_) {
      if (used > now_ - ExpiryWorld::kTtl) next = std::min(next, used + ExpiryWorld::kTtl);
    }
    next_sweep_ = std::max(next, now_ + 1);
    ++sweeps_;
    removed_ += removed.size();
  }
  std::set<Node*> take_unused() {
    std::set<Node*> gone;
    for (bool again = true; again;) {
      again = false;
      for (auto each = used_.begin(); each != used_.end();) {
        Node* node = each->first;
        const double used = each->second;
        if (used > now_ - ExpiryWorld::kTtl || has_child(used_, node) || is_held(node)) {
          ++each;
          continue;
        }
        if (const auto above = used_.find(node->parent()); above != used_.end())
          above->second = std::max(above->second, used);
        gone.insert(node);
        each = used_.erase(each);
        again = true;
      }
    }
    return gone;
  }

  std::mt19937_64 random_{kExpirySeed};
  ExpiryWorld world_;
  Uses used_;
  std::vector<Leases::Hold> holds_;
  double now_ = 0, next_sweep_ = 0;
  std::size_t sweeps_ = 0, removed_ = 0;
};

TEST(Expiry, AgreesWithATwinAfterEveryStep) {
  ExpiryDriver driver;
  for (int i = 0; i < 20000; ++i) {
    driver.step();
    if (!::testing::Test::HasFatalFailure()) driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kExpirySeed << ", step " << i;
  }
  EXPECT_GT(driver.sweeps(), 200u);
  EXPECT_GT(driver.removed(), 1000u);
}

}  // namespace
}  // namespace kvtrie
