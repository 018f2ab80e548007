// Random public calls on one prefix cache from several threads at once.
//
// A few sessions that all threads know, prompts that share prefixes, host memory, a disk or a store, clocks that give
// way to other threads, and K, V and states that name their prefix. Whatever is called, and whatever is closed
// meanwhile: a call is done or refused by name, every session that can be looked at holds rows of its own tokens, and
// at the end every invariant holds and nothing is left. Which calls meet is chance: the seed gives each thread its
// calls.
//
//   oracle_prefix_cache_threads [--seed N] [--operations N] [--threads N]
#include <array>
#include <atomic>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "coding_process.h"
#include "operations.h"
#include "store_shared_helpers.h"
#include "temporary_folder.h"

namespace kvtrie::oracle {
namespace {

using test::Kinds;
using test::Process;

constexpr std::size_t kSessions = 4;
constexpr Cell kCells = 700;  // too few for all prompts

enum class Below { kHost, kDisk, kStore };

// What all threads work on, in one world.
class World {
 public:
  World(const Kinds& kinds, Below below) {
    PrefixCacheOptions options;
    options.clock = [this] {
      std::this_thread::yield();
      return static_cast<double>(++ticks_);
    };
    options.fingerprint = "weights";
    options.host_bytes = 30'000;
    if (below == Below::kDisk) {
      options.disk = folder_.disk();
      options.disk_bytes = 200'000;
    }
    const auto store = below == Below::kStore ? std::make_shared<testing::MapStore>() : nullptr;
    process = std::make_unique<Process>(kinds, store, options, kCells);
    cache = process->cache;
    cache->state().gate.piece = 2;  // nodes: others get in between often
  }

  std::shared_ptr<Session> session(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return sessions_[index];
  }
  void set_session(std::size_t index, std::shared_ptr<Session> session) {
    const std::lock_guard lock(mutex_);
    sessions_[index].swap(session);
  }  // the one before ends here, or where a call still has it
  void end() {
    for (std::size_t i = 0; i < kSessions; ++i) set_session(i, nullptr);
  }

  std::unique_ptr<Process> process;
  PrefixCachePtr cache;

 private:
  test::TemporaryFolder folder_;
  std::atomic<int> ticks_{0};
  std::mutex mutex_;
  std::array<std::shared_ptr<Session>, kSessions> sessions_;  // guarded by mutex_
};

// One thread's calls.
class Caller {
 public:
  Caller(World& world, std::uint64_t seed) : world_(world), random_(seed) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations && !world_.cache->closed(); ++i) {
      try {
        operate();
      } catch (const Error& error) {
        ++refused[static_cast<std::size_t>(error.kind())];
        const bool by_name = error.kind() == ErrorKind::kBusy || error.kind() == ErrorKind::kClosed ||
                             error.kind() == ErrorKind::kCacheFull || error.kind() == ErrorKind::kArgument ||
                             error.kind() == ErrorKind::kNotRestorable || error.kind() == ErrorKind::kNotSupported;
        if (!by_name) throw;
      }
    }
  }

  std::array<std::uint64_t, 16> refused{};

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  // One of a few prompts that share their beginnings.
  Tokens prompt() {
    const auto length = static_cast<std::int32_t>(20 + below(200));
    return test::prompt(length, static_cast<Token>(below(3)), static_cast<std::int32_t>(below(2) * 90));
  }

  // The model: the rows of the step's tokens. Another thread may drop the step at any time.
  void compute(const StepPtr& step) {
    if (step == nullptr || step->dropped()) return;
    const Tokens history = step->sessions().front()->tokens();
    // Shorter: it was rewound meanwhile, and the step was dropped.
    if (static_cast<std::int32_t>(history.size()) <= step->positions().back()) return;
    world_.process->compute(*step, "n", history);
  }

  void operate() {
    PrefixCache& cache = *world_.cache;
    const std::size_t index = below(kSessions);
    const std::shared_ptr<Session> session = world_.session(index);
    if (session == nullptr || below(20) == 0) return world_.set_session(index, cache.begin("n", prompt()));
    switch (below(18)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return compute(session->next_prefill(static_cast<std::uint32_t>(1 + below(100))));
      case 4:
        session->append(Tokens{static_cast<Token>(below(5))});
        return compute(session->decode());
      case 5:
        return world_.set_session(below(kSessions), session->branch());
      case 6:
        return session->rewind(static_cast<std::int32_t>(below(static_cast<std::size_t>(session->length()) + 1)));
      case 7:
        static_cast<void>(session->checkpoint());
        return;
      case 8:
        return session->close();
      case 9:
        return batch(session);
      case 10:
        static_cast<void>(cache.page_out("n", prompt()));
        return;
      case 11:
        static_cast<void>(cache.evict("n", prompt()));
        return;
      case 12:
        static_cast<void>(cache.restore("n", prompt()));
        return;
      case 13:
        return pin();
      case 14:
        static_cast<void>(cache.plan("n", prompt()));
        static_cast<void>(cache.stats());
        static_cast<void>(cache.nodes());
        return;
      case 15:
        static_cast<void>(session->shift(static_cast<std::int32_t>(below(4)), 10));
        return world_.set_session(index, nullptr);  // its rows no longer follow from its tokens
      case 16:
        return look_below();
      default:
        static_cast<void>(session->can_rewind(static_cast<std::int32_t>(below(50))));
        static_cast<void>(session->remaining());
    }
  }

  void batch(const SessionPtr& session) {
    const SessionPtr other = world_.session(below(kSessions));
    if (other == nullptr || other == session) return;
    static_cast<void>(world_.cache->batch(std::vector{session, other}, static_cast<std::uint32_t>(1 + below(50))));
  }

  void pin() {
    const Tokens tokens = prompt();
    if (world_.cache->pin("n", tokens) > 0) static_cast<void>(world_.cache->unpin("n", tokens));
  }

  void look_below() {
    PrefixCache& cache = *world_.cache;
    if (!cache.options().disk.empty() || cache.options().store != nullptr) static_cast<void>(cache.flush());
    static_cast<void>(cache.page_out_bytes(below(2) * 64));
    Limits limits;
    limits.host_bytes = cache.host_cap();
    cache.set_limits(limits);
  }

  World& world_;
  std::mt19937_64 random_;
};

void verify(World& world) {
  for (std::size_t i = 0; i < kSessions; ++i) {
    const SessionPtr session = world.session(i);
    if (session != nullptr && !session->closed()) world.process->verify(*session, "n", session->tokens());
  }
}

void play(std::uint64_t seed, std::uint64_t operations, std::size_t threads, const Kinds& kinds, Below below,
          bool close_meanwhile) {
  World world(kinds, below);
  std::vector<Caller> callers;
  for (std::size_t i = 0; i < threads; ++i) callers.emplace_back(world, seed * 100 + i);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (Caller& caller : callers) running.emplace_back([&, operations] { caller.run(operations / threads); });
  if (close_meanwhile) world.cache->close();
  for (std::thread& each : running) each.join();
  if (!close_meanwhile) {
    verify(world);
    const std::vector<std::string> findings = world.cache->check();
    EXPECT_TRUE(findings.empty()) << findings.front();
  }
  world.end();
  world.cache->close();
  EXPECT_EQ(world.cache->stats().sessions, 0u);
  for (const auto& each : world.process->attention()) EXPECT_EQ(each->usage().held, 0u);
  for (const auto& each : world.process->caches().states) EXPECT_EQ(each->free_units(), each->capacity());
}

std::uint64_t seed = 20261123, operations = operations_here(20'000, 60'000, 60'000);
std::size_t threads = 8;

TEST(Threads, RandomCallsEndWell) {
  std::cout << "seed " << seed << ", " << operations << " operations, " << threads << " threads\n";
  const std::uint64_t worlds = std::size(test::kEvery) * 3;
  std::uint64_t world = 0;
  for (const Kinds& kinds : test::kEvery) {
    for (const Below below : {Below::kHost, Below::kDisk, Below::kStore}) {
      SCOPED_TRACE(cat(kinds.name, ", world ", world));
      play(seed + world, operations / worlds, threads, kinds, below, /*close_meanwhile=*/false);
      play(seed + world, threads * 8, threads, kinds, below, /*close_meanwhile=*/true);
      ++world;
    }
  }
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seed") kvtrie::oracle::seed = std::stoull(argv[i + 1]);
    if (name == "--operations") kvtrie::oracle::operations = std::stoull(argv[i + 1]);
    if (name == "--threads") kvtrie::oracle::threads = std::stoull(argv[i + 1]);
  }
  return RUN_ALL_TESTS();
}
