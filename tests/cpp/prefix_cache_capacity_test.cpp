// Caps that are lowered and raised, refused and taken back, without a prefix cache.
#include "tiers/capacity.h"

#include <gtest/gtest.h>

#include "device_tree_world.h"

namespace kvtrie {
namespace {

class CapacityTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  CapacityTest() : DeviceTreeWorld({.attention = {{{}, 64}, {{4, 0}, 48}}, .recurrent = 1, .slots = 8}) {}
  void TearDown() override { expect_sound(); }

  void change(const Limits& limits) {
    const Caps wanted = capacity.caps_for(limits, /*aside=*/0);
    capacity.require_reachable(wanted);
    capacity.apply(wanted);
  }
  using Units = std::vector<std::optional<std::uint32_t>>;
  static Limits cells(Units units) {
    Limits limits;
    limits.held_cells = std::move(units);
    return limits;
  }
  static Limits slots(Units units) {
    Limits limits;
    limits.held_slots = std::move(units);
    return limits;
  }
  static Limits with_host(std::uint64_t bytes, Limits limits = {}) {
    limits.host_bytes = bytes;
    return limits;
  }
  // What must be refused, and change nothing.
  void expect_refused(const Limits& limits, ErrorKind kind) {
    const std::string before = picture();
    try {
      change(limits);
      ADD_FAILURE() << "it was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
    }
    EXPECT_EQ(picture(), before);
  }

  Capacity capacity{caches, host, lower, leases, device_budget, /*most_pinned=*/0.5, quotas};
};

TEST_F(CapacityTest, LoweringMakesRoomInTheUsualOrder) {
  Node* old = add(20);
  Node* young = add(20);
  change(cells({30, std::nullopt}));
  EXPECT_EQ(caches.attention[0]->limit(), 30u);
  EXPECT_FALSE(state_of(old).on_device());
  EXPECT_TRUE(state_of(young).on_device());
  change(cells({0, 0}));
  EXPECT_EQ(capacity.caps().units, (std::vector<std::uint32_t>{64, 48, 8})) << "0: the capacity";
}

TEST_F(CapacityTest, WhatIsPinnedRefusesTheWhole) {
  leases.pin(add(20));
  expect_refused(with_host(1 << 10, cells({19, std::nullopt})), ErrorKind::kCacheFull);
  change(with_host(1 << 10, cells({20, std::nullopt})));
  EXPECT_EQ(host->cap(), std::uint64_t{1} << 10);
}

TEST_F(CapacityTest, WhatCannotBeAskedForIsNamed) {
  expect_refused(cells({1}), ErrorKind::kArgument);
  expect_refused(slots({1, 1}), ErrorKind::kArgument);
  Limits of_disk;
  of_disk.disk_bytes = 1;
  expect_refused(of_disk, ErrorKind::kNotSupported);
  EXPECT_THROW(static_cast<void>(capacity.caps_for(with_host(9), /*aside=*/10)), Error);
  EXPECT_EQ(capacity.caps_for(with_host(19), /*aside=*/10).host, 9u);
}

TEST_F(CapacityTest, MoreThanTheCapacityIsTheCapacity) {
  change(cells({1000, 1000}));
  change(slots({1000}));
  EXPECT_EQ(capacity.caps().units, (std::vector<std::uint32_t>{64, 48, 8}));
}

TEST_F(CapacityTest, HostMemoryThatIsInUseShrinksWithIt) {
  Node* node = add(20);
  ASSERT_GT(eviction.page_out(node), 0u);
  seal();
  const Caps less = capacity.caps_for(with_host(host->used() - 1), 0);
  EXPECT_TRUE(capacity.shrinks(less));
  EXPECT_FALSE(capacity.shrinks(capacity.caps_for(with_host(host->used()), 0)));
  capacity.require_reachable(less);
  capacity.apply(less);
  EXPECT_EQ(host->used(), 0u) << "the node had its bytes nowhere else";
  EXPECT_TRUE(nodes().empty());
}

TEST_F(CapacityTest, PinsMayHoldAShareOfTheSmallestPool) {
  capacity.set_pin_cap();
  EXPECT_EQ(leases.cap(), 24u);
  change(cells({10, std::nullopt}));
  EXPECT_EQ(leases.cap(), 5u);
}

}  // namespace
}  // namespace kvtrie
