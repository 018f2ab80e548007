// A hybrid of all kinds against a naive twin, by random operations: refused calls, steps that end half-way and
// snapshots included. Every component holds what follows from the twin's tokens, after each operation.
#include <random>

#include "circle.h"
#include "hybrid_helpers.h"

namespace kvtrie::testing {
namespace {

using Tokens = HybridTokens;
using Twin = HybridTwin;

constexpr SequenceId kSequences = 4;

class Driver {
 public:
  Driver(std::uint64_t seed, const Hybrid::Capacity& capacity) : random_(seed), hybrid_(capacity) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      SCOPED_TRACE(cat("operation ", i));
      if (hybrid_->complete()) hybrid_->drop_forward();  // no more holds for an item that could come
      const std::string before = hybrid_->dump();
      try {
        operation();
      } catch (const Error& error) {
        ASSERT_TRUE(expected(error.kind())) << error.what();
        ASSERT_TRUE(stepped_ || hybrid_->dump() == before) << error.what() << '\n' << before << hybrid_->dump();
        ++refused_;
      }
      ASSERT_TRUE(sound(hybrid_));
      for (SequenceId id = 0; id < kSequences; ++id) ASSERT_TRUE(is(hybrid_, id, twins_[id]));
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(refused_, operations / 50);
    EXPECT_GT(restored_, operations / 100);
  }

 private:
  static bool expected(ErrorKind kind) {
    return kind == ErrorKind::kCacheFull || kind == ErrorKind::kNotSupported || kind == ErrorKind::kNotRestorable;
  }
  std::int32_t below(std::int32_t limit) { return std::uniform_int_distribution<std::int32_t>(0, limit - 1)(random_); }

  void operation() {
    stepped_ = false;
    const SequenceId id = below(kSequences), other = below(kSequences);
    Twin& twin = twins_[id];
    switch (below(10)) {
      case 0:
      case 1:
      case 2:
        return step();
      case 3: {
        const std::int32_t begin = below(3) == 0 ? 0 : below(twin.length() + 1);
        hybrid_->remove(id, begin);
        return twin.cut(begin);
      }
      case 4: {  // in the middle
        if (twin.length() < 3) return;
        const std::int32_t begin = below(twin.length() - 2), end = begin + 1 + below(twin.length() - begin - 2);
        hybrid_->remove(id, begin, end);
        ADD_FAILURE() << "there are recurrent layers";
        return;
      }
      case 5: {
        const std::int32_t length = below(4) == 0 ? below(twin.length() + 1) : twin.length();
        hybrid_->copy_prefix(id, other, length);
        const Twin copied = twin;
        twins_[other] = copied;
        return twins_[other].cut(length);
      }
      case 6:
        kept_ = hybrid_->snapshot(id, 0);
        kept_twin_ = twin;
        return;
      case 7:
      case 8:
        return restore(other);
      default:
        if (below(2) == 0) return hybrid_->defrag();
        if (!kept_) return;
        auto [lower, upper] = hybrid_->split(kept_, below(kept_->end() + 1));
        kept_ = hybrid_->merge(lower, upper);
    }
  }

  void restore(SequenceId id) {
    if (!kept_) return;
    const std::int32_t target = below(2) == 0 ? kept_->end() : below(kept_->end() + 2);
    const std::string before = hybrid_->dump();
    if (!hybrid_->restore(id, kept_, target)) {
      ASSERT_EQ(hybrid_->dump(), before);
      ASSERT_TRUE(target != kept_->end());
      return;
    }
    ++restored_;
    twins_[id] = kept_twin_;
    twins_[id].cut(target);
  }

  void step() {
    Tokens positions, sequences, tokens, cells;
    std::vector<EncoderItem> items;
    std::vector<Twin> after = twins_;
    for (SequenceId id = 0; id < kSequences; ++id) {
      if (below(2) == 0) continue;
      const std::int32_t length = twins_[id].length(), rows = 1 + below(5);
      for (std::int32_t i = 0; i < rows; ++i) {
        positions.push_back(length + i);
        sequences.push_back(id);
        tokens.push_back(below(100));
        after[id].tokens.push_back(tokens.back());
      }
      if (below(3) > 0) continue;
      const std::int32_t first = below(100), count = 1 + below(4);
      after[id].item_at = length + below(rows);
      after[id].item = range(first, first + count);
      items.push_back({id, after[id].item_at, static_cast<std::uint32_t>(count)});
      cells.insert(cells.end(), after[id].item.begin(), after[id].item.end());
    }
    if (positions.empty()) return;
    hybrid_->start_forward(positions, sequences, false, items);
    stepped_ = true;
    if (below(4) == 0) {
      hybrid_.write_all(tokens, cells, static_cast<std::size_t>(below(6)));
      return hybrid_->drop_forward();
    }
    hybrid_.write_all(tokens, cells);
    ASSERT_TRUE(hybrid_->complete());
    twins_ = std::move(after);
  }

  std::mt19937_64 random_;
  Hybrid hybrid_;
  std::vector<Twin> twins_ = std::vector<Twin>(kSequences);
  HybridCache::SnapshotPtr kept_;
  Twin kept_twin_;
  bool stepped_ = false;
  int refused_ = 0, restored_ = 0;
};

TEST(HybridRandomTest, AgreesWithItsTwin) {
  const std::vector<Hybrid::Capacity> worlds{
      {60, 60, 12, 24}, {40, 24, 10, 12}, {400, 400, 7, 40}, {60, 60, 12, 24, {0, 4}}};
  std::uint64_t seed = 0;
  for (const Hybrid::Capacity& world : worlds) {
    SCOPED_TRACE(cat("seed ", ++seed));
    Driver(seed, world).run(oracle::by_circle(300, 1500, 1500));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvtrie::testing
