// Numbers of namespaces, against a twin that knows those in the tree.
#include "tree/namespaces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace kvtrie {
namespace {

constexpr std::uint64_t kTenantSeed = 20261126;

std::string tenant_name(std::uint64_t number) { return "tenant " + std::to_string(number); }

TEST(Namespaces, KeepTheirNumbersWhileTheyAreInTheTree) {
  Trie trie(1);
  Namespaces namespaces(trie, nullptr, /*counted=*/false);
  Node* root = trie.root("anna");
  trie.lock(root);
  const Owner anna = namespaces.number_of("anna");
  EXPECT_GE(anna, kFirstTenant);
  std::set<Owner> given{anna};
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(given.insert(namespaces.number_of(tenant_name(i))).second) << "a number was given twice";
    EXPECT_EQ(namespaces.number_of("anna"), anna);
    EXPECT_LE(namespaces.size(), 64u);
  }
  EXPECT_TRUE(given.insert(namespaces.number_of(tenant_name(0))).second) << "what it left may have changed hands";
  trie.unlock(root);
}

TEST(Namespaces, AgreeWithATwinAsNamespacesComeAndGo) {
  std::mt19937_64 random(kTenantSeed);
  Trie trie(1);
  Namespaces namespaces(trie, nullptr, /*counted=*/false);
  std::map<std::string, Owner> twin;  // of those in the tree
  std::set<Owner> given;
  std::size_t most = 0;
  for (int step = 0; step < 20000; ++step) {
    SCOPED_TRACE(::testing::Message() << "seed " << kTenantSeed << ", step " << step);
    const auto oldest = static_cast<std::uint64_t>(step / 10);  // the namespaces in use change with time
    const std::string name = tenant_name(oldest + random() % (step / 4000 % 2 == 0 ? 300 : 30));
    const auto known = twin.find(name);
    if (known != twin.end() && random() % 3 != 0) {
      ASSERT_EQ(namespaces.number_of(name), known->second);
    } else if (known != twin.end()) {
      trie.unlock(trie.find_root(name));
      twin.erase(known);
    } else {
      trie.lock(trie.root(name));
      twin[name] = namespaces.number_of(name);
      given.insert(twin[name]);
    }
    most = std::max(most, twin.size());
    ASSERT_LE(namespaces.size(), std::max<std::size_t>(64, 2 * most));
    if (step % 100 != 0) continue;
    std::set<Owner> present;
    for (const auto& [each, owner] : twin) ASSERT_TRUE(present.insert(owner).second) << each;
  }
  EXPECT_GT(given.size(), 1000u);
  while (!twin.empty()) {
    trie.unlock(trie.find_root(twin.begin()->first));
    twin.erase(twin.begin());
  }
}

}  // namespace
}  // namespace kvtrie
