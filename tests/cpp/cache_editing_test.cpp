// Copies, removals, compaction, lending and images of CausalCache on the host store.
#include <algorithm>
#include <set>

#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::encoded;
using testing::holds;
using testing::host_cache;
using testing::put_all;
using testing::range;
using testing::refused;
using testing::small_shape;
using testing::sound;

class EditingTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(sound(*cache_)); }

  ops::RopeParams rope_;
  std::shared_ptr<CausalCache> cache_ = host_cache(small_shape(), {rope_});
};

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// ---- copies, removals, compaction ---------------------------------------------------------------------------------

TEST_F(EditingTest, CopyPrefixSharesThenDiverges) {
  append(*cache_, 0, {1, 2, 3, 4});
  cache_->copy_prefix(0, 1, 3);
  EXPECT_EQ(cache_->free_cells(), 28u);
  append(*cache_, 1, {30});
  append(*cache_, 0, {5});
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), {1, 2, 3, 4, 5}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), {1, 2, 3, 30}));
  EXPECT_EQ(cache_->free_cells(), 32u - 6u);
  cache_->remove(0, 0);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), {1, 2, 3, 30}));
  cache_->copy_prefix(1, 0, 0);
  EXPECT_EQ(cache_->length(0), 0);
  cache_->copy_prefix(1, 1, 2);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), {1, 2})) << "onto itself: truncation";
  cache_->copy_prefix(1, 2, 0);
  EXPECT_EQ(cache_->length(2), 0);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->copy_prefix(9, 1, 0); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->copy_prefix(1, 2, 3); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->copy_prefix(1, 2, -1); }));
}

TEST_F(EditingTest, RemoveAtTheEndAndRefill) {
  append(*cache_, 0, range(0, 8));
  cache_->remove(0, 5);
  EXPECT_EQ(cache_->free_cells(), 27u);
  append(*cache_, 0, {50, 51});
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), joined(range(0, 5), {50, 51})));
  EXPECT_EQ(cache_->spans(0), (CellSpans{{0, 7, 0}})) << "the freed cells are used again";
  cache_->remove(0, 0);
  EXPECT_EQ(cache_->usage().held, 0u);
  cache_->remove(17, 0);  // unknown and empty: nothing to remove
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->remove(17, 1); }));
}

// V move unchanged; K are those of the same tokens rotated back by what was removed.
void expect_shifted(CausalCache& cache, SequenceId id, const std::vector<std::int32_t>& tokens, std::int32_t from,
                    std::int32_t delta, const ops::RopeParams& rope) {
  const KvShape& shape = cache.shape();
  const ops::RopeTable table = ops::rope_table(rope, static_cast<std::int32_t>(shape.k_dim));
  const auto half = static_cast<std::int64_t>(table.inverse_frequencies.size());
  for (std::uint32_t index = 0; index < shape.layers; ++index) {
    const auto [k, v] = cache.store().rows(index, cache.spans(id));
    const std::int32_t layer = cache.layers()[index];
    const Tensor keys = encoded(shape, tokens, layer, false), values = encoded(shape, tokens, layer, true);
    ASSERT_EQ(v.shape(), values.shape());
    for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v.host_span<float>()[i], values.host_span<float>()[i]);
    testing::Difference difference;
    for (std::int64_t row = 0; row < k.dim(0); ++row) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const std::size_t base = static_cast<std::size_t>((row * shape.kv_heads + head) * shape.k_dim);
        for (std::int64_t d = 0; d < half; ++d) {
          const double angle = row < from ? 0.0 : static_cast<double>(delta) * table.inverse_frequencies[d];
          const double x = keys.host_span<float>()[base + d], y = keys.host_span<float>()[base + d + half];
          difference.add(k.host_span<float>()[base + d], x * std::cos(angle) - y * std::sin(angle));
          difference.add(k.host_span<float>()[base + d + half], x * std::sin(angle) + y * std::cos(angle));
        }
      }
    }
    EXPECT_WITHIN(difference.of_largest(), testing::kRotation);
  }
}

TEST_F(EditingTest, RemoveInTheMiddleMovesTheRestByLabelAlone) {
  append(*cache_, 0, range(0, 10));
  cache_->remove(0, 3, 6);
  EXPECT_EQ(cache_->length(0), 7);
  EXPECT_EQ(cache_->free_cells(), 25u);
  EXPECT_EQ(cache_->spans(0), (CellSpans{{0, 3, 0}, {6, 4, 3, 3}}));
  EXPECT_TRUE(holds(*cache_, CellSpans{{0, 3, 0}, {6, 4, 3}}, {0, 1, 2, 6, 7, 8, 9})) << "as they were put";
  EXPECT_TRUE(cache_->is_private(0));
  expect_shifted(*cache_, 0, {0, 1, 2, 6, 7, 8, 9}, 3, -3, rope_);
  append(*cache_, 0, {70});
  EXPECT_EQ(cache_->length(0), 8);
}

TEST_F(EditingTest, RemoveInTheMiddleSharesWhatOthersHold) {
  append(*cache_, 0, range(0, 10));
  cache_->copy_prefix(0, 1, 8);
  cache_->remove(0, 2, 4);
  expect_shifted(*cache_, 0, {0, 1, 4, 5, 6, 7, 8, 9}, 2, -2, rope_);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(0, 8))) << "the other holder's state is untouched";
  EXPECT_FALSE(cache_->is_private(1));
  EXPECT_EQ(cache_->usage().held, 8u + 2u) << "shared 8, own 8..10";
}

TEST_F(EditingTest, RemoveInTheMiddleNeedsNoRoom) {
  append(*cache_, 0, range(0, 32));
  cache_->copy_prefix(0, 1, 32);
  cache_->remove(0, 1, 2);
  EXPECT_EQ(cache_->free_cells(), 0u);
  EXPECT_EQ(cache_->spans(0), (CellSpans{{0, 1, 0}, {2, 30, 1, 1}}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(0, 32)));
}

TEST_F(EditingTest, RemovalsOneByOneSettleWhatOnlyOneHolds) {
  append(*cache_, 0, range(0, 24));
  cache_->copy_prefix(0, 1, 4);
  std::vector<std::int32_t> tokens = range(0, 24);
  std::size_t most = 0;
  for (std::int32_t token = 100; token < 150; ++token) {  // the one at 4 goes, so that 2 and 3 stay shared
    append(*cache_, 0, {token});
    tokens.push_back(token);
    cache_->remove(0, 4, 5);
    tokens.erase(tokens.begin() + 4);
    std::set<std::int32_t> kinds;
    for (const CellSpan& span : cache_->spans(0)) kinds.insert(span.moved);
    most = std::max(most, kinds.size());
    ASSERT_TRUE(sound(*cache_));
  }
  EXPECT_EQ(most, CausalCache::kMostMoves);
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), range(0, 4)));
  EXPECT_EQ(cache_->length(0), 24);
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), tokens, /*keys=*/false));
}

TEST_F(EditingTest, RemoveInTheMiddleNeedsAShiftableRope) {
  const auto plain = host_cache(small_shape());
  append(*plain, 0, range(0, 6));
  EXPECT_TRUE(refused(*plain, ErrorKind::kNotSupported, [&] { plain->remove(0, 1, 2); }));
  EXPECT_TRUE(holds(*plain, plain->spans(0), range(0, 6)));
  ops::RopeParams dynamic;
  dynamic.scaling = ops::RopeScaling::kDynamic;
  dynamic.factor = 2.0;
  dynamic.max_positions = 64;
  const auto scaled = host_cache(small_shape(), {rope_, dynamic});
  append(*scaled, 0, range(0, 6));
  EXPECT_TRUE(refused(*scaled, ErrorKind::kNotSupported, [&] { scaled->remove(0, 1, 2); }));
  scaled->remove(0, 4);
  EXPECT_EQ(scaled->length(0), 4) << "cutting the end needs no shift";
}

TEST_F(EditingTest, RemoveChecksItsRange) {
  append(*cache_, 0, range(0, 6));
  for (const auto& [begin, end] : std::vector<std::pair<std::int32_t, std::int32_t>>{{-1, 3}, {3, 2}, {2, 7}, {7, 7}}) {
    EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->remove(0, begin, end); })) << begin << ' ' << end;
  }
  cache_->remove(0, 3, 3);
  EXPECT_EQ(cache_->length(0), 6);
  EXPECT_FALSE(cache_->is_private(0));
}

TEST_F(EditingTest, DefragKeepsEveryHistory) {
  append(*cache_, 0, range(0, 6));
  append(*cache_, 1, range(100, 106));
  append(*cache_, 0, range(6, 9));
  const auto snapshot = cache_->snapshot(1, 2);
  cache_->copy_prefix(0, 2, 7);
  cache_->remove(1, 0);
  cache_->remove(0, 0);
  cache_->defrag();
  EXPECT_TRUE(holds(*cache_, cache_->spans(2), range(0, 7)));
  EXPECT_EQ(cache_->free_cells(), 32u - 11u);
  append(*cache_, 3, {200});
  EXPECT_TRUE(holds(*cache_, cache_->spans(2), range(0, 7)));
  EXPECT_EQ(snapshot->nbytes(), 4 * cache_->shape().bytes_per_cell());
}

TEST_F(EditingTest, CanResumeAnywhereUpToTheEnd) {
  append(*cache_, 0, range(0, 6));
  EXPECT_TRUE(cache_->can_resume(0, 0));
  EXPECT_TRUE(cache_->can_resume(0, 6));
  EXPECT_FALSE(cache_->can_resume(0, 7));
  EXPECT_FALSE(cache_->can_resume(0, -1));
  EXPECT_TRUE(cache_->can_resume(5, 0));
  EXPECT_FALSE(cache_->can_resume(5, 1));
}

TEST_F(EditingTest, EditingDropsAForwardThatWasStartedHere) {
  append(*cache_, 0, range(0, 6));
  const std::vector<std::int32_t> positions{6}, ids{0};
  cache_->start_forward(positions, ids);
  cache_->remove(0, 2);
  EXPECT_EQ(cache_->length(0), 2);
  EXPECT_EQ(cache_->free_cells(), 30u);
}

// ---- lending and borrowing ----------------------------------------------------------------------------------------

TEST_F(EditingTest, LendingMovesTheHoldAndNoBytes) {
  const SequenceId a = cache_->open_sequence(), b = cache_->open_sequence();
  std::vector<ForwardRows> rows{{a, 6}};
  put_all(*cache_, *cache_->begin(rows), range(0, 6));
  const std::string pieces = cache_->pool().dump();
  SpanList node = cache_->lend(a, 0, 4);
  EXPECT_EQ(cache_->pool().dump(), pieces);
  EXPECT_EQ(cache_->borrowed_length(a), 4);
  EXPECT_EQ(cache_->length(a), 6);
  cache_->borrow(b, node, 0, 3);
  EXPECT_EQ(cache_->length(b), 3);
  EXPECT_EQ(cache_->pool().dump(), pieces) << "borrowing holds nothing";
  rows = {{b, 2}};
  put_all(*cache_, *cache_->begin(rows), {30, 31});
  EXPECT_TRUE(holds(*cache_, cache_->spans(b), {0, 1, 2, 30, 31}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(a), range(0, 6)));
  EXPECT_TRUE(sound(*cache_));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->lend(a, 3, 6); })) << "not from the borrowed end";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->lend(a, 4, 7); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->borrow(b, node, 2, 4); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->borrow(b, node, 3, 5); }));
  cache_->close_sequence(a);
  cache_->close_sequence(b);
  EXPECT_EQ(cache_->usage().held, 4u);
}

TEST_F(EditingTest, BorrowingRepointsToWhatOthersPublished) {
  const SequenceId a = cache_->open_sequence(), b = cache_->open_sequence();
  ForwardPtr of_b;
  for (const SequenceId id : {a, b}) {
    const std::vector<ForwardRows> rows{{id, 6}};
    of_b = cache_->begin(rows);
    put_all(*cache_, *of_b, range(0, 6));
  }
  EXPECT_EQ(cache_->free_cells(), 20u);
  const SpanList node = cache_->lend(a, 0, 4);
  cache_->borrow(b, node, 0, 4);
  EXPECT_EQ(cache_->free_cells(), 24u) << "its own four went back";
  EXPECT_TRUE(holds(*cache_, cache_->spans(b), range(0, 6)));
  const Tensor out = cache_->attend(*of_b, 0, Tensor::host(DType::kFloat32, {6, 2, 4}), {});
  for (const float each : out.host_span<float>()) EXPECT_FALSE(std::isnan(each)) << "reads freed cells";
  cache_->close_sequence(a);
  cache_->close_sequence(b);
}

TEST_F(EditingTest, ForkBorrowsAndHolds) {
  const SequenceId a = cache_->open_sequence(), b = cache_->open_sequence();
  const std::vector<ForwardRows> rows{{a, 6}};
  put_all(*cache_, *cache_->begin(rows), range(0, 6));
  const SpanList node = cache_->lend(a, 0, 4);
  cache_->fork(a, b, 5);
  EXPECT_EQ(cache_->borrowed_length(b), 4);
  EXPECT_TRUE(holds(*cache_, cache_->spans(b), range(0, 5)));
  EXPECT_EQ(cache_->pool().holders_of(4), 2u);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->fork(a, b, 2); })) << "not empty";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->fork(a, a, 0); }));
  cache_->close_sequence(a);
  EXPECT_TRUE(holds(*cache_, cache_->spans(b), range(0, 5)));
  cache_->close_sequence(b);
}

TEST_F(EditingTest, PrivateSequencesAreNotLent) {
  append(*cache_, 0, range(0, 6));
  cache_->remove(0, 1, 2);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kNotSupported, [&] { cache_->lend(0, 0, 3); }));
  cache_->copy_prefix(0, 1, 4);
  EXPECT_TRUE(cache_->is_private(1)) << "branches too";
  const auto snapshot = cache_->snapshot(0, 0);
  EXPECT_TRUE(cache_->restore(2, snapshot, 3));
  EXPECT_TRUE(cache_->is_private(2));
  cache_->remove(0, 0);
  EXPECT_FALSE(cache_->is_private(0));
}

TEST_F(EditingTest, ImagesBringBytesBack) {
  append(*cache_, 0, range(0, 10));
  SpanList node = cache_->lend(0, 0, 10);
  const std::uint64_t bytes = cache_->shape().bytes_per_cell() * 10;
  std::vector<std::byte> image(bytes);
  cache_->store_image(node, 0, 10, 0, image.data(), 10)->wait();
  cache_->close_sequence(0);
  node.clear();
  EXPECT_EQ(cache_->usage().held, 0u);
  const SpanList back = cache_->claim(4, 3);
  cache_->load_image(back, 3, 7, 0, image.data(), 10)->wait();
  EXPECT_TRUE(holds(*cache_, back.spans(), range(3, 7)));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->load_image(back, 3, 7, 4, image.data(), 10); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->load_image(back, 3, 7, 0, image.data(), 6); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->load_image(back, 2, 7, 0, image.data(), 10); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kCacheFull, [&] { cache_->claim(29, 0); }));
}

}  // namespace
}  // namespace kvtrie
