// What calls cost where much is known: nodes that are looked at or go, counted, not seconds (docs/bounds.md).
//
// A call is counted piece by piece: it reads the clock when it begins and whenever it has let others in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "circle.h"
#include "coding_process.h"
#include "temporary_folder.h"

namespace kvtrie {
namespace {

using test::kDense;
using test::kEvery;
using test::Kinds;
using test::Process;

constexpr std::size_t kPiece = 100;      // nodes
constexpr std::uint64_t kFew = 32;       // that a call may deal with however much is known
constexpr std::int32_t kTokensEach = 3;  // tokens of each conversation
constexpr double kTtl = 1000;            // seconds
constexpr std::uint64_t kPasses = 12;    // over all nodes, that what is done at once may take

struct Known {
  std::size_t conversations, namespaces;
};
std::ostream& operator<<(std::ostream& out, const Known& size) {
  return out << size.conversations << "In" << size.namespaces;
}

class CostsWorld {
 public:
  CostsWorld(const Kinds& kinds, Known size, std::size_t piece, bool disk = false) : size_(size) {
    PrefixCacheOptions options;
    options.quotas = true;
    options.ttl = kTtl;
    options.host_bytes = 1u << 30u;
    options.max_pinned_fraction = 1;
    options.clock = [this] {
      note();
      return time;
    };
    if (disk) options.disk = folder.disk(), options.disk_bytes = 1u << 30u;
    process = std::make_unique<Process>(kinds, nullptr, options, 1200);
    cache = process->cache;
    cache->state().gate.piece = piece;
    for (std::size_t i = 0; i < size.conversations; ++i) compute(i);
    if (disk) EXPECT_TRUE(cache->flush());
  }

  static Tokens tokens(std::size_t i) { return {static_cast<Token>(i), 1, 2}; }  // kTokensEach of them
  std::string name(std::size_t i) const { return "n" + std::to_string(i % size_.namespaces); }
  void compute(std::size_t i) {
    const SessionPtr session = cache->begin(name(i), tokens(i));
    while (const StepPtr step = session->next_prefill(kTokensEach)) process->compute(*step, name(i), tokens(i));
  }

  struct Counts {
    std::uint64_t all = 0, largest_piece = 0;
  };
  Counts count(const std::function<void(CostsWorld&)>& call) {
    counts_ = {};
    counting_ = true;
    visits_ = cache->state().trie.visits();
    nodes_ = nodes();
    call(*this);
    note();
    counting_ = false;
    return counts_;
  }
  std::size_t nodes() const { return cache->state().trie.size(); }

  test::TemporaryFolder folder;
  double time = 0;
  std::unique_ptr<Process> process;
  PrefixCachePtr cache;

 private:
  // Nodes that walks over the tree have met, which might meet all, and nodes that are gone.
  void note() {
    if (!counting_) return;
    const std::uint64_t visits = cache->state().trie.visits();
    const std::uint64_t work = visits - visits_ + (nodes() < nodes_ ? nodes_ - nodes() : 0);
    counts_.all += work;
    counts_.largest_piece = std::max(counts_.largest_piece, work);
    visits_ = visits;
    nodes_ = nodes();
  }

  Known size_;
  bool counting_ = false;
  std::uint64_t visits_ = 0;
  std::size_t nodes_ = 0;
  Counts counts_;
};

enum class Bound : std::uint8_t {
  kFew,     // the same however much is known
  kPieces,  // as much as is known, or goes, in pieces
  kAtOnce,  // as much as is known, without letting others in
};

struct CountedCall {
  const char* name;
  Bound bound;
  std::function<void(CostsWorld&)> make;
};

std::uint64_t bytes_of_one(const CostsWorld& world) {
  return world.cache->state().caches.bytes_per_token() * static_cast<std::uint64_t>(kTokensEach);
}
std::uint64_t bytes_of_all(CostsWorld& world) {
  const PrefixCacheStats now = world.cache->stats();
  return now.device_tokens * world.cache->state().caches.bytes_per_token();
}

// In this order, on one cache.
const CountedCall kCalls[] = {
    {"begin, known", Bound::kFew, [](CostsWorld& w) { w.cache->begin(w.name(1), w.tokens(1)); }},
    {"begin, new", Bound::kFew, [](CostsWorld& w) { w.compute(1u << 20u); }},
    {"branch, append, rewind, close", Bound::kFew,
     [](CostsWorld& w) {
       const SessionPtr session = w.cache->begin(w.name(2), w.tokens(2), {.reuse_all = true});
       const SessionPtr twin = session->branch();
       twin->append(Tokens{5});
       twin->rewind(1);
       twin->close();
     }},
    {"begin, new, beside sessions that share what they do not publish", Bound::kFew,
     [](CostsWorld& w) {
       const Tokens own{7, 7, 7};
       const SessionPtr session = w.cache->begin(w.name(2), own, {.publish = false});
       while (const StepPtr step = session->next_prefill(kTokensEach)) w.process->compute(*step, w.name(2), own);
       const SessionPtr twin = session->branch();
       w.compute((1u << 20u) + 1);
     }},
    {"plan", Bound::kFew, [](CostsWorld& w) { w.cache->plan(w.name(3), w.tokens(3)); }},
    {"explain", Bound::kFew, [](CostsWorld& w) { w.cache->explain(w.name(3), w.tokens(3)); }},
    {"restore", Bound::kFew, [](CostsWorld& w) { w.cache->restore(w.name(3), w.tokens(3)); }},
    {"usage", Bound::kFew, [](CostsWorld& w) { w.cache->usage(w.name(3)); }},
    {"pin and unpin", Bound::kFew,
     [](CostsWorld& w) {
       w.cache->pin(w.name(4), w.tokens(4));
       w.cache->unpin(w.name(4), w.tokens(4));
     }},
    {"page_out of tokens", Bound::kFew, [](CostsWorld& w) { w.cache->page_out(w.name(4), w.tokens(4)); }},
    {"page_out of some bytes", Bound::kFew, [](CostsWorld& w) { w.cache->page_out_bytes(bytes_of_one(w)); }},
    {"evict of tokens", Bound::kFew, [](CostsWorld& w) { w.cache->evict(w.name(4), w.tokens(4)); }},
    {"evict of some bytes", Bound::kFew, [](CostsWorld& w) { w.cache->evict_bytes(bytes_of_one(w)); }},
    {"set_quota and remove_quota of a small namespace", Bound::kFew,
     [](CostsWorld& w) {
       Limits most;
       most.host_bytes = 1u << 20u;
       w.cache->set_quota("another", most, {});
       w.cache->remove_quota("another");
     }},
    {"set_limits", Bound::kFew,
     [](CostsWorld& w) {
       Limits limits;
       limits.host_bytes = 1u << 29u;
       w.cache->set_limits(limits);
     }},
    {"nodes", Bound::kAtOnce, [](CostsWorld& w) { w.cache->nodes(); }},
    {"summary", Bound::kPieces, [](CostsWorld& w) { w.cache->summary(16); }},
    {"pins that are over", Bound::kPieces,
     [](CostsWorld& w) {
       for (std::size_t i = 10; i < 300; ++i) w.cache->pin(w.name(i), w.tokens(i), 1);
       w.time += 2;
       w.cache->plan(w.name(3), w.tokens(3));
       EXPECT_EQ(w.cache->stats().pins, 0u);
     }},
    {"page_out of all", Bound::kPieces, [](CostsWorld& w) { w.cache->page_out_bytes(bytes_of_all(w)); }},
    {"evict of half", Bound::kPieces,
     [](CostsWorld& w) {
       const std::uint64_t freed = w.nodes() / 2 * bytes_of_one(w);
       w.cache->evict_bytes(freed);
     }},
    {"a ttl that is over", Bound::kPieces,
     [](CostsWorld& w) {
       EXPECT_GT(w.nodes(), 0u);
       w.time += kTtl;
       w.cache->stats();
       EXPECT_EQ(w.nodes(), 0u);
     }},
};

class Costs : public ::testing::TestWithParam<Known> {};

std::vector<Known> sizes() {
  const std::size_t most = oracle::by_circle<std::size_t>(3000, 100'000, 100'000) / oracle::kSlower;
  return {{1000, 1}, {1000, 1000}, {most, 1}, {most, std::min<std::size_t>(most, 10'000)}};
}
INSTANTIATE_TEST_SUITE_P(Sizes, Costs, ::testing::ValuesIn(sizes()), ::testing::PrintToStringParamName());

void expect_bounded(const CountedCall& call, CostsWorld& world, std::size_t piece) {
  SCOPED_TRACE(call.name);
  const std::size_t known = 2 * world.nodes();  // and their roots
  const CostsWorld::Counts counts = world.count(call.make);
  switch (call.bound) {
    case Bound::kFew:
      EXPECT_LE(counts.all, kFew);
      break;
    case Bound::kPieces:
      EXPECT_LE(counts.largest_piece, 2 * piece + kFew) << "without letting others in";  // looked at, and gone
      break;
    case Bound::kAtOnce:
      EXPECT_LE(counts.all, kPasses * known + kFew);
      break;
  }
}

TEST_P(Costs, OfEveryCallAreBoundedHoweverMuchIsKnown) {
  CostsWorld world(kDense, GetParam(), kPiece);
  for (const CountedCall& call : kCalls) expect_bounded(call, world, kPiece);
}

// It reads no clock any more: how often it let others in is counted.
TEST_P(Costs, OfClosingAreInPieces) {
  CostsWorld world(kDense, GetParam(), kPiece);
  const std::size_t nodes = world.nodes();
  const CallsOutside& outside = world.cache->state().gate.outside;
  const std::uint64_t before = outside.times();
  world.cache->close();
  EXPECT_EQ(world.nodes(), 0u);
  EXPECT_GE(outside.times() - before, nodes / kPiece);
}

// As many files, so fewer conversations, and smaller pieces.
TEST(CostsOfFiles, AreBoundedTheSame) {
  constexpr std::size_t kConversations = 120, kSmall = 10;
  const CountedCall calls[] = {
      {"flush, nothing new", Bound::kPieces, [](CostsWorld& w) { EXPECT_TRUE(w.cache->flush()); }},
      {"flush, much of it new", Bound::kPieces,
       [](CostsWorld& w) {
         for (std::size_t i = 0; i < kConversations / 2; ++i) w.compute(kConversations + i);
         EXPECT_TRUE(w.cache->flush());
       }},
      {"stats", Bound::kPieces, [](CostsWorld& w) { w.cache->stats(); }},
      {"stats, much of it in files alone", Bound::kPieces,
       [](CostsWorld& w) {
         w.cache->page_out_bytes(kConversations / 2 * bytes_of_one(w), Tier::kDisk);
         EXPECT_GT(w.cache->stats().disk_tokens, 0u);
       }},
      {"page_out of one", Bound::kFew, [](CostsWorld& w) { w.cache->page_out(w.name(7), w.tokens(7), Tier::kDisk); }},
      {"save", Bound::kPieces, [](CostsWorld& w) { w.cache->save((w.folder.path() / "saved").string()); }},
      {"evict", Bound::kPieces, [](CostsWorld& w) { w.cache->evict_bytes(w.nodes() / 2 * bytes_of_one(w)); }},
  };
  for (const std::size_t namespaces : {std::size_t{1}, kConversations}) {
    CostsWorld world(kDense, {kConversations, namespaces}, kSmall, /*disk=*/true);
    for (const CountedCall& call : calls) expect_bounded(call, world, kSmall);
  }
}

// Restore points: what may be freed is counted, which takes looking at all, but for what full attention has anyway.
TEST_P(Costs, OfRestorePointsAreCountedInPieces) {
  CostsWorld world(kEvery[5], {std::min<std::size_t>(GetParam().conversations, 3000), GetParam().namespaces}, kPiece);
  const CostsWorld::Counts some = world.count([](CostsWorld& w) { w.cache->evict_bytes(bytes_of_one(w)); });
  EXPECT_LE(some.all, kFew);
  const auto free_all = [](CostsWorld& w, bool evict) {
    try {
      evict ? w.cache->evict_bytes(1u << 30u) : w.cache->page_out_bytes(1u << 30u);
      ADD_FAILURE() << "there is not so much";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCacheFull);
    }
  };
  for (const bool evict : {false, true}) {
    const CostsWorld::Counts all = world.count([&](CostsWorld& w) { free_all(w, evict); });
    EXPECT_LE(all.largest_piece, kPiece);
    EXPECT_GE(all.all, world.nodes());
  }
}

}  // namespace
}  // namespace kvtrie
