// Random operations on CellPool against its naive twin (pool_driver.h).
//
//   pool_oracle [--seed N] [--operations N]
//
// The seed is printed and replays the run. Exits with 1 at the first difference.
#include <array>
#include <iostream>
#include <string>

#include "operations.h"
#include "pool_driver.h"

namespace kvtrie::oracle {
namespace {

int run(std::uint64_t seed, std::uint64_t operations) {
  static constexpr std::array<Cell, 8> kSizes{1, 2, 3, 8, 17, 40, 64, 120};
  static constexpr std::uint64_t kRound = 2500;
  std::cout << "pool_oracle: seed " << seed << ", operations " << operations << '\n';
  std::uint64_t done = 0;
  for (std::uint64_t round = 0; done < operations; ++round) {
    PoolDriver driver(Random(seed + round), kSizes[round % kSizes.size()]);
    for (std::uint64_t i = 0; i < kRound && done < operations; ++i, ++done) {
      const std::string fault = driver.step();
      if (fault.empty()) continue;
      std::cout << "operation " << done << " (round " << round << ", step " << i << "): " << fault << '\n';
      return 1;
    }
  }
  std::cout << "pool_oracle: " << done << " operations agree\n";
  return 0;
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20251, operations = kvtrie::oracle::operations_here(100000, 200000, 200000);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seed") seed = std::stoull(argv[i + 1]);
    if (name == "--operations") operations = std::stoull(argv[i + 1]);
  }
  return kvtrie::oracle::run(seed, operations);
}
