// Prefix caches that share a store: what one computed, another one finds, byte for byte; what the store does cannot
// hurt.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "coding_process.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "store_shared_helpers.h"
#include "tree/media.h"

namespace kvtrie {
namespace {

using test::Found;
using test::kDense;
using test::kEvery;
using test::Kinds;
using test::Process;
using test::prompt;
using testing::MapStore;

class EveryKind : public ::testing::TestWithParam<Kinds> {
 protected:
  void SetUp() override { store_->most_at_once = GetParam().most_keys; }
  std::shared_ptr<MapStore> store_ = std::make_shared<MapStore>();
};
INSTANTIATE_TEST_SUITE_P(Together, EveryKind, ::testing::ValuesIn(test::kinds_together()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, ::testing::ValuesIn(kEvery),
                         [](const auto& info) { return std::string(info.param.name); });

// One process writes at a time: of two that announce at once, one may lose its entry (docs/store.md).
TEST_P(EveryKind, AnotherProcessFindsWhatOneComputed) {
  Process a(GetParam(), store_), b(GetParam(), store_);
  for (const std::int32_t length : {100, 256, 257, 700, 1500}) {
    const Tokens tokens = prompt(length, length);
    EXPECT_EQ(a.share(tokens).reused, 0) << length;
    const Found found = b.chat(tokens);
    EXPECT_EQ(found.reused, length - 1) << "an exact repeat, all but the last token";
    EXPECT_EQ(found.tier, Tier::kStore);
    Tokens longer = tokens;
    for (int i = 0; i < 90; ++i) longer.push_back(7000 + i);
    EXPECT_EQ(b.share(longer).tier, Tier::kDevice) << "no question to the store: it is here now";
  }
  EXPECT_EQ(b.store().tier.faults, std::vector<std::uint64_t>(b.store().tier.faults.size()));
  EXPECT_GT(b.store().received, 0u);
}

TEST_P(EveryKind, TheNextTurnGoesOnInAnotherProcess) {
  Process a(GetParam(), store_);
  Tokens history = prompt(600, 1);
  a.share(history);
  for (int turn = 0; turn < 4; ++turn) {
    Process b(GetParam(), store_);
    for (int i = 0; i < 150; ++i) history.push_back(10000 * turn + i);
    const Found found = b.share(history);
    EXPECT_EQ(found.reused, static_cast<std::int32_t>(history.size()) - 150) << "turn " << turn;
    EXPECT_EQ(found.tier, Tier::kStore);
  }
}

TEST_P(EveryKind, ABranchSharesWhatItHasInCommon) {
  Process a(GetParam(), store_);
  a.share(prompt(900, 1, 700));
  a.share(prompt(900, 2, 700));  // so that there is a restore point where they part
  Process b(GetParam(), store_);
  EXPECT_EQ(b.chat(prompt(900, 3, 700)).reused, 700);
  Process c(GetParam(), store_);
  const std::int32_t reused = c.chat(prompt(900, 4, 600)).reused;
  EXPECT_EQ(reused, GetParam().dense()                             ? 600
                    : GetParam().recurrent + GetParam().blocks > 0 ? 512
                                                                   : 0)
      << "inside a block";
}

TEST_P(EveryKind, NothingIsSentTwice) {
  Process a(GetParam(), store_), b(GetParam(), store_);
  const Tokens tokens = prompt(800, 1);
  a.share(tokens);
  const std::uint64_t sent = a.store().sent, puts = a.store().tier.puts;
  EXPECT_GT(sent, 0u);
  a.share(tokens);
  EXPECT_EQ(a.store().sent, sent);
  EXPECT_EQ(a.store().tier.puts, puts);
  b.share(tokens);
  EXPECT_LE(b.store().sent, 1u) << "at most the restore point at the end, which it could not take";
}

TEST_P(EveryKind, WhatLeftTheDeviceIsSentFromHostMemory) {
  Process a(GetParam(), store_), b(GetParam(), store_);
  const Tokens tokens = prompt(700, 1);
  store_->fail_at(1, true);
  a.share(tokens);
  EXPECT_GT(a.store().unsent, 0u);
  store_->fail_at(0, false);
  a.time = 60;
  EXPECT_GT(a.cache->page_out("n", tokens, Tier::kStore), 0u);
  EXPECT_EQ(b.chat(tokens).reused, 699);
}

// ---- asking ahead -------------------------------------------------------------------------------------------------

Kinds together(Kinds kinds) {
  kinds.most_keys = 64, kinds.max_value = 1 << 20;
  return kinds;
}

PrefixCacheOptions large_host() {
  PrefixCacheOptions options;
  options.host_bytes = 256 << 20;
  return options;
}

TEST_P(EveryKind, APromptOfManyBlocksTakesFewRoundTrips) {
  const Kinds kinds = together(GetParam());
  store_->most_at_once = kinds.most_keys;
  const Tokens tokens = prompt(16 * 256 + 40, 1);
  Process a(kinds, store_, large_host(), 8192), b(kinds, store_, large_host(), 8192);
  a.share(tokens);
  b.send_when_settled();
  EXPECT_EQ(b.chat(tokens).reused, static_cast<std::int32_t>(tokens.size()) - 1);
  EXPECT_LE(b.store().tier.calls, 4u) << "blocks, indices, and what goes on behind";
  b.settle();
  store_->most_at_once = 1;
  Process c(kinds, store_, large_host(), 8192);
  EXPECT_EQ(c.chat(tokens).reused, static_cast<std::int32_t>(tokens.size()) - 1);
  EXPECT_GE(c.store().tier.calls, 17u) << "a store that answers one at a time";
}

TEST_P(EveryKind, WhatIsOnItsWayHasRoomInTheHostTier) {
  const Kinds kinds = together(GetParam());
  store_->most_at_once = kinds.most_keys;
  PrefixCacheOptions options;
  options.host_bytes = 64 << 20;
  Process a(kinds, store_, options, 8192), b(kinds, store_, options, 8192);
  const Tokens tokens = prompt(20 * 256, 1);
  a.share(tokens);
  const std::shared_ptr<ByteBudget> host = b.cache->state().host;
  std::uint64_t largest = 0, calls = 0;
  store_->watch([&](std::vector<RemoteValue>& found, const GetLimits& limits) {
    std::uint64_t bytes = 0;
    for (const RemoteValue& value : found) {
      bytes += value ? value->size() : 0;
      EXPECT_LE(value ? value->size() : 0, limits.most) << "nothing of ours is beyond the limit";
    }
    if (found.size() < 2) return;
    EXPECT_GE(host->used(), found.size() * limits.most) << "reserved before it comes";
    largest = std::max(largest, bytes);
    ++calls;
  });
  EXPECT_GT(b.share(tokens).reused, 0);
  EXPECT_GT(calls, 0u);
  EXPECT_LE(largest, (64u << 20) / 8) << "a quarter of half of it";
  EXPECT_LE(host->peak(), host->cap());
  EXPECT_EQ(host->violations(), 0u);
  store_->watch(nullptr);
}

TEST(Exchange, BlocksAreUsedUpToTheFirstThatIsNotThere) {
  const auto store = std::make_shared<MapStore>();
  const Kinds kinds = together(kDense);
  store->most_at_once = kinds.most_keys;
  const Tokens tokens = prompt(8 * 256, 1);
  Process a(kinds, store, large_host()), b(kinds, store, large_host());
  a.share(tokens);
  int blocks = 0;
  store->watch([&](std::vector<RemoteValue>& found, const GetLimits&) {
    if (found.size() == 8) found[3].reset(), ++blocks;
  });
  EXPECT_EQ(b.share(tokens).reused, 4 * 256) << "three that came, and the one that the index behind them knows";
  EXPECT_EQ(blocks, 1);
  EXPECT_EQ(b.store().received, 4u);
  store->watch(nullptr);
}

TEST(Exchange, AStoreThatAnswersTooFewOrTooMuchFailsThatCall) {
  const auto store = std::make_shared<MapStore>();
  const Kinds kinds = together(kDense);
  store->most_at_once = kinds.most_keys;
  const Tokens tokens = prompt(8 * 256, 1);
  Process a(kinds, store, large_host());
  a.share(tokens);
  for (const bool few : {true, false}) {
    Process b(kinds, store, large_host());
    store->watch([&](std::vector<RemoteValue>& found, const GetLimits& limits) {
      if (found.size() < 2) return;
      few ? found.pop_back() : found[0]->resize(limits.most + 1);
    });
    EXPECT_EQ(b.share(tokens).reused, 256) << "the one that the first index knows, which is asked for alone";
    EXPECT_EQ(b.store().tier.failures, few ? 1u : 0u);
    EXPECT_EQ(b.store().tier.too_large, few ? 0u : 1u);
    store->watch(nullptr);
  }
}

// ---- isolation ----------------------------------------------------------------------------------------------------

TEST_P(EveryKind, OnlyTheSameTenantOfTheSameModelFindsIt) {
  const Tokens tokens = prompt(700, 1);
  Process a(GetParam(), store_);
  a.share(tokens, "alice");
  PrefixCacheOptions other;
  other.fingerprint = "weights2";
  Process foreign(GetParam(), store_, other);
  EXPECT_EQ(foreign.chat(tokens, "alice").reused, 0);
  Process same(GetParam(), store_);
  EXPECT_EQ(same.chat(tokens, "alic").reused, 0);
  EXPECT_EQ(same.chat(tokens, "alicebob").reused, 0);
  EXPECT_EQ(same.chat(tokens, "").reused, 0);
  EXPECT_EQ(same.chat(tokens, "alice").reused, 699) << "the same tenant";
}

TEST(Exchange, AnotherDTypeIsAnotherModel) {
  const auto store = std::make_shared<MapStore>();
  const Tokens tokens = prompt(700, 1);
  Process a(kDense, store);
  a.share(tokens);
  Process half(kDense, store, {}, 4096, DType::kFloat16);
  EXPECT_EQ(half.chat(tokens).reused, 0);
  Process window({"window", {{}, {40, 0}}, 0}, store);
  EXPECT_EQ(window.chat(tokens).reused, 0);
  Process half_too(kDense, store, {}, 4096, DType::kFloat16);
  half.settle();
  EXPECT_EQ(half_too.chat(tokens).reused, 699);
}

TEST_P(EveryKind, MediaItemsAreNamedByWhatTheyAre) {
  const auto with = [](const char* digest) {
    Tokens tokens = prompt(300, 1);
    tokens.insert(tokens.begin() + 250, 20, media_id(digest, 20));
    return tokens;
  };
  Process a(GetParam(), store_), b(GetParam(), store_);
  a.share(with("a cat"));
  EXPECT_LE(b.chat(with("a dog")).reused, 250);
  EXPECT_EQ(b.chat(with("a cat")).reused, 319);
}

// ---- a store that fails -------------------------------------------------------------------------------------------

// Every call of the store may be the one that fails, alone or with all that follow.
TEST_P(EveryKind, AFailingStoreCostsNoMoreThanWhatItHas) {
  const Tokens tokens = prompt(600, 1);
  for (const bool from_then_on : {false, true}) {
    for (int nth = 1;; ++nth) {
      const auto store = std::make_shared<MapStore>();
      Process a(GetParam(), store), b(GetParam(), store);
      store->fail_at(nth, from_then_on);
      a.share(tokens);
      const Found found = b.chat(tokens);
      EXPECT_GE(found.reused, 0);
      b.settle();
      const int calls = store->calls;
      const std::uint64_t level = b.cache->stats().host_bytes;
      b.cache->evict_bytes(0);
      EXPECT_LE(level, b.cache->stats().host_cap_bytes);
      if (nth > calls) {
        EXPECT_EQ(found.reused, 599) << "nothing failed";
        break;
      }
    }
  }
}

TEST_P(EveryKind, DamageIsAMiss) {
  const Tokens tokens = prompt(600, 1);
  Process a(GetParam(), store_);
  a.share(tokens);
  const std::map<std::string, testing::Bytes> values = store_->values;
  std::size_t refused = 0;
  for (const auto& [key, value] : values) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{40}, value.size() / 2, value.size() - 1}) {
      store_->values = values;
      store_->values[key][at] ^= std::byte{0x10};
      Process b(GetParam(), store_);
      b.share(tokens);  // checks every byte
      for (const std::uint64_t count : b.store().tier.faults) refused += count;
      store_->values = values;
      store_->values[key].resize(at);
      Process c(GetParam(), store_);
      c.chat(tokens);
    }
  }
  EXPECT_GT(refused, values.size());
  store_->values = values;
  Process d(GetParam(), store_);
  EXPECT_EQ(d.chat(tokens).reused, 599);
}

TEST_P(EveryKind, ValuesUnderEachOthersKeysAreMisses) {
  const Tokens first = prompt(600, 1), second = prompt(600, 2);
  Process a(GetParam(), store_);
  a.share(first);
  a.share(second);
  std::vector<testing::Bytes> values;
  for (const auto& [key, value] : store_->values) values.push_back(value);
  std::rotate(values.begin(), values.begin() + 1, values.end());
  std::size_t i = 0;
  for (auto& [key, value] : store_->values) value = values[i++];
  Process b(GetParam(), store_);
  EXPECT_EQ(b.chat(first).reused, 0);
  EXPECT_EQ(b.chat(second).reused, 0);
}

TEST(Exchange, AStoreThatIsGoneIsLeftAloneAndComesBack) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store), b(kDense, store);
  a.share(prompt(700, 1));
  store->fail_at(1, true);
  for (Token salt = 2; salt < 6; ++salt) EXPECT_EQ(b.share(prompt(700, salt)).reused, 0);
  EXPECT_EQ(b.store().tier.state, "open");
  const int calls = store->calls;
  EXPECT_EQ(b.share(prompt(700, 1, 0)).reused, 0);
  EXPECT_EQ(store->calls, calls) << "it is left alone";
  store->fail_at(0, false);
  Process c(kDense, store);
  b.time = 100;
  EXPECT_EQ(b.share(prompt(800, 1)).tier, Tier::kDevice);
  a.share(prompt(700, 9));
  EXPECT_EQ(b.chat(prompt(700, 9)).tier, Tier::kStore);
  EXPECT_EQ(b.store().tier.state, "closed");
  EXPECT_EQ(b.store().tier.opened, 1u);
}

// ---- room ---------------------------------------------------------------------------------------------------------

TEST(Exchange, ASmallHostTierIsPassedThroughInRounds) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store);
  const Tokens tokens = prompt(3000, 1);
  a.share(tokens);
  PrefixCacheOptions small;
  small.host_bytes = 56 * 1024;  // of 52 bytes a token: 1100 of 3000 tokens
  Process b(kDense, store, small);
  const Found found = b.share(tokens);
  EXPECT_EQ(found.reused, 2999);
  EXPECT_EQ(found.tier, Tier::kStore);
  EXPECT_LE(b.cache->stats().host_peak_bytes, small.host_bytes);
  EXPECT_EQ(b.store().sent, 0u) << "it has nothing new";
}

TEST(Exchange, SendingGivesNothingUp) {
  const auto store = std::make_shared<MapStore>();
  PrefixCacheOptions small;
  small.host_bytes = 200 * 1024;
  Process a(kDense, store, small, /*cells=*/1200);
  for (Token salt = 1; salt < 8; ++salt) a.share(prompt(1000, salt));
  EXPECT_EQ(a.store().unsent, 0u);
  Process b(kDense, store);
  for (Token salt = 1; salt < 8; ++salt) EXPECT_EQ(b.chat(prompt(1000, salt)).reused, 999);
}

TEST(Exchange, ASmallDeviceTakesWhatFits) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store);
  a.share(prompt(1000, 1));
  Process b(kDense, store, {}, /*cells=*/1000);
  const SessionPtr held = b.cache->begin("m", prompt(400, 2));
  EXPECT_LE(b.chat(prompt(500, 1)).reused, 499);
}

TEST(Exchange, RestoreAsksAndPlanDoesNot) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store), b(kDense, store);
  const Tokens tokens = prompt(700, 1);
  a.share(tokens);
  EXPECT_EQ(b.cache->plan("n", tokens).matched, 0);
  EXPECT_EQ(b.store().tier.gets, 0u);
  EXPECT_EQ(b.cache->restore("n", tokens), 700);
  EXPECT_EQ(b.cache->plan("n", tokens).reusable, 699);
  BeginOptions own;
  own.use = false;
  Process c(kDense, store);
  EXPECT_EQ(c.cache->begin("n", tokens, own)->reused(), 0);
  EXPECT_EQ(c.store().tier.gets, 0u);
}

// What was here is wrong, and the store has only the beginning: the reason is still that bytes were wrong.
TEST(Exchange, SaysThatBytesWereWrongWhereTheStoreHasLess) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store), b(kDense, store);
  b.share(prompt(256, 1));
  store->fail_at(1, /*from_then_on=*/true);
  a.share(prompt(600, 1));
  store->fail_at(0, false);
  a.time = 10;
  ASSERT_GT(a.cache->page_out("n", prompt(600, 1)), 0u);
  a.cache->state().trie.visit([](Node& node) {
    if (node.is_root()) return;
    state_of(&node).visit_blobs([](const BlobPtr& blob) { *blob->memory()->data() ^= std::byte{1}; });
  });
  const SessionPtr session = a.cache->begin("n", prompt(601, 1));
  EXPECT_EQ(session->matched(), 600);
  EXPECT_EQ(session->reused(), 256);
  EXPECT_EQ(session->reason().code, ReasonCode::kChecksum);
}

TEST(Exchange, SmallPromptsAreNotLookedUp) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store);
  a.send_when_settled();
  a.chat(prompt(64, 1));
  EXPECT_EQ(a.store().tier.gets, 0u);
  a.chat(prompt(66, 2));
  EXPECT_GT(a.store().tier.gets, 0u);
}

TEST(Exchange, NeedsAFingerprintAndAHostTier) {
  const KvShape shape{1, 1, 2, 2, 64, plain_format(DType::kFloat32)};
  CausalCache::Options layers;
  layers.layers = {0};
  const auto make = [&](const char* fingerprint, std::uint64_t host) {
    PrefixCacheOptions options;
    options.fingerprint = fingerprint;
    options.host_bytes = host;
    options.store = std::make_shared<MapStore>();
    return PrefixCache::create({{CausalCache::create(std::make_unique<HostKvStore>(shape), layers)}, {}}, options);
  };
  EXPECT_THROW(make("", 1 << 20), Error);
  EXPECT_THROW(make("weights", 0), Error);
  EXPECT_NE(make("weights", 1 << 20), nullptr);
}

TEST(Exchange, TheCapOfTheHostTierCoversWhatIsSetAside) {
  const auto store = std::make_shared<MapStore>();
  PrefixCacheOptions options;
  options.host_bytes = 400 * 1024;
  Process a(kDense, store, options);
  EXPECT_EQ(a.cache->stats().host_cap_bytes, options.host_bytes);
  Limits limits;
  limits.host_bytes = 100 * 1024;
  a.cache->set_limits(limits);
  EXPECT_EQ(a.cache->stats().host_cap_bytes, 100u * 1024);
  limits.host_bytes = 1024;
  EXPECT_THROW(a.cache->set_limits(limits), Error);
  EXPECT_EQ(a.cache->stats().host_cap_bytes, 100u * 1024);
}

// A call that asks is refused when the cache is closed meanwhile, and lets go of everything.
TEST(Exchange, ACacheMayBeClosedWhileItAsks) {
  class Closing final : public RemoteStore {
   public:
    std::optional<std::vector<std::byte>> get(std::string_view) override {
      if (close) close();
      return std::nullopt;
    }
    void put(std::string_view, std::span<const std::byte>) override {}
    void remove(std::string_view) override {}
    std::string name() const override { return "closing"; }
    std::function<void()> close;
  };
  const auto store = std::make_shared<Closing>();
  Process a(kDense, store);
  store->close = [&] { a.cache->close(); };
  EXPECT_THROW(a.cache->begin("n", prompt(700, 1)), Error);
  EXPECT_TRUE(a.cache->closed());
  EXPECT_EQ(a.cache->stats().nodes, 0u);
}

TEST(Exchange, ClosingSendsWhatIsQueued) {
  const auto store = std::make_shared<MapStore>();
  Process a(kDense, store), b(kDense, store);
  a.chat(prompt(900, 1));
  a.cache->close();
  EXPECT_EQ(b.chat(prompt(900, 1)).reused, 899);
}

// ---- at random ----------------------------------------------------------------------------------------------------

// Loses values, fails, and gives back wrong bytes, now and then.
class MoodyStore final : public RemoteStore {
 public:
  explicit MoodyStore(unsigned seed) : random_(seed) {}
  std::optional<std::vector<std::byte>> get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const unsigned dice = random_() % 100;
    if (dice < 6) throw std::runtime_error("no answer");
    const auto found = values_.find(std::string(key));
    if (found == values_.end() || dice < 12) return std::nullopt;
    std::vector<std::byte> value = found->second;
    if (dice < 16) value[random_() % value.size()] ^= std::byte{1};
    if (dice >= 16 && dice < 18) value.resize(random_() % value.size());
    return value;
  }
  void put(std::string_view key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    const unsigned dice = random_() % 100;
    if (dice < 5) throw std::runtime_error("no answer");
    if (dice < 10 && !values_.empty()) values_.erase(values_.begin());
    values_[std::string(key)].assign(value.begin(), value.end());
  }
  void remove(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    if (random_() % 10 == 0) throw std::runtime_error("no answer");
    values_.erase(std::string(key));
  }
  std::string name() const override { return "moody"; }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::string, std::vector<std::byte>> values_;
};

// In every other world it is sent when that is waited for: what comes there is the same in each run, and is counted. In
// the others looking up and sending meet as they like.
TEST_P(EveryKind, AMoodyStoreNeverGivesAWrongByte) {
  std::uint64_t received = 0;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const bool replays = seed % 2 == 1;
    std::mt19937 random(seed);
    const auto store = std::make_shared<MoodyStore>(seed);
    std::vector<std::unique_ptr<Process>> processes(3);
    for (int i = 0; i < 60; ++i) {
      std::unique_ptr<Process>& one = processes[random() % 3];
      if (one != nullptr && random() % 8 == 0) {
        one->settle();
        if (replays) received += one->store().received;
        one = nullptr;
      }
      PrefixCacheOptions options;
      if (random() % 2 == 0) options.host_bytes = 128 * 1024;
      if (one == nullptr) {
        one = std::make_unique<Process>(GetParam(), store, options, /*cells=*/2000);
        if (replays) one->send_when_settled();
      }
      one->time += static_cast<double>(random() % 4);
      const auto length = static_cast<std::int32_t>(random() % 1200 + 1);
      const Tokens tokens = prompt(length, static_cast<Token>(random() % 3), static_cast<std::int32_t>(random() % 900));
      one->chat(tokens, random() % 4 == 0 ? "m" : "n");
      if (random() % 5 == 0) one->cache->evict("n", tokens);
      if (random() % 2 == 0) one->settle();
    }
    for (const auto& each : processes) {
      if (each != nullptr && replays) received += each->store().received;
    }
  }
  EXPECT_GT(received, 5u);
}

}  // namespace
}  // namespace kvtrie
