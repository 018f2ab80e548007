// How deep a prompt is reused, given room and costs: each reason to settle for less, without a prefix cache.
#include "session/reuse_search.h"

#include <gtest/gtest.h>

#include "device_tree_world.h"

namespace kvtrie {
namespace {

struct NegotiationWorld : DeviceTreeWorld {
  using DeviceTreeWorld::DeviceTreeWorld;
  // A prompt of these tokens of a path, by a conversation that begins.
  ReuseSearch negotiate(const Tokens& tokens, bool always_load = false) {
    return {planner,
            device_budget,
            {trie.root("n"), tokens, 0, atomic, always_load},
            static_cast<std::int32_t>(tokens.size()) - 1};
  }
  // Cells that nothing may take.
  void fill(std::int32_t tokens) { leases.pin(add(tokens)); }

  AtomicSpans atomic;
  CostModel costs;
  Planner planner{caches, trie, sessions, costs, LoadPolicy::kAuto};
};

class ReuseSearchTest : public ::testing::Test {
 protected:
  ReuseSearchTest() : world_({.attention = {{{}, 64}}, .recurrent = 0}) {
    top_ = world_.add(20);
    leaf_ = world_.add(top_, 30);
    prompt_ = path_tokens(leaf_);
    prompt_.push_back(-1);
  }
  void leave(Node* node) { ASSERT_GT(world_.eviction.page_out(node), 0u); }

  NegotiationWorld world_;
  Node *top_ = nullptr, *leaf_ = nullptr;
  Tokens prompt_;
};

TEST_F(ReuseSearchTest, WhereNothingIsMissingItIsSettled) {
  ReuseSearch search = world_.negotiate(prompt_);
  EXPECT_FALSE(search.look());
  EXPECT_EQ(search.target(), 50);
  EXPECT_EQ(search.report().matched, 50);
  EXPECT_EQ(search.report().reusable, 50);
  EXPECT_EQ(search.report().reason.code, ReasonCode::kNone);
}

TEST_F(ReuseSearchTest, WhatIsOutsideIsOfferedAndNothingChangesByIt) {
  leave(leaf_);
  const std::string before = world_.picture();
  ReuseSearch search = world_.negotiate(prompt_);
  EXPECT_TRUE(search.look());
  EXPECT_EQ(search.target(), 50);
  EXPECT_EQ(search.fetch().nodes, std::vector<Node*>{leaf_});
  EXPECT_TRUE(search.look()) << "as before, while nobody acts";
  EXPECT_EQ(world_.picture(), before);
}

// Pinned cells leave room for 14 beside what is on the device.
TEST_F(ReuseSearchTest, OfFullAttentionSomeMayFit) {
  leave(leaf_);
  world_.fill(30);
  ReuseSearch search = world_.negotiate(prompt_);
  EXPECT_TRUE(search.look());
  EXPECT_EQ(search.target(), 34);
  EXPECT_EQ(search.fetch().needs, Needs{14});
  EXPECT_EQ(search.report().matched, 50);
  EXPECT_EQ(search.report().reason.code, ReasonCode::kNoRoom);
}

TEST_F(ReuseSearchTest, WhatIsSlowerThanComputingIsLeft) {
  leave(leaf_);
  for (int i = 0; i < 20; ++i) {
    world_.costs.computed(100, 0, 0.01);
    world_.costs.loaded(Tier::kHost, 30 * world_.caches.bytes_per_token(), 100.0);
  }
  ReuseSearch search = world_.negotiate(prompt_);
  EXPECT_FALSE(search.look());
  EXPECT_EQ(search.target(), 20);
  EXPECT_EQ(search.report().reason.code, ReasonCode::kRecompute);
  ReuseSearch whatever_it_costs = world_.negotiate(prompt_, /*always_load=*/true);
  EXPECT_TRUE(whatever_it_costs.look());
  EXPECT_EQ(whatever_it_costs.target(), 50);
}

TEST_F(ReuseSearchTest, WhatCannotBeHadIsNotOfferedAgain) {
  leave(leaf_);
  ReuseSearch search = world_.negotiate(prompt_);
  ASSERT_TRUE(search.look());
  search.stay_on_device(ReasonCode::kChecksum);
  EXPECT_FALSE(search.look());
  EXPECT_EQ(search.target(), 20);
  EXPECT_EQ(search.report().reason.code, ReasonCode::kChecksum);
}

// The tree may change between two looks: what was known counts, what is there now is offered.
TEST_F(ReuseSearchTest, ItLooksAtTheTreeAsItIs) {
  leave(leaf_);
  ReuseSearch search = world_.negotiate(prompt_);
  ASSERT_TRUE(search.look());
  world_.removal.remove_subtree(leaf_);
  EXPECT_FALSE(search.look());
  EXPECT_EQ(search.target(), 20);
  EXPECT_EQ(search.report().matched, 50);
}

// A window comes whole or not at all.
TEST(ReuseSearch, WindowsThatDoNotFitLeaveWhatIsOnTheDevice) {
  NegotiationWorld world({.attention = {{{}, 64}, {{8, 0}, 12}}, .recurrent = 0});
  Node* node = world.add(10);
  world.put_point(node);
  Tokens prompt = path_tokens(node);
  prompt.push_back(-1);
  ASSERT_GT(world.eviction.page_out(node), 0u);
  {
    ReuseSearch search = world.negotiate(prompt);
    EXPECT_TRUE(search.look());
    EXPECT_EQ(search.target(), 10);
  }
  Node* other = world.add(8);
  world.put_point(other);
  world.leases.pin(other);
  ReuseSearch search = world.negotiate(prompt);
  EXPECT_FALSE(search.look());
  EXPECT_EQ(search.target(), 0);
  EXPECT_EQ(search.report().reason.code, ReasonCode::kNoRoom);
}

}  // namespace
}  // namespace kvtrie
