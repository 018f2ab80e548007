#include "store/spare_memory.h"

#include <gtest/gtest.h>

#include "base/huge_pages.h"
#include "store/blob.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(SpareMemory, GivesBackTheBlockNearestInSize) {
  SpareMemory spare;
  std::byte* small = map_huge_pages(1 * kMiB);
  std::byte* large = map_huge_pages(4 * kMiB);
  spare.keep(small, 1 * kMiB);
  spare.keep(large, 4 * kMiB);
  EXPECT_EQ(spare.bytes(), 5 * kMiB);
  std::byte* taken = spare.take(4 * kMiB);
  EXPECT_EQ(taken, large);
  EXPECT_EQ(spare.bytes(), 1 * kMiB);
  unmap_huge_pages(taken, 4 * kMiB);
}

// Cut or grown, all of it can be written, and what was in it is still there as far as it reaches.
TEST(SpareMemory, CutsAndGrowsByWholePages) {
  for (const std::uint64_t wanted : {kMiB + 12345, 4 * kMiB, 9 * kMiB + 1}) {
    SpareMemory spare;
    std::byte* block = map_huge_pages(4 * kMiB);
    block[kMiB] = std::byte{42};
    spare.keep(block, 4 * kMiB);
    std::byte* taken = spare.take(wanted);
    ASSERT_NE(taken, nullptr);
    EXPECT_EQ(taken[kMiB], std::byte{42});
    for (std::uint64_t at = 0; at < wanted; at += 4096) taken[at] = std::byte{7};
    taken[wanted - 1] = std::byte{7};
    unmap_huge_pages(taken, wanted);
  }
}

TEST(SpareMemory, HasNothingToGiveWhenNothingIsKept) {
  SpareMemory spare;
  EXPECT_EQ(spare.take(kMiB), nullptr);
  spare.keep(map_huge_pages(2 * kMiB), 2 * kMiB);
  spare.shrink_to(2 * kMiB);
  EXPECT_EQ(spare.bytes(), 2 * kMiB);
  spare.shrink_to(2 * kMiB - 1);
  EXPECT_EQ(spare.bytes(), 0u);
  EXPECT_EQ(spare.take(kMiB), nullptr);
}

// What is kept never stands in the way of what is wanted.
TEST(SpareMemory, OfABudgetLeavesAllOfTheCapToItsUsers) {
  const auto budget = std::make_shared<ByteBudget>(8 * kMiB);
  for (const std::uint64_t size : {4 * kMiB, 8 * kMiB, kMiB + 1, 8 * kMiB, 3 * kMiB}) {
    const HostMemoryPtr memory = HostMemory::allocate(budget, size);
    ASSERT_NE(memory, nullptr) << size;
    EXPECT_EQ(budget->used(), size);
    memory->data()[size - 1] = std::byte{1};
  }
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_EQ(budget->violations(), 0u);
}

}  // namespace
}  // namespace kvtrie
