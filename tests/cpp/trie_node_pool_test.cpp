#include "trie/node_pool.h"

#include <sys/resource.h>

#include <cstdlib>
#include <set>
#include <vector>

#include "trie_helpers.h"

namespace kvtrie {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // its own memory needs more addresses than a limit leaves
#else
constexpr bool kSanitized = false;
#endif

TEST(NodePool, ReusesPlacesAndNumbersThem) {
  for (const int orders : {0, 1, 2, 3}) {
    for (const bool ranked : {false, true}) {
      NodePool pool(orders, ranked);
      EXPECT_EQ(pool.bytes(), 0U) << "an empty pool takes no memory";
      std::vector<Node*> nodes;
      std::set<std::uint32_t> numbers;
      for (int i = 0; i < 5000; ++i) {
        nodes.push_back(pool.create());
        const std::uint32_t number = pool.number_of(nodes.back());
        EXPECT_TRUE(number != 0 && numbers.insert(number).second);
        EXPECT_EQ(pool.node_at(number), nodes.back());
      }
      const std::size_t taken = pool.bytes();
      for (int i = 0; i < 1000; ++i) pool.destroy(nodes[static_cast<std::size_t>(5 * i)]);
      EXPECT_EQ(pool.live(), 4000U);
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(numbers.contains(pool.number_of(pool.create())));
      EXPECT_EQ(pool.bytes(), taken);
    }
  }
}

TEST(NodePool, TakesLittleMoreThanItsNodesNeed) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{100000}}) {
    NodePool pool(1);
    for (std::size_t i = 0; i < count; ++i) pool.create();
    EXPECT_GE(pool.bytes(), 80 * count);
    EXPECT_LE(pool.bytes(), 80 * count * 9 / 8 + (16U << 10U));
  }
}

// Grows a tree with as many addresses as a limit leaves. The exit status says what went wrong.
[[noreturn]] void grow_within_a_limit() {
  const struct rlimit limit { 512U << 20U, 512U << 20U };
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
  Trie trie;
  for (Token token = 0; token < 10000; ++token) {
    trie.join_order(0, trie.add_child(trie.root("n"), Tokens{token, 1, 2, 3}, nullptr));
  }
  std::_Exit(trie.check().empty() && trie.size() == 10000 ? 0 : 3);
}

TEST(NodePool, MakesDoWithFewerAddresses) {
  if (kSanitized) GTEST_SKIP() << "the address sanitizer needs more";
  EXPECT_EXIT(grow_within_a_limit(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvtrie
