// Calls that meet: one waits outside the mutex, in a clock or in a store, while another thread calls.
//
// Each pair of (waiting call, interrupting call) is met on purpose, at each place where the waiting one is outside.
// What may come of it: both are done, or one is refused by name. Afterwards every invariant holds, what is read is
// right, and when the cache is closed nothing is held.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "circle.h"
#include "coding_process.h"
#include "store_shared_helpers.h"
#include "temporary_folder.h"

namespace kvtrie {
namespace {

using test::kDense;
using test::kEvery;
using test::Kinds;
using test::Process;
using test::prompt;

// Holds one thread at the nth time that it passes.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    if (std::this_thread::get_id() != held_ || left_ == 0 || --left_ > 0) return;
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void hold_this_thread(int nth) {
    const std::lock_guard lock(mutex_);
    held_ = std::this_thread::get_id();
    left_ = nth;
  }
  // The held thread has no business here any more.
  void finish() {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    left_ = 0;  // another thread may get its id
    changed_.notify_all();
  }
  // False: it finished before it came to the gate.
  bool await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_ || finished_; });
    return reached_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id held_;
  int left_ = 0;
  bool reached_ = false, open_ = false, finished_ = false;
};

class GatedStore final : public RemoteStore {
 public:
  GatedStore(std::shared_ptr<testing::MapStore> inner, Gate& gate) : inner_(std::move(inner)), gate_(gate) {}
  std::optional<testing::Bytes> get(std::string_view key) override {
    gate_.pass();
    return inner_->get(key);
  }
  void put(std::string_view key, std::span<const std::byte> value) override { inner_->put(key, value); }
  void remove(std::string_view key) override { inner_->remove(key); }
  std::string name() const override { return "gated"; }

 private:
  std::shared_ptr<testing::MapStore> inner_;
  Gate& gate_;
};

enum class Lower { kHost, kDisk, kStore };  // where the prompt is that the waiting call is after

struct Place {
  Kinds kinds;
  Lower lower;
};
std::ostream& operator<<(std::ostream& out, const Place& place) { return out << place.kinds; }

// A prompt that is in a lower tier, and two sessions that were begun before anybody knew it.
class World {
 public:
  static constexpr std::int32_t kLength = 150;

  explicit World(const Place& place) : place_(place) {
    PrefixCacheOptions options;
    options.clock = [this] {
      gate.pass();
      return 0.0;
    };
    options.fingerprint = "weights";
    std::shared_ptr<RemoteStore> store;
    const auto values = std::make_shared<testing::MapStore>();
    if (place.lower == Lower::kStore) store = std::make_shared<GatedStore>(values, gate);
    if (place.lower == Lower::kDisk) {
      options.disk = folder.disk();
      options.disk_bytes = 1 << 20;
    }
    process = std::make_unique<Process>(place.kinds, store, options, 1000);
    cache = process->cache;
    cache->state().gate.piece = 1;  // so that what deals with many nodes lets others in after each of them
    a = cache->begin("n", with(1));
    b = cache->begin("n", with(2));
    if (place.lower == Lower::kStore) {
      Process(place.kinds, values, {}, 1000).share(known());
      return;
    }
    process->chat(known());
    cache->page_out("n", known(), place.lower == Lower::kDisk ? Tier::kDisk : Tier::kHost);
  }
  ~World() { process.reset(); }

  static Tokens known() { return prompt(kLength, 0, kLength); }
  static Tokens with(Token last) {
    Tokens tokens = known();
    for (Token i = 0; i < 3; ++i) tokens.push_back(1000 * last + i);
    return tokens;
  }

  test::TemporaryFolder folder;
  Gate gate;
  std::unique_ptr<Process> process;
  PrefixCachePtr cache;
  SessionPtr a, b;

 private:
  Place place_;
};

struct Call {
  const char* name;
  std::function<void(World&)> make;
  bool waits = false;  // for calls that are outside, once it has closed the cache
};

void lower_caps(World& world) {
  Limits limits;
  limits.held_cells.assign(world.cache->caches().size(), 600);
  limits.host_bytes = world.cache->host_cap() / 2;
  world.cache->set_limits(limits);
}

// As much as there is outside the device, in as many calls as that takes.
void evict_all(World& world) {
  for (std::uint64_t bytes = 1; bytes < 1u << 20u; bytes *= 2) world.cache->evict_bytes(bytes);
}

bool writes(const World& world) {
  return world.cache->options().disk.empty() == false || world.cache->options().store != nullptr;
}

const Call kWaiting[] = {
    {"begin", [](World& w) { w.cache->begin("n", World::with(3)); }},
    {"begin all",
     [](World& w) {
       BeginOptions options;
       options.reuse_all = true;
       w.cache->begin("n", World::known(), options);
     }},
    {"prefill", [](World& w) { w.a->next_prefill(64); }},
    {"batch",
     [](World& w) {
       w.cache->batch(std::vector{w.a, w.b}, 64);
     }},
    {"batch reversed",
     [](World& w) {
       w.cache->batch(std::vector{w.b, w.a}, 64);
     }},
    {"restore", [](World& w) { w.cache->restore("n", World::known()); }},
    {"append", [](World& w) { w.a->append(Tokens{5}); }},
    {"branch", [](World& w) { w.a->branch(); }},
    {"rewind", [](World& w) { w.a->rewind(0); }},
    {"decode", [](World& w) { w.a->decode(); }},
    {"page_out", [](World& w) { w.cache->page_out("n", World::known()); }},
    {"page_out_bytes", [](World& w) { w.cache->page_out_bytes(64); }},
    {"evict_bytes", [](World& w) { w.cache->evict_bytes(1); }},
    {"evict all", evict_all},
    {"flush",
     [](World& w) {
       if (writes(w)) w.cache->flush();
     }},
    {"save", [](World& w) { w.cache->save((w.folder.path() / "saved").string()); }},
    {"set_limits", lower_caps},
    {"close session", [](World& w) { w.a->close(); }},
    {"close cache", [](World& w) { w.cache->close(); }},
};

const Call kInterrupting[] = {
    {"close its session", [](World& w) { w.a->close(); }},
    {"close the other session", [](World& w) { w.b->close(); }},
    {"close the cache", [](World& w) { w.cache->close(); }, /*waits=*/true},
    {"prefill the same", [](World& w) { w.a->next_prefill(64); }},
    {"prefill the other", [](World& w) { w.b->next_prefill(64); }},
    {"branch the other and drop it", [](World& w) { w.b->branch(); }},
    {"rewind", [](World& w) { w.a->rewind(0); }},
    {"append", [](World& w) { w.a->append(Tokens{5}); }},
    {"begin", [](World& w) { w.cache->begin("n", World::with(4)); }},
    {"compute it", [](World& w) { w.process->chat(World::known()); }},
    {"evict it", [](World& w) { w.cache->evict("n", World::known()); }},
    {"evict all", evict_all},
    {"page_out", [](World& w) { w.cache->page_out("n", World::known()); }},
    {"pin", [](World& w) { w.cache->pin("n", World::known()); }},
    {"set_limits", lower_caps},
    {"flush",
     [](World& w) {
       if (writes(w)) w.cache->flush();
     }},
    {"save", [](World& w) { w.cache->save((w.folder.path() / "other").string()); }},
    {"look",
     [](World& w) {
       w.cache->stats();
       w.cache->nodes();
       EXPECT_TRUE(w.cache->check().empty()) << w.cache->check().front();
     }},
};

// Done, or refused by name.
void attempt(const Call& call, World& world) {
  try {
    call.make(world);
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    EXPECT_TRUE(kind == ErrorKind::kClosed || kind == ErrorKind::kBusy || kind == ErrorKind::kCacheFull)
        << error.what();
  }
}

// False: the waiting call is not outside for the `nth` time.
bool meet(World& world, const Call& waiting, const Call& interrupting, int nth) {
  std::thread first([&] {
    world.gate.hold_this_thread(nth);
    attempt(waiting, world);
    world.gate.finish();
  });
  const bool reached = world.gate.await();
  if (reached) {
    std::promise<void> over;
    std::thread second([&] {
      attempt(interrupting, world);
      over.set_value();
    });
    // It ends before the other call goes on, unless it waits for that: what it verifies without the mutex is its own.
    const std::future<void> is_over = over.get_future();
    const auto may_go_on = [&] { return interrupting.waits && world.cache->closed(); };
    while (is_over.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready && !may_go_on()) {
    }
    world.gate.open();
    second.join();
  }
  first.join();
  return reached;
}

void expect_sound(World& world) {
  if (!world.cache->closed()) {
    EXPECT_TRUE(world.cache->check().empty()) << world.cache->check().front();
    world.process->chat(World::known());
    for (const SessionPtr& session : {world.a, world.b}) {
      if (!session->closed()) world.process->verify(*session, "n", session->tokens());
    }
    world.a->close();
    world.b->close();
    EXPECT_EQ(world.cache->stats().sessions, 0u);
    EXPECT_TRUE(world.cache->check().empty()) << world.cache->check().front();
    world.cache->close();
  }
  EXPECT_EQ(world.cache->stats().sessions, 0u);
  for (const auto& each : world.process->attention()) EXPECT_EQ(each->usage().held, 0u);
  for (const auto& each : world.process->caches().states) EXPECT_EQ(each->free_units(), each->capacity());
  EXPECT_EQ(world.cache->state().host->used(), 0u);
  PrefixCacheOptions options = world.cache->options();  // what it had can be used again
  options.store = nullptr;
  PrefixCache::create(world.process->caches(), options)->close();
}

class Interrupt : public ::testing::TestWithParam<Place> {};
std::string name_of_place(const ::testing::TestParamInfo<Place>& info) {
  const char* lower[] = {"Host", "Disk", "Store"};
  return std::string(info.param.kinds.name) + lower[static_cast<int>(info.param.lower)];
}
const Place kPlaces[] = {{kDense, Lower::kHost},
                         {kDense, Lower::kDisk},
                         {kDense, Lower::kStore},
                         {kEvery[4], Lower::kHost},
                         {kEvery[4], Lower::kStore}};
INSTANTIATE_TEST_SUITE_P(Places, Interrupt, ::testing::ValuesIn(kPlaces), name_of_place);

// Each call waits and interrupts in every circle; in the smaller ones it does not meet all others in each place.
bool is_played(const Call& waiting, const Call& interrupting, const Place& place) {
  const std::size_t every = oracle::by_circle<std::size_t>(4, 2, 1) * (oracle::kSlower > 1 ? 4 : 1);
  const auto pair = static_cast<std::size_t>((&waiting - kWaiting) + (&interrupting - kInterrupting));
  return (pair + static_cast<std::size_t>(place.lower) + place.kinds.attention.size()) % every == 0;
}

TEST_P(Interrupt, EveryPairEndsWellWhereverItMeets) {
  int met = 0, pairs = 0;
  for (const Call& waiting : kWaiting) {
    for (const Call& interrupting : kInterrupting) {
      if (!is_played(waiting, interrupting, GetParam())) continue;
      ++pairs;
      for (int nth = 1;; ++nth) {
        SCOPED_TRACE(cat(interrupting.name, " while ", waiting.name, " is outside for the ", nth, ". time"));
        World world(GetParam());
        const bool reached = meet(world, waiting, interrupting, nth);
        expect_sound(world);
        if (!reached || ::testing::Test::HasFailure()) break;
        ++met;
      }
      if (HasFailure()) return;
    }
  }
  RecordProperty("met", met);
  EXPECT_GE(met, 2 * pairs) << "each is outside at least twice";
}

// ---- calls that close what they are in ----------------------------------------------------------------------------

// Does something once, in its first `put`.
class MeddlingStore final : public RemoteStore {
 public:
  std::optional<testing::Bytes> get(std::string_view key) override { return inner_.get(key); }
  void put(std::string_view key, std::span<const std::byte> value) override {
    if (const std::function<void()> work = std::exchange(in_put, nullptr)) work();
    inner_.put(key, value);
  }
  void remove(std::string_view key) override { inner_.remove(key); }
  std::string name() const override { return "meddling"; }
  std::function<void()> in_put;

 private:
  testing::MapStore inner_;
};

// The thread that sends may read the clock when the process is gone.
PrefixCacheOptions with_clock() {
  PrefixCacheOptions options;
  options.clock = [] { return 0.0; };
  return options;
}

void expect_free(const std::shared_ptr<CausalCache>& pool) {
  EXPECT_EQ(pool->usage().held, 0u);
  PrefixCache::create({{pool}, {}}, {})->close();  // it belongs to nobody
}

TEST(Closing, FromTheThreadThatSends) {
  const auto store = std::make_shared<MeddlingStore>();
  auto process = std::make_unique<Process>(Kinds{"one", {{}}, 0}, store, with_clock());
  const std::shared_ptr<CausalCache> pool = process->attention()[0];
  std::promise<void> closed;
  store->in_put = [&] {
    process->cache->close();
    closed.set_value();
  };
  process->chat(prompt(600, 1));
  closed.get_future().wait();
  EXPECT_THROW(process->cache->begin("n", prompt(5, 1)), Error);
  const std::weak_ptr<PrefixCacheState> state = process->cache->state().weak_from_this();
  process.reset();
  while (!state.expired()) std::this_thread::yield();  // until the last job has taken it apart
  expect_free(pool);
}

TEST(Closing, TheLastReferenceGoesOnTheThreadThatSends) {
  const auto store = std::make_shared<MeddlingStore>();
  const Kinds kinds{"one", {{}}, 0};
  auto process = std::make_unique<Process>(kinds, store, with_clock());
  const std::shared_ptr<CausalCache> pool = process->attention()[0];
  const std::weak_ptr<PrefixCacheState> state = process->cache->state().weak_from_this();
  std::promise<void> alone;
  std::shared_future<void> is_alone = alone.get_future().share();
  store->in_put = [cache = process->cache, is_alone]() mutable {
    is_alone.wait();
    cache.reset();
  };
  process->chat(prompt(600, 1));
  process->cache.reset();
  alone.set_value();
  while (!state.expired()) std::this_thread::yield();
  expect_free(pool);
}

// What a callback closes is closed when the call that it is in has ended, which says so.
class ClosingClock : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Reads, ClosingClock, ::testing::Range(1, 6));

TEST_P(ClosingClock, ClosesTheCacheThatReadsIt) {
  std::function<void()> meddle;
  int reads = 0;
  PrefixCacheOptions options;
  options.clock = [&] {
    if (meddle && ++reads == GetParam()) std::exchange(meddle, nullptr)();
    return 0.0;
  };
  Process process(kDense, nullptr, options);
  process.chat(prompt(300, 1));
  process.cache->page_out("n", prompt(300, 1));
  const SessionPtr other = process.cache->begin("n", prompt(7, 2));
  meddle = [&] { process.cache->close(); };
  try {
    process.cache->begin("n", prompt(300, 1));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kClosed) << error.what();
  }
  process.cache->close();
  EXPECT_TRUE(other->closed());
  for (const auto& pool : process.attention()) expect_free(pool);
}

TEST_P(ClosingClock, ClosesTheSessionThatReadsIt) {
  std::function<void()> meddle;
  int reads = 0;
  PrefixCacheOptions options;
  options.clock = [&] {
    if (meddle && ++reads == GetParam()) std::exchange(meddle, nullptr)();
    return 0.0;
  };
  Process process(kDense, nullptr, options);
  const SessionPtr session = process.cache->begin("n", prompt(301, 1, 300));
  process.chat(prompt(300, 1, 300));
  process.cache->page_out("n", prompt(300, 1, 300));
  meddle = [&] { session->close(); };
  try {
    session->next_prefill(100);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kClosed) << error.what();
  }
  meddle = nullptr;
  session->close();
  EXPECT_EQ(process.cache->stats().sessions, 0u);
  EXPECT_EQ(process.chat(prompt(300, 1, 300)).reused, 299);
}

}  // namespace
}  // namespace kvtrie
