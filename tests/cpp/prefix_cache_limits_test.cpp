// Caps that change at run time, times to live, and memory that changes hands between namespaces.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "cache/host_kv_store.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "temporary_folder.h"

namespace kvtrie {
namespace {

class LimitsTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kToken = 32;  // bytes: 2 layers, K and V of 2 float32

  void open(Cell cells, std::uint64_t host_tokens = 0, std::uint64_t disk_bytes = 0, std::optional<double> ttl = {}) {
    KvShape shape;
    shape.layers = 2;
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = 2;
    shape.cells = cells;
    shape.formats = plain_format(DType::kFloat32);
    CausalCache::Options options;
    options.layers = {0, 1};
    PrefixCacheOptions settings;
    settings.growth = 0;
    settings.host_bytes = host_tokens * kToken;
    settings.clock = [this] { return seconds_; };
    settings.ttl = ttl;
    settings.max_pinned_fraction = 1;
    settings.quotas = quotas_;
    if (disk_bytes > 0) {
      settings.fingerprint = "weights";
      settings.disk = folder_.disk();
      settings.disk_bytes = disk_bytes;
    }
    pool_ = CausalCache::create(std::make_unique<HostKvStore>(shape), options);
    cache_ = PrefixCache::create({{pool_}, {}}, settings);
  }

  void TearDown() override {
    if (cache_ == nullptr) return;
    EXPECT_TRUE(cache_->check().empty()) << cache_->check().front();
  }

  static Tokens prompt(std::int32_t length, Token salt) {
    Tokens tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), salt * 1000);
    return tokens;
  }

  static void compute(const SessionPtr& session, float value = 1) {
    while (StepPtr step = session->next_prefill(512)) {
      const Tensor kv = Tensor::host(DType::kFloat32, {static_cast<std::int64_t>(step->tokens().size()), 1, 2});
      std::fill(kv.host_span<float>().begin(), kv.host_span<float>().end(), value);
      for (const std::int32_t layer : {0, 1}) step->put(layer, kv, kv);
    }
  }

  SessionPtr chat(const Tokens& tokens, const std::string& name_space = "n", float value = 1) {
    SessionPtr session = cache_->begin(name_space, tokens);
    compute(session, value);
    return session;
  }

  void limit_cells(std::uint32_t cells) {
    Limits limits;
    limits.held_cells = {cells};
    cache_->set_limits(limits);
  }
  void limit_host(std::uint64_t tokens) {
    Limits limits;
    limits.host_bytes = tokens * kToken;
    cache_->set_limits(limits);
  }

  std::int32_t matched(const Tokens& tokens) { return cache_->plan("n", tokens).matched; }
  bool refused(const Limits& limits) {
    const Caps before = cache_->state().capacity.caps();
    const std::size_t nodes = cache_->nodes().size();
    const std::uint64_t device = cache_->stats().device_tokens, host = cache_->stats().host_bytes;
    try {
      cache_->set_limits(limits);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCacheFull) << error.what();
    }
    const Caps after = cache_->state().capacity.caps();
    EXPECT_EQ(after.units, before.units);
    EXPECT_EQ(after.host, before.host);
    EXPECT_EQ(after.disk, before.disk);
    EXPECT_EQ(cache_->nodes().size(), nodes);
    EXPECT_EQ(cache_->stats().device_tokens, device);
    EXPECT_EQ(cache_->stats().host_bytes, host);
    return true;
  }

  test::TemporaryFolder folder_;
  double seconds_ = 1000;
  bool quotas_ = false;  // of the cache that `open` makes
  std::shared_ptr<CausalCache> pool_;
  PrefixCachePtr cache_;
};

TEST_F(LimitsTest, ALowerCapEvictsWhatWasUsedLongestAgo) {
  open(64);
  chat(prompt(20, 1));
  chat(prompt(20, 2));
  limit_cells(25);
  EXPECT_EQ(cache_->stats().caches[0].held_cells, 25u);
  EXPECT_EQ(cache_->stats().caches[0].limit_cells, 25u);
  EXPECT_EQ(matched(prompt(20, 2)), 20);
  EXPECT_EQ(matched(prompt(20, 1)), 5);
  chat(prompt(25, 3));
  EXPECT_LE(cache_->stats().caches[0].held_cells, 25u);
  EXPECT_THROW(chat(prompt(26, 4)), Error) << "never more than the cap";
}

TEST_F(LimitsTest, WhatFitsGoesToTheHost) {
  open(64, 100);
  chat(prompt(20, 1));
  chat(prompt(20, 2));
  limit_cells(10);
  EXPECT_EQ(cache_->stats().device_tokens, 10u);
  EXPECT_EQ(cache_->stats().host_tokens, 30u);
  EXPECT_EQ(cache_->stats().evicted_tokens, 0u);
}

TEST_F(LimitsTest, AHigherCapHoldsAtOnce) {
  open(64);
  limit_cells(10);
  EXPECT_THROW(chat(prompt(20, 1)), Error);
  limit_cells(20);
  chat(prompt(20, 1));
  limit_cells(0);
  EXPECT_EQ(cache_->stats().caches[0].limit_cells, 64u) << "0: the capacity";
  limit_cells(1000);
  EXPECT_EQ(cache_->stats().caches[0].free_cells, 44u) << "so is more than that";
}

TEST_F(LimitsTest, LiveSessionsRefuseALowerCap) {
  open(64, 100);
  const SessionPtr session = chat(prompt(20, 1));
  chat(prompt(20, 2));
  Limits limits;
  limits.held_cells = {19};
  limits.host_bytes = 50 * kToken;  // could be met, but goes with the other
  EXPECT_TRUE(refused(limits));
  limits.held_cells = {20};
  EXPECT_FALSE(refused(limits));
  EXPECT_EQ(cache_->stats().host_cap_bytes, 50 * kToken);
}

TEST_F(LimitsTest, PinsRefuseALowerCapOfTheHost) {
  open(64, 100);
  chat(prompt(20, 1));
  chat(prompt(20, 2));
  cache_->page_out("n", prompt(20, 1));
  cache_->page_out("n", prompt(20, 2));
  EXPECT_EQ(cache_->pin("n", prompt(20, 1)), 20);
  Limits limits;
  limits.host_bytes = 19 * kToken;
  limits.held_cells = {1};
  EXPECT_TRUE(refused(limits));
  limit_host(20);
  EXPECT_EQ(matched(prompt(20, 1)), 20);
  EXPECT_EQ(matched(prompt(20, 2)), 0);
  cache_->unpin("n", prompt(20, 1));
  limit_host(0);
  EXPECT_EQ(cache_->stats().host_bytes, 0u);
  EXPECT_EQ(cache_->page_out_bytes(0), 0u) << "the tier is there, with nothing in it";
}

TEST_F(LimitsTest, PinsBesideAFloorRefuseALowerCapOfTheHost) {
  quotas_ = true;
  open(64, 100);
  Limits floor;
  floor.host_bytes = 30 * kToken;
  cache_->set_quota("other", {}, floor);
  for (Token salt = 1; salt <= 2; ++salt) {
    chat(prompt(20, salt));
    cache_->page_out("n", prompt(20, salt));
  }
  EXPECT_EQ(cache_->pin("n", prompt(20, 1)), 20);
  Limits limits;
  limits.host_bytes = 49 * kToken;
  EXPECT_TRUE(refused(limits)) << "20 are pinned, 30 promised";
  limit_host(50);
  EXPECT_EQ(matched(prompt(20, 1)), 20);
  EXPECT_EQ(matched(prompt(20, 2)), 0);
}

TEST_F(LimitsTest, CapsOfWhatThereIsNot) {
  open(64);
  Limits limits;
  limits.host_bytes = 1;
  EXPECT_THROW(cache_->set_limits(limits), Error);
  limits = {};
  limits.disk_bytes = 1;
  EXPECT_THROW(cache_->set_limits(limits), Error);
  limits = {};
  limits.held_cells = {1, 2};
  EXPECT_THROW(cache_->set_limits(limits), Error);
}

TEST_F(LimitsTest, TheDiskEvictsFiles) {
  open(64, 200, 1 << 20);
  for (Token salt = 1; salt <= 6; ++salt) chat(prompt(30, salt));
  ASSERT_TRUE(cache_->flush());
  const std::uint64_t before = cache_->stats().disk->bytes;
  const SessionPtr session = chat(prompt(30, 6));
  Limits limits;
  limits.disk_bytes = before / 2;
  cache_->set_limits(limits);
  EXPECT_LE(cache_->stats().disk->bytes, before / 2);
  EXPECT_EQ(cache_->stats().disk->cap_bytes, before / 2);
  limits.disk_bytes = 0;
  cache_->set_limits(limits);
  EXPECT_EQ(cache_->stats().disk->files, 0u);
  EXPECT_EQ(session->length(), 30) << "what lives needs no file";
  limits.host_bytes = 0;
  EXPECT_THROW(cache_->set_limits(limits), Error) << "bytes pass through the host";
}

TEST_F(LimitsTest, APinnedFileStays) {
  open(64, 200, 1 << 20);
  chat(prompt(30, 1));
  chat(prompt(30, 2));
  for (Token salt = 1; salt <= 2; ++salt) cache_->page_out("n", prompt(30, salt), Tier::kDisk);
  EXPECT_EQ(cache_->stats().disk_tokens, 60u);
  EXPECT_EQ(cache_->pin("n", prompt(30, 1)), 30);
  Limits limits;
  limits.disk_bytes = 1;
  EXPECT_TRUE(refused(limits));
  limits.disk_bytes = cache_->stats().disk->bytes - 1;
  cache_->set_limits(limits);
  EXPECT_EQ(matched(prompt(30, 1)), 30);
  EXPECT_EQ(matched(prompt(30, 2)), 0);
}

TEST_F(LimitsTest, APinnedFileBesideAFloorStays) {
  quotas_ = true;
  open(64, 200, 1 << 20);
  for (Token salt = 1; salt <= 2; ++salt) {
    chat(prompt(30, salt));
    cache_->page_out("n", prompt(30, salt), Tier::kDisk);
  }
  const std::uint64_t file = cache_->stats().disk->bytes / 2;
  Limits floor;
  floor.disk_bytes = 1000;
  cache_->set_quota("other", {}, floor);
  EXPECT_EQ(cache_->pin("n", prompt(30, 1)), 30);
  Limits limits;
  limits.disk_bytes = file + 999;
  EXPECT_TRUE(refused(limits));
  limits.disk_bytes = file + 1000;
  EXPECT_FALSE(refused(limits));
  EXPECT_EQ(matched(prompt(30, 1)), 30);
  EXPECT_EQ(matched(prompt(30, 2)), 0);
}

// Sessions in three threads while a fourth one changes every cap, at least once before they end: no cap is ever
// exceeded, and nobody waits for ever.
TEST_F(LimitsTest, ChangeWhileOthersWork) {
  open(200, 100, 40000);
  std::atomic<int> left = 3, changed = 0;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 150 || changed == 0; ++i) {
        try {
          chat(prompt(static_cast<std::int32_t>(random() % 40 + 1), static_cast<Token>(random() % 12)));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kCacheFull) << error.what();
        }
      }
      --left;
    });
  }
  std::mt19937 random(99);
  while (left > 0) {
    Limits limits;
    limits.held_cells = {static_cast<std::uint32_t>(random() % 200)};
    limits.host_bytes = (random() % 100 + 1) * kToken;
    limits.disk_bytes = random() % 40000;
    try {
      cache_->set_limits(limits);
      ++changed;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kCacheFull || error.kind() == ErrorKind::kBusy) << error.what();
    }
    const CausalCache::Usage usage = pool_->usage();
    EXPECT_LE(usage.held, usage.limit);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache_->state().host->violations(), 0u);
  EXPECT_EQ(cache_->state().lower.disk()->budget().violations(), 0u);
}

// ---- times to live ------------------------------------------------------------------------------------------------

TEST_F(LimitsTest, PinsGoWhenTheirTimeIsOver) {
  open(64);
  chat(prompt(20, 1));
  EXPECT_EQ(cache_->pin("n", prompt(20, 1), 10.0), 20);
  EXPECT_EQ(cache_->pin("n", prompt(10, 1), 20.0), 10);
  EXPECT_EQ(cache_->pin("n", prompt(5, 1)), 5);
  seconds_ += 9.9;
  EXPECT_EQ(cache_->stats().pins, 3u);
  seconds_ += 0.1;
  EXPECT_EQ(cache_->stats().pins, 2u);
  EXPECT_EQ(cache_->stats().pinned_tokens, 10u);
  seconds_ += 1e9;
  EXPECT_EQ(cache_->stats().pins, 1u);
  EXPECT_EQ(cache_->stats().expired_pins, 2u);
  EXPECT_EQ(cache_->unpin("n", prompt(20, 1)), 5);
  EXPECT_EQ(cache_->unpin("n", prompt(20, 1)), 0);
}

TEST_F(LimitsTest, ATimeToLiveIsAboveNothing) {
  open(64);
  chat(prompt(20, 1));
  for (const double ttl : {0.0, -1.0, std::nan("")}) EXPECT_THROW(cache_->pin("n", prompt(20, 1), ttl), Error);
  EXPECT_EQ(cache_->stats().pins, 0u);
}

TEST_F(LimitsTest, UnusedStateGoesFromEveryTier) {
  open(64, 100, 1 << 20, 100.0);
  chat(prompt(20, 1));
  cache_->page_out("n", prompt(20, 1), Tier::kDisk);
  seconds_ += 50;
  chat(prompt(20, 2));
  cache_->page_out("n", prompt(20, 2));
  const SessionPtr live = chat(prompt(20, 3));
  chat(prompt(20, 4));
  cache_->pin("n", prompt(20, 4));
  seconds_ += 51.6;  // a 64th late
  EXPECT_EQ(matched(prompt(20, 1)), 0);
  EXPECT_EQ(matched(prompt(20, 2)), 20);
  seconds_ += 52;
  EXPECT_EQ(matched(prompt(20, 2)), 0);
  EXPECT_EQ(matched(prompt(20, 3)), 20) << "in use";
  EXPECT_EQ(matched(prompt(20, 4)), 20) << "pinned";
  EXPECT_EQ(cache_->stats().expired_tokens, 40u);
  cache_->unpin("n", prompt(20, 4));
  live->close();
  seconds_ += 102;
  EXPECT_EQ(matched(prompt(20, 3)) + matched(prompt(20, 4)), 0);
  EXPECT_EQ(cache_->stats().nodes, 0u);
  cache_->flush();
  EXPECT_EQ(cache_->stats().disk->files, 0u);
}

// ---- memory that changes hands ------------------------------------------------------------------------------------

bool all_are(CausalCache& cache, float value) {
  const CellSpan all[] = {{0, cache.capacity(), 0}};
  for (std::uint32_t layer = 0; layer < cache.shape().layers; ++layer) {
    const auto [k, v] = cache.store().rows(layer, all);
    for (const Tensor& tensor : {k, v}) {
      for (const float number : tensor.host_span<float>()) {
        if (number != value) return false;
      }
    }
  }
  return true;
}

TEST_F(LimitsTest, CellsOfAnotherNamespaceAreZerosBeforeTheFirstPut) {
  open(32);
  chat(prompt(32, 1), "anna", 7);
  ASSERT_TRUE(all_are(*pool_, 7));
  const SessionPtr bert = cache_->begin("bert", prompt(32, 1));
  EXPECT_EQ(bert->reused(), 0);
  const StepPtr step = bert->next_prefill(512);
  EXPECT_TRUE(all_are(*pool_, 0));
}

TEST_F(LimitsTest, OwnCellsAreNotCleared) {
  open(32);
  chat(prompt(32, 1), "anna", 7);
  const SessionPtr session = cache_->begin("anna", prompt(32, 2));
  const StepPtr step = session->next_prefill(512);
  EXPECT_TRUE(all_are(*pool_, 7));
}

// One at a time, so that every namespace goes from the tree before the next one comes.
TEST_F(LimitsTest, ManyNamespacesNeedNoMemoryEach) {
  open(32);
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "tenant " + std::to_string(i);
    chat(prompt(32, 1), name, static_cast<float>(i + 1));
    ASSERT_TRUE(all_are(*pool_, static_cast<float>(i + 1)));
  }
  EXPECT_LE(cache_->state().namespaces.size(), 64u);
}

// Bytes that come back from the host are the namespace's own, and so are the cells from then on.
TEST_F(LimitsTest, APageInTakesCellsOver) {
  open(32, 100);
  chat(prompt(32, 1), "anna", 7);
  cache_->page_out("anna", prompt(32, 1));
  chat(prompt(32, 1), "bert", 9);
  EXPECT_EQ(cache_->restore("anna", prompt(32, 1)), 32);
  ASSERT_TRUE(all_are(*pool_, 7));
  const SessionPtr session = cache_->begin("bert", prompt(32, 2));
  const StepPtr step = session->next_prefill(512);
  EXPECT_TRUE(all_are(*pool_, 0));
}

}  // namespace
}  // namespace kvtrie
