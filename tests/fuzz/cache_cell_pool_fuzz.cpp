// Bytes as operations on a pool of cells and the span lists that hold them, beside a naive twin
// (tests/oracle/pool_driver.h): claims, shares, splits, joins, cuts, moves, compaction, calls that have to be refused.
//
// Holds to: after each operation every list has the twin's contents at its positions, cells are counted as the twin
// counts, what became free is what nobody holds, and check() finds nothing.
//
// Input: [1: cells][operations and their choices, two bytes each].
#include <array>

#include "fuzz_bytes.h"
#include "pool_driver.h"

namespace kvtrie::fuzz {
namespace {

void operate_on_pool(Input input) {
  static constexpr std::array<Cell, 8> kSizes{1, 2, 3, 8, 17, 40, 64, 120};
  constexpr int kMost = 400;
  Bytes from(input);
  const Cell cells = kSizes[from.below(kSizes.size())];
  const Input choices = from.take(from.size());
  oracle::PoolDriver driver(oracle::Random(choices), cells);
  for (int operation = 0; operation < kMost && !driver.used_up(); ++operation) {
    const std::string fault = driver.step();
    expect(fault.empty(), "operation ", operation, ": ", fault);
  }
}

const Registration registered_pool("cache_cell_pool", operate_on_pool);

}  // namespace
}  // namespace kvtrie::fuzz
