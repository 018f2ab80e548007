// Random operations on CausalCache over the host store against naive histories. Freed cells hold NaN. After each
// operation: check(), every length, the contents of every sequence that changed, and now and then of everything.
//
//   causal_oracle [--seed N] [--operations N]
//
// The seed is printed and replays the run. Exits with 1 at the first difference.
#include <algorithm>
#include <array>
#include <iostream>

#include "causal_lends.h"
#include "operations.h"

namespace kvtrie::oracle {
namespace {

class Driver : public CausalLends {
 public:
  using CausalLends::CausalLends;

  struct Operation {
    std::uint32_t weight;
    void (Driver::*run)();
  };

  void step() {
    touched_.clear();
    static constexpr std::array<Operation, 24> kOperations{{{220, &Driver::start},
                                                            {100, &Driver::begin},
                                                            {260, &Driver::put},
                                                            {25, &Driver::drop},
                                                            {40, &Driver::relax},
                                                            {40, &Driver::copy_prefix},
                                                            {40, &Driver::cut},
                                                            {45, &Driver::remove_middle},
                                                            {30, &Driver::take_snapshot},
                                                            {40, &Driver::restore},
                                                            {15, &Driver::split},
                                                            {15, &Driver::merge},
                                                            {20, &Driver::forget_snapshot},
                                                            {15, &Driver::schedule},
                                                            {20, &Driver::drain},
                                                            {15, &Driver::defrag},
                                                            {60, &Driver::publish},
                                                            {60, &Driver::adopt},
                                                            {20, &Driver::start_at},
                                                            {35, &Driver::fork},
                                                            {35, &Driver::page},
                                                            {30, &Driver::refuse},
                                                            {60, &Driver::attend_again},
                                                            {40, &Driver::release}}};
    std::uint32_t total = 0;
    for (const Operation& operation : kOperations) total += operation.weight;
    std::uint32_t choice = below(total);
    const Operation* chosen = kOperations.data();
    for (; choice >= chosen->weight; ++chosen) choice -= chosen->weight;
    (this->*chosen->run)();
    compare();
  }

 private:
  void refuse() {
    const SequenceId id = user_number();
    const std::int32_t length = cache_->length(id);
    const auto bad = [&](auto call) { expect_refused(ErrorKind::kArgument, call); };
    const std::vector<std::int32_t> gap{length + 1};
    const std::vector<SequenceId> ids{id};
    switch (below(6)) {
      case 0:
        return bad([&] { cache_->start_forward(gap, ids); });
      case 1:
        return bad([&] { cache_->remove(id, length + 1); });
      case 2:
        return bad([&] { cache_->copy_prefix(99, id, 0); });
      case 3:
        return bad([&] { cache_->snapshot(id, -1); });
      case 4:
        return bad([&] { cache_->prepare_snapshots(id, {length - 1}); });
      default:
        return bad([&] { cache_->remove(id, 0, length + 1); });
    }
  }
};

// Every fifth world has latent keys. Every third world forgets nothing; the others have small windows, chunks, or both,
// and some memory.
Sight world(std::uint64_t round, std::int32_t cells, std::mt19937_64& random) {
  static constexpr std::array<std::int32_t, 6> kWindows{1, 2, 3, 5, 8, 13};
  const auto below = [&](std::uint32_t limit) { return static_cast<std::int32_t>(random() % limit); };
  Sight sight;
  sight.cells = cells;
  sight.latent = round % 5 == 1;
  if (round % 3 == 0) return sight;
  if (round % 3 == 1 || below(4) == 0) sight.window = kWindows[random() % kWindows.size()];
  if (round % 3 == 2) sight.chunk = 1 + below(8);
  if (sight.chunk > 0) return sight;
  const std::array<std::int32_t, 4> memories{0, sight.window, sight.window + 1 + below(6), cells};
  sight.memory = std::max(memories[random() % memories.size()], below(2) == 0 ? 0 : sight.window);
  if (sight.memory < sight.window) sight.memory = 0;
  return sight;
}

int run(std::uint64_t seed, std::uint64_t operations) {
  static constexpr std::array<std::int32_t, 6> kSizes{1, 9, 24, 48, 96, 160};
  static constexpr std::array<std::uint32_t, 3> kGrowth{0, 3, 16};
  static constexpr std::uint64_t kRound = 2500;
  std::cout << "causal_oracle: seed " << seed << ", operations " << operations << '\n';
  std::uint64_t done = 0;
  for (std::uint64_t round = 0; done < operations; ++round) {
    std::mt19937_64 random(seed + round);
    const Sight sight = world(round, kSizes[random() % kSizes.size()], random);
    Driver driver(seed + round, kGrowth[random() % kGrowth.size()], sight);
    for (std::uint64_t i = 0; i < kRound && done < operations; ++i, ++done) {
      try {
        driver.step();
      } catch (const std::exception& error) {
        std::cout << "operation " << done << " (round " << round << ", step " << i << ", window " << sight.window
                  << ", memory " << sight.memory << ", chunk " << sight.chunk << ", cells " << sight.cells
                  << (sight.latent ? ", latent" : "") << "): " << error.what() << '\n';
        return 1;
      }
    }
  }
  std::cout << "causal_oracle: " << done << " operations agree\n";
  return 0;
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20252, operations = kvtrie::oracle::operations_here(50000, 100000, 100000);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seed") seed = std::stoull(argv[i + 1]);
    if (name == "--operations") operations = std::stoull(argv[i + 1]);
  }
  return kvtrie::oracle::run(seed, operations);
}
