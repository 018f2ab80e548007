// Sessions over the host store: who reuses what, where a session stands, what is evicted. The bytes themselves are the
// oracle's business (tests/oracle/prefix_cache_oracle.cpp).
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "cache/null_kv_store.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie {
namespace {

class PrefixCacheTest : public ::testing::Test {
 protected:
  void open(Cell cells, std::uint64_t host_tokens = 0) {
    KvShape shape;
    shape.layers = 2;
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = 2;
    shape.cells = cells;
    shape.formats = plain_format(DType::kFloat32);
    bytes_per_token_ = shape.bytes_per_cell();
    CausalCache::Options options;
    options.layers = {0, 1};
    PrefixCacheOptions settings;
    settings.growth = 16;
    settings.host_bytes = host_tokens * bytes_per_token_;
    cache_ = PrefixCache::create({{CausalCache::create(std::make_unique<NullKvStore>(shape), options)}, {}}, settings);
  }

  void TearDown() override {
    if (cache_ == nullptr) return;
    EXPECT_TRUE(cache_->check().empty()) << cache_->check().front();
  }

  static Tokens prompt(std::int32_t length, Token salt, std::int32_t shared = 0) {
    Tokens tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = i < shared ? i : i + 100000 * salt;
    return tokens;
  }

  SessionPtr begin(const Tokens& tokens, const std::string& name_space = "n", BeginOptions options = {}) {
    return cache_->begin(name_space, tokens, options);
  }

  static void model(const StepPtr& step) {
    const auto rows = static_cast<std::int64_t>(step->tokens().size());
    const Tensor kv = Tensor::host(DType::kFloat32, {rows, 1, 2});
    for (const std::int32_t layer : {0, 1}) step->put(layer, kv, kv);
  }

  static void prefill(const SessionPtr& session, std::uint32_t chunk = 512) {
    while (StepPtr step = session->next_prefill(chunk)) model(step);
  }

  // Begins, computes and closes; what it reused.
  std::int32_t chat(const Tokens& tokens, const std::string& name_space = "n") {
    const SessionPtr session = begin(tokens, name_space);
    prefill(session);
    session->close();
    return session->reused();
  }

  std::uint64_t bytes_per_token_ = 0;
  PrefixCachePtr cache_;
};

TEST_F(PrefixCacheTest, SwitchingBetweenTwoPromptsReusesAllButTheLastToken) {
  open(8192);
  const Tokens a = prompt(2200, 1, 1500), b = prompt(2200, 2, 1500);
  EXPECT_EQ(chat(a), 0);
  EXPECT_EQ(chat(b), 1500);
  EXPECT_EQ(chat(a), 2199);
  EXPECT_EQ(chat(b), 2199);
  EXPECT_EQ(cache_->stats().tokens, 2900u) << "every common token once";
}

TEST_F(PrefixCacheTest, TheNextTurnReusesTheWholeConversationComputedSoFar) {
  open(4096);
  Tokens history = prompt(2200, 1);
  SessionPtr s = begin(history);
  prefill(s);
  const Tokens first{7}, second{8};
  s->append(first);
  model(s->decode());
  s->append(second);  // recorded, not computed
  s->close();
  history.insert(history.end(), {7, 8});
  for (int i = 0; i < 30; ++i) history.push_back(900 + i);
  const SessionPtr next = begin(history);
  EXPECT_EQ(next->reused(), 2201);
  EXPECT_EQ(next->remaining().size(), 31u);
}

TEST_F(PrefixCacheTest, NamespacesShareNothing) {
  open(4096);
  const Tokens a = prompt(100, 1);
  EXPECT_EQ(chat(a, "alice"), 0);
  EXPECT_EQ(chat(a, "bob"), 0);
  EXPECT_EQ(chat(a, "alice"), 99);
  EXPECT_EQ(chat(a, "alicebob"), 0);
}

TEST_F(PrefixCacheTest, ReuseAllLeavesNothingToCompute) {
  open(4096);
  const Tokens a = prompt(100, 1);
  chat(a);
  BeginOptions options;
  options.reuse_all = true;
  const SessionPtr s = begin(a, "n", options);
  EXPECT_EQ(s->reused(), 100);
  EXPECT_EQ(s->next_prefill(16), nullptr);
}

TEST_F(PrefixCacheTest, SaysWhyLessWasReused) {
  open(4096);
  const Tokens a = prompt(100, 1);
  chat(a);
  EXPECT_EQ(begin(a)->reason().code, ReasonCode::kLastToken);
  EXPECT_EQ(begin(prompt(120, 1))->reason().code, ReasonCode::kNone);
  BeginOptions fresh;
  fresh.use = false;
  const SessionPtr s = begin(a, "n", fresh);
  EXPECT_EQ(s->reason().code, ReasonCode::kNotUsed);
  EXPECT_EQ(s->matched(), 100);
  EXPECT_EQ(s->reused(), 0);
}

TEST_F(PrefixCacheTest, ACancelledPrefillLosesAtMostAChunk) {
  open(4096);
  const Tokens a = prompt(1000, 1);
  SessionPtr s = begin(a);
  model(s->next_prefill(300));
  model(s->next_prefill(300));
  s->next_prefill(300);  // never computed
  s->close();
  EXPECT_EQ(begin(a)->reused(), 600);
}

TEST_F(PrefixCacheTest, AnIncompleteStepIsDroppedAndTheSessionStandsWhereItStood) {
  open(4096);
  const SessionPtr s = begin(prompt(100, 1));
  model(s->next_prefill(50));
  const StepPtr step = s->next_prefill(20);
  const Tensor kv = Tensor::host(DType::kFloat32, {20, 1, 2});
  step->put(0, kv, kv);
  const SessionPtr t = s->branch();
  EXPECT_TRUE(step->dropped());
  EXPECT_EQ(s->length(), 50);
  EXPECT_EQ(t->length(), 50);
  EXPECT_THROW(step->put(1, kv, kv), Error);
}

TEST_F(PrefixCacheTest, PrefillRefusesToGoOnBehindAModelThatComputedNothing) {
  open(4096);
  const SessionPtr s = begin(prompt(100, 1));
  const StepPtr step = s->next_prefill(50);
  EXPECT_THROW(s->next_prefill(50, step), Error);
  EXPECT_TRUE(step->dropped());
  EXPECT_NE(s->next_prefill(50), nullptr) << "a new loop may begin";
}

TEST_F(PrefixCacheTest, ASessionAdoptsWhatAnotherPublishedMeanwhile) {
  open(4096);
  const Tokens a = prompt(1000, 1);
  const SessionPtr s = begin(a), t = begin(a);
  prefill(s);
  EXPECT_EQ(t->remaining().size(), 1000u);
  const StepPtr step = t->next_prefill(512);
  EXPECT_EQ(step->tokens().size(), 1u);
  model(step);
  EXPECT_EQ(cache_->stats().tokens, 1000u);
  EXPECT_EQ(cache_->stats().adopted_tokens, 999u);
}

TEST_F(PrefixCacheTest, TwoThatComputeTheSameTokensKeepOneCopy) {
  open(4096);
  const Tokens a = prompt(300, 1);
  const std::vector<SessionPtr> both{begin(a), begin(a)};
  model(cache_->batch(both, 512));
  EXPECT_EQ(both[0]->length(), 300);
  EXPECT_EQ(both[1]->length(), 300);
  EXPECT_EQ(cache_->stats().device_tokens, 300u);
  EXPECT_EQ(cache_->caches()[0]->usage().held, 300u);
}

TEST_F(PrefixCacheTest, BranchAndRewindShareEveryCell) {
  open(4096);
  const SessionPtr s = begin(prompt(500, 1));
  prefill(s);
  const auto held = cache_->caches()[0]->usage().held;
  const SessionPtr t = s->branch();
  t->rewind(250);
  EXPECT_EQ(t->length(), 250);
  EXPECT_EQ(t->tokens(), prompt(250, 1));
  EXPECT_EQ(cache_->caches()[0]->usage().held, held);
  const Tokens edit{1, 2, 3};
  t->append(edit);
  model(t->decode());
  EXPECT_EQ(t->length(), 253);
  EXPECT_EQ(s->length(), 500);
  EXPECT_EQ(cache_->caches()[0]->usage().held, held + 3);
}

TEST_F(PrefixCacheTest, RewindOutOfRangeNamesTheNearestLengthAndChangesNothing) {
  open(4096);
  const SessionPtr s = begin(prompt(50, 1));
  prefill(s);
  try {
    s->rewind(51);
    FAIL() << "rewound beyond the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotRestorable);
    EXPECT_EQ(error.nearest(), 50);
  }
  EXPECT_EQ(s->length(), 50);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedTailFirst) {
  open(300);
  chat(prompt(100, 1));
  chat(prompt(100, 2));
  chat(prompt(100, 1));  // the later use
  chat(prompt(132, 3));  // needs 32 more than is free
  EXPECT_EQ(cache_->plan("n", prompt(100, 1)).matched, 100);
  const std::int32_t left = cache_->plan("n", prompt(100, 2)).matched;
  EXPECT_GT(left, 0) << "only its tail had to go";
  EXPECT_LE(left, 68);
}

TEST_F(PrefixCacheTest, RefusesAClaimThatCannotFitAndChangesNothing) {
  open(100);
  const SessionPtr live = begin(prompt(60, 1));
  prefill(live);
  chat(prompt(20, 2));
  const SessionPtr big = begin(prompt(50, 3));
  const auto before = cache_->stats();
  try {
    big->next_prefill(512);
    FAIL() << "took more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCacheFull);
    EXPECT_EQ(error.cache_full().needed, 50u);
    EXPECT_EQ(error.cache_full().free, 20u);
    EXPECT_EQ(error.cache_full().freeable, 20u);
    EXPECT_EQ(error.cache_full().held_live, 60u);
  }
  EXPECT_EQ(cache_->stats().tokens, before.tokens);
  model(big->next_prefill(40));  // a smaller step fits
  EXPECT_EQ(big->length(), 40);
}

TEST_F(PrefixCacheTest, PagesOutToTheHostAndBack) {
  open(300, 1000);
  chat(prompt(200, 1));
  chat(prompt(200, 2));
  const auto stats = cache_->stats();
  EXPECT_GT(stats.page_outs, 0u);
  EXPECT_EQ(stats.tokens, 400u) << "nothing was forgotten";
  const ReusePlan plan = cache_->plan("n", prompt(200, 1));
  EXPECT_EQ(plan.tier, Tier::kHost);
  EXPECT_EQ(plan.reusable, 199);
  EXPECT_EQ(plan.bytes_moved % bytes_per_token_, 0u);
  const SessionPtr s = begin(prompt(200, 1));
  EXPECT_EQ(s->reused(), 199);
  EXPECT_EQ(s->tier(), Tier::kHost);
  EXPECT_EQ(s->bytes_moved(), plan.bytes_moved);
}

TEST_F(PrefixCacheTest, APageInThatDoesNotFitShortensThePlan) {
  open(300, 1000);
  chat(prompt(200, 1));
  const SessionPtr live = begin(prompt(250, 2));
  prefill(live);
  const ReusePlan plan = cache_->plan("n", prompt(200, 1));
  EXPECT_EQ(plan.reason.code, ReasonCode::kNoRoom);
  const SessionPtr s = begin(prompt(200, 1));
  EXPECT_EQ(s->reason().code, ReasonCode::kNoRoom);
  EXPECT_EQ(s->reused(), plan.reusable);
  EXPECT_LT(s->reused(), 199);
}

TEST_F(PrefixCacheTest, PinsResistWithinTheirCap) {
  open(200);
  chat(prompt(80, 1));
  EXPECT_EQ(cache_->pin("n", prompt(80, 1)), 80);
  chat(prompt(90, 2));
  EXPECT_EQ(cache_->pin("n", prompt(90, 2)), 20) << "half of 200 cells may be pinned";
  chat(prompt(100, 3));
  EXPECT_EQ(cache_->plan("n", prompt(80, 1)).matched, 80);
  EXPECT_EQ(cache_->unpin("n", prompt(80, 1)), 80);
  EXPECT_EQ(cache_->unpin("n", prompt(80, 1)), 0);
}

TEST_F(PrefixCacheTest, UserPointsGoLast) {
  open(200);
  {
    const SessionPtr s = begin(prompt(80, 1));
    prefill(s);
    EXPECT_EQ(s->checkpoint(), 80);
  }
  chat(prompt(80, 2));
  chat(prompt(100, 3));
  EXPECT_EQ(cache_->plan("n", prompt(80, 1)).matched, 80);
  EXPECT_LT(cache_->plan("n", prompt(80, 2)).matched, 80);
  chat(prompt(200, 4));
  EXPECT_LT(cache_->plan("n", prompt(80, 1)).matched, 80) << "but they do go";
}

TEST_F(PrefixCacheTest, EvictTakesTheTailThatNobodyElseUses) {
  open(8192);
  const Tokens a = prompt(2200, 1, 1500), b = prompt(2200, 2, 1500);
  chat(a);
  chat(b);
  EXPECT_EQ(cache_->evict("n", a), 700 * bytes_per_token_);
  EXPECT_EQ(cache_->evict("n", a), 0u) << "what is left of it is b's";
  EXPECT_EQ(cache_->plan("n", b).matched, 2200);
  EXPECT_EQ(cache_->evict("n", b), 2200 * bytes_per_token_);
  EXPECT_EQ(cache_->caches()[0]->usage().held, 0u);
}

TEST_F(PrefixCacheTest, ClosingTheCacheClosesItsSessionsAndGivesEverythingBack) {
  open(400, 400);
  const SessionPtr s = begin(prompt(100, 1));
  prefill(s);
  cache_->close();
  EXPECT_TRUE(s->closed());
  EXPECT_THROW(s->next_prefill(1), Error);
  EXPECT_THROW(begin(prompt(3, 1)), Error);
  EXPECT_EQ(cache_->caches()[0]->usage().held, 0u);
  const auto again = PrefixCache::create({{cache_->caches()[0]}, {}}, {});
  EXPECT_EQ(again->begin("n", prompt(3, 1), {})->reused(), 0);
}

TEST_F(PrefixCacheTest, ACacheBelongsToOnePrefixCacheAtATime) {
  open(100);
  EXPECT_THROW(PrefixCache::create({{cache_->caches()[0]}, {}}, {}), Error);
}

TEST_F(PrefixCacheTest, RefusesWrongArgumentsByName) {
  open(100);
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { begin({}); }).find("tokens: got 0"), std::string::npos);
  EXPECT_NE(message([&] { begin({1, -2}); }).find("tokens[1]: got -2"), std::string::npos);
  EXPECT_NE(message([&] { begin(prompt(101, 1)); }).find("got 101, allowed 100"), std::string::npos);
  const SessionPtr s = begin(prompt(3, 1));
  EXPECT_NE(message([&] { s->next_prefill(0); }).find("chunk"), std::string::npos);
  EXPECT_NE(message([&] { cache_->batch(std::vector<SessionPtr>{s, s}, 4); }).find("twice"), std::string::npos);
  EXPECT_EQ(cache_->stats().tokens, 0u);
}

}  // namespace
}  // namespace kvtrie
