// A device that reads late, and fails then: what goes with it, and what does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cache/null_kv_store.h"
#include "cache/null_state_store.h"
#include "cache/recurrent_cache.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie {
namespace {

struct LateRead final : Completion {
  bool done() const override { return ended; }
  void wait() const override {
    ASSERT_TRUE(ended) << "nobody has to wait for it";
    if (failed) throw std::runtime_error("lost");
  }
  bool ended = false, failed = false;
};
using LateReads = std::vector<std::shared_ptr<LateRead>>;

class LateStore final : public NullKvStore {
 public:
  LateStore(const KvShape& shape, LateReads& reads) : NullKvStore(shape), reads_(reads) {}
  CompletionPtr load_image(std::span<const CellSpan>, std::int32_t, const std::byte*, std::uint32_t) override {
    return reads_.emplace_back(std::make_shared<LateRead>());
  }

 private:
  LateReads& reads_;
};

class FailedPageIn : public ::testing::Test {
 protected:
  static constexpr std::int32_t kLayer = 0, kRecurrentLayer = 1;

  void open(bool recurrent = false) {
    const KvShape shape{1, 1, 2, 2, 4096, plain_format(DType::kFloat32)};
    CausalCache::Options of_cells;
    of_cells.layers = {kLayer};
    CacheSet caches{{CausalCache::create(std::make_unique<LateStore>(shape, reads_), of_cells)}, {}};
    StateShape states;
    states.layers = states.conv_tail = states.conv_dim = states.v_heads = states.v_dim = states.k_dim = 1;
    states.slots = 64;
    if (recurrent)
      caches.states = {RecurrentCache::create(std::make_unique<NullStateStore>(states), {kRecurrentLayer})};
    PrefixCacheOptions options;
    options.host_bytes = 1 << 20;
    options.load = LoadPolicy::kAlways;
    options.checkpoint_every = 64;
    if (meanwhile_) options.clock = [this] { return tick(); };
    cache_ = PrefixCache::create(std::move(caches), options);
  }
  void TearDown() override { EXPECT_EQ(cache_->check(), std::vector<std::string>{}); }

  static Tokens prompt(Token salt, std::int32_t length = 200, std::int32_t shared = 0) {
    Tokens tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = i < shared ? i : i + 1000 * salt;
    return tokens;
  }
  void prefill(const SessionPtr& session) {
    StepPtr previous;
    while (const StepPtr step = session->next_prefill(50, previous)) {
      const Tensor kv = Tensor::host(DType::kFloat32, {static_cast<std::int64_t>(step->tokens().size()), 1, 2});
      step->put(kLayer, kv, kv);
      if (!cache_->states().empty()) {
        const auto states = static_cast<std::int64_t>(step->boundaries().front().size()) + 1;
        step->put_states(kRecurrentLayer, Tensor::host(DType::kFloat32, {states, 1, 1}),
                         Tensor::host(DType::kFloat32, {states, 1, 1, 1}));
      }
      previous = step;
    }
  }
  SessionPtr chat(const Tokens& tokens) {
    const SessionPtr session = cache_->begin("n", tokens);
    prefill(session);
    return session;
  }
  void leave_for_host(const Tokens& tokens) {
    chat(tokens)->close();
    ASSERT_GT(cache_->page_out("n", tokens), 0u);
  }
  // Reads of the device from `first` on, but for those that have ended.
  void end_reads(bool well, std::size_t first = 0) {
    for (std::size_t i = first; i < reads_.size(); ++i) {
      reads_[i]->failed = !reads_[i]->ended && !well;
      reads_[i]->ended = true;
    }
  }
  void expect_failed(const SessionPtr& session) {
    try {
      session->next_prefill(50);
      ADD_FAILURE() << "it goes on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice) << error.what();
    }
  }
  // The clock, which is read while a call waits with the mutex free. What another thread does `meanwhile_` is done
  // once.
  double tick() {
    if (armed_ && skip_-- == 0 && armed_.exchange(false)) std::thread([this] { meanwhile_(); }).join();
    return 0;
  }
  std::int32_t known(const Tokens& tokens) { return cache_->plan("n", tokens).matched; }

  std::function<void()> meanwhile_;
  std::atomic<bool> armed_{false};
  int skip_ = 0;
  LateReads reads_;
  PrefixCachePtr cache_;
};

TEST_F(FailedPageIn, SessionsOnItFailAndItsNodesGoButNothingAboveOrBesides) {
  open();
  const SessionPtr above = chat(prompt(1, 100, 100)), besides = chat(prompt(2));
  leave_for_host(prompt(3, 200, 100));
  const SessionPtr session = cache_->begin("n", prompt(3, 200, 100));
  ASSERT_EQ(session->reused(), 199);
  ASSERT_EQ(session->tier(), Tier::kHost);
  const SessionPtr branch = session->branch();
  EXPECT_EQ(known(prompt(3, 200, 100)), 200) << "it may come yet";
  end_reads(false);
  EXPECT_EQ(known(prompt(3, 200, 100)), 100);
  EXPECT_EQ(cache_->check(), std::vector<std::string>{});
  for (const SessionPtr& failed : {session, branch}) {
    expect_failed(failed);
    EXPECT_EQ(failed->recorded(), 200);
    EXPECT_EQ(failed->tokens(), prompt(3, 200, 100)) << "to begin again with";
    EXPECT_EQ(failed->remaining().size(), 1u);
  }
  EXPECT_EQ(known(prompt(2)), 200);
  const Token more[] = {7};
  for (const SessionPtr& other : {above, besides}) {
    other->append(more);
    prefill(other);
  }
  const SessionPtr again = chat(prompt(3, 200, 100));
  EXPECT_EQ(again->reused(), 100);
}

TEST_F(FailedPageIn, EachEndsByItself) {
  open();
  leave_for_host(prompt(1));
  leave_for_host(prompt(2));
  const SessionPtr first = cache_->begin("n", prompt(1));
  const std::size_t of_first = reads_.size();
  const SessionPtr second = cache_->begin("n", prompt(2));
  ASSERT_GT(of_first, 0u);
  end_reads(false, of_first);
  EXPECT_EQ(known(prompt(2)), 0);
  EXPECT_EQ(known(prompt(1)), 200) << "the device still reads it";
  expect_failed(second);
  end_reads(true);
  EXPECT_EQ(known(prompt(1)), 200);
  prefill(first);
  EXPECT_EQ(known(prompt(1)), 200);
}

// Its copy was made of cells that never had what was to be read.
TEST_F(FailedPageIn, WhatLeftTheDeviceAgainMeanwhileGoesToo) {
  open();
  leave_for_host(prompt(1));
  cache_->begin("n", prompt(1))->close();
  ASSERT_FALSE(reads_.empty());
  ASSERT_GT(cache_->page_out("n", prompt(1)), 0u);
  EXPECT_EQ(known(prompt(1)), 200);
  end_reads(false);
  EXPECT_EQ(known(prompt(1)), 0);
}

// While a call brings back what is below, and waits with the mutex free, what is above turns out to be lost.
TEST_F(FailedPageIn, WhatAWaitingCallHoldsGoesToo) {
  int ticks = 0;
  meanwhile_ = [&] {
    end_reads(false);
    EXPECT_GE(cache_->stats().sessions, 1u);  // a call like any other
  };
  for (; ticks < 8; ++ticks) {  // at any of the times that the second call reads the clock
    reads_.clear();
    open();
    leave_for_host(prompt(1, 300, 200));
    const SessionPtr first = cache_->begin("n", prompt(1, 200, 200));
    ASSERT_EQ(first->reused(), 199);
    skip_ = ticks;
    armed_ = true;
    const SessionPtr second = cache_->begin("n", prompt(1, 300, 200));
    if (armed_.exchange(false)) break;  // it read the clock less often
    EXPECT_EQ(cache_->check(), std::vector<std::string>{});
    expect_failed(first);
    EXPECT_EQ(second->reused(), 0) << ticks;
    EXPECT_EQ(known(prompt(1, 300, 200)), 0) << ticks;
    prefill(second);
    EXPECT_EQ(known(prompt(1, 300, 200)), 300);
    cache_->close();
  }
  EXPECT_EQ(ticks, 4) << "when it begins, before reading, behind it, and when all is handed over";
}

// Sessions that restart at 128 hold cells beyond it, each from a node of its own. Each one lets go of them, and a node
// joins the next one then.
TEST_F(FailedPageIn, NodesThatJoinWhileSessionsLeaveThemAreStillFound) {
  open(/*recurrent=*/true);
  const Tokens all = prompt(1);
  chat(all)->close();
  const std::int32_t kept = cache_->pin("n", std::span(all).first(128));
  ASSERT_EQ(kept, 128);
  ASSERT_GT(cache_->page_out("n", all), 0u);
  Tokens longer = all;
  longer.push_back(7);
  const SessionPtr deep = cache_->begin("n", longer);
  ASSERT_EQ(deep->reused(), 200);
  std::vector<SessionPtr> ahead;
  for (std::int32_t length = 190; length > 130; length -= 5) {
    ahead.push_back(cache_->begin("n", prompt(1, length)));
    ASSERT_EQ(ahead.back()->reused(), 128);
  }
  end_reads(false);
  EXPECT_EQ(known(all), 128);
  EXPECT_EQ(cache_->check(), std::vector<std::string>{});
  expect_failed(deep);
  for (const SessionPtr& session : ahead) prefill(session);
  EXPECT_EQ(known(all), 190);
}

}  // namespace
}  // namespace kvtrie
