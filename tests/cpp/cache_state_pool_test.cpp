// Slots held by reference, and the layout of states.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "cache/null_state_store.h"
#include "cache/recurrent_cache.h"
#include "cache/state_pool.h"

namespace kvtrie {
namespace {

TEST(StatePool, ClaimsAllOrNothing) {
  const auto pool = StatePool::create(3);
  std::vector<SlotRef> two = pool->claim(2);
  EXPECT_EQ(two[0].slot(), 0);
  EXPECT_EQ(two[1].slot(), 1);
  try {
    pool->claim(2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCacheFull);
    EXPECT_EQ(error.cache_full().needed, 2u);
    EXPECT_EQ(error.cache_full().free, 1u);
    EXPECT_EQ(error.cache_full().held_live, 2u);
  }
  EXPECT_EQ(pool->free_slots(), 1u);
  EXPECT_TRUE(pool->claim(0).empty());
  EXPECT_TRUE(pool->check().empty());
}

TEST(StatePool, ASlotIsFreeWhenNobodyHoldsIt) {
  const auto pool = StatePool::create(1);
  std::vector<Slot> freed;
  pool->on_free = [&](Slot slot) { freed.push_back(slot); };
  SlotRef first = pool->claim(1).front();
  SlotRef second = first;
  SlotRef third = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(first.slot(), -1);
  EXPECT_TRUE(second == third);
  EXPECT_EQ(pool->holders(0), 2u);
  second = second;
  third.reset();
  EXPECT_EQ(pool->holders(0), 1u);
  EXPECT_TRUE(freed.empty());
  second = SlotRef();
  EXPECT_EQ(freed, std::vector<Slot>{0});
  EXPECT_EQ(pool->free_slots(), 1u);
  EXPECT_TRUE(pool->check().empty());
}

TEST(StatePool, LivesAsLongAsItsLastHold) {
  SlotRef kept;
  EXPECT_FALSE(kept.belongs_to(*StatePool::create(1)));
  {
    const auto pool = StatePool::create(2);
    kept = pool->claim(1).front();
    EXPECT_TRUE(kept.belongs_to(*pool));
    EXPECT_FALSE(kept.belongs_to(*StatePool::create(2)));
  }
  EXPECT_TRUE(kept);
}

TEST(StatePool, HoldsFromSeveralThreads) {
  const auto pool = StatePool::create(4);
  const std::vector<SlotRef> all = pool->claim(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        std::vector<SlotRef> copies = all;
        copies.pop_back();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Slot slot = 0; slot < 4; ++slot) EXPECT_EQ(pool->holders(slot), 1u);
}

TEST(StatePool, RefusesSizesThatNoPoolHas) {
  EXPECT_THROW(StatePool::create(0), Error);
  EXPECT_THROW(StatePool::create(0x80000000u), Error);
  EXPECT_THROW(StatePool::create(1)->holders(1), Error);
  EXPECT_THROW(StatePool::create(1)->holders(-1), Error);
}

StateShape shape_of(std::uint32_t tail, std::uint32_t dim, std::uint32_t heads, std::uint32_t v, std::uint32_t k) {
  StateShape shape;
  shape.layers = 3;
  shape.conv_tail = tail;
  shape.conv_dim = dim;
  shape.v_heads = heads;
  shape.v_dim = v;
  shape.k_dim = k;
  shape.slots = 2;
  return shape;
}

TEST(StateShape, CountsBytesExactly) {
  StateShape shape = shape_of(3, 10, 4, 6, 5);
  EXPECT_EQ(shape.conv_bytes(), 3u * 10 * 4);
  EXPECT_EQ(shape.delta_bytes(), 4u * 6 * 5 * 4);
  EXPECT_EQ(shape.bytes_per_slot(), 3u * (120 + 480));
  EXPECT_EQ(shape.bytes(), 2u * 3 * 600);
  shape.dtype = DType::kFloat16;
  EXPECT_EQ(shape.conv_bytes(), 60u);
  EXPECT_EQ(shape.delta_bytes(), 480u);  // always float32
}

TEST(StateShape, SectionsTileTheImage) {
  for (const StateShape& shape : {shape_of(3, 10, 4, 6, 5), shape_of(3, 10, 0, 0, 0), shape_of(0, 0, 4, 6, 5)}) {
    const std::vector<StateSection> sections = state_sections(shape);
    EXPECT_EQ(sections.size(), 3u * (shape.has_conv() + shape.has_delta()));
    std::uint64_t offset = 0;
    for (const StateSection& section : sections) {
      EXPECT_EQ(section.offset, offset);
      offset += section.bytes;
    }
    EXPECT_EQ(offset, shape.bytes_per_slot());
  }
}

TEST(StateShape, RefusesWhatNoStoreCanHave) {
  const auto message = [](const StateShape& shape) {
    try {
      validate(shape);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(shape_of(3, 10, 4, 6, 5)), "");
  EXPECT_NE(message(shape_of(3, 0, 4, 6, 5)).find("conv_dim: got 0"), std::string::npos);
  EXPECT_NE(message(shape_of(3, 10, 4, 0, 5)).find("v_dim: got 0"), std::string::npos);
  EXPECT_NE(message(shape_of(3, 10, 0, 0, 5)).find("k_dim: got 5"), std::string::npos);
  EXPECT_NE(message(shape_of(0, 0, 0, 0, 0)).find("conv_tail, v_heads"), std::string::npos);
  StateShape shape = shape_of(3, 10, 4, 6, 5);
  shape.slots = 0;
  EXPECT_NE(message(shape).find("capacity: got 0"), std::string::npos);
  shape.slots = 2;
  shape.dtype = DType::kBFloat16;
  EXPECT_NE(message(shape).find("dtype: got bfloat16"), std::string::npos);
  shape = shape_of(0xffffffff, 0xffffffff, 0, 0, 0);
  EXPECT_NE(message(shape).find("bytes"), std::string::npos);
  shape = shape_of(3, 10, 4, 6, 5);
  shape.layers = 0;
  EXPECT_NE(message(shape).find("layers: got 0"), std::string::npos);
}

TEST(NullStateStore, CarriesTheBookkeepingWithoutBytes) {
  const auto cache = RecurrentCache::create(std::make_unique<NullStateStore>(shape_of(3, 10, 4, 6, 5)), {0, 1, 2});
  const std::vector<std::int32_t> positions{0, 1, 2};
  const auto forward = cache->start_forward(positions, std::vector<SequenceId>(3, 0));
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    if (layer == 1) {
      cache->put_states(*forward, layer, {}, {});
      continue;
    }
    cache->conv(*forward, layer, {}, {});
    cache->gated_delta(*forward, layer, {}, {}, {}, {}, {});
  }
  EXPECT_TRUE(forward->complete());
  EXPECT_EQ(cache->length(0), 3);
  EXPECT_EQ(cache->free_slots(), 1u);
}

}  // namespace
}  // namespace kvtrie
