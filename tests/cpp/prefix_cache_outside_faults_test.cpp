// What a cache cannot help fails in a whole conversation: its own threads' memory, its folder, its store, its clock;
// and two of these at once.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <random>

#include "circle.h"
#include "failing_allocations.h"
#include "fault_talk.h"

namespace kvtrie {
namespace {

using test::Call;
using test::FaultyFileSystem;
using test::kDense;
using test::kEvery;
using test::Kinds;
using test::Process;
using test::prompt;
using test::Talk;
using test::TalkFault;
using test::TalkWorld;

// Every nth place where something may fail is tried in CI, fewer in the smallest circle, all of them in a soak.
std::uint64_t stride(std::uint64_t in_ci) { return oracle::by_circle<std::uint64_t>(4 * in_ci - 1, in_ci, 1); }

bool is_named(const std::exception& error) {
  const auto* named = dynamic_cast<const Error*>(&error);
  return named != nullptr && named->kind() != ErrorKind::kInternal;
}

const TalkWorld kDisks[] = {{kDense, true}, {kEvery[4], true}, {kEvery[6], true}};
const TalkWorld kStores[] = {{kDense, false, true}, {kEvery[4], false, true}, {kEvery[7], true, true}};
std::string name_of_world(const ::testing::TestParamInfo<TalkWorld>& info) { return info.param.name(); }

// ---- memory of the cache's own threads ----------------------------------------------------------------------------

// Armed from the beginning to the end: writing and sending go on between calls.
class ThreadsRunShort final : public TalkFault {
 public:
  ThreadsRunShort(std::uint64_t nth, bool lasting) {
    testing::arm_allocations(nth, lasting, testing::Allocating::kOtherThreads);
  }
  ~ThreadsRunShort() override { testing::disarm_allocations(); }
  bool met() const { return testing::allocations_refused() > 0; }
};

class OwnThreads : public ::testing::TestWithParam<TalkWorld> {};
INSTANTIATE_TEST_SUITE_P(Worlds, OwnThreads,
                         ::testing::Values(TalkWorld{kDense, true}, TalkWorld{kDense, false, true},
                                           TalkWorld{kEvery[7], true, true}),
                         name_of_world);

TEST_P(OwnThreads, RunOutOfMemory) {
  std::uint64_t met = 0;
  for (const bool lasting : {false, true}) {
    for (std::uint64_t nth = 1;; nth += stride(lasting ? 61 : 17)) {
      SCOPED_TRACE(cat("allocation ", nth, lasting ? " and all after it" : ""));
      ThreadsRunShort fault(nth, lasting);
      Talk talk(GetParam(), fault);
      talk.finds_again = false;
      talk.run();
      ASSERT_FALSE(HasFailure()) << talk.trail();
      if (!fault.met()) break;
      ++met;
    }
  }
  std::cout << "allocations that failed: " << met << "\n";
  EXPECT_GT(met, oracle::by_circle(4u, 10u, 10u));
}

// ---- the folder ---------------------------------------------------------------------------------------------------

// Heals with the first call that was refused for it.
class FolderFails final : public TalkFault {
 public:
  void use(const std::shared_ptr<FaultyFileSystem>& files) { files_ = files; }
  bool explains(const std::exception& error) const override {
    const bool met = files_->faults() > 0 || !files_->has_power();
    files_->heal();
    return met && is_named(error);
  }

 private:
  std::shared_ptr<FaultyFileSystem> files_;
};

class FolderFaults : public ::testing::TestWithParam<TalkWorld> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FolderFaults, ::testing::ValuesIn(kDisks), name_of_world);

// The disk is back before everything is written, and has been left alone for long enough. What was queued before has
// failed by then, however late the thread that writes came to it.
std::function<bool()> heals(Talk& talk) {
  return [&talk] {
    talk.settle();
    talk.files->heal();
    for (int i = 0; i < 2; ++i) {
      talk.let_time_pass(40);
      talk.look_at_it();
    }
    return true;
  };
}

// Whether the fault was met.
bool talk_while_failing(const TalkWorld& world, Call kind, std::uint64_t nth, int error, bool once) {
  SCOPED_TRACE(cat("call ", static_cast<int>(kind), " number ", nth, " error ", error, once ? "" : " from then on"));
  FolderFails fault;
  Talk talk(world, fault);
  fault.use(talk.files);
  talk.files->fail(kind, nth, error, once);
  talk.before_flush = heals(talk);
  talk.finds_again = false;  // what could not be looked at is left alone
  talk.run();
  EXPECT_FALSE(::testing::Test::HasFailure()) << talk.trail();
  return talk.files->faults() > 0;
}

TEST_P(FolderFaults, EveryCallFailsAndTheDiskComesBack) {
  std::uint64_t met = 0;
  for (int kind = 0; kind < static_cast<int>(Call::kCount); ++kind) {
    for (const int error : {ENOSPC, EIO}) {
      for (const bool once : {true, false}) {
        for (std::uint64_t nth = 1;; nth += stride(once ? 3 : 5)) {
          const bool was_met = talk_while_failing(GetParam(), static_cast<Call>(kind), nth, error, once);
          ASSERT_FALSE(HasFailure());
          if (!was_met) break;
          ++met;
        }
      }
    }
  }
  std::cout << "file calls that failed: " << met << "\n";
  EXPECT_GT(met, oracle::by_circle(10u, 10u, 100u));
}

TEST_P(FolderFaults, PowerIsLost) {
  std::uint64_t cuts = 0;
  for (std::uint64_t at = 1;; at += stride(9)) {
    SCOPED_TRACE(cat("power is lost at call ", at));
    std::mt19937_64 random(at);
    FolderFails fault;
    Talk talk(GetParam(), fault);
    fault.use(talk.files);
    talk.files->lose_power_at(at);
    talk.finds_again = false;
    bool lost = false;
    talk.before_reopening = [&] {
      lost = !talk.files->has_power();
      talk.files->crash(random);  // torn, in another order, or not there
    };
    talk.run();
    ASSERT_FALSE(HasFailure()) << talk.trail();
    if (!lost && talk.refused_calls() == 0) break;
    ++cuts;
  }
  std::cout << "power was lost: " << cuts << " times\n";
  EXPECT_GT(cuts, oracle::by_circle(2u, 10u, 10u));
}

// ---- the store ----------------------------------------------------------------------------------------------------

enum class Reply : std::uint8_t {
  kThrows,
  kThrowsAnything,
  kCut,
  kLonger,
  kFlipped,
  kOfAnotherKey,
  kEmpty,
  kNothing,
  kForgets,
  kCount
};

// A store that gives other replies than it should, at the nth call and, with `lasting`, from then on.
class LyingStore final : public RemoteStore {
 public:
  LyingStore(std::shared_ptr<testing::MapStore> inner, Reply reply, std::uint64_t nth, bool lasting)
      : inner_(std::move(inner)), reply_(reply), nth_(nth), lasting_(lasting) {}

  std::optional<testing::Bytes> get(std::string_view key) override {
    const testing::AllocationsOfTest mine;
    std::optional<testing::Bytes> value = inner_->get(key);
    return lies() ? wrong(key, std::move(value)) : value;
  }
  void put(std::string_view key, std::span<const std::byte> value) override {
    const testing::AllocationsOfTest mine;
    if (!lies()) return inner_->put(key, value);
    if (reply_ == Reply::kForgets || reply_ == Reply::kNothing) return;
    testing::Bytes other = *wrong(key, testing::Bytes(value.begin(), value.end()));
    inner_->put(key, other);
  }
  void remove(std::string_view key) override {
    const testing::AllocationsOfTest mine;
    if (!lies()) inner_->remove(key);
  }
  std::string name() const override { return "lying"; }
  bool met() const { return lies_ > 0; }

 private:
  bool lies() {
    const std::uint64_t call = ++calls_;
    const bool lie = lasting_ ? call >= nth_ : call == nth_;
    lies_ += lie;
    return lie;
  }
  std::optional<testing::Bytes> wrong(std::string_view key, std::optional<testing::Bytes> value) {
    if (reply_ == Reply::kThrows) throw std::runtime_error("the server went away");
    if (reply_ == Reply::kThrowsAnything) throw 7;
    if (reply_ == Reply::kNothing || reply_ == Reply::kForgets) return std::nullopt;
    testing::Bytes bytes = value ? std::move(*value) : testing::pattern(300);
    if (reply_ == Reply::kCut) bytes.resize(bytes.size() * (calls_ % 8) / 8);
    if (reply_ == Reply::kLonger) bytes.resize(bytes.size() + 1 + calls_ % 5);
    if (reply_ == Reply::kEmpty) bytes.clear();
    if (reply_ == Reply::kFlipped && !bytes.empty()) bytes[calls_ * 7919 % bytes.size()] ^= std::byte{0x10};
    if (reply_ == Reply::kOfAnotherKey) bytes = other_than(key, std::move(bytes));
    return bytes;
  }
  testing::Bytes other_than(std::string_view key, testing::Bytes own) {
    const std::lock_guard lock(inner_->mutex);
    for (const auto& [each, value] : inner_->values) {
      if (each > key) return value;
    }
    return own;
  }

  const std::shared_ptr<testing::MapStore> inner_;
  const Reply reply_;
  const std::uint64_t nth_;
  const bool lasting_;
  std::atomic<std::uint64_t> calls_{0}, lies_{0};
};

class StoreFaults : public ::testing::TestWithParam<TalkWorld> {};
INSTANTIATE_TEST_SUITE_P(Worlds, StoreFaults, ::testing::ValuesIn(kStores), name_of_world);

// Another process has put there what this one asks for; a third one reads what both left.
bool talk_through(const TalkWorld& world, Reply reply, std::uint64_t nth, bool lasting) {
  SCOPED_TRACE(cat("reply ", static_cast<int>(reply), " to call ", nth, lasting ? " and all after it" : ""));
  TalkFault fault;
  Talk talk(world, fault);
  const std::vector<Tokens> prompts{prompt(90, 1, 60), prompt(70, 2, 60), prompt(150, 4, 60)};
  for (const Tokens& each : prompts) Process(world.kinds, talk.values, {}, 1000).share(each);
  const auto store = std::make_shared<LyingStore>(talk.values, reply, nth, lasting);
  talk.store = store;
  talk.run();
  EXPECT_FALSE(::testing::Test::HasFailure());
  for (const Tokens& each : prompts) Process(world.kinds, talk.values, {}, 1000).chat(each);
  return store->met();
}

TEST_P(StoreFaults, EveryReplyIsWrongInEveryWay) {
  std::uint64_t met = 0;
  for (int reply = 0; reply < static_cast<int>(Reply::kCount); ++reply) {
    for (const bool lasting : {false, true}) {
      for (std::uint64_t nth = 1; talk_through(GetParam(), static_cast<Reply>(reply), nth, lasting);
           nth += stride(lasting ? 29 : 11)) {
        ASSERT_FALSE(HasFailure());
        ++met;
      }
    }
  }
  std::cout << "replies that were wrong: " << met << "\n";
  EXPECT_GT(met, oracle::by_circle(12u, 50u, 50u));
}

// ---- the clock ----------------------------------------------------------------------------------------------------

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
constexpr double kYear = 366 * 86400.0;

struct Clock {
  const char* name;
  std::function<double(int reading)> at;
};
const Clock kClocks[] = {
    {"stands", [](int) { return 7.0; }},
    {"jumps", [](int i) { return i + (i > 40 ? 10 * kYear : 0) + (i > 90 ? 90 * kYear : 0); }},
    {"runs backwards", [](int i) { return 1e6 - i; }},
    {"goes to and fro", [](int i) { return i % 2 == 0 ? 1e6 + i : double(i); }},
    {"has no number", [](int) { return kNan; }},
    {"has no number now and then", [](int i) { return i % 3 == 0 ? kNan : double(i); }},
    {"is infinite now and then", [](int i) { return i % 5 == 0   ? kInf
                                                    : i % 7 == 0 ? -kInf
                                                                 : double(i); }},
    {"is negative", [](int i) { return -1e9 + i; }},
    {"is huge", [](int i) { return 1e308 * (1 + i * 1e-4); }},
    {"raises", [](int i) -> double { return i % 2 == 0 ? throw std::runtime_error("no time") : double(i); }},
    {"raises anything", [](int i) -> double { return i % 3 == 0 ? throw 7 : double(i); }},
};

class ClockFaults : public ::testing::TestWithParam<TalkWorld> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ClockFaults,
                         ::testing::Values(TalkWorld{kDense, true}, TalkWorld{kEvery[4], false, true},
                                           TalkWorld{kEvery[7], true, true}),
                         name_of_world);

TEST_P(ClockFaults, NothingIsWrongAndNoAgeIsNegative) {
  for (const Clock& clock : kClocks) {
    for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kCost}) {
      for (const bool with_ttl : {false, true}) {
        SCOPED_TRACE(cat("a clock that ", clock.name, with_ttl ? ", with a ttl" : "", ", policy ", int(policy)));
        TalkWorld world = GetParam();
        world.policy = policy;
        TalkFault fault;
        Talk talk(world, fault);
        const auto store = std::make_shared<LyingStore>(talk.values, Reply::kThrows, 3, false);
        if (world.store) talk.store = store;  // which is left alone for a while, by this clock
        std::atomic<int> readings{0};
        talk.clock = [&] { return clock.at(++readings); };
        talk.may_forget = true;
        talk.finds_again = false;
        talk.adjust = [&](PrefixCacheOptions& options) {
          options.load = LoadPolicy::kAuto;
          if (with_ttl) options.ttl = 60;
        };
        talk.run();
        ASSERT_FALSE(HasFailure());
        EXPECT_GT(readings, 50);
      }
    }
  }
}

// ---- two at once --------------------------------------------------------------------------------------------------

// What is drawn from a seed: a call runs out of memory while files, the store or both fail.
class TwoFail final : public TalkFault {
 public:
  TwoFail(std::uint64_t nth, bool lasting) : left_(nth), lasting_(lasting) {}
  ~TwoFail() override { testing::disarm_allocations(); }
  void use(const std::shared_ptr<FaultyFileSystem>& files) { files_ = files; }
  void begin_call(const char*) noexcept override {
    if (left_ > 0) testing::arm_allocations(left_, lasting_, testing::Allocating::kThisThread);
  }
  void end_call() noexcept override {
    if (left_ > 0) left_ = testing::disarm_allocations();
  }
  bool explains(const std::exception& error) const override {
    files_->heal();
    return is_named(error) || dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  }

 private:
  std::uint64_t left_;
  const bool lasting_;
  std::shared_ptr<FaultyFileSystem> files_;
};

TEST(CompoundFaults, DrawnFromSeeds) {
  const std::uint64_t rounds = oracle::by_circle(100, 400, 20000);
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    std::mt19937_64 random(seed);
    const TalkWorld world{kEvery[random() % std::size(kEvery)], random() % 3 != 0, random() % 2 == 0};
    TwoFail fault(1 + random() % 4000, random() % 2 == 0);
    Talk talk(world, fault);
    fault.use(talk.files);
    talk.finds_again = false;
    talk.files->fail(static_cast<Call>(random() % static_cast<std::uint64_t>(Call::kCount)), 1 + random() % 40,
                     random() % 2 == 0 ? ENOSPC : EIO, random() % 2 == 0);
    if (world.store) {
      const auto reply = static_cast<Reply>(random() % static_cast<std::uint64_t>(Reply::kCount));
      talk.store = std::make_shared<LyingStore>(talk.values, reply, 1 + random() % 40, random() % 2 == 0);
    }
    talk.run();
    refused += talk.refused_calls();
    ASSERT_FALSE(HasFailure()) << world << ": " << talk.trail();
  }
  std::cout << "rounds: " << rounds << ", calls that threw: " << refused << "\n";
  EXPECT_GT(refused, rounds / 10);
}

}  // namespace
}  // namespace kvtrie
