// Bytes as operations on the trie beside its naive twin (tests/oracle/trie_episode.h): insert, match, split, extend,
// lock, touch, join, remove, victims of every policy and shape of order, calls that have to be refused.
//
// Holds to: every answer and every node is the twin's after each operation, check() finds nothing, and when all has
// gone nothing is left.
//
// Input: [1: policy][1: keys][1: regime, nodes][1: how often something is added], then choices, two bytes each.
#include "fuzz_bytes.h"
#include "trie_episode.h"

namespace kvtrie::fuzz {
namespace {

void operate_on_trie(Input input) {
  constexpr std::size_t kMost = 500;
  Bytes from(input);
  oracle::Regime regime;
  regime.policy = from.pick({VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost});
  regime.shape = static_cast<int>(from.below(oracle::KeyShape::kCount));
  regime.tiers = from.flag();
  regime.most_nodes = from.pick<std::size_t>({6, 16, 40});
  regime.insert_percent = 10 + from.below(50);
  regime.order_percent = from.pick<std::size_t>({0, 60});
  oracle::Random choices(from.take(from.size()));
  oracle::Episode(regime, choices).run(kMost);
}

const Registration registered_trie("trie_operations", operate_on_trie);

}  // namespace
}  // namespace kvtrie::fuzz
