// Snapshots between processes: the same tenant still hits, everybody else misses.
#include "store/shared_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/checksum.h"
#include "store_exchange_helpers.h"
#include "store_shared_helpers.h"

namespace kvtrie {
namespace {

using testing::Bytes;
using testing::expect_same;
using testing::image_of;
using testing::joined;
using testing::MapStore;
using testing::pattern;
using testing::Process;
using testing::publish;
using testing::range;
using testing::scope;
using testing::small_values;
using testing::Snapshot;
using testing::snapshot_of;
using testing::Tokens;

TEST(SharedExchange, AnotherProcessTakesWholeBlocksThenTheTail) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const Tokens tokens = range(0, 600);
  publish(a, scope(), tokens);
  const SharedPath path(scope(), tokens, {});
  {
    expect_same(b.exchange.get_block(path, 1, 0), snapshot_of(scope(), tokens, 256));
    expect_same(b.exchange.get_block(path, 2, 0), snapshot_of(scope(), tokens, 512));
    expect_same(b.exchange.get_tail(path, 600, 0), snapshot_of(scope(), tokens, 600, true));
  }
  EXPECT_EQ(b.budget->used(), 0u) << "what is let go of is given back";
  EXPECT_GT(b.budget->peak(), 0u);
}

TEST(SharedExchange, APromptThatDivergesInsideABlockFindsTheTokensUpToThere) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  publish(a, scope(), range(0, 600));
  const Tokens own = joined(range(0, 300), range(5000, 5400));
  const SharedPath path(scope(), own, {});
  EXPECT_EQ(b.exchange.get_block(path, 1, 0).answer, SharedAnswer::kHit);
  EXPECT_EQ(b.exchange.get_block(path, 2, 0).answer, SharedAnswer::kAbsent);
  const SharedIndex index = b.exchange.get_index(path, 1, 0);
  const FoundContinuation found = find_continuation(index, path.bytes(256, path.tokens()));
  ASSERT_EQ(found.common, 300u - 256);
  expect_same(b.exchange.get_cells(path, 1, *found.cells, 0), snapshot_of(scope(), range(0, 600), 512));
  EXPECT_EQ(found.point, nullptr);
  const SharedPath later(scope(), joined(range(0, 590), {9}), {});
  const SharedIndex behind = b.exchange.get_index(later, 2, 0);
  const FoundContinuation tail = find_continuation(behind, later.bytes(512, later.tokens()));
  ASSERT_EQ(tail.common, 590u - 512);
  EXPECT_EQ(tail.point, nullptr) << "it diverges before the restore point";
  expect_same(b.exchange.get_cells(later, 2, *tail.cells, 0), snapshot_of(scope(), range(0, 600), 600, true));
}

TEST(SharedExchange, APromptThatGoesOnFindsTheRestorePointOnItsWay) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  publish(a, scope(), range(0, 600));
  const SharedPath path(scope(), range(0, 650), {});
  const SharedIndex index = b.exchange.get_index(path, 2, 0);
  const FoundContinuation found = find_continuation(index, path.bytes(512, 650));
  ASSERT_NE(found.point, nullptr);
  expect_same(b.exchange.get_point(path, 2, *found.point, 0), snapshot_of(scope(), range(0, 600), 600, true));
}

// What a stranger gets: nothing, with the twin that the same tenant still hits.
TEST(SharedExchange, OtherTenantsAndModelsMiss) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const Tokens tokens = range(0, 300);
  publish(a, scope(), tokens);
  std::vector<SharedScope> strangers(4, scope());
  strangers[0].name_space = "tenant2";
  strangers[1].fingerprint = "model-2";
  strangers[2].caches[0].shape[1] = 32;
  strangers[3].fingerprint = "model-1tenant";
  strangers[3].name_space = "";
  for (const SharedScope& stranger : strangers) {
    const SharedPath path(stranger, tokens, {});
    EXPECT_EQ(b.exchange.get_block(path, 1, 0).answer, SharedAnswer::kAbsent);
    EXPECT_EQ(b.exchange.get_tail(path, 300, 0).answer, SharedAnswer::kAbsent);
    EXPECT_TRUE(b.exchange.get_index(path, 1, 0).empty());
  }
  EXPECT_EQ(b.exchange.get_tail(SharedPath(scope(), tokens, {}), 300, 0).answer, SharedAnswer::kHit);
}

// A writer that lies: its value has a right digest under this key, but the snapshot in it is of somebody else.
TEST(SharedExchange, ASnapshotOfSomethingElseUnderThisKeyIsAMissWithItsReason) {
  const Tokens tokens = range(0, 300);
  const SharedPath path(scope(), tokens, {});
  const auto fault_of = [&](const auto& lie) {
    const auto store = std::make_shared<MapStore>();
    Process a(store), b(store);
    Snapshot made = snapshot_of(scope(), tokens, 300, true);
    lie(made);
    EXPECT_TRUE(a.exchange.put_tail(path, 300, made.header, made.buffers(), 0));
    const ReceivedSnapshot got = b.exchange.get_tail(path, 300, 0);
    if (got.answer == SharedAnswer::kHit) return SnapshotFault::kNone;
    EXPECT_EQ(got.answer, SharedAnswer::kWrong);
    EXPECT_TRUE(got.images.empty() && got.header.tokens.empty());
    EXPECT_FALSE(store->values.contains(path.tail_key(300))) << "deleted";
    EXPECT_EQ(b.budget->used(), 0u);
    const std::vector<std::uint64_t> faults = b.tier->stats().faults;
    return static_cast<SnapshotFault>(std::find(faults.begin(), faults.end(), 1) - faults.begin());
  };
  EXPECT_EQ(fault_of([](Snapshot&) {}), SnapshotFault::kNone);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.fingerprint = "model-2"; }), SnapshotFault::kFingerprint);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.name_space = "other"; }), SnapshotFault::kNamespace);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.caches[0].dtype = 2; }), SnapshotFault::kLayout);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.tokens[0] = 77; }), SnapshotFault::kTokens);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.tokens.push_back(1); }), SnapshotFault::kTokens);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.header.start = 255; }), SnapshotFault::kTokens);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.images[1][776] ^= std::byte{1}; }), SnapshotFault::kChecksum);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.images[0].pop_back(); }), SnapshotFault::kTruncated);
  EXPECT_EQ(fault_of([](Snapshot& s) { s.images[1].push_back(std::byte{0}); }), SnapshotFault::kSize);
}

TEST(SharedExchange, WhatDoesNotFitUnderTheCapIsLeftInTheStore) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const Tokens tokens = range(0, 300);
  publish(a, scope(), tokens);
  const SharedPath path(scope(), tokens, {});
  const std::uint64_t needed = 44 * 10 + 777;
  ASSERT_TRUE(b.budget->set_cap(needed - 1));
  EXPECT_EQ(b.exchange.get_tail(path, 300, 0).answer, SharedAnswer::kStopped);
  EXPECT_EQ(b.budget->used(), 0u);
  ASSERT_TRUE(b.budget->set_cap(needed));
  EXPECT_EQ(b.exchange.get_tail(path, 300, 0).answer, SharedAnswer::kHit);
}

TEST(SharedExchange, EveryDamagedByteOfAStoredSnapshotIsAMiss) {
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  const Tokens tokens = range(0, 20);
  const SharedPath path(scope(), tokens, {});
  const Snapshot made = snapshot_of(scope(), tokens, 20, true);
  ASSERT_TRUE(a.exchange.put_tail(path, 20, made.header, made.buffers(), 0));
  const Bytes value = store->values.at(path.tail_key(20));
  for (std::size_t at = 0; at < value.size(); ++at) {
    const auto damaged = std::make_shared<MapStore>();
    damaged->values[path.tail_key(20)] = value;
    damaged->values[path.tail_key(20)][at] ^= std::byte{16};
    Process b(damaged);
    ASSERT_EQ(b.exchange.get_tail(path, 20, 0).answer, SharedAnswer::kWrong) << "byte " << at;
    EXPECT_TRUE(damaged->values.empty());
  }
}

TEST(SharedExchange, MediaOfAnotherProcessMatchByContent) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const std::vector<SnapshotMedia> here{{-5, 3, false, "cat"}}, there{{-900, 3, false, "cat"}},
      dog{{-900, 3, false, "dog"}};
  const Tokens written{1, -5, -5, -5, 2}, read{1, -900, -900, -900, 2};
  const SharedPath path(scope(), written, here), same(scope(), read, there), other(scope(), read, dog);
  const Snapshot made = snapshot_of(scope(), written, 5, false, here);
  ASSERT_TRUE(a.exchange.put_tail(path, 5, made.header, made.buffers(), 0));
  ASSERT_TRUE(a.exchange.announce(path, 5, true, false, 0));
  expect_same(b.exchange.get_tail(same, 5, 0), made);
  EXPECT_EQ(b.exchange.get_tail(other, 5, 0).answer, SharedAnswer::kAbsent);
  const FoundContinuation found = find_continuation(b.exchange.get_index(other, 0, 0), other.bytes(0, 5));
  EXPECT_EQ(found.common, 1u) << "another picture shares the token in front of it";
}

// Two writers that read the same index before either writes: one update is forgotten, nothing is broken.
TEST(SharedExchange, ALostRaceOnAnIndexOnlyForgets) {
  const auto store = std::make_shared<MapStore>();
  Process a(store), b(store);
  const SharedPath one(scope(), Tokens{1, 2, 3}, {}), two(scope(), Tokens{1, 5}, {});
  ASSERT_TRUE(a.exchange.announce(one, 3, true, false, 0));
  const auto before = store->values;
  ASSERT_TRUE(b.exchange.announce(two, 2, true, true, 0));
  EXPECT_EQ(a.exchange.get_index(one, 0, 0).size(), 2u);
  const auto after_b = store->values;
  store->values = before;
  const SharedPath three(scope(), Tokens{8}, {});
  ASSERT_TRUE(a.exchange.announce(three, 1, true, false, 0));
  const SharedIndex index = b.exchange.get_index(one, 0, 0);
  ASSERT_EQ(index.size(), 2u) << "what b added is forgotten, the rest is there";
  ASSERT_TRUE(b.exchange.announce(two, 2, true, true, 0));
  EXPECT_EQ(b.exchange.get_index(one, 0, 0).size(), 3u) << "until it is published again";
}

TEST(SharedExchange, ADamagedIndexStartsAgain) {
  const auto store = std::make_shared<MapStore>();
  Process a(store);
  const SharedPath path(scope(), Tokens{1, 2, 3}, {});
  const Bytes garbage = pattern(100);
  ASSERT_TRUE(testing::store_bytes(*a.tier, path.index_key(0), garbage));
  EXPECT_TRUE(a.exchange.get_index(path, 0, 0).empty());
  EXPECT_EQ(a.faults(SnapshotFault::kMagic), 1u);
  EXPECT_TRUE(store->values.empty());
  ASSERT_TRUE(testing::store_bytes(*a.tier, path.index_key(0), pattern(kMaxIndexBytes / 10)));
  ASSERT_TRUE(a.exchange.announce(path, 3, true, false, 0));
  EXPECT_EQ(a.exchange.get_index(path, 0, 0).size(), 1u);
}

// The store throws at call N of a whole publication and reading, for every N: never an exception, never a wrong byte.
TEST(SharedExchange, AFailureAtAnyCallLosesNothingButTime) {
  const Tokens tokens = range(0, 300);
  const SharedPath path(scope(), tokens, {});
  const Snapshot tail = snapshot_of(scope(), tokens, 300, true);
  for (const bool from_then_on : {false, true}) {
    for (int nth = 1;; ++nth) {
      const auto store = std::make_shared<MapStore>();
      Process a(store), b(store);
      store->fail_at(nth, from_then_on);
      a.exchange.put_tail(path, 300, tail.header, tail.buffers(), 0);
      a.exchange.announce(path, 300, true, true, 0);
      const ReceivedSnapshot got = b.exchange.get_tail(path, 300, 0);
      if (got.answer == SharedAnswer::kHit) expect_same(got, tail);
      b.exchange.get_index(path, 1, 0);
      const bool reached = store->calls >= nth;
      store->fail_at(0, false);
      publish(a, scope(), tokens, 100);
      expect_same(b.exchange.get_tail(path, 300, 100), tail);
      if (!reached) break;
    }
  }
}

}  // namespace
}  // namespace kvtrie
