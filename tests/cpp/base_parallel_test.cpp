#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "failing_allocations.h"

namespace kvtrie {
namespace {

TEST(InParallel, CallsEachNumberOnceWhateverTheSize) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1} << 30}) {
    for (const std::size_t count : {0, 1, 7, 8, 9, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      in_parallel(count, bytes, [&](std::size_t i) { ++calls[i]; });
      for (const std::atomic<int>& each : calls) EXPECT_EQ(each, 1);
    }
  }
}

TEST(InParallel, DoesItAllOnTheThreadsThatThereIsMemoryFor) {
  std::atomic<int> calls{0};
  const std::function<void(std::size_t)> each = [&](std::size_t) { ++calls; };
  for (std::uint64_t nth = 1; nth <= 8; ++nth) {
    calls = 0;
    EXPECT_FALSE(testing::runs_out_of_memory(nth, [&] { in_parallel(1000, std::uint64_t{1} << 30, each); }));
    EXPECT_EQ(calls, 1000);
  }
}

}  // namespace
}  // namespace kvtrie
