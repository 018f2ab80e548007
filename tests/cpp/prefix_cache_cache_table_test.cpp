// Numbers of caches, what is refused at creation, and lengths that caches of states agree on, against trying every one.
#include "tree/cache_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/error.h"
#include "block_cache.h"
#include "host_caches.h"

namespace kvtrie {
namespace {

using test::BlockCache;
using test::host_cells;
using test::host_states;

constexpr std::uint64_t kTableSeed = 20261124;
constexpr Visibility kSeesAll{}, kSeesWindow{8, 0}, kSeesChunk{0, 16};

CacheSet blocks_of(const std::vector<std::int32_t>& every) {
  CacheSet set;
  for (std::size_t i = 0; i < every.size(); ++i)
    set.states.push_back(BlockCache::create(200 + static_cast<std::int32_t>(i), every[i], 4));
  return set;
}

// What creating a table of these says.
std::string refusal_of(CacheSet set) {
  try {
    const CacheTable table(std::move(set));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    return error.what();
  }
  return "";
}

TEST(CacheTable, CachesOfAttentionComeFirstThenThoseOfStates) {
  CacheSet set;
  set.attention = {host_cells(0, kSeesAll, 64), host_cells(1, kSeesWindow, 24), host_cells(2, kSeesAll, 32),
                   host_cells(3, kSeesChunk, 8)};
  set.states = {host_states(0, 4), BlockCache::create(200, 16, 4)};
  const std::vector<LayerCache*> in_order{set.attention[0].get(), set.attention[1].get(), set.attention[2].get(),
                                          set.attention[3].get(), set.states[0].get(),    set.states[1].get()};
  const CacheTable table(set);
  EXPECT_EQ(table.all, in_order);
  EXPECT_EQ(table.full, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(table.windowed, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(table.of_points, (std::vector<std::size_t>{1, 3, 4, 5}));
  EXPECT_TRUE(table.has_points());
  EXPECT_EQ(table.longest, 32u) << "of the smaller full one; windows hold less than a session has";
  EXPECT_EQ(table.no_needs(), Needs(6, 0));
  EXPECT_EQ(table.bytes_per_token(),
            set.attention[0]->shape().bytes_per_cell() + set.attention[2]->shape().bytes_per_cell());
  const std::vector<int> each{10, 11, 12, 13, 14, 15};
  EXPECT_EQ(std::vector<int>(table.states_among(each).begin(), table.states_among(each).end()),
            (std::vector<int>{14, 15}));
}

TEST(CacheTable, LayersAreFoundByTheNumbersOfTheModel) {
  CacheSet set;
  set.attention = {host_cells(0, kSeesAll, 8), host_cells(1, kSeesAll, 8)};
  set.states = {host_states(0, 4), host_states(1, 4)};
  const CacheTable table(set);
  EXPECT_EQ(table.attention_of_layer, (std::map<std::int32_t, std::size_t>{{0, 0}, {1, 0}, {10, 1}}));
  EXPECT_EQ(table.state_of_layer, (std::map<std::int32_t, std::size_t>{{100, 0}, {101, 0}, {110, 1}}));
}

TEST(CacheTable, AnIdentityNamesTheLayersBesidesTheShape) {
  CacheSet set;
  set.attention = {host_cells(1, kSeesAll, 8)};
  set.states = {BlockCache::create(207, 16, 4)};
  const CacheTable table(set);
  ASSERT_EQ(table.identities.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    CacheIdentity own = table.all[i]->identity();
    own.shape.push_back(i == 0 ? 10 : 207);
    EXPECT_EQ(table.identities[i].shape, own.shape);
    EXPECT_EQ(static_cast<std::uint8_t>(table.identities[i].kind), own.kind);
  }
}

// Cells that keep the same bytes, but are read otherwise.
TEST(CacheTable, AnIdentityTellsLatentKeysFromOthers) {
  const auto identity = [](std::uint32_t latent_dim) {
    KvShape shape{1, 1, 6, 0, 8, plain_format(DType::kFloat32), latent_dim};
    CacheSet set;
    set.attention = {CausalCache::create(std::make_unique<HostKvStore>(shape), {{3}, {}, 4})};
    return CacheTable(std::move(set)).identities.front().shape;
  };
  EXPECT_EQ(identity(0), (std::vector<std::int64_t>{1, 1, 6, 0, 0, 0, 3}));
  EXPECT_EQ(identity(4), (std::vector<std::int64_t>{1, 1, 6, 0, 0, 0, 4, 3}));
  EXPECT_NE(identity(4), identity(2));
}

TEST(CacheTable, WithoutCachesThereIsNoBorder) {
  const CacheTable table({});
  EXPECT_TRUE(table.all.empty() && !table.has_points());
  EXPECT_EQ(table.longest, static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max()));
  EXPECT_EQ(table.bytes_per_token(), 0u);
  EXPECT_EQ(table.cut_to(40, 25), 25);
  EXPECT_EQ(table.cut_to(25, 40), 25);
  CacheSet window;
  window.attention = {host_cells(0, kSeesWindow, 8)};
  EXPECT_EQ(CacheTable(std::move(window)).longest, table.longest);
}

TEST(CacheTable, AnEmptyPlaceAndALayerOfTwoCachesAreRefused) {
  CacheSet set;
  set.attention = {host_cells(0, kSeesAll, 8), nullptr};
  EXPECT_NE(refusal_of(set).find("number 1 is empty"), std::string::npos);
  set.attention = {};
  set.states = {nullptr};
  EXPECT_NE(refusal_of(set).find("number 0 is empty"), std::string::npos);
  set.attention = {host_cells(1, kSeesAll, 8), host_cells(1, kSeesWindow, 8)};
  set.states = {};
  EXPECT_NE(refusal_of(set).find("layer 10 is in two caches"), std::string::npos);
  set.attention.pop_back();
  set.states = {BlockCache::create(10, 16, 4)};
  EXPECT_NE(refusal_of(set).find("layer 10 is in two caches"), std::string::npos) << "of two kinds";
  set.attention = {};
  set.states = {host_states(0, 4), host_states(0, 4)};
  EXPECT_NE(refusal_of(set).find("layer 100 is in two caches"), std::string::npos);
}

// ---- lengths that serve -------------------------------------------------------------------------------------------

// The deepest length, tried one by one, to which every cache can cut what is held.
std::int32_t tried_cut(const CacheTable& table, std::int32_t held, std::int32_t wanted) {
  for (std::int32_t length = std::min(held, wanted); length > 0; --length) {
    const auto can = [&](const auto& cache) { return cache->cut_to(held, length) == length; };
    if (std::all_of(table.states.begin(), table.states.end(), can)) return length;
  }
  return 0;
}

void expect_every_length_tried(const CacheTable& table, std::int32_t longest) {
  for (std::int32_t held = 0; held <= longest; ++held) {
    for (std::int32_t wanted = 0; wanted <= longest; ++wanted) {
      const std::int32_t cut = tried_cut(table, held, wanted);
      ASSERT_EQ(table.cut_to(held, wanted), cut) << "held at " << held << ", wanted " << wanted;
      const bool serves = wanted > 0 && (held == wanted || (!table.states.empty() && wanted < held && cut == wanted));
      ASSERT_EQ(table.serves(held, wanted), serves) << "held at " << held << ", wanted " << wanted;
    }
  }
}

TEST(CacheTable, StatesAreCutWhereAllOfThemCanBe) {
  const CacheTable table(blocks_of({4, 6}));
  EXPECT_EQ(table.cut_to(40, 40), 40) << "as it is held";
  EXPECT_EQ(table.cut_to(40, 39), 36);
  EXPECT_EQ(table.cut_to(40, 35), 24);
  EXPECT_EQ(table.cut_to(40, 11), 0);
  EXPECT_TRUE(table.serves(40, 40) && table.serves(40, 24));
  EXPECT_FALSE(table.serves(40, 20) || table.serves(40, 30) || table.serves(24, 40));
}

TEST(CacheTable, ARecurrentStateServesWhereItIsAlone) {
  CacheSet set = blocks_of({4});
  set.states.push_back(host_states(0, 4));
  const CacheTable table(std::move(set));
  EXPECT_TRUE(table.serves(8, 8));
  EXPECT_FALSE(table.serves(8, 4));
  expect_every_length_tried(table, 20);
}

TEST(CacheTable, WithoutStatesAPointServesAtItsLengthOnly) {
  CacheSet set;
  set.attention = {host_cells(0, kSeesWindow, 8)};
  const CacheTable table(std::move(set));
  EXPECT_TRUE(table.serves(8, 8));
  EXPECT_FALSE(table.serves(8, 7)) << "its window lies elsewhere";
  expect_every_length_tried(table, 20);
}

TEST(CacheTable, AgreesWithTryingEveryLength) {
  std::mt19937_64 random(kTableSeed);
  for (int i = 0; i < 40; ++i) {
    std::vector<std::int32_t> every(1 + random() % 3);
    for (std::int32_t& each : every) each = static_cast<std::int32_t>(1 + random() % 9);
    SCOPED_TRACE(::testing::Message() << "seed " << kTableSeed << ", table " << i);
    expect_every_length_tried(CacheTable(blocks_of(every)), 60);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvtrie
