// Values and the tier: what comes back is what went in, or nothing.
#include "store/shared_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "store/shared_keys.h"
#include "store_shared_helpers.h"

namespace kvtrie {
namespace {

using testing::Bytes;
using testing::fetch;
using testing::Fetched;
using testing::MapStore;
using testing::pattern;
using testing::small_values;
using testing::store_bytes;

const std::string kKey = "kvtrie:1:b:some";

struct Tier {
  std::shared_ptr<MapStore> store = std::make_shared<MapStore>();
  SharedTier tier;
  explicit Tier(SharedOptions options = small_values()) : tier(store, options) {}
  std::uint64_t faults(SnapshotFault fault) const { return tier.stats().faults.at(static_cast<std::size_t>(fault)); }
  std::uint64_t all_faults() const {
    std::uint64_t all = 0;
    for (const std::uint64_t count : tier.stats().faults) all += count;
    return all;
  }
};

// ---- round trips
// -----------------------------------------------------------------------------------------------------

TEST(SharedTier, GivesBackWhatWasPutAtEverySizeAroundItsLimits) {
  for (const std::size_t size : {0, 1, 959, 960, 961, 1023, 1024, 1025, 2047, 2048, 2049, 24 * 1024 - 1, 24 * 1024}) {
    Tier t;
    const Bytes content = pattern(size);
    ASSERT_TRUE(store_bytes(t.tier, kKey, content)) << size;
    const Fetched got = fetch(t.tier, kKey);
    EXPECT_EQ(got.answer, SharedAnswer::kHit) << size;
    EXPECT_EQ(got.bytes, content) << size;
    EXPECT_EQ(t.store->values.size(), size <= 960 ? 1u : 1 + (size + 1023) / 1024) << size;
    for (const auto& [key, value] : t.store->values) EXPECT_LE(value.size(), 1024u) << key;
    const SharedStats stats = t.tier.stats();
    EXPECT_EQ(stats.bytes_out, t.store->bytes());
    EXPECT_EQ(stats.bytes_in, t.store->bytes());
    EXPECT_EQ(stats.puts + stats.hits + stats.gets, 3u);
  }
}

TEST(SharedTier, JoinsAContentFromBuffersOfAnySizes) {
  Tier t;
  const Bytes a = pattern(700, 1), b, c = pattern(1, 2), d = pattern(5000, 3);
  const std::vector<std::span<const std::byte>> parts{a, b, c, d, b};
  ASSERT_TRUE(t.tier.put(kKey, parts, 0));
  Bytes all = a;
  all.insert(all.end(), c.begin(), c.end());
  all.insert(all.end(), d.begin(), d.end());
  EXPECT_EQ(fetch(t.tier, kKey).bytes, all);
}

TEST(SharedTier, RefusesWhatIsLargerThanItsCapsAndLeavesItThere) {
  SharedOptions options = small_values();
  options.max_content = 3000;
  Tier writer, reader(options), narrow(small_values());
  EXPECT_FALSE(store_bytes(reader.tier, kKey, pattern(3001)));
  EXPECT_FALSE(store_bytes(writer.tier, kKey, pattern(24 * 1024 + 1))) << "a head would not fit into a value";
  EXPECT_TRUE(reader.store->values.empty() && writer.store->values.empty());
  EXPECT_EQ(writer.tier.stats().too_large, 1u);
  ASSERT_TRUE(store_bytes(writer.tier, kKey, pattern(3001)));
  reader.store->values = writer.store->values;
  EXPECT_EQ(fetch(reader.tier, kKey).answer, SharedAnswer::kTooLarge);
  EXPECT_EQ(reader.store->values, writer.store->values) << "another reader may have room for it";
  Tier wide(small_values(4096));
  ASSERT_TRUE(store_bytes(wide.tier, kKey, pattern(8000)));
  narrow.store->values = wide.store->values;
  EXPECT_EQ(fetch(narrow.tier, kKey).answer, SharedAnswer::kTooLarge);
  EXPECT_EQ(narrow.store->values, wide.store->values);
  EXPECT_EQ(narrow.all_faults(), 0u);
}

TEST(SharedTier, RemovesAndKnowsNothingElse) {
  Tier t;
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kAbsent);
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(10)));
  EXPECT_EQ(fetch(t.tier, kKey + "x").answer, SharedAnswer::kAbsent);
  EXPECT_TRUE(t.tier.remove(kKey, 0));
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kAbsent);
  EXPECT_TRUE(t.store->values.empty());
}

TEST(SharedTier, NamesOptionsThatAreOutOfRange) {
  const auto store = std::make_shared<MapStore>();
  EXPECT_THROW(SharedTier(nullptr, {}), Error);
  EXPECT_THROW(SharedTier(store, small_values(1023)), Error);
  SharedOptions options;
  options.failures_in_a_row = 0;
  EXPECT_THROW(SharedTier(store, options), Error);
  options = {};
  options.retry_after = -1;
  EXPECT_THROW(SharedTier(store, options), Error);
}

// ---- several at once
// --------------------------------------------------------------------------------------------------

TEST(SharedTier, TakesValuesThatWereAskedForTogether) {
  Tier t;
  t.store->most_at_once = 8;
  const std::vector<std::string> keys{kKey, kKey + "x", kKey + "y", kKey + "z"};
  ASSERT_TRUE(store_bytes(t.tier, keys[0], pattern(500)));
  ASSERT_TRUE(store_bytes(t.tier, keys[2], pattern(5000))) << "in chunks, which are asked for one by one";
  ASSERT_TRUE(store_bytes(t.tier, keys[3], pattern(700)));
  const std::uint64_t before = t.tier.stats().calls;
  std::vector<AskedValue> asked = t.tier.ask(keys, 600, 0);
  EXPECT_EQ(t.tier.stats().calls, before + 1);
  ASSERT_EQ(asked.size(), keys.size());
  const auto take = [&](std::size_t i) {
    Bytes bytes;
    const auto sink = [&](std::uint64_t, std::span<const std::byte> chunk) {
      bytes.insert(bytes.end(), chunk.begin(), chunk.end());
      return true;
    };
    const SharedAnswer answer = t.tier.get(keys[i], sink, 0, &asked[i]);
    return std::pair(answer, bytes);
  };
  EXPECT_EQ(take(0), std::pair(SharedAnswer::kHit, pattern(500)));
  EXPECT_EQ(take(1).first, SharedAnswer::kAbsent);
  EXPECT_EQ(take(2), std::pair(SharedAnswer::kHit, pattern(5000)));
  EXPECT_EQ(take(3).first, SharedAnswer::kAbsent) << "more than was asked for";
  EXPECT_EQ(t.tier.stats().too_large, 1u);
  EXPECT_EQ(t.tier.stats().hits, 2u);
}

TEST(SharedTier, AFailedCallFailsAllThatWereAskedFor) {
  Tier t;
  t.store->most_at_once = 8;
  const std::vector<std::string> keys{kKey, kKey + "x"};
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(10)));
  t.store->fail_at(1, true);
  std::vector<AskedValue> asked = t.tier.ask(keys, 600, 0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto sink = [](std::uint64_t, std::span<const std::byte>) { return true; };
    EXPECT_EQ(t.tier.get(keys[i], sink, 0, &asked[i]), SharedAnswer::kFailed);
  }
  EXPECT_EQ(t.tier.stats().failures, 1u);
}

TEST(SharedTier, NothingIsAskedForWhenNoTimeIsLeft) {
  Tier t;
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(5000)));
  const std::uint64_t before = t.tier.stats().calls;
  struct Patience final : Asker {
    double now = 10;
    std::vector<std::pair<std::uint64_t, double>> calls;
    double time() override { return now; }
    double deadline() const override { return 13; }
    void took(std::uint64_t bytes, double began, double ended) override {
      calls.emplace_back(bytes, ended - began);
      now += 1;
    }
  } patience;
  const auto sink = [](std::uint64_t, std::span<const std::byte>) { return true; };
  EXPECT_EQ(t.tier.get(kKey, sink, {0, &patience}), SharedAnswer::kFailed) << "a head and two of its chunks came";
  EXPECT_EQ(t.tier.stats().calls, before + 3);
  EXPECT_EQ(t.tier.stats().late, 1u);
  EXPECT_EQ(patience.calls.size(), 3u);
  EXPECT_EQ(patience.calls[1], std::pair(std::uint64_t{1024}, 0.0));
  EXPECT_EQ(t.tier.stats().failures, 0u) << "it says nothing about the store";
}

// ---- damage
// ----------------------------------------------------------------------------------------------------------

TEST(SharedTier, EveryFlippedBitOfASmallValueIsAMissWithAReason) {
  const Bytes content = pattern(100);
  Tier source;
  ASSERT_TRUE(store_bytes(source.tier, kKey, content));
  const std::size_t size = source.store->values.at(kKey).size();
  for (std::size_t bit = 0; bit < size * 8; ++bit) {
    Tier t;
    t.store->values = source.store->values;
    t.store->values.at(kKey)[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong) << "bit " << bit;
    EXPECT_EQ(t.all_faults(), 1u);
    EXPECT_TRUE(t.store->values.empty()) << "what is wrong is not fetched twice";
  }
}

TEST(SharedTier, ReasonsSayWhatIsWrong) {
  const auto after_flip = [](std::size_t byte) {
    Tier t;
    EXPECT_TRUE(store_bytes(t.tier, kKey, pattern(100)));
    t.store->values.at(kKey)[byte] ^= std::byte{4};
    fetch(t.tier, kKey);
    const std::vector<std::uint64_t> faults = t.tier.stats().faults;
    return static_cast<SnapshotFault>(std::find(faults.begin(), faults.end(), 1) - faults.begin());
  };
  EXPECT_EQ(after_flip(0), SnapshotFault::kMagic);
  EXPECT_EQ(after_flip(8), SnapshotFault::kVersion);
  EXPECT_EQ(after_flip(12), SnapshotFault::kSize);
  EXPECT_EQ(after_flip(17), SnapshotFault::kTruncated);
  EXPECT_EQ(after_flip(24), SnapshotFault::kSize);
  EXPECT_EQ(after_flip(40), SnapshotFault::kChecksum);
  EXPECT_EQ(after_flip(64), SnapshotFault::kChecksum);
  EXPECT_EQ(after_flip(163), SnapshotFault::kChecksum);
}

TEST(SharedTier, EveryFlippedByteOfAChunkedValueIsAMiss) {
  const Bytes content = pattern(2500);
  Tier source;
  ASSERT_TRUE(store_bytes(source.tier, kKey, content));
  ASSERT_EQ(source.store->values.size(), 4u);
  for (const auto& [key, value] : source.store->values) {
    for (std::size_t at = 0; at < value.size(); ++at) {
      Tier t;
      t.store->values = source.store->values;
      t.store->values.at(key)[at] ^= std::byte{1};
      ASSERT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong) << key << " byte " << at;
      EXPECT_EQ(t.all_faults(), 1u);
      EXPECT_FALSE(t.store->values.contains(kKey));
      EXPECT_FALSE(t.store->values.contains(key)) << "neither the head nor what was damaged stays";
    }
  }
}

TEST(SharedTier, EveryTruncationAndEveryMissingChunkIsAMiss) {
  const Bytes content = pattern(2500);
  Tier source;
  ASSERT_TRUE(store_bytes(source.tier, kKey, content));
  for (const auto& [key, value] : source.store->values) {
    for (std::size_t length = 0; length < value.size(); ++length) {
      Tier t;
      t.store->values = source.store->values;
      t.store->values.at(key).resize(length);
      ASSERT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong) << key << " length " << length;
    }
    Tier t;
    t.store->values = source.store->values;
    t.store->values.erase(key);
    const SharedAnswer expected = key == kKey ? SharedAnswer::kAbsent : SharedAnswer::kWrong;
    EXPECT_EQ(fetch(t.tier, kKey).answer, expected);
    EXPECT_EQ(t.faults(SnapshotFault::kTruncated), key == kKey ? 0u : 1u);
    t.store->values = source.store->values;
    t.store->values.at(key).push_back(std::byte{0});
    EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong) << "one byte more";
  }
}

TEST(SharedTier, AHeadThatDeclaresATebibyteAllocatesNothing) {
  Tier t;
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(100)));
  for (const std::uint64_t declared : {std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t{99}}) {
    Bytes value = encode_whole(kKey, Buffers{});
    for (int i = 0; i < 8; ++i) value[16 + i] = static_cast<std::byte>(declared >> (8 * i));
    t.store->values[kKey] = value;
    EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong);
  }
  std::vector<SharedChunk> chunks(2);
  chunks[0].bytes = ~std::uint64_t{0} >> 1;
  chunks[1].bytes = 5;
  t.store->values[kKey] = encode_chunked(kKey, chunks);
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kTooLarge) << "its digest is right: another reader's caps decide";
  chunks[0].bytes = 0;
  t.store->values[kKey] = encode_chunked(kKey, chunks);
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong) << "an empty chunk";
}

TEST(SharedTier, AValueUnderAnotherKeyIsWrong) {
  Tier t;
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(100, 1)));
  ASSERT_TRUE(store_bytes(t.tier, "other", pattern(100, 2)));
  std::swap(t.store->values.at(kKey), t.store->values.at("other"));
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kWrong);
  EXPECT_EQ(fetch(t.tier, "other").answer, SharedAnswer::kWrong);
  EXPECT_EQ(t.faults(SnapshotFault::kChecksum), 2u);
}

// Whatever order two writers' calls come in, a reader sees one content or the other or nothing, never a mixture.
TEST(SharedTier, TwoWritersOfOneKeyNeverMix) {
  const Bytes one = pattern(2500, 1), two = pattern(2500, 2);
  Tier a, b;
  ASSERT_TRUE(store_bytes(a.tier, kKey, one) && store_bytes(b.tier, kKey, two));
  std::vector<std::pair<std::string, Bytes>> writes(a.store->values.begin(), a.store->values.end());
  writes.insert(writes.end(), b.store->values.begin(), b.store->values.end());
  for (unsigned present = 0; present < 1u << writes.size(); ++present) {
    Tier t;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      if ((present >> i & 1) != 0) t.store->values[writes[i].first] = writes[i].second;
    }
    const Fetched got = fetch(t.tier, kKey);
    EXPECT_TRUE(got.answer != SharedAnswer::kHit || got.bytes == one || got.bytes == two);
  }
}

TEST(SharedTier, ASinkMayStopAndMayThrow) {
  Tier t;
  ASSERT_TRUE(store_bytes(t.tier, kKey, pattern(3000)));
  int chunks = 0;
  const auto stop = [&](std::uint64_t total, std::span<const std::byte>) {
    EXPECT_EQ(total, 3000u);
    return ++chunks < 2;
  };
  EXPECT_EQ(t.tier.get(kKey, stop, 0), SharedAnswer::kStopped);
  EXPECT_EQ(chunks, 2);
  const auto fail = [](std::uint64_t, std::span<const std::byte>) -> bool { throw std::bad_alloc(); };
  EXPECT_EQ(t.tier.get(kKey, fail, 0), SharedAnswer::kFailed);
  const auto fail_oddly = [](std::uint64_t, std::span<const std::byte>) -> bool { throw 7; };
  EXPECT_EQ(t.tier.get(kKey, fail_oddly, 0), SharedAnswer::kFailed);
  EXPECT_EQ(fetch(t.tier, kKey).answer, SharedAnswer::kHit) << "the content is right and stays";
  EXPECT_EQ(t.tier.stats().failures, 0u);
}

// ---- a store that fails
// ----------------------------------------------------------------------------------------------

// Call N of the store throws, for every N until none is reached: what comes back is right or a miss, and afterwards the
// tier works as if nothing had been.
void sweep(bool from_then_on, bool anything) {
  const Bytes old = pattern(2500, 1), fresh = pattern(2600, 2);
  int faults = 0;
  for (int nth = 1;; ++nth) {
    SharedOptions options = small_values();
    options.failures_in_a_row = 2;
    Tier t(options);
    ASSERT_TRUE(store_bytes(t.tier, kKey, old));
    t.store->throws_anything = anything;
    t.store->fail_at(nth, from_then_on);
    const bool put = store_bytes(t.tier, kKey, fresh);
    const Fetched got = fetch(t.tier, kKey);
    EXPECT_TRUE(got.answer != SharedAnswer::kHit || got.bytes == (put ? fresh : old)) << "call " << nth;
    t.tier.remove("absent", 0);
    const bool reached = t.store->calls >= nth;
    EXPECT_EQ(t.tier.stats().failures > 0, reached);
    t.store->fail_at(0, false);
    const double later = 100;
    EXPECT_TRUE(store_bytes(t.tier, kKey, fresh, later));
    EXPECT_EQ(fetch(t.tier, kKey, later).bytes, fresh);
    EXPECT_EQ(t.tier.stats().state, "closed");
    faults += reached ? 1 : 0;
    if (!reached) break;
  }
  EXPECT_EQ(faults, 9) << "4 values put, 4 read, 1 removed";
}

TEST(SharedTier, AFailureAtAnyCallIsAMissOnce) { sweep(false, false); }
TEST(SharedTier, AFailureFromAnyCallOnIsAMiss) { sweep(true, false); }
TEST(SharedTier, AnythingMayBeThrownAtAnyCall) {
  sweep(false, true);
  sweep(true, true);
}

TEST(SharedTier, KeepsOneLineOfTheLastFailure) {
  Tier t;
  t.store->fail_at(1, false);
  EXPECT_FALSE(t.tier.remove(kKey, 0));
  EXPECT_EQ(t.tier.stats().last_failure, "the server went away");
  EXPECT_EQ(t.tier.stats().name, "map");
}

class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, const std::string& line) { lines.push_back(line); });
  }
  ~LogLines() { set_log_sink({}); }
  std::vector<std::string> lines;
};

TEST(SharedTier, LeavesADeadStoreAloneAndComesBack) {
  LogLines log;
  SharedOptions options = small_values();
  options.failures_in_a_row = 3;
  options.retry_after = 10;
  Tier t(options);
  t.store->fail_at(1, true);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(fetch(t.tier, kKey, 1).answer, SharedAnswer::kFailed);
  EXPECT_EQ(t.store->calls, 3) << "not asked any more";
  EXPECT_EQ(t.tier.stats().state, "open");
  EXPECT_EQ(t.tier.stats().skipped, 17u);
  fetch(t.tier, kKey, 10.9);
  EXPECT_EQ(t.store->calls, 3);
  fetch(t.tier, kKey, 11);
  EXPECT_EQ(t.store->calls, 4) << "one call tries again";
  fetch(t.tier, kKey, 12);
  EXPECT_EQ(t.store->calls, 4) << "and failed";
  t.store->fail_at(0, false);
  EXPECT_EQ(fetch(t.tier, kKey, 21).answer, SharedAnswer::kAbsent);
  EXPECT_EQ(t.tier.stats().state, "closed");
  EXPECT_EQ(t.tier.stats().opened, 1u);
  ASSERT_EQ(log.lines.size(), 2u) << "once when it begins, once when it ends";
  EXPECT_NE(log.lines[0].find("3 calls in a row failed"), std::string::npos);
  EXPECT_NE(log.lines[1].find("answers again"), std::string::npos);
}

TEST(Circuit, OneSuccessBreaksARowOfFailures) {
  Circuit circuit(2, 5);
  EXPECT_FALSE(circuit.failed(0));
  EXPECT_FALSE(circuit.succeeded());
  EXPECT_FALSE(circuit.failed(0));
  EXPECT_TRUE(circuit.failed(0));
  EXPECT_FALSE(circuit.allow(4.9));
  EXPECT_TRUE(circuit.allow(5));
  EXPECT_FALSE(circuit.allow(5)) << "one caller probes";
  EXPECT_FALSE(circuit.failed(5)) << "it was open before";
  EXPECT_FALSE(circuit.allow(9.9));
  EXPECT_TRUE(circuit.allow(10));
  EXPECT_TRUE(circuit.succeeded());
  EXPECT_EQ(circuit.state(), Circuit::State::kClosed);
}

TEST(Circuit, AClockThatWentBackOpensTheWay) {
  Circuit circuit(1, 5);
  EXPECT_TRUE(circuit.failed(1000));
  EXPECT_FALSE(circuit.allow(1001));
  EXPECT_TRUE(circuit.allow(3));
}

TEST(SharedTier, ManyThreadsShareOneTier) {
  Tier t;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned round = 0; round < 50; ++round) {
        const std::string key = "key" + std::to_string(round % 5);
        const Bytes content = pattern(2000, round % 5);
        if (thread % 2 == 0) store_bytes(t.tier, key, content);
        const Fetched got = fetch(t.tier, key);
        if (got.answer == SharedAnswer::kHit && got.bytes != content) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(t.tier.stats().gets, 200u);
  EXPECT_EQ(t.tier.stats().hits + t.tier.stats().misses, 200u);
}

}  // namespace
}  // namespace kvtrie
