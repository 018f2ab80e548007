// A page-in over caches in host memory: every row that comes names the cache and the position that it belongs to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "block_cache.h"
#include "cache/host_kv_store.h"
#include "store/byte_budget.h"
#include "tiers/loader.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kLoaderSeeds = 300;
constexpr std::int32_t kWindow = 40, kEvery = 64;
constexpr Owner kOwner = 7;

// What was written to a file: bytes of one blob.
class KeptBytes final : public BlobSource {
 public:
  explicit KeptBytes(const Blob& blob)
      : bytes_(blob.memory()->data(), blob.memory()->data() + blob.memory()->bytes()) {}
  bool read(std::uint64_t offset, std::span<std::byte> into) noexcept override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
};

// Two caches of full attention, one with a window, and one of states that can be cut.
struct LoaderWorld {
  static std::shared_ptr<CausalCache> make_cache(std::uint32_t number, Cell cells, Visibility sees = {}) {
    CausalCache::Options options;
    options.layers = {static_cast<std::int32_t>(2 * number), static_cast<std::int32_t>(2 * number + 1)};
    options.visibility = sees;
    const KvShape shape{2, 1, 2, 2 + number, cells, plain_format(DType::kFloat32)};
    return CausalCache::create(std::make_unique<HostKvStore>(shape), options);
  }
  explicit LoaderWorld(Cell cells = 1024)
      : blocks(test::BlockCache::create(100, kEvery, 64)),
        caches(CacheSet{{make_cache(0, cells), make_cache(1, cells, {kWindow, 0}), make_cache(2, cells)}, {blocks}}),
        orders{false, caches.windowed, caches.of_points} {}

  Node* add(Node* parent, std::int32_t tokens) {
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + tokens, caches.attention.size());
    Node* node = trie.add_child(parent, Tokens(static_cast<std::size_t>(tokens), next_token++), std::move(state));
    places.add(node, NodePlaces::Place::kOutside);
    return node;
  }

  // --- bytes outside the device
  static std::byte mark_of(std::size_t cache, std::int32_t position, bool value) {
    return static_cast<std::byte>(static_cast<std::size_t>(position) * 5 + cache * 2 + (value ? 1 : 0));
  }
  template <class Visit>
  void visit_rows(std::size_t cache, std::int32_t first, std::uint32_t cells, Visit visit) const {
    const KvShape& shape = caches.attention[cache]->shape();
    const CellImage image(shape, cells);
    for (std::uint32_t token = 0; token < cells; ++token) {
      for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        for (const bool value : {false, true})
          visit(image.row_offset(layer, value, 0, token), shape.row_bytes(value),
                mark_of(cache, first + static_cast<std::int32_t>(token), value));
      }
    }
  }
  BlobPtr seal(BlobPtr blob, bool in_file) const {
    blob->seal();
    if (!in_file) return blob;
    blob->set_saved(std::make_shared<KeptBytes>(*blob), 0);
    blob->drop_memory();
    return blob;
  }
  BlobSlice image(std::size_t cache, std::int32_t from, std::int32_t to, bool in_file = false) const {
    const KvShape& shape = caches.attention[cache]->shape();
    const auto cells = static_cast<std::uint32_t>(to - from);
    const BlobPtr blob = Blob::allocate(host, shape.bytes_per_cell() * cells, blob_sections(shape, cells));
    visit_rows(cache, from, cells, [&](std::uint64_t offset, std::uint64_t bytes, std::byte mark) {
      std::memset(blob->memory()->data() + offset, static_cast<int>(mark), bytes);
    });
    return {seal(blob, in_file), from, cells, from, to};
  }
  static std::vector<test::BlockCache::Digest> digests(std::int32_t length) {
    std::vector<test::BlockCache::Digest> all(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = 1000 + i;
    return all;
  }
  BlobSlice state_image(std::int32_t length, bool in_file = false) const {
    const std::vector<test::BlockCache::Digest> all = digests(length);
    const BlobPtr blob = Blob::allocate(host, blocks->units_at(length) * 8, blob_sections(*blocks, length));
    for (std::int32_t block = 0; block * kEvery < length; ++block) {
      const std::int32_t last = std::min((block + 1) * kEvery, length) - 1;
      std::memcpy(blob->memory()->data() + block * 8, &all[static_cast<std::size_t>(last)], 8);
    }
    return {seal(blob, in_file), 0, 0, 0, 0};
  }
  // The window and the state at the node's end.
  void put_point(Node* node, bool in_file = false) {
    std::vector<BlobSlice> copies(caches.all.size());
    copies[1] = image(1, std::max(0, node->end() - kWindow + 1), node->end(), in_file);
    copies[3] = state_image(node->end(), in_file);
    points.put_outside(node, PointKind::kEnd, std::move(copies));
  }

  // --- the page-in
  static Fetch fetch_of(const Path& path, std::int32_t target, Node* point) {
    Fetch fetch;
    fetch.nodes = path.nodes;
    fetch.windows.resize(3);
    const std::int32_t floor = std::max(0, target - kWindow + 1);
    if (point == nullptr || floor < target)
      fetch.windows[1] = Coverage(path.nodes, 1, target, /*device_only=*/false).pick(floor, target);
    fetch.point = point;
    return fetch;
  }
  std::vector<HeldState> windows_at(const Path& path, std::int32_t target) const {
    std::vector<HeldState> held(caches.all.size());
    for (const WindowSource& source :
         Coverage(path.nodes, 1, target, true).pick(std::max(0, target - kWindow + 1), target))
      held[1].append(source.list->share(source.from, source.to));
    return held;
  }
  void load(const Path& path, Node* kept, Node* node, bool keep_copies) {
    const Fetch fetch = fetch_of(path, node->end(), kept);
    Stages stages(caches, fetch, node->end());
    ASSERT_TRUE(stages.allocate(host) && stages.fill());
    Loader loader({caches, places, points, keep_copies}, pending_loads, stages, kOwner);
    loader.load(path, fetch);
    if (kept != nullptr) loader.load_point(kept, node, windows_at(path, node->end()));
  }

  // --- what came
  void expect_cells(std::size_t cache, const SpanList& list) const {
    CausalCache& of = *caches.attention[cache];
    std::vector<std::byte> bytes(of.shape().bytes_per_cell() * list.length());
    of.store_image(list, list.begin_position(), list.end_position(), list.begin_position(), bytes.data(), list.length())
        ->wait();
    bool right = true;
    visit_rows(cache, list.begin_position(), list.length(),
               [&](std::uint64_t offset, std::uint64_t size, std::byte mark) {
                 for (std::uint64_t i = 0; i < size; ++i) right = right && bytes[offset + i] == mark;
               });
    EXPECT_TRUE(right) << "cache " << cache << " at [" << list.begin_position() << "," << list.end_position() << ")";
    for (const CellSpan& span : list.spans()) EXPECT_EQ(of.owner_of(span.cell), kOwner);
  }
  void expect_node(const Node* node) const {
    const NodeState& state = state_of(node);
    ASSERT_TRUE(state.on_device());
    for (const std::size_t i : caches.full) {
      ASSERT_EQ(state.held[i].cells.size(), 1u);
      ASSERT_EQ(state.held[i].device_tokens(), state.length());
    }
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      for (const SpanList& list : state.held[i].cells) expect_cells(i, list);
    }
  }
  void expect_point(const Node* node) const {
    const RestorePoint& point = state_of(node).point();
    ASSERT_TRUE(point.exists() && point.on_device);
    const SpanList& window = point.held[1].cells();
    EXPECT_EQ(window.begin_position(), std::max(0, node->end() - kWindow + 1));
    EXPECT_EQ(window.end_position(), node->end());
    expect_cells(1, window);
    EXPECT_TRUE(blocks->is_of(point.held[3], digests(node->end()), node->end()));
  }
  std::vector<std::string> findings() const {
    std::vector<std::string> findings = trie.check();
    places.check(findings);
    points.check(findings);
    for (LayerCache* cache : caches.all) {
      for (std::string& finding : cache->check()) findings.push_back(std::move(finding));
    }
    return findings;
  }

  std::shared_ptr<test::BlockCache> blocks;
  CacheTable caches;
  TreeOrders orders;
  std::shared_ptr<ByteBudget> host = std::make_shared<ByteBudget>(1 << 20);
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, 4};
  PendingLoads pending_loads;
  Token next_token = 0;
};

class LoaderTest : public ::testing::Test, public LoaderWorld {
 protected:
  void TearDown() override { EXPECT_EQ(findings(), std::vector<std::string>{}); }

  // [0, 50) and [50, 100) below it; images of both, and a point at the end.
  void build(bool in_file = false) {
    for (const std::int32_t tokens : {50, 50}) {
      path.nodes.push_back(add(path.nodes.empty() ? trie.root("n") : path.nodes.back(), tokens));
      for (const std::size_t i : caches.full)
        state_of(path.nodes.back())
            .held[i]
            .add(image(i, path.nodes.back()->start(), path.nodes.back()->end(), in_file));
    }
    put_point(path.nodes.back(), in_file);
    path.matched = 100;
  }
  Path path;
};

TEST_F(LoaderTest, WithoutADiskOnlyTheArrivalKeepsTheMemory) {
  build();
  load(path, path.nodes[1], path.nodes[1], /*keep_copies=*/false);
  for (Node* node : path.nodes) {
    expect_node(node);
    for (const Held& held : state_of(node).held) EXPECT_TRUE(held.slices.empty());
    EXPECT_EQ(state_of(node).pending_loads.size(), 1u);
  }
  expect_point(path.nodes[1]);
  EXPECT_FALSE(state_of(path.nodes[1]).point().copied());
  EXPECT_GT(host->used(), 0u) << "the device may still read it";
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_EQ(host->used(), 0u);
}

TEST_F(LoaderTest, WithADiskTheCopiesStay) {
  build(/*in_file=*/true);
  load(path, path.nodes[1], path.nodes[1], /*keep_copies=*/true);
  for (Node* node : path.nodes) {
    expect_node(node);
    for (const std::size_t i : caches.full)
      EXPECT_TRUE(state_of(node).held[i].without_slice(node->start(), node->end()).empty());
  }
  expect_point(path.nodes[1]);
  EXPECT_TRUE(state_of(path.nodes[1]).point().copied());
  EXPECT_EQ(pending_loads.take_failed(), nullptr);
  EXPECT_EQ(host->used(), 0u) << "what was read of the files";
}

// The point below is at 130, and blocks of it serve at 64, where the path is cut.
TEST_F(LoaderTest, WhatIsCutFromAPointBelowBecomesOneAboveAndThatOneStaysOutside) {
  Node* above = add(trie.root("n"), 64);
  Node* below = add(above, 66);
  for (Node* node : {above, below}) {
    for (const std::size_t i : caches.full) state_of(node).held[i].add(image(i, node->start(), node->end()));
  }
  state_of(above).held[1].add(image(1, 10, 64));
  put_point(below);
  path = {{above}, 130};
  load(path, below, above, /*keep_copies=*/false);
  expect_node(above);
  expect_point(above);
  EXPECT_EQ(state_of(above).point().kind, PointKind::kBranch);
  EXPECT_FALSE(state_of(below).on_device());
  EXPECT_FALSE(state_of(below).point().on_device);
  EXPECT_TRUE(state_of(below).point().copied());
  EXPECT_EQ(blocks->free_units(), 63u) << "of the three blocks that came one is held";
}

TEST(LoaderWithoutRoom, WhatCameIsWholeAndTheNodeThatDidNotIsAsItWas) {
  LoaderWorld world(100);
  Path path;
  for (int i = 0; i < 2; ++i) {
    path.nodes.push_back(world.add(i == 0 ? world.trie.root("n") : path.nodes.back(), 50));
    Node* node = path.nodes.back();
    for (const std::size_t each : world.caches.full)
      state_of(node).held[each].add(world.image(each, node->start(), node->end()));
  }
  path.matched = 100;
  world.put_point(path.nodes[1]);
  const Fetch fetch = LoaderWorld::fetch_of(path, 100, path.nodes[1]);
  Stages stages(world.caches, fetch, 100);
  ASSERT_TRUE(stages.allocate(world.host) && stages.fill());
  Loader loader({world.caches, world.places, world.points, false}, world.pending_loads, stages, kOwner);
  // The last of the caches has room for the first node alone: cells of the other one are claimed by then.
  const SpanList taken = world.caches.attention[2]->claim(25, 0);
  EXPECT_THROW(loader.load(path, fetch), Error);
  world.expect_node(path.nodes[0]);
  EXPECT_FALSE(state_of(path.nodes[1]).on_device());
  for (const std::size_t i : world.caches.full) {
    EXPECT_TRUE(state_of(path.nodes[1]).held[i].cells.empty());
    EXPECT_TRUE(state_of(path.nodes[1]).held[i].without_slice(50, 100).empty());
  }
  EXPECT_FALSE(world.pending_loads.empty()) << "what was enqueued before";
  EXPECT_EQ(world.findings(), std::vector<std::string>{});
}

// ---- random paths -------------------------------------------------------------------------------------------------

// Images begin and end where they like, in memory or in files; of a window some lies in nodes, some in the point.
class RandomPath {
 public:
  explicit RandomPath(std::uint64_t seed) : random_(seed) {
    const std::size_t nodes = 1 + random_() % 5;
    while (path_.nodes.size() < nodes) {
      Node* parent = path_.nodes.empty() ? world_.trie.root("n") : path_.nodes.back();
      path_.nodes.push_back(world_.add(parent, static_cast<std::int32_t>(1 + random_() % 90)));
    }
    path_.matched = path_.nodes.back()->end();
    for (const std::size_t i : world_.caches.full) cover(i, 0);
    cover(1, static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(path_.matched)));
    world_.put_point(path_.nodes.back(), in_file());
  }

  void load_and_compare() {
    const bool keep_copies = random_() % 2 == 0;
    std::map<const Node*, std::size_t> slices;
    for (const Node* node : path_.nodes) slices[node] = state_of(node).held[0].slices.size();
    world_.load(path_, path_.nodes.back(), path_.nodes.back(), keep_copies);
    for (const Node* node : path_.nodes) {
      world_.expect_node(node);
      EXPECT_EQ(state_of(node).held[0].slices.size(), keep_copies ? slices[node] : 0u);
      EXPECT_EQ(state_of(node).pending_loads.size(), 1u);
      expect_window(node);
    }
    world_.expect_point(path_.nodes.back());
    EXPECT_EQ(world_.pending_loads.take_failed(), nullptr);
    EXPECT_EQ(world_.findings(), std::vector<std::string>{});
  }

 private:
  bool in_file() { return random_() % 2 == 0; }

  // One image after the other from `from` on.
  void cover(std::size_t cache, std::int32_t from) {
    while (from < path_.matched) {
      const std::int32_t to = std::min(path_.matched, from + static_cast<std::int32_t>(1 + random_() % 150));
      const BlobSlice whole = world_.image(cache, from, to, in_file());
      for (Node* node : path_.nodes) {
        BlobSlice slice = whole;
        slice.from = std::max(from, node->start());
        slice.to = std::min(to, node->end());
        if (slice.from < slice.to) state_of(node).held[cache].add(slice);
      }
      from = to;
    }
  }
  void expect_window(const Node* node) const {
    const std::int32_t from = std::max(node->start(), path_.matched - kWindow + 1);
    const auto expected = static_cast<std::uint32_t>(std::max(0, node->end() - std::max(0, from)));
    EXPECT_EQ(state_of(node).held[1].device_tokens(), expected);
  }

  std::mt19937_64 random_;
  LoaderWorld world_;
  Path path_;
};

TEST(Loader, EveryRowComesToItsPlace) {
  for (std::uint64_t seed = 1; seed <= kLoaderSeeds; ++seed) {
    RandomPath(seed).load_and_compare();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvtrie
