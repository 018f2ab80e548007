#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

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

}  // namespace
}  // namespace kvtrie
