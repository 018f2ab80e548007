// Quotas alone: who has one, whose units and bytes are counted where, and what claims may take, against a naive twin.
#include "tree/quotas.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/error.h"
#include "cache/host_kv_store.h"

namespace kvtrie {
namespace {

constexpr Cell kCells[] = {64, 40};
constexpr std::uint64_t kHost = 1000;

std::shared_ptr<CausalCache> make_pool(std::int32_t layer, Cell cells) {
  KvShape shape;
  shape.layers = 1;
  shape.kv_heads = 1;
  shape.k_dim = shape.v_dim = 2;
  shape.cells = cells;
  shape.formats = plain_format(DType::kFloat32);
  CausalCache::Options options;
  options.layers = {layer};
  return CausalCache::create(std::make_unique<HostKvStore>(shape), options);
}

class QuotasTest : public ::testing::Test {
 protected:
  QuotasTest() {
    for (const auto& cache : caches.all) cache->count_owners();
  }

  static Caps caps(std::uint32_t first, std::uint32_t second, std::uint64_t host = 0, std::uint64_t disk = 0) {
    return {{first, second}, host, disk};
  }
  // A quota, and its group in the trie.
  Group give(const std::string& name, Caps most, Caps least) {
    const Group group = quotas.set(name, std::move(most), std::move(least));
    trie.set_group(trie.find_root(name), group);
    return group;
  }
  void take(Group group) {
    trie.set_group(quotas.find(group)->root, 0);
    quotas.remove(group);
  }
  std::vector<std::string> findings(std::uint64_t free_disk = 0) const {
    std::vector<std::string> found;
    quotas.check(found, free_disk);
    return found;
  }

  CacheTable caches{{{make_pool(0, kCells[0]), make_pool(1, kCells[1])}, {}}};
  std::shared_ptr<ByteBudget> host = std::make_shared<ByteBudget>(kHost);
  Trie trie{2};
  Namespaces namespaces{trie, host, /*counted=*/true};
  Quotas quotas{caches, trie, namespaces};
};

TEST_F(QuotasTest, ARootStaysAsLongAsItsQuota) {
  EXPECT_FALSE(quotas.any());
  const Group first = give("a", caps(10, 10), caps(0, 0));
  const Group second = give("b", caps(20, 20), caps(5, 5));
  EXPECT_TRUE(quotas.any() && first != second && first > 0);
  EXPECT_EQ(give("a", caps(11, 12), caps(1, 2)), first) << "in place of the one it had";
  EXPECT_EQ(quotas.find("a")->most.units, (std::vector<std::uint32_t>{11, 12}));
  EXPECT_EQ(quotas.find("c"), nullptr);
  EXPECT_EQ(quotas.floor_units(1), 7u);
  EXPECT_EQ(quotas.floor_units(1, first), 5u);
  take(first);
  EXPECT_EQ(trie.find_root("a"), nullptr);
  EXPECT_EQ(give("d", caps(1, 1), caps(0, 0)), first) << "numbers are used again";
  take(first), take(second);
  EXPECT_FALSE(quotas.any());
}

TEST_F(QuotasTest, BytesCountForTheirNamespaceAndForAll) {
  const auto own = namespaces.host_of("a");
  EXPECT_EQ(own, namespaces.host_of("a"));
  EXPECT_NE(own, namespaces.host_of("b"));
  ASSERT_TRUE(own->reserve(300));
  EXPECT_EQ(host->used(), 300u);
  EXPECT_FALSE(namespaces.host_of("b")->reserve(kHost - 299)) << "more than there is";
  EXPECT_EQ(namespaces.host_of("b")->used(), 0u);
  const auto files = namespaces.disk_of("a");
  ASSERT_TRUE(files->reserve(50));
  const Group group = give("a", caps(1, 1, 400, 100), caps(0, 0, 350, 60));
  EXPECT_EQ(quotas.host(group).excess(), 0u);
  EXPECT_EQ(quotas.host(group).excess(60), 10u);
  EXPECT_EQ(quotas.unfilled_host(0, 0), 50u);
  EXPECT_EQ(quotas.unfilled_host(group, 20), 30u);
  EXPECT_EQ(quotas.unfilled_disk(0, 0), 10u);
  namespaces.begin_writing("a", 7);
  EXPECT_EQ(quotas.writing(group), 7u);
  namespaces.end_writing("a", 7);
  EXPECT_EQ(quotas.writing(group), 0u);
  EXPECT_EQ(quotas.usage("a").host, 300u);
  EXPECT_EQ(quotas.usage("a").disk, 50u);
  EXPECT_TRUE(findings(10).empty());
  EXPECT_EQ(findings(9).size(), 1u) << "the floor of its files lacks a byte";
  own->release(300), files->release(50);
  take(group);
}

TEST_F(QuotasTest, AccountsOfNamespacesThatHaveNothingGo) {
  ASSERT_TRUE(namespaces.host_of("kept")->reserve(1));
  const auto held = namespaces.host_of("kept");
  for (int i = 0; i < 1000; ++i) namespaces.host_of("n" + std::to_string(i));
  EXPECT_EQ(namespaces.host_of("kept"), held);
  held->release(1);
}

TEST_F(QuotasTest, NothingIsCountedWhereThereAreNone) {
  Namespaces uncounted(trie, host, /*counted=*/false);
  Quotas none(caches, trie, uncounted);
  EXPECT_EQ(uncounted.host_of("a"), host);
  EXPECT_EQ(uncounted.disk_of("a"), nullptr);
  uncounted.begin_writing("a", 5);
  EXPECT_THROW(none.set("a", caps(1, 1), caps(0, 0)), Error);
}

// Random quotas, claims and what is held, against sums over plain numbers.
class QuotasRandomTest : public QuotasTest {
 protected:
  struct Has {
    Group group = 0;
    std::vector<std::uint32_t> most, least;
  };
  static constexpr std::size_t kNames = 4;

  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  static std::string name(std::size_t i) { return std::string(1, static_cast<char>('a' + i)); }
  static std::uint64_t above(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

  void change_quota(std::size_t i) {
    Has& has = has_[i];
    if (has.group > 0 && below(4) == 0) {
      take(has.group);
      has = {};
      return;
    }
    has.most = {below(64), below(40)};
    has.least = {below(has.most[0] + 1), below(has.most[1] + 1)};
    has.group = give(name(i), {has.most, 0, 0}, {has.least, 0, 0});
  }

  void hold(std::size_t i, std::size_t cache) {
    const Cell count = below(6) + 1;
    if (caches.all[cache]->free_units() < count) return;
    Node* root = trie.root(name(i));
    if (root->locks() == 0) trie.lock(root);  // as a session would
    lists_[i][cache].push_back(caches.attention[cache]->claim(count, 0, namespaces.number_of(name(i))));
    held_[i][cache] += count;
  }

  void let_go(std::size_t i, std::size_t cache) {
    auto& lists = lists_[i][cache];
    if (lists.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>(below(static_cast<std::uint32_t>(lists.size())));
    held_[i][cache] -= lists[static_cast<std::size_t>(at)].length();
    lists.erase(lists.begin() + at);
  }

  void compare() {
    std::vector<Claim> claims;
    std::vector<std::vector<std::uint32_t>> needs(kNames, {0, 0});
    std::vector<std::uint32_t> common{0, 0};
    for (std::size_t i = 0; i < kNames; ++i) {
      if (below(2) == 0) continue;
      const Needs more{below(20), below(20)};
      claims.push_back({has_[i].group, more});
      for (std::size_t cache = 0; cache < 2; ++cache) {
        (has_[i].group > 0 ? needs[i] : common)[cache] += more[cache];
      }
    }
    const Allotment allotment(quotas, claims);
    for (std::size_t cache = 0; cache < 2; ++cache) {
      std::uint64_t wanted = common[cache], floors = 0;
      for (std::size_t i = 0; i < kNames; ++i) {
        wanted += needs[i][cache];
        if (has_[i].group == 0) continue;
        const std::uint32_t after = held_[i][cache] + needs[i][cache];
        wanted += above(has_[i].least[cache], after);
        floors += has_[i].least[cache];
        ASSERT_EQ(quotas.used(has_[i].group, cache), held_[i][cache]);
        ASSERT_EQ(allotment.need(has_[i].group, cache), needs[i][cache]);
        ASSERT_EQ(allotment.over(has_[i].group, cache), above(after, has_[i].most[cache]));
        ASSERT_EQ(allotment.excess(has_[i].group, cache), above(after, has_[i].least[cache]));
        ASSERT_EQ(allotment.unfilled(cache) - allotment.unfilled(cache, has_[i].group),
                  above(has_[i].least[cache], after));
      }
      ASSERT_EQ(allotment.wanted(cache), wanted);
      ASSERT_EQ(allotment.excess(0, cache), Allotment::kAll);
      ASSERT_EQ(allotment.over(0, cache), 0u);
      ASSERT_EQ(quotas.floor_units(cache), floors);
      ASSERT_EQ(caches.attention[cache]->check(), std::vector<std::string>{});
    }
  }

  void compare_findings() {
    std::size_t expected = 0;
    for (std::size_t cache = 0; cache < 2; ++cache) {
      std::uint64_t lacking = 0;
      for (std::size_t i = 0; i < kNames; ++i) {
        if (has_[i].group == 0) continue;
        lacking += above(has_[i].least[cache], held_[i][cache]);
        expected += held_[i][cache] > has_[i].most[cache];
      }
      expected += lacking > caches.all[cache]->free_units();
    }
    ASSERT_EQ(findings().size(), expected);
  }

  std::mt19937_64 random_;
  std::vector<Has> has_{kNames};
  std::vector<std::vector<std::uint32_t>> held_{kNames, {0, 0}};
  std::array<std::array<std::vector<SpanList>, 2>, kNames> lists_;
};

TEST_F(QuotasRandomTest, IsASumOverWhatIsHeld) {
  constexpr std::uint64_t kSeed = 20261124;
  random_.seed(kSeed);
  for (int step = 0; step < 20000 && !HasFatalFailure(); ++step) {
    SCOPED_TRACE(cat("seed ", kSeed, ", step ", step));
    const std::size_t i = below(kNames), cache = below(2);
    const std::uint32_t dice = below(10);
    if (dice < 2) change_quota(i);
    if (dice >= 2 && dice < 6) hold(i, cache);
    if (dice >= 6) let_go(i, cache);
    compare();
    compare_findings();
  }
}

}  // namespace
}  // namespace kvtrie
