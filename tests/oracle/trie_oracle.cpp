// The trie against its naive twin (naive_trie.h): random operations, the same on both, everything compared.
//
//     trie_oracle [--seed N] [--operations N] [--policy lru|slru|cost]
//
// Each policy gets that many operations, from one seed; without --policy all four have their turn. Episodes
// (trie_episode.h) differ in key shape, size and regime. Compared after each step while the tree is small, every 64
// steps when it is not. The first difference ends the run with 1.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include "operations.h"
#include "trie_episode.h"

namespace kvtrie::oracle {
namespace {

Regime draw_regime(Random& random, std::size_t number, VictimPolicy policy) {
  Regime regime;
  regime.policy = policy;
  regime.shape = static_cast<int>(number % KeyShape::kCount);
  regime.tiers = number / KeyShape::kCount % 2 == 0;
  constexpr std::size_t kSizes[] = {6, 16, 40, 60, 250};
  regime.most_nodes = kSizes[below(random, 5)];
  constexpr std::size_t kHowOften[] = {100, 20, 3};
  regime.victim_percent = kHowOften[below(random, 3)];
  regime.insert_percent = 10 + below(random, 50);
  regime.order_percent = below(random, 2) * 60;
  constexpr std::size_t kPlaces[] = {0, 20, 200, kAmplePlaces};
  regime.suffix_places = kPlaces[number / 2 % 4];
  regime.suffixes_late = number % 3 == 0;
  return regime;
}

int run(std::uint64_t seed, std::size_t operations, VictimPolicy policy) {
  constexpr std::size_t kPerEpisode = 2000;
  std::printf("trie_oracle --seed %llu --operations %zu --policy %s\n", static_cast<unsigned long long>(seed),
              operations, name_of(policy));
  std::size_t done = 0;
  for (std::size_t number = 0; done < operations; ++number) {
    Random random(seed + number * 0x9e3779b97f4a7c15U);
    const Regime regime = draw_regime(random, number, policy);
    const std::size_t count = std::min(kPerEpisode, operations - done);
    try {
      Episode(regime, random).run(count);
    } catch (const std::exception& error) {
      std::printf("FAILED in episode %zu (%s), between operation %zu and %zu: %s\n", number, regime.text().c_str(),
                  done, done + count, error.what());
      return 1;
    }
    done += count;
  }
  std::printf("%zu operations, no difference\n", done);
  return 0;
}

constexpr VictimPolicy kPolicies[] = {VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost};

bool read_number(const char* text, std::uint64_t& number) {
  const auto result = std::from_chars(text, text + std::strlen(text), number);
  return result.ec == std::errc() && *result.ptr == '\0';
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20240607;
  std::uint64_t operations = kvtrie::oracle::operations_here(60000, 200000, 500000);
  std::vector<kvtrie::VictimPolicy> policies;
  bool understood = argc % 2 == 1;
  for (int i = 1; understood && i < argc; i += 2) {
    const std::string name = argv[i];
    std::uint64_t* value = name == "--seed" ? &seed : name == "--operations" ? &operations : nullptr;
    if (name == "--policy") {
      for (const auto policy : kvtrie::oracle::kPolicies) {
        if (kvtrie::name_of(policy) == std::string(argv[i + 1])) policies.push_back(policy);
      }
      understood = !policies.empty();
    } else {
      understood = value != nullptr && kvtrie::oracle::read_number(argv[i + 1], *value);
    }
  }
  if (!understood) {
    std::fprintf(stderr, "usage: trie_oracle [--seed N] [--operations N] [--policy lru|slru|cost]\n");
    return 2;
  }
  if (policies.empty()) policies.assign(std::begin(kvtrie::oracle::kPolicies), std::end(kvtrie::oracle::kPolicies));
  for (const auto policy : policies) {
    if (const int status = kvtrie::oracle::run(seed, static_cast<std::size_t>(operations), policy)) return status;
  }
  return 0;
}
