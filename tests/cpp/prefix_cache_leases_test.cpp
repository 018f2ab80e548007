// Each ending of pins and holds, and allocations that fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "failing_allocations.h"
#include "lease_helpers.h"

namespace kvtrie {
namespace {

class LeasesTest : public ::testing::Test, public LeaseWorld {
 protected:
  void TearDown() override { EXPECT_EQ(findings(), std::vector<std::string>{}); }

  Node* top = add(3);
  Node* middle = add(top, 2);
  Node* leaf = add(middle, 4);
  Node* other = add(middle, 5);
};

TEST_F(LeasesTest, SeveralPinsAtOneNodeGoOneByOne) {
  for (const double until : {5.0, kNever, 3.0}) leases.pin(leaf, until);
  EXPECT_EQ(state_of(leaf).pins(), 3u);
  EXPECT_EQ(leaf->locks(), 3u);
  EXPECT_EQ(leases.pinned_tokens(), 9u);
  EXPECT_EQ(leases.next_expiry(), 3);
  EXPECT_TRUE(leases.unpin(leaf));  // the one made first, not the next one to be over
  EXPECT_EQ(leases.next_expiry(), 3);
  EXPECT_EQ(leases.take_expired(100), leaf);
  EXPECT_EQ(leases.next_expiry(), kNever);
  EXPECT_TRUE(leases.unpin(leaf));
  EXPECT_FALSE(leases.unpin(leaf));
  EXPECT_EQ(leaf->locks() + middle->locks() + top->locks(), 0u);
}

TEST_F(LeasesTest, ThoseWhoseTimeIsOverGoAsTheyWereMade) {
  leases.pin(leaf, 3);
  leases.pin(other, 1);
  leases.pin(top, 2);
  EXPECT_EQ(leases.take_expired(0.5), nullptr);
  EXPECT_EQ(leases.take_expired(2), other);
  EXPECT_EQ(leases.take_expired(2), top);
  EXPECT_EQ(leases.take_expired(2), nullptr);
  EXPECT_EQ(top->locks(), 1u);
  EXPECT_EQ(leases.take_expired(3), leaf);
  EXPECT_EQ(leases.next_expiry(), kNever);
}

TEST_F(LeasesTest, PinsOfASubtreeGoWithIt) {
  for (Node* node : {leaf, top, other, leaf}) leases.pin(node);
  leases.remove_below(middle);
  EXPECT_EQ(leases.pins().size(), 1u);
  EXPECT_EQ(top->locks(), 1u);
  EXPECT_EQ(leases.pinned_tokens(), 3u);
  for (Node* node : {leaf, other, middle}) remove(node);
  EXPECT_EQ(findings(), std::vector<std::string>{});
  leases.remove_below(top);
  EXPECT_EQ(leases.pinned_tokens(), 0u);
}

TEST_F(LeasesTest, HoldsEndInAnyOrder) {
  const std::vector<Node*> nodes{leaf, other, top, leaf};
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    std::vector<Leases::Hold> holds;
    for (Node* node : nodes) holds.push_back(leases.hold(node));
    EXPECT_EQ(top->locks(), 4u);
    EXPECT_EQ(leases.pinned_tokens(), 0u);
    for (const std::size_t each : order) {
      EXPECT_EQ(holds[each]->node, nodes[each]);
      leases.let_go(holds[each]);
      EXPECT_EQ(findings(), std::vector<std::string>{});
    }
    EXPECT_EQ(top->locks() + middle->locks() + leaf->locks() + other->locks(), 0u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(LeasesTest, OfARootNothingIsLockedNorPinned) {
  Node* root = trie.root("n");
  const Leases::Hold hold = leases.hold(root);
  EXPECT_EQ(root->locks(), 0u);
  EXPECT_EQ(findings(), std::vector<std::string>{});
  leases.let_go(hold);
  EXPECT_THROW(leases.pin(root), Error);
  EXPECT_TRUE(leases.pins().empty());
}

TEST_F(LeasesTest, StayWhereTheyEndThroughCutsAndJoins) {
  leases.pin(leaf, 7);
  Node* upper = trie.split(leaf, leaf->start() + 1);
  EXPECT_EQ(state_of(leaf).pins(), 1u);
  EXPECT_EQ(state_of(upper).pins(), 0u);
  EXPECT_EQ(leases.pinned_tokens(), 9u);
  EXPECT_EQ(findings(), std::vector<std::string>{});
  ASSERT_TRUE(trie.join_with_child(upper));
  EXPECT_EQ(state_of(leaf).pins(), 1u);
  EXPECT_EQ(leases.take_expired(7), leaf);
}

TEST_F(LeasesTest, TheCapLimitsWhatAFurtherPinAdds) {
  leases.pin(leaf);
  leases.set_cap(11);
  EXPECT_EQ(leases.longest_pin({other, other->end()}), other->start() + 2);
  EXPECT_EQ(leases.longest_pin({leaf, leaf->end() - 1}), leaf->end() - 1);  // adds none
  leases.set_cap(4);                                                        // what is pinned stays
  EXPECT_EQ(leases.pinned_tokens(), 9u);
  EXPECT_EQ(leases.longest_pin({other, other->end()}), other->start());
  leases.remove_below(top);
  EXPECT_EQ(leases.longest_pin({other, other->end()}), 4);
}

TEST_F(LeasesTest, ALockThatSomebodyElseTookAwayIsFound) {
  leases.pin(leaf);
  trie.unlock(middle);
  std::vector<std::string> found;
  leases.check(found);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found.front().find("node [3,5) of 'n': 0 pins and 1 locks of leases counted"), std::string::npos)
      << found[0];
  trie.lock(middle);
}

// Whatever allocation fails: all as before, and again it works.
TEST_F(LeasesTest, WithoutMemoryNothingChanges) {
  put_point(leaf, PointKind::kSpaced);
  const auto with_failures = [&](const char* what, const std::function<void()>& change) {
    for (std::uint64_t failing = 1;; ++failing) {
      const std::size_t pins = leases.pins().size(), holds = leases.holds().size();
      const std::uint32_t locks = top->locks() + middle->locks() + leaf->locks();
      if (!testing::runs_out_of_memory(failing, change)) return failing - 1;
      EXPECT_EQ(leases.pins().size(), pins) << what;
      EXPECT_EQ(leases.holds().size(), holds) << what;
      EXPECT_EQ(top->locks() + middle->locks() + leaf->locks(), locks) << what;
      EXPECT_EQ(findings(), std::vector<std::string>{}) << what << ", allocation " << failing;
    }
  };
  Leases::Hold hold;
  EXPECT_GE(with_failures("hold", [&] { hold = leases.hold(leaf); }), 2u);
  leases.let_go(hold);
  EXPECT_GE(with_failures("pin", [&] { leases.pin(leaf, 1); }), 2u);
  // The point goes back to the lists of its sort without any memory.
  EXPECT_EQ(with_failures("unpin", [&] { leases.unpin(leaf); }), 0u);
  leases.pin(leaf, 1);
  EXPECT_EQ(with_failures("take_expired", [&] { leases.take_expired(1); }), 0u);
  leases.pin(leaf, 1);
  EXPECT_EQ(with_failures("remove_below", [&] { leases.remove_below(middle); }), 0u);
}

}  // namespace
}  // namespace kvtrie
