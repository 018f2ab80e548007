// Limits below a pool's size, and memory that is cleared when it changes its owner. Each on the host and on the device.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "cache/cell_image.h"
#include "cache/cell_owners.h"
#include "cache/opencl_kv_store.h"
#include "cache/opencl_state_store.h"
#include "cache_helpers.h"
#include "state_helpers.h"
#include "tensor_test.h"

namespace kvtrie {
namespace {

using testing::host_states;
using testing::small_shape;
using testing::small_states;

constexpr Owner kAnna = kFirstTenant, kBert = kFirstTenant + 1;

// ---- limits -------------------------------------------------------------------------------------------------------

TEST(PoolLimit, HidesWhatLiesBeyondIt) {
  const auto pool = CellPool::create(32);
  Reservation none;
  SpanList held = pool->claim(10, 0, 0, none, 0);
  ASSERT_TRUE(pool->set_limit(12));
  EXPECT_EQ(pool->free_cells(), 2u);
  EXPECT_THROW(pool->claim(3, 0, 0, none, 0), Error);
  const SpanList more = pool->claim(2, 0, 0, none, 0);
  EXPECT_EQ(pool->free_cells(), 0u);
  EXPECT_FALSE(pool->set_limit(11)) << "12 are held";
  EXPECT_EQ(pool->limit(), 12u);
  const SpanList* const lists[] = {&held};
  EXPECT_EQ(pool->free_without(lists), 10u);
  held.clear();
  EXPECT_TRUE(pool->set_limit(2));
  EXPECT_TRUE(pool->set_limit(32));
  EXPECT_EQ(pool->free_cells(), 30u);
  EXPECT_THROW(static_cast<void>(pool->set_limit(0)), Error);
  EXPECT_THROW(static_cast<void>(pool->set_limit(33)), Error);
  EXPECT_TRUE(pool->check().empty());
}

TEST(PoolLimit, ReservationsGiveWayToIt) {
  const auto pool = CellPool::create(32);
  Reservation ahead;
  const SpanList held = pool->claim(4, 0, 0, ahead, 16);
  EXPECT_EQ(ahead.length(), 16u);
  ASSERT_TRUE(pool->set_limit(20));
  EXPECT_EQ(ahead.length(), 16u) << "held and reserved fit";
  ASSERT_TRUE(pool->set_limit(19));
  EXPECT_EQ(ahead.length(), 0u);
  EXPECT_EQ(pool->free_cells(), 15u);
  const SpanList more = pool->claim(4, 4, 4, ahead, 16);
  EXPECT_EQ(ahead.length(), 11u) << "as much as the limit leaves";
  EXPECT_EQ(pool->free_cells(), 11u);
  EXPECT_TRUE(pool->check().empty());
}

// Random claims, releases and limits: what is free is what the limit leaves, and nothing is refused that fits.
TEST(PoolLimit, IsKeptByRandomUse) {
  std::mt19937 random(7);
  const auto pool = CellPool::create(60);
  std::vector<SpanList> lists;
  std::vector<std::unique_ptr<Reservation>> reservations;
  Cell held = 0, limit = 60;
  for (int i = 0; i < 20000; ++i) {
    const Cell count = random() % 12 + 1;
    if (random() % 3 == 0 && !lists.empty()) {
      held -= lists.back().length();
      lists.pop_back();
      reservations.pop_back();
    } else if (random() % 4 == 0) {
      const Cell wanted = random() % 60 + 1;
      ASSERT_EQ(pool->set_limit(wanted), held <= wanted);
      if (held <= wanted) limit = wanted;
    } else if (count <= limit - held) {
      reservations.push_back(std::make_unique<Reservation>());
      lists.push_back(pool->claim(count, 0, random() % 60, *reservations.back(), random() % 20));
      held += count;
    } else {
      Reservation none;
      ASSERT_THROW(pool->claim(count, 0, 0, none, 0), Error);
    }
    if (random() % 50 == 0) pool->compact();
    ASSERT_EQ(pool->free_cells(), limit - held);
    ASSERT_EQ(pool->held_cells(), held);
    ASSERT_LE(pool->reserved_cells(), pool->free_cells());
    ASSERT_TRUE(pool->check().empty()) << pool->check().front();
  }
}

TEST(StatePoolLimit, HidesWhatLiesBeyondIt) {
  const auto pool = StatePool::create(8);
  std::vector<SlotRef> held = pool->claim(3);
  ASSERT_TRUE(pool->set_limit(4));
  EXPECT_EQ(pool->free_slots(), 1u);
  EXPECT_THROW(pool->claim(2), Error);
  EXPECT_FALSE(pool->set_limit(2));
  EXPECT_TRUE(pool->set_limit(3));
  EXPECT_THROW(pool->claim(1), Error);
  held.clear();
  EXPECT_EQ(pool->free_slots(), 3u);
  EXPECT_TRUE(pool->set_limit(8));
  EXPECT_EQ(pool->claim(8).size(), 8u);
  EXPECT_TRUE(pool->check().empty());
}

TEST(CacheLimit, EndsWithWhoSetIt) {
  const auto cache = testing::host_cache(small_shape(16));
  cache->attach();
  ASSERT_TRUE(cache->set_limit(5));
  EXPECT_EQ(cache->usage().free, 5u);
  cache->detach();
  EXPECT_EQ(cache->free_cells(), 16u);
}

// ---- owners -------------------------------------------------------------------------------------------------------

TEST(CellOwners, AgreeWithOneLabelForEachCell) {
  constexpr Cell kCells = 40;
  std::mt19937 random(11);
  CellOwners owners(kCells);
  std::vector<Owner> twin(kCells, kClean);
  for (int i = 0; i < 20000; ++i) {
    const Cell begin = random() % kCells, length = random() % (kCells - begin) + 1;
    const Owner owner = random() % 4;
    if (random() % 40 == 0) {
      owners.distrust();
      for (Owner& each : twin) each = each == kClean ? kClean : kForeign;
    } else if (random() % 4 == 0) {
      const Cell to = random() % (begin + 1);  // compaction moves downwards
      const CellMove moves[] = {{begin, to, length}};
      owners.move(moves);
      const std::vector<Owner> before = twin;
      for (Cell c = 0; c < length; ++c) twin[to + c] = before[begin + c];
    } else {
      owners.set(begin, length, owner);
      std::fill_n(twin.begin() + begin, length, owner);
    }
    std::vector<bool> foreign(kCells, false);
    for (const auto& [cell, count] : owners.foreign(begin, length, owner)) {
      for (Cell c = cell; c < cell + count; ++c) foreign[c] = true;
    }
    std::size_t borders = 1;
    for (Cell c = 0; c < kCells; ++c) {
      const bool inside = c >= begin && c < begin + length;
      ASSERT_EQ(owners.owner_of(c), twin[c]);
      ASSERT_EQ(foreign[c], inside && twin[c] != owner && twin[c] != kClean);
      borders += c > 0 && twin[c] != twin[c - 1];
    }
    ASSERT_EQ(owners.borders(), borders) << "neighbours differ";
  }
}

// ---- cleared memory -----------------------------------------------------------------------------------------------

enum class Place { kHost, kDevice };

class ClearedMemory : public TensorTest, public ::testing::WithParamInterface<Place> {
 protected:
  std::shared_ptr<CausalCache> make(std::uint32_t growth = 4, Cell cells = 16) {
    const KvShape shape = small_shape(cells);
    CausalCache::Options options;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) options.layers.push_back(static_cast<int>(3 * layer));
    options.growth = growth;
    options.rope = {ops::RopeParams{}};
    if (GetParam() == Place::kHost) return CausalCache::create(std::make_unique<HostKvStore>(shape), options);
    return CausalCache::create(std::make_unique<OpenClKvStore>(device_ptr(), shape), options);
  }

  std::shared_ptr<RecurrentCache> make_states(std::uint32_t slots) {
    if (GetParam() == Place::kHost)
      return RecurrentCache::create(std::make_unique<HostStateStore>(small_states(slots)), {0, 1});
    return RecurrentCache::create(std::make_unique<OpenClStateStore>(device_ptr(), small_states(slots)), {0, 1});
  }

  static bool has_only(const Tensor& tensor, std::uint8_t byte) {
    std::vector<std::uint8_t> bytes(tensor.nbytes());
    tensor.copy_to_host(reinterpret_cast<std::byte*>(bytes.data()));
    return std::all_of(bytes.begin(), bytes.end(), [&](std::uint8_t each) { return each == byte; });
  }

  // Whether every byte of the cells, in all layers, is `byte`.
  static bool cells_have(CausalCache& cache, const CellSpans& spans, std::uint8_t byte) {
    for (std::uint32_t layer = 0; layer < cache.shape().layers; ++layer) {
      const auto [k, v] = cache.store().rows(layer, spans);
      if (!has_only(k, byte) || !has_only(v, byte)) return false;
    }
    return true;
  }

  static bool slot_has(RecurrentCache& cache, Slot slot, std::uint8_t byte) {
    const Slot slots[] = {slot};
    for (std::uint32_t layer = 0; layer < cache.shape().layers; ++layer) {
      const auto [conv, delta] = cache.store().read(layer, slots);
      if (!has_only(conv, byte) || !has_only(delta, byte)) return false;
    }
    return true;
  }

  // Claims `count` cells for the owner, poisons them with `byte` (as K and V would be written) and lets go.
  static void use(CausalCache& cache, Owner owner, std::uint32_t count, std::uint8_t byte) {
    const SequenceId id = cache.open_sequence(owner);
    const ForwardRows rows[] = {{id, count}};
    const ForwardPtr forward = cache.begin(rows);
    cache.store().fill(0, cache.capacity(), byte);
    cache.close_sequence(id);
  }

  // What the cells have that the owner's first step claims.
  static std::pair<SequenceId, ForwardPtr> claim(CausalCache& cache, Owner owner, std::uint32_t count) {
    const SequenceId id = cache.open_sequence(owner);
    const ForwardRows rows[] = {{id, count}};
    return {id, cache.begin(rows)};
  }
};

INSTANTIATE_TEST_SUITE_P(Places, ClearedMemory, ::testing::Values(Place::kHost, Place::kDevice),
                         [](const auto& info) { return info.param == Place::kHost ? "Host" : "Device"; });

TEST_P(ClearedMemory, CellsOfAnotherOwnerAreZeros) {
  const auto cache = make();
  use(*cache, kAnna, 8, 0xA5);
  ASSERT_TRUE(cells_have(*cache, {{0, 8, 0}}, 0xA5));
  const auto [id, forward] = claim(*cache, kBert, 6);
  EXPECT_TRUE(cells_have(*cache, {{0, 6, 0}}, 0)) << "what Bert may read";
  EXPECT_TRUE(cells_have(*cache, {{6, 2, 0}}, 0)) << "what is kept back for Bert, too";
  EXPECT_EQ(cache->owner_of(5), kBert);
  EXPECT_EQ(cache->owner_of(6), kClean);
}

TEST_P(ClearedMemory, OwnCellsAreTakenAsTheyAre) {
  const auto cache = make();
  use(*cache, kAnna, 8, 0xA5);
  const auto [id, forward] = claim(*cache, kAnna, 8);
  EXPECT_TRUE(cells_have(*cache, {{0, 8, 0}}, 0xA5)) << "the twin: nothing is cleared in vain";
}

TEST_P(ClearedMemory, ANewPrefixCacheTrustsNothing) {
  const auto cache = make();
  cache->attach();
  use(*cache, kAnna, 8, 0xA5);
  cache->detach();
  cache->attach();
  const auto [id, forward] = claim(*cache, kAnna, 8);
  EXPECT_TRUE(cells_have(*cache, {{0, 8, 0}}, 0)) << "the number is another namespace's by now";
}

TEST(OwnersOfCells, FollowCompaction) {
  const auto cache = testing::host_cache(small_shape(16), {}, 0);
  const SequenceId anna = cache->open_sequence(kAnna), bert = cache->open_sequence(kBert);
  for (const SequenceId id : {anna, bert}) {
    const ForwardRows rows[] = {{id, 4}};
    testing::put_all(*cache, *cache->begin(rows), testing::range(0, 4));
  }
  cache->close_sequence(anna);
  cache->defrag();
  EXPECT_EQ(cache->owner_of(0), kBert);
  EXPECT_EQ(cache->owner_of(3), kBert);
  EXPECT_EQ(cache->owner_of(4), kBert) << "its bytes are still there";
  EXPECT_EQ(cache->owner_of(8), kClean);
}

TEST_P(ClearedMemory, LoadedCellsBelongToWhoLoadedThem) {
  const auto cache = make();
  use(*cache, kAnna, 16, 0xA5);
  std::vector<std::byte> image(CellImage(cache->shape(), 4).bytes(), std::byte{0x11});
  {
    const SpanList loaded = cache->claim(4, 0);
    cache->load_image(loaded, 0, 4, 0, image.data(), 4, kBert)->wait();
    EXPECT_TRUE(cells_have(*cache, loaded.spans(), 0x11));
    EXPECT_EQ(cache->owner_of(loaded.spans().front().cell), kBert);
  }
  cache->distrust_owners();  // the device said later that it failed
  const auto [id, forward] = claim(*cache, kBert, 4);
  EXPECT_TRUE(cells_have(*cache, {{0, 4, 0}}, 0));
}

TEST_P(ClearedMemory, SlotsOfAnotherOwnerAreZeros) {
  const auto cache = make_states(2);
  const SequenceId anna = cache->open_sequence(kAnna);
  const ForwardRows rows[] = {{anna, 1, {}}};
  cache->begin(rows).reset();
  for (const Slot slot : {0, 1}) {
    cache->pool().set_owner(slot, kAnna);
    cache->store().fill(slot, 0xA5);
  }
  const SequenceId bert = cache->open_sequence(kBert);
  const ForwardRows more[] = {{anna, 1, {}}, {bert, 1, {}}};
  const StateForwardPtr forward = cache->begin(more);
  const Slot his = cache->pool().owner_of(0) == kBert ? 0 : 1;
  EXPECT_TRUE(slot_has(*cache, his, 0));
  EXPECT_TRUE(slot_has(*cache, 1 - his, 0xA5)) << "the twin: Anna's own";
  EXPECT_EQ(cache->pool().owner_of(1 - his), kAnna);
}

// Sequences of several owners that take turns get their own slots back.
TEST(StatePoolOwners, OwnSlotsAreTakenFirst) {
  const auto pool = StatePool::create(6);
  for (Slot slot = 0; slot < 6; ++slot) pool->set_owner(slot, kAnna + static_cast<Owner>(slot) % 3);
  for (int round = 0; round < 20; ++round) {
    const std::vector<Owner> owners{kAnna + round % 3, kAnna + (round + 1) % 3};
    std::vector<SlotRef> claimed(2);
    pool->claim(claimed, owners);
    for (std::size_t i = 0; i < 2; ++i) ASSERT_EQ(pool->owner_of(claimed[i].slot()), owners[i]);
  }
}

// Host memory needs no clearing: an image writes every byte of the memory it is given, in every shape and dtype.
TEST_P(ClearedMemory, AnImageWritesEveryByte) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const std::uint32_t cells : {1u, 63u, 64u, 65u, 130u}) {
      KvShape shape = small_shape(200, dtype);
      std::unique_ptr<KvStore> store;
      if (GetParam() == Place::kHost) store = std::make_unique<HostKvStore>(shape);
      if (GetParam() == Place::kDevice) store = std::make_unique<OpenClKvStore>(device_ptr(), shape);
      store->fill(0, shape.cells, 0);
      std::vector<std::uint8_t> image(shape.bytes_per_cell() * cells, 0xA5);
      ASSERT_EQ(CellImage(shape, cells).bytes(), image.size());
      const CellSpan spans[] = {{100, cells / 2, 0}, {3, cells - cells / 2, static_cast<std::int32_t>(cells / 2)}};
      const std::span<const CellSpan> used = cells == 1 ? std::span(spans).subspan(1) : std::span(spans);
      store->store_image(used, 0, reinterpret_cast<std::byte*>(image.data()), cells)->wait();
      EXPECT_EQ(std::count(image.begin(), image.end(), 0), static_cast<std::ptrdiff_t>(image.size())) << cells;
    }
  }
  const auto states = make_states(1);
  states->store().fill(0, 0);
  std::vector<std::uint8_t> image(states->shape().bytes_per_slot(), 0xA5);
  states->store().store_image(0, reinterpret_cast<std::byte*>(image.data()))->wait();
  EXPECT_EQ(std::count(image.begin(), image.end(), 0), static_cast<std::ptrdiff_t>(image.size()));
}

}  // namespace
}  // namespace kvtrie
