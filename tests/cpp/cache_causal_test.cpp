// Sequences and forwards of CausalCache on the host store: the full-attention ones of the old engine's scenarios, and
// what each refused call must leave as it was.
#include "cache/causal_cache.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "cache/null_kv_store.h"
#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::encoded;
using testing::holds;
using testing::host_cache;
using testing::put_all;
using testing::put_layer;
using testing::range;
using testing::refused;
using testing::small_shape;
using testing::sound;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

class CausalCacheTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(sound(*cache_)); }

  ops::RopeParams rope_;
  std::shared_ptr<CausalCache> cache_ = host_cache(small_shape(), {rope_});
};

// ---- store, sequences, masks --------------------------------------------------------------------------------------

TEST_F(CausalCacheTest, StoresSuccessiveBatches) {
  append(*cache_, 0, {1, 2, 3, 4});
  append(*cache_, 0, {5, 6});
  EXPECT_EQ(cache_->length(0), 6);
  EXPECT_EQ(cache_->spans(0), (CellSpans{{0, 6, 0}}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), {1, 2, 3, 4, 5, 6}));
}

TEST_F(CausalCacheTest, GetReturnsHistoryAndCausalMask) {
  append(*cache_, 0, {1, 2, 3});
  const ForwardPtr forward = append(*cache_, 0, {4, 5});
  const CausalCache::History history = cache_->get(*forward, 3);
  EXPECT_EQ(history.k.shape(), (Shape{5, 2, 4}));
  EXPECT_EQ(history.v.shape(), (Shape{5, 2, 6}));
  const auto mask = history.mask.host_span<float>();
  EXPECT_EQ(std::vector<float>(mask.begin(), mask.end()), (std::vector<float>{0, 0, 0, 0, kHidden, 0, 0, 0, 0, 0}));
}

TEST_F(CausalCacheTest, SequencesDoNotSeeEachOther) {
  const std::vector<std::int32_t> positions{0, 0, 1, 1}, ids{0, 1, 0, 1};
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  put_all(*cache_, *forward, {10, 20, 11, 21});
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), {10, 11}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), {20, 21}));
  const CausalCache::History history = cache_->get(*forward, 0);
  const auto mask = history.mask.host_span<float>();
  ASSERT_EQ(history.mask.shape(), (Shape{4, 4}));
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t column = 0; column < 4; ++column) {
      const std::size_t owner = column / 2, position = column % 2;  // columns: sequence 0, then sequence 1
      const bool visible = owner == row % 2 && position <= row / 2;
      EXPECT_EQ(mask[row * 4 + column], visible ? 0.0f : kHidden) << row << ' ' << column;
    }
  }
}

TEST_F(CausalCacheTest, SharedCellsHaveOneColumn) {
  append(*cache_, 0, {1, 2, 3});
  cache_->copy_prefix(0, 1, 2);
  const std::vector<std::int32_t> positions{3, 2}, ids{0, 1};
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  put_all(*cache_, *forward, {4, 50});
  const CausalCache::History history = cache_->get(*forward, 0);
  EXPECT_EQ(history.mask.shape(), (Shape{2, 5})) << "1 2 3 4 and 50";
  const auto mask = history.mask.host_span<float>();
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 0.0f), 4 + 3);
}

TEST_F(CausalCacheTest, AttendAgreesWithDenseAttentionOverGet) {
  append(*cache_, 0, range(1, 8));
  const std::vector<std::int32_t> positions{7, 0, 8}, ids{0, 1, 0};
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  put_all(*cache_, *forward, {8, 40, 9});
  Tensor q = Tensor::host(DType::kFloat32, {3, 4, 4});
  for (std::size_t i = 0; i < q.size(); ++i) q.host_span<float>()[i] = 0.001f * static_cast<float>(i % 11) - 0.004f;
  const Tensor out = cache_->attend(*forward, 3, q, {});
  const CausalCache::History history = cache_->get(*forward, 3);
  Tensor dense = Tensor::host(DType::kFloat32, {3, 4, 6});
  ops::reference::attention(q.host_span<const float>(), {history.k.host_data(), DType::kFloat32},
                            {history.v.host_data(), DType::kFloat32}, 10, {4, 2, 4, 6},
                            history.mask.host_span<const float>(), {}, dense.host_span<float>());
  testing::Difference difference;
  for (std::size_t i = 0; i < out.size(); ++i) difference.add(out.host_span<float>()[i], dense.host_span<float>()[i]);
  EXPECT_WITHIN(difference.of_largest(), testing::kHostAndDevice);
}

// ---- forwards -----------------------------------------------------------------------------------------------------

TEST_F(CausalCacheTest, LayersComeInAnyOrderAndOnlyOnce) {
  const std::vector<std::int32_t> positions{0, 1}, ids{0, 0};
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  put_layer(*cache_, *forward, {1, 2}, 3);
  EXPECT_FALSE(forward->complete());
  EXPECT_EQ(cache_->length(0), 0);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_layer(*cache_, *forward, {1, 2}, 3); }));
  put_layer(*cache_, *forward, {1, 2}, 0);
  EXPECT_TRUE(forward->complete());
  EXPECT_FALSE(cache_->drop(*forward)) << "too late: whoever drops it has to know";
  EXPECT_EQ(cache_->length(0), 2);
}

TEST_F(CausalCacheTest, StartingAgainDropsAnIncompleteForward) {
  append(*cache_, 0, {1, 2});
  const std::vector<std::int32_t> positions{2, 3, 0}, ids{0, 0, 1};
  const ForwardPtr dropped = cache_->start_forward(positions, ids);
  put_layer(*cache_, *dropped, {3, 4, 5}, 0);
  EXPECT_EQ(cache_->free_cells(), 32u - 5u);
  append(*cache_, 0, {6});
  EXPECT_EQ(cache_->length(0), 3);
  EXPECT_EQ(cache_->length(1), 0);
  EXPECT_EQ(cache_->free_cells(), 32u - 3u);
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), {1, 2, 6}));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { put_layer(*cache_, *dropped, {3, 4, 5}, 3); }));
}

TEST_F(CausalCacheTest, DestroyingAForwardDropsIt) {
  const SequenceId id = cache_->open_sequence();
  const std::string before = cache_->dump();
  {
    const std::vector<ForwardRows> rows{{id, 5}};
    const ForwardPtr forward = cache_->begin(rows);
    put_layer(*cache_, *forward, range(0, 5), 0);
    EXPECT_EQ(cache_->free_cells(), 27u);
  }
  EXPECT_EQ(cache_->free_cells(), 32u);
  EXPECT_EQ(cache_->usage().held, 0u);
  cache_->close_sequence(id);
}

TEST_F(CausalCacheTest, SeveralForwardsMayBeOpenButNotOnOneSequence) {
  const SequenceId a = cache_->open_sequence(), b = cache_->open_sequence();
  const std::vector<ForwardRows> for_a{{a, 2}}, for_b{{b, 3}};
  const ForwardPtr first = cache_->begin(for_a);
  const ForwardPtr second = cache_->begin(for_b);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kBusy, [&] { cache_->begin(for_a); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kBusy, [&] { cache_->truncate(a, 0); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kBusy, [&] { cache_->defrag(); }));
  put_all(*cache_, *second, {7, 8, 9});
  put_all(*cache_, *first, {1, 2});
  EXPECT_TRUE(holds(*cache_, cache_->spans(a), {1, 2}));
  EXPECT_TRUE(holds(*cache_, cache_->spans(b), {7, 8, 9}));
}

TEST_F(CausalCacheTest, ClosingASequenceDropsItsForward) {
  const SequenceId a = cache_->open_sequence();
  const std::vector<ForwardRows> rows{{a, 2}};
  const ForwardPtr forward = cache_->begin(rows);
  cache_->close_sequence(a);
  EXPECT_EQ(cache_->free_cells(), 32u);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { put_layer(*cache_, *forward, {1, 2}, 0); }));
}

TEST_F(CausalCacheTest, ReserveOnlyChecksThatItFits) {
  const auto positions = range(0, 32);
  const std::vector<SequenceId> ids(32, 4);
  const std::string before = cache_->dump();
  EXPECT_EQ(cache_->start_forward(positions, ids, true), nullptr);
  EXPECT_EQ(cache_->dump(), before);
  append(*cache_, 0, {1});
  EXPECT_TRUE(refused(*cache_, ErrorKind::kCacheFull, [&] { cache_->start_forward(positions, ids, true); }));
}

TEST_F(CausalCacheTest, AFullCacheLeavesAllAsItWas) {
  append(*cache_, 0, range(0, 30));
  const std::vector<std::int32_t> positions{30, 31, 0}, ids{0, 0, 1};
  EXPECT_TRUE(refused(*cache_, ErrorKind::kCacheFull, [&] { cache_->start_forward(positions, ids); }));
  try {
    cache_->start_forward(positions, ids);
  } catch (const Error& error) {
    EXPECT_EQ(error.cache_full().needed, 3u);
    EXPECT_EQ(error.cache_full().free, 2u);
    EXPECT_EQ(error.cache_full().held_live, 30u);
  }
}

TEST_F(CausalCacheTest, AFullCacheAlsoLeavesTheIncompleteForward) {
  const std::vector<std::int32_t> one{0}, id{0};
  const ForwardPtr open = cache_->start_forward(one, id);
  const auto positions = range(0, 33);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kCacheFull,
                      [&] { cache_->start_forward(positions, std::vector<SequenceId>(33, 1)); }));
  put_all(*cache_, *open, {1});
  EXPECT_EQ(cache_->length(0), 1);
}

TEST_F(CausalCacheTest, TheLastCellsOfADroppedForwardServeTheNext) {
  const auto positions = range(0, 32);
  const std::vector<SequenceId> ids(32, 0);
  cache_->start_forward(positions, ids);
  const ForwardPtr again = cache_->start_forward(positions, ids);
  put_all(*cache_, *again, range(0, 32));
  EXPECT_EQ(cache_->free_cells(), 0u);
}

TEST_F(CausalCacheTest, AttendWorksAfterCompletionUntilTheSequenceIsCut) {
  const ForwardPtr forward = append(*cache_, 0, range(0, 4));
  const Tensor q = Tensor::host(DType::kFloat32, {4, 2, 4});
  cache_->attend(*forward, 0, q, {});
  append(*cache_, 0, {4, 5});
  cache_->attend(*forward, 0, q, {});
  cache_->defrag();
  cache_->attend(*forward, 0, q, {});
  cache_->remove(0, 3);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { cache_->attend(*forward, 0, q, {}); }));
}

TEST_F(CausalCacheTest, BadArgumentsAreNamedAndChangeNothing) {
  append(*cache_, 0, {1, 2, 3});
  const auto start = [&](std::vector<std::int32_t> positions, std::vector<SequenceId> ids) {
    return refused(*cache_, ErrorKind::kArgument, [&] { cache_->start_forward(positions, ids); });
  };
  EXPECT_TRUE(start({}, {}));
  EXPECT_TRUE(start({3}, {0, 0}));
  EXPECT_TRUE(start({4}, {0})) << "a gap";
  EXPECT_TRUE(start({2}, {0})) << "behind the end";
  EXPECT_TRUE(start({3, 3}, {0, 0}));
  EXPECT_TRUE(start({0}, {-1}));
  EXPECT_TRUE(start({0}, {kFirstOpenedSequence}));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->begin({}); }));
  const std::vector<ForwardRows> unknown{{77, 1}}, none{{0, 0}}, twice{{0, 1}, {0, 1}};
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->begin(unknown); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->begin(none); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->begin(twice); }));

  const std::vector<std::int32_t> positions{3}, ids{0};
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  const Tensor k = encoded(cache_->shape(), {4}, 0, false), v = encoded(cache_->shape(), {4}, 0, true);
  const auto put = [&](std::int32_t layer, const Tensor& keys, const Tensor& values, ErrorKind kind) {
    return refused(*cache_, kind, [&] { cache_->put(*forward, layer, keys, values); });
  };
  EXPECT_TRUE(put(1, k, v, ErrorKind::kArgument)) << "unknown layer";
  EXPECT_TRUE(put(0, v, k, ErrorKind::kArgument)) << "shapes swapped";
  EXPECT_TRUE(put(0, Tensor(), v, ErrorKind::kArgument));
  EXPECT_TRUE(put(0, Tensor::host(DType::kFloat32, {2, 2, 4}), v, ErrorKind::kArgument)) << "too many rows";
  EXPECT_TRUE(put(0, Tensor::host(DType::kInt32, {1, 2, 4}), v, ErrorKind::kType));
  const auto attend = [&](const Tensor& q, const ops::AttentionOptions& options, ErrorKind kind) {
    return refused(*cache_, kind, [&] { cache_->attend(*forward, 0, q, options); });
  };
  const Tensor q = Tensor::host(DType::kFloat32, {1, 4, 4});
  EXPECT_TRUE(attend(q, {}, ErrorKind::kArgument)) << "not put yet";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->get(*forward, 0); })) << "not put yet";
  cache_->put(*forward, 0, k, v);
  EXPECT_TRUE(attend(Tensor::host(DType::kFloat32, {1, 3, 4}), {}, ErrorKind::kArgument)) << "heads";
  EXPECT_TRUE(attend(Tensor::host(DType::kFloat32, {2, 4, 4}), {}, ErrorKind::kArgument)) << "rows";
  EXPECT_TRUE(attend(Tensor::host(DType::kFloat32, {1, 4, 5}), {}, ErrorKind::kArgument)) << "dim";
  EXPECT_TRUE(attend(Tensor::host(DType::kFloat16, {1, 4, 4}), {}, ErrorKind::kType));
  ops::AttentionOptions options;
  options.sinks = Tensor::host(DType::kFloat32, {3});
  EXPECT_TRUE(attend(q, options, ErrorKind::kArgument));
  const auto other = host_cache(small_shape());
  EXPECT_TRUE(refused(*other, ErrorKind::kArgument, [&] { other->put(*forward, 0, k, v); })) << "of another cache";
}

TEST(CausalCacheCreation, RefusesWhatDoesNotFitTogether) {
  const auto create = [](KvShape shape, CausalCache::Options options) {
    return CausalCache::create(std::make_unique<NullKvStore>(shape), std::move(options));
  };
  EXPECT_THROW(create(small_shape(0), {{0, 1}, {}, 4}), Error) << "capacity 0";
  EXPECT_THROW(create(small_shape(), {{0}, {}, 4}), Error) << "one layer short";
  EXPECT_THROW(create(small_shape(), {{0, 0}, {}, 4}), Error) << "twice the same";
  EXPECT_THROW(create(small_shape(), {{0, 1}, std::vector<ops::RopeParams>(3), 4}), Error) << "ropes";
  EXPECT_THROW(create(small_shape(8, DType::kInt32), {{0, 1}, {}, 4}), Error);
  KvShape huge = small_shape(0x7fffffff);
  huge.k_dim = huge.v_dim = huge.kv_heads = 0xffffffff;
  EXPECT_THROW(create(huge, {{0, 1}, {}, 4}), Error) << "overflow";
}

TEST(CausalCacheCreation, TheNullStoreNeedsNoTensors) {
  const auto cache = CausalCache::create(std::make_unique<NullKvStore>(small_shape()), {{0, 1}, {}, 4});
  const SequenceId id = cache->open_sequence();
  const std::vector<ForwardRows> rows{{id, 5}};
  const ForwardPtr forward = cache->begin(rows);
  cache->put(*forward, 0, {}, {});
  EXPECT_FALSE(cache->attend(*forward, 0, {}, {}).defined());
  cache->put(*forward, 1, {}, {});
  EXPECT_EQ(cache->length(id), 5);
}

TEST(CausalCacheLifetime, ForwardsAndListsMayOutliveTheCache) {
  ForwardPtr open, complete;
  SpanList lent;
  CausalCache::SnapshotPtr snapshot;
  {
    const auto cache = host_cache(small_shape());
    const SequenceId id = cache->open_sequence();
    complete = append(*cache, 0, {1, 2});
    snapshot = cache->snapshot(0, 0);
    const std::vector<ForwardRows> rows{{id, 3}};
    open = cache->begin(rows);
    lent = cache->claim(4, 0);
  }
  EXPECT_EQ(snapshot->nbytes(), 0u);
  EXPECT_EQ(snapshot->end(), 2);
  EXPECT_TRUE(complete->complete());
}

TEST_F(CausalCacheTest, BelongsToOnePrefixCache) {
  cache_->attach();
  EXPECT_THROW(cache_->attach(), Error);
  cache_->detach();
  cache_->attach();
}

TEST(CausalCacheThreads, DistinctSequencesMayBeDrivenFromDistinctThreads) {
  const auto cache = host_cache(small_shape(256));
  const auto work = [&](SequenceId seed) {
    for (std::int32_t round = 0; round < 50; ++round) {
      const SequenceId id = cache->open_sequence();
      const std::vector<ForwardRows> rows{{id, 8}};
      const ForwardPtr forward = cache->begin(rows);
      put_all(*cache, *forward, range(seed, seed + 8));
      const SpanList node = cache->lend(id, 0, 4);
      const SequenceId other = cache->open_sequence();
      cache->fork(id, other, 6);
      cache->close_sequence(id);
      cache->close_sequence(other);
    }
  };
  std::vector<std::thread> threads;
  for (SequenceId seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed * 100);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->usage().held, 0u);
  EXPECT_TRUE(sound(*cache));
}

}  // namespace
}  // namespace kvtrie
