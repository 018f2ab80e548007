// A shared store with keys: who has the key shares, everybody else finds nothing, and whoever can write to the store
// cannot choose what is read from it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "failing_allocations.h"
#include "failing_libcrypto.h"
#include "sealed_helpers.h"
#include "store/sealed_content.h"
#include "store/shared_exchange.h"
#include "store_exchange_helpers.h"

namespace kvtrie {
namespace {

using testing::Bytes;
using testing::expect_same;
using testing::key_number;
using testing::keys_for;
using testing::MapStore;
using testing::one_key;
using testing::Process;
using testing::publish;
using testing::range;
using testing::scope;
using testing::Snapshot;
using testing::snapshot_of;
using testing::Tokens;

SharedScope keyed(KeyRingPtr keys) {
  SharedScope who = scope();
  who.keys = std::move(keys);
  return who;
}

// All that a reader can ask for of `tokens`: whether each answer is a miss or right.
void expect_right_or_missing(Process& reader, const SharedScope& who, const Tokens& tokens, const std::string& what) {
  const SharedPath path(who, tokens, {});
  const auto check = [&](const ReceivedSnapshot& got, std::size_t end, bool point) {
    if (got.answer == SharedAnswer::kHit) expect_same(got, snapshot_of(scope(), tokens, end, point));
  };
  for (std::size_t block = 1; block <= path.blocks(); ++block)
    check(reader.exchange.get_block(path, block, 0), block * kSharedBlock, false);
  check(reader.exchange.get_tail(path, tokens.size(), 0), tokens.size(), true);
  for (const Continuation& each : reader.exchange.get_index(path, path.blocks(), 0)) {
    EXPECT_TRUE(std::equal(each.tokens.begin(), each.tokens.end(),
                           path.bytes(path.blocks() * kSharedBlock, tokens.size()).begin()))
        << what;
  }
}

TEST(SealedExchange, ProcessesWithTheKeyShare) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const Tokens tokens = range(0, 600);
  publish(a, keyed(one_key(1)), tokens);
  const SharedPath path(keyed(one_key(1, 7)), tokens, {});
  expect_same(b.exchange.get_block(path, 1, 0), snapshot_of(scope(), tokens, 256));
  expect_same(b.exchange.get_block(path, 2, 0), snapshot_of(scope(), tokens, 512));
  expect_same(b.exchange.get_tail(path, 600, 0), snapshot_of(scope(), tokens, 600, true));
  const SharedIndex index = b.exchange.get_index(path, 2, 0);
  ASSERT_EQ(index.size(), 1U);
  expect_same(b.exchange.get_point(path, 2, index[0], 0), snapshot_of(scope(), tokens, 600, true));
  EXPECT_EQ(b.tier->stats().removes, 0U);
}

TEST(SealedExchange, IndicesOfTwoWritersAreMerged) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const SharedScope who = keyed(one_key(1));
  publish(a, who, range(0, 300));
  publish(b, who, testing::joined(range(0, 256), range(1000, 1030)));
  EXPECT_EQ(a.exchange.get_index(SharedPath(who, range(0, 300), {}), 1, 0).size(), 2U);
}

TEST(SealedExchange, WithoutTheKeyNothingIsFoundOrHarmed) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const Tokens tokens = range(0, 600);
  publish(a, keyed(one_key(1)), tokens);
  const std::map<std::string, Bytes> before = store->values;
  for (const KeyRingPtr& keys : {KeyRingPtr(), one_key(2), keys_for({{"tenant", {key_number(2), key_number(1)}}})}) {
    const SharedPath path(keyed(keys), tokens, {});
    EXPECT_EQ(b.exchange.get_block(path, 1, 0).answer, SharedAnswer::kAbsent);
    EXPECT_EQ(b.exchange.get_tail(path, 600, 0).answer, SharedAnswer::kAbsent);
    EXPECT_TRUE(b.exchange.get_index(path, 2, 0).empty());
  }
  EXPECT_EQ(store->values, before);
}

TEST(SealedExchange, NothingOfAPromptIsInTheStore) {
  const auto store = std::make_shared<MapStore>(), plain = std::make_shared<MapStore>();
  Process a(store), b(plain);
  const Tokens tokens = range(5000, 5600);
  publish(a, keyed(one_key(1)), tokens);
  publish(b, scope(), tokens);
  const auto marker = std::as_bytes(std::span(tokens)).subspan(550 * 4, 16);
  const Snapshot tail = snapshot_of(scope(), tokens, 600, true);
  const auto shows = [](const MapStore& in, std::span<const std::byte> part) {
    return std::any_of(in.values.begin(), in.values.end(),
                       [&](const auto& each) { return testing::contains(each.second, part); });
  };
  EXPECT_TRUE(shows(*plain, marker) && shows(*plain, std::span(tail.images[1]).first(16)));
  EXPECT_FALSE(shows(*store, marker) || shows(*store, std::span(tail.images[1]).first(16)));
  for (const auto& [key, value] : store->values) EXPECT_FALSE(plain->values.contains(key)) << "a name anybody can make";
}

// ---- whoever can write to the store ---------------------------------------------------------------------------------

TEST(SealedExchange, WhatIsNotSealedUnderAKeyIsAMissAndGoes) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store), reader(store);
  const Tokens tokens = range(0, 256);
  const SharedScope who = keyed(one_key(1));
  const SharedPath path(who, tokens, {});
  // A forged snapshot, whole and with all its digests, under the name that a reader asks for.
  const Snapshot made = snapshot_of(scope(), tokens, 256);
  Bytes forged = encode_header(made.header);
  forged.insert(forged.end(), made.images[0].begin(), made.images[0].end());
  const std::span<const std::byte> part(forged);
  ASSERT_TRUE(a.tier->put(path.block_key(1), {&part, 1}, 0));
  EXPECT_EQ(reader.exchange.get_block(path, 1, 0).answer, SharedAnswer::kWrong);
  EXPECT_EQ(reader.faults(SnapshotFault::kSealed), 1U);
  EXPECT_FALSE(store->values.contains(path.block_key(1)));
  // Sealed with another key.
  BufferSource source({&part, 1}, forged.size());
  const KeyRingPtr other = one_key(2);
  Sealer sealer(*other, other->sealing("tenant"), path.block_key(1), source);
  ASSERT_TRUE(a.tier->put(path.block_key(1), sealer, 0));
  EXPECT_EQ(reader.exchange.get_block(path, 1, 0).answer, SharedAnswer::kWrong);
  EXPECT_EQ(reader.faults(SnapshotFault::kKey), 1U);
  EXPECT_FALSE(store->values.contains(path.block_key(1)));
  // The same of an index.
  const Bytes index = encode_index({});
  const std::span<const std::byte> index_part(index);
  ASSERT_TRUE(a.tier->put(path.index_key(0), {&index_part, 1}, 0));
  EXPECT_TRUE(reader.exchange.get_index(path, 0, 0).empty());
  EXPECT_EQ(reader.faults(SnapshotFault::kSealed), 2U);
  EXPECT_FALSE(store->values.contains(path.index_key(0)));
}

// And the other way round: sealed contents under names of a reader without keys.
TEST(SealedExchange, WhatIsSealedIsAMissWithoutKeys) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), reader(store);
  const Tokens tokens = range(0, 256);
  const SharedPath path(scope(), tokens, {}), sealed(keyed(one_key(1)), tokens, {});
  const Bytes content = testing::pattern(3000);
  const std::span<const std::byte> part(content);
  for (const std::string& key : {path.block_key(1), path.index_key(0)}) {
    BufferSource source({&part, 1}, content.size());
    Sealer sealer(*sealed.scope().keys, *sealed.key(), key, source);
    ASSERT_TRUE(a.tier->put(key, sealer, 0));
  }
  EXPECT_EQ(reader.exchange.get_block(path, 1, 0).answer, SharedAnswer::kWrong);
  EXPECT_TRUE(reader.exchange.get_index(path, 0, 0).empty());
  EXPECT_EQ(reader.faults(SnapshotFault::kSealed), 2U);
}

// With every value under every other's name, its outer digests made anew as anybody can.
TEST(SealedExchange, SwappedValuesAreMisses) {
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  const SharedScope who = keyed(one_key(1));
  const Tokens tokens = range(0, 600);
  publish(a, who, tokens);
  const SharedPath path(who, tokens, {});
  const std::vector<std::string> keys{path.block_key(1), path.block_key(2), path.tail_key(600), path.index_key(2)};
  const auto fetched = [&](const std::string& key) { return testing::fetch(*a.tier, key).bytes; };
  for (const std::string& from : keys) {
    for (const std::string& to : keys) {
      if (from == to) continue;
      const auto attacked = std::make_shared<MapStore>();
      attacked->values = store->values;
      Process mallory(attacked), reader(attacked);
      ASSERT_TRUE(testing::store_bytes(*mallory.tier, to, fetched(from)));
      expect_right_or_missing(reader, who, tokens, from + " as " + to);
      EXPECT_EQ(reader.faults(SnapshotFault::kChecksum), 1U) << from << " as " << to;
    }
  }
}

// Every byte of every content, with outer digests that agree.
TEST(SealedExchange, EveryForgedByteIsAMiss) {
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  const SharedScope who = keyed(one_key(1));
  const Tokens tokens = range(0, 40);
  publish(a, who, tokens);
  const SharedPath path(who, tokens, {});
  for (const std::string& key : {path.tail_key(40), path.index_key(0)}) {
    const Bytes right = testing::fetch(*a.tier, key).bytes;
    for (std::size_t at = 0; at < right.size(); ++at) {
      Process mallory(store), reader(store);
      Bytes wrong = right;
      wrong[at] ^= static_cast<std::byte>(1 << at % 8);
      ASSERT_TRUE(testing::store_bytes(*mallory.tier, key, wrong));
      const bool miss = key == path.index_key(0) ? reader.exchange.get_index(path, 0, 0).empty()
                                                 : reader.exchange.get_tail(path, 40, 0).answer == SharedAnswer::kWrong;
      ASSERT_TRUE(miss) << at;
      ASSERT_EQ(reader.tier->stats().removes, 1U) << at;
    }
    ASSERT_TRUE(testing::store_bytes(*a.tier, key, right));
  }
}

TEST(SealedExchange, RandomTamperingIsAMissOrRight) {
  constexpr std::uint64_t kSeed = 20261125;
  std::mt19937_64 random(kSeed);
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  const SharedScope who = keyed(one_key(1));
  const Tokens tokens = range(0, 600);
  publish(a, who, tokens);
  std::vector<std::string> keys;
  for (const auto& [key, value] : store->values) keys.push_back(key);
  for (int round = 0; round < 300; ++round) {
    const auto attacked = std::make_shared<MapStore>();
    attacked->values = store->values;
    for (std::uint64_t change = 1 + random() % 3; change > 0; --change) {
      Bytes& value = attacked->values[keys[random() % keys.size()]];
      const Bytes& other = store->values[keys[random() % keys.size()]];
      if (random() % 3 == 0) {
        value = other;
      } else if (random() % 2 == 0) {
        value.resize(random() % (value.size() + 1));
      } else if (!value.empty()) {
        value[random() % value.size()] = static_cast<std::byte>(random());
      }
    }
    Process reader(attacked);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    expect_right_or_missing(reader, who, tokens, "tampered");
    EXPECT_EQ(reader.budget->used(), 0U);
  }
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST(SealedExchange, RefusalsOfLibcryptoLoseNothingButTime) {
  const SharedScope who = keyed(one_key(1));
  const Tokens tokens = range(0, 300);
  const SharedPath path(who, tokens, {});
  const Snapshot tail = snapshot_of(who, tokens, 300, true);
  std::uint64_t refused = 0;
  for (std::uint64_t n = 1;; ++n) {
    const auto store = std::make_shared<MapStore>();
    Process a(store);
    bool sent = false;
    const bool failed = testing::libcrypto_refuses(n, [&] {
      try {
        sent = a.exchange.put_tail(path, 300, tail.header, tail.buffers(), 0);
      } catch (const std::bad_alloc&) {
      }
    });
    if (!failed) break;
    ++refused;
    Process reader(store);
    const ReceivedSnapshot got = reader.exchange.get_tail(path, 300, 0);
    if (sent) {
      expect_same(got, tail);
    } else {
      EXPECT_NE(got.answer, SharedAnswer::kHit);
    }
  }
  EXPECT_GT(refused, 5U);
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  ASSERT_TRUE(a.exchange.put_tail(path, 300, tail.header, tail.buffers(), 0));
  for (std::uint64_t n = 1;; ++n) {
    Process reader(store);
    ReceivedSnapshot got;
    const bool failed = testing::libcrypto_refuses(n, [&] {
      try {
        got = reader.exchange.get_tail(path, 300, 0);
      } catch (const std::bad_alloc&) {
      }
    });
    if (!failed) break;
    if (got.answer == SharedAnswer::kHit) expect_same(got, tail);
    if (store->values.contains(path.tail_key(300))) continue;
    ASSERT_TRUE(a.exchange.put_tail(path, 300, tail.header, tail.buffers(), 0));
  }
}

}  // namespace
}  // namespace kvtrie
