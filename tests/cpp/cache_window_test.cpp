// Sliding windows and chunks: what rows see, what sequences keep, where they may go on. A window of W is W keys with
// the query's own; the old engine's promises hold for that definition.
#include <algorithm>

#include "cache/null_kv_store.h"
#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::holds;
using testing::host_cache;
using testing::nearest_of;
using testing::put_all;
using testing::put_layer;
using testing::range;
using testing::refused;
using testing::seen_by;
using testing::small_shape;
using testing::sound;
using Seen = std::vector<std::vector<std::int32_t>>;

std::shared_ptr<CausalCache> windowed(std::int32_t window, std::int32_t memory = 0, Cell cells = 32) {
  return host_cache(small_shape(cells), {ops::RopeParams{}}, 0, {window, 0}, memory);
}

std::shared_ptr<CausalCache> chunked(std::int32_t chunk, std::int32_t window = 0) {
  return host_cache(small_shape(), {ops::RopeParams{}}, 0, {window, chunk});
}

// ---- what rows see ------------------------------------------------------------------------------------------------

TEST(Window, HasWKeysWithItsOwn) {
  for (const std::int32_t window : {1, 4, 5, 6}) {
    const auto cache = windowed(window);
    const Seen seen = seen_by(*cache, *append(*cache, 0, range(0, 6)), 3);
    for (std::int32_t row = 0; row < 6; ++row) {
      EXPECT_EQ(seen[static_cast<std::size_t>(row)], range(std::max(0, row - window + 1), row + 1))
          << "window " << window << " row " << row;
    }
  }
}

TEST(Window, IsTheSameInSeparateBatches) {  // SWASeparateBatches
  const auto cache = windowed(3);
  append(*cache, 0, range(0, 4));
  append(*cache, 1, range(100, 102));
  const std::vector<std::int32_t> positions{4, 2, 5}, ids{0, 1, 0};
  const ForwardPtr forward = cache->start_forward(positions, ids);
  put_all(*cache, *forward, {4, 102, 5});
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{{2, 3, 4}, {100, 101, 102}, {3, 4, 5}}));
  EXPECT_EQ(cache->get(*forward, 0).k.dim(0), 7) << "no column that nobody sees";
}

TEST(Window, MemoryKeepsMoreThanIsSeen) {  // SWAMem
  const auto cache = windowed(2, 4);
  append(*cache, 0, range(0, 6));
  EXPECT_EQ(cache->held_from(0), 3);
  const ForwardPtr forward = append(*cache, 0, {6});
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{{5, 6}}));
  EXPECT_TRUE(holds(*cache, cache->spans(0), {4, 5, 6}));
}

TEST(Chunks, BeginAnewAtTheirBorders) {  // ChunkedAttention
  const auto cache = chunked(3);
  const Seen seen = seen_by(*cache, *append(*cache, 0, range(0, 8)), 0);
  EXPECT_EQ(seen, (Seen{{0}, {0, 1}, {0, 1, 2}, {3}, {3, 4}, {3, 4, 5}, {6}, {6, 7}}));
  EXPECT_TRUE(holds(*cache, cache->spans(0), {6, 7}));
  append(*cache, 0, {8});
  EXPECT_EQ(cache->length(0), 9);
  EXPECT_EQ(cache->held_from(0), 9) << "at a border nothing is seen";
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {9}), 0), (Seen{{9}}));
}

TEST(Chunks, MayHaveAWindowToo) {
  const auto cache = chunked(4, 2);
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, range(0, 6)), 0), (Seen{{0}, {0, 1}, {1, 2}, {2, 3}, {4}, {4, 5}}));
}

TEST(Window, RowsMaySeeWhatComesAfterThem) {
  const auto cache = windowed(3);
  append(*cache, 0, range(0, 4));
  const std::vector<std::int32_t> positions{4, 5, 6, 7}, ids(4, 0);
  const ForwardPtr forward = cache->start_forward(positions, ids);
  put_layer(*cache, *forward, range(4, 8), 0);
  const std::vector<std::uint32_t> image{1, 2}, beyond{4};
  cache->set_causal(*forward, image);
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{{2, 3, 4}, {3, 4, 5, 6, 7}, {4, 5, 6, 7}, {5, 6, 7}}));
  cache->set_causal(*forward, image);  // each layer may say it again
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->set_causal(*forward, {}); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->set_causal(*forward, beyond); }));
  put_layer(*cache, *forward, range(4, 8), 3);
  EXPECT_EQ(seen_by(*cache, *forward, 3)[1], range(3, 8));
}

TEST(FullAttention, RowsMaySeeWhatComesAfterThem) {
  const auto cache = host_cache(small_shape());
  const std::vector<std::int32_t> positions{0, 0, 1, 1}, ids{0, 1, 0, 1};
  const ForwardPtr forward = cache->start_forward(positions, ids);
  const std::vector<std::uint32_t> except{0};
  cache->set_causal(*forward, except);
  put_all(*cache, *forward, {10, 20, 11, 21});
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{{10, 11}, {20}, {10, 11}, {20, 21}}));
}

// ---- letting go ---------------------------------------------------------------------------------------------------

TEST(LettingGo, FollowsEachSequenceAlsoIdleOnes) {  // SWASeparateBatches: idle sequences keep no leftovers
  const auto cache = windowed(3, 0, 12);
  append(*cache, 0, range(0, 5));
  append(*cache, 1, range(50, 55));
  append(*cache, 2, range(90, 91));
  EXPECT_EQ(cache->held_from(0), 3);
  EXPECT_EQ(cache->held_from(1), 3);
  EXPECT_EQ(cache->usage().held, 5u);
  for (std::int32_t token = 5; token < 100; ++token) append(*cache, 0, {token});
  EXPECT_TRUE(holds(*cache, cache->spans(0), {98, 99}));
  EXPECT_TRUE(holds(*cache, cache->spans(1), {53, 54}));
  EXPECT_TRUE(sound(*cache));
}

TEST(LettingGo, WaitsForTheLastLayersAttention) {
  const auto cache = windowed(2);
  const ForwardPtr forward = append(*cache, 0, range(0, 6));
  EXPECT_EQ(cache->held_from(0), 5);
  EXPECT_EQ(cache->live_cells(), 6u);
  cache->defrag();
  EXPECT_EQ(seen_by(*cache, *forward, 3), (Seen{{0}, {0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}));
  append(*cache, 1, {80});
  EXPECT_EQ(cache->live_cells(), 2u);
  EXPECT_TRUE(refused(*cache, ErrorKind::kClosed, [&] { cache->get(*forward, 3); }));
}

TEST(LettingGo, EndsWithACut) {
  const auto cache = windowed(2, 4);
  const ForwardPtr forward = append(*cache, 0, range(0, 6));
  cache->truncate(0, 5);
  EXPECT_EQ(cache->live_cells(), 2u);
  cache->remove(0, 0);
  EXPECT_EQ(cache->live_cells(), 0u);
}

TEST(LettingGo, CountsBeforeItRefuses) {
  const auto cache = windowed(2, 0, 8);
  const ForwardPtr forward = append(*cache, 0, range(0, 6));  // holds 6, of which 5 go with the next step
  EXPECT_EQ(cache->free_cells(), 2u);
  const std::vector<std::int32_t> eight{0, 1, 2, 3, 4, 5, 6, 7}, ids(8, 1);
  EXPECT_TRUE(refused(*cache, ErrorKind::kCacheFull, [&] { cache->start_forward(eight, ids); }));
  EXPECT_EQ(seen_by(*cache, *forward, 0).size(), 6u) << "it still sees everything";
  const std::span<const std::int32_t> seven = std::span(eight).first(7);
  EXPECT_EQ(cache->start_forward(seven, std::span(ids).first(7), true), nullptr);
  EXPECT_EQ(cache->free_cells(), 2u);
  put_all(*cache, *cache->start_forward(seven, std::span(ids).first(7)), range(20, 27));
  EXPECT_TRUE(holds(*cache, cache->spans(0), {5}));
  EXPECT_TRUE(holds(*cache, cache->spans(1), {26}));
}

TEST(LettingGo, IsUpToTheCallerAfterBeginForward) {
  const auto cache = windowed(3);
  const SequenceId id = cache->open_sequence();
  const std::vector<ForwardRows> rows{{id, 6}};
  const ForwardPtr forward = cache->begin(rows);
  EXPECT_TRUE(refused(*cache, ErrorKind::kBusy, [&] { cache->release_unseen(id); }));
  put_all(*cache, *forward, range(0, 6));
  EXPECT_EQ(cache->held_from(id), 0);
  const SpanList node = cache->lend(id, 0, 5);
  cache->release_unseen(id);
  EXPECT_EQ(cache->held_from(id), 4);
  EXPECT_EQ(cache->borrowed_length(id), 5);
  EXPECT_EQ(cache->pool().holders_of(node.spans()[0].cell), 2u) << "the node and the forward";
  EXPECT_EQ(seen_by(*cache, *forward, 0)[2], range(0, 3));
  const std::vector<ForwardRows> next{{id, 1}};
  put_all(*cache, *cache->begin(next), {6});
  EXPECT_EQ(cache->pool().holders_of(node.spans()[0].cell), 1u);
  EXPECT_EQ(cache->live_cells(), 3u);
}

TEST(LettingGo, NeverWithEnoughMemory) {
  const auto cache = windowed(2, 32);
  append(*cache, 0, range(0, 20));
  EXPECT_EQ(cache->held_from(0), 0);
  EXPECT_TRUE(cache->can_resume(0, 3));
}

// ---- where a sequence may go on -----------------------------------------------------------------------------------

TEST(CanResume, NeedsTheWholeWindow) {
  const auto cache = windowed(4);
  append(*cache, 0, range(0, 3));
  for (std::int32_t position = 0; position <= 3; ++position) EXPECT_TRUE(cache->can_resume(0, position)) << position;
  append(*cache, 0, range(3, 10));  // holds [7, 10)
  for (std::int32_t position = 1; position < 10; ++position) EXPECT_FALSE(cache->can_resume(0, position)) << position;
  EXPECT_TRUE(cache->can_resume(0, 10));
  EXPECT_TRUE(cache->can_resume(0, 0)) << "nothing is seen at 0";
  EXPECT_FALSE(cache->can_resume(0, 11));
  EXPECT_FALSE(cache->can_resume(0, -1));
}

TEST(CanResume, ReachesBackAsFarAsMemoryHasMore) {  // CanResumeSWAMem
  const auto cache = windowed(4, 6);
  append(*cache, 0, range(0, 10));  // holds [5, 10)
  EXPECT_FALSE(cache->can_resume(0, 7));
  for (const std::int32_t position : {8, 9, 10}) EXPECT_TRUE(cache->can_resume(0, position)) << position;
  cache->truncate(0, 8);
  EXPECT_FALSE(cache->can_resume(0, 7));
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {60}), 0), (Seen{{5, 6, 7, 60}}));
}

TEST(CanResume, AnywhereInAChunkAndAtBorders) {
  const auto cache = chunked(4);
  append(*cache, 0, range(0, 10));  // holds [8, 10)
  for (const std::int32_t position : {0, 4, 8, 9, 10}) EXPECT_TRUE(cache->can_resume(0, position)) << position;
  for (const std::int32_t position : {1, 3, 5, 7}) EXPECT_FALSE(cache->can_resume(0, position)) << position;
  cache->truncate(0, 4);
  EXPECT_EQ(cache->length(0), 4);
  EXPECT_EQ(cache->usage().held, 0u);
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {70, 71}), 0), (Seen{{70}, {70, 71}}));
}

TEST(CanResume, AWindowOfOneSeesNothingBefore) {
  const auto cache = windowed(1);
  append(*cache, 0, range(0, 5));
  EXPECT_EQ(cache->held_from(0), 5);
  cache->truncate(0, 3);
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {60}), 0), (Seen{{60}}));
}

TEST(CanResume, CutsAndCopiesElsewhereAreRefused) {
  const auto cache = windowed(4);
  append(*cache, 0, range(0, 10));
  const SequenceId twin = cache->open_sequence();
  EXPECT_EQ(nearest_of(*cache, [&] { cache->truncate(0, 8); }), 0);
  EXPECT_EQ(nearest_of(*cache, [&] { cache->remove(0, 8); }), 0);
  EXPECT_EQ(nearest_of(*cache, [&] { cache->copy_prefix(0, 1, 8); }), 0);
  EXPECT_EQ(nearest_of(*cache, [&] { cache->fork(0, twin, 8); }), 0);
  EXPECT_FALSE(cache->restore(0, nullptr, 8));
  const auto chunks = chunked(4);
  append(*chunks, 0, range(0, 10));
  EXPECT_EQ(nearest_of(*chunks, [&] { chunks->truncate(0, 7); }), 4);
  EXPECT_TRUE(sound(*cache));
}

TEST(WindowCopies, ShareWhatIsHeldThenDiverge) {  // Copy
  const auto cache = windowed(3, 5);
  append(*cache, 0, range(0, 8));  // holds [4, 8)
  cache->copy_prefix(0, 1, 7);
  EXPECT_EQ(cache->held_from(1), 4);
  EXPECT_EQ(seen_by(*cache, *append(*cache, 1, {70}), 0), (Seen{{5, 6, 70}}));
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {8}), 0), (Seen{{6, 7, 8}}));
  EXPECT_TRUE(sound(*cache));
}

// ---- removals -----------------------------------------------------------------------------------------------------

TEST(WindowRemoval, InTheMiddleNeedsAWholeWindowAfterwards) {  // Remove; the old engine's hole
  const auto cache = windowed(4, 6);
  append(*cache, 0, range(0, 10));  // holds [5, 10); the query at 10 sees [7, 10)
  const auto remove = [&](std::int32_t begin, std::int32_t end) {
    return [&, begin, end] { cache->remove(0, begin, end); };
  };
  EXPECT_TRUE(refused(*cache, ErrorKind::kNotSupported, remove(6, 9))) << "7 would be left with [5, 6) and one more";
  cache->remove(0, 6, 8);
  EXPECT_EQ(cache->length(0), 8);
  EXPECT_TRUE(cache->is_private(0));
  EXPECT_TRUE(holds(*cache, cache->spans(0), {5, 8, 9}, /*keys=*/false));
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {60}), 0), (Seen{{5, 8, 9, 60}}));
  EXPECT_TRUE(sound(*cache));
}

TEST(WindowRemoval, OfWhatIsGoneOnlyMovesTheRestDown) {
  const auto cache = windowed(4);
  append(*cache, 0, range(0, 10));  // holds [7, 10)
  cache->remove(0, 2, 6);
  EXPECT_EQ(cache->length(0), 6);
  EXPECT_EQ(cache->held_from(0), 3);
  EXPECT_EQ(seen_by(*cache, *append(*cache, 0, {60}), 0), (Seen{{7, 8, 9, 60}}));
  cache->remove(0, 0, 4);
  EXPECT_EQ(cache->held_from(0), 0);
}

TEST(WindowRemoval, HasNoMeaningWithChunks) {
  const auto cache = chunked(4);
  append(*cache, 0, range(0, 7));
  EXPECT_TRUE(refused(*cache, ErrorKind::kNotSupported, [&] { cache->remove(0, 4, 5); }));
  cache->remove(0, 5);
  EXPECT_EQ(cache->length(0), 5);
}

// ---- creation -----------------------------------------------------------------------------------------------------

TEST(WindowCreation, RefusesWhatNoCacheCanDo) {
  const auto make = [](Visibility visibility, std::int32_t memory) {
    return [=] {
      CausalCache::Options options;
      options.layers = {0, 1};
      options.visibility = visibility;
      options.memory = memory;
      CausalCache::create(std::make_unique<NullKvStore>(small_shape()), options);
    };
  };
  const auto cache = windowed(2);
  for (const auto& [visibility, memory] : std::vector<std::pair<Visibility, std::int32_t>>{
           {{-1, 0}, 0}, {{0, -1}, 0}, {{4, 0}, -1}, {{4, 0}, 3}, {{0, 4}, 8}, {{4, 8}, 8}}) {
    EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, make(visibility, memory)));
  }
  EXPECT_TRUE(cache->is_windowed());
  EXPECT_EQ(cache->visibility(), (Visibility{2, 0}));
  EXPECT_FALSE(host_cache(small_shape())->is_windowed());
}

TEST(WindowCreation, NullStoresKeepTheBooks) {
  CausalCache::Options options;
  options.layers = {7, 2};
  options.visibility.window = 4;
  const auto cache = CausalCache::create(std::make_unique<NullKvStore>(small_shape()), options);
  for (std::int32_t step = 0; step < 40; ++step) {
    const std::vector<std::int32_t> position{step}, id{0};
    const ForwardPtr forward = cache->start_forward(position, id);
    for (const std::int32_t layer : {2, 7}) cache->put(*forward, layer, {}, {});
  }
  EXPECT_EQ(cache->length(0), 40);
  EXPECT_EQ(cache->usage().held, 4u) << "three of the window and the forward's one";
}

}  // namespace
}  // namespace kvtrie
