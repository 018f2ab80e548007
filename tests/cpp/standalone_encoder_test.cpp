// The encoder cache: what queries see, when an item is there, and how it follows its text.
#include <algorithm>
#include <cmath>

#include "cache/null_kv_store.h"
#include "encoder_helpers.h"

namespace kvtrie::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

class EncoderTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(sound(*cache_)); }
  std::uint64_t cells(std::uint64_t count) const { return count * cache_->shape().bytes_per_cell(); }

  std::shared_ptr<EncoderCache> cache_ = host_items(item_shape(16));
};

// ---- what queries see ---------------------------------------------------------------------------------------------

TEST_F(EncoderTest, EveryRowSeesAllOfTheItem) {
  const EncoderForwardPtr first = step_with(*cache_, 0, 4, 2, range(10, 15));
  EXPECT_TRUE(first->complete());
  EXPECT_EQ(cache_->length(0), 4);
  EXPECT_TRUE(has_item(*cache_, 0, 2, range(10, 15)));
  expect_attends(*cache_, *first, std::vector<Tokens>(4, range(10, 15)));  // rows before its position, too
  const EncoderForwardPtr next = text(*cache_, 0, 1);
  EXPECT_TRUE(next->complete()) << "it brings nothing";
  expect_attends(*cache_, *next, {range(10, 15)});
  EXPECT_EQ(cache_->length(0), 5);
}

TEST_F(EncoderTest, WithoutAnItemThereIsNothingToSee) {
  const EncoderForwardPtr forward = text(*cache_, 7, 2);
  expect_attends(*cache_, *forward, {{}, {}});
  const auto history = cache_->get(*forward, kFirst);
  EXPECT_EQ(history.k.shape(), (Shape{0, 2, 4}));
  EXPECT_EQ(history.mask.shape(), (Shape{2, 0}));
  EXPECT_EQ(cache_->length(7), 2);
  EXPECT_EQ(cache_->free_cells(), 16u);
}

TEST_F(EncoderTest, SequencesSeeTheirOwn) {
  step_with(*cache_, 1, 2, 0, range(20, 23));
  // Rows of 0 and 2 alternate with those of 1; both bring an item, in another order than their rows.
  const EncoderForwardPtr forward = cache_->start_forward(Tokens{0, 2, 0, 1, 3}, Tokens{0, 1, 2, 0, 1}, false,
                                                          std::vector<EncoderItem>{{2, 0, 2}, {0, 1, 3}});
  EXPECT_FALSE(forward->complete());
  put_item(*cache_, *forward, Tokens{40, 41, 50, 51, 52});
  EXPECT_TRUE(has_item(*cache_, 0, 1, {50, 51, 52}));
  EXPECT_TRUE(has_item(*cache_, 2, 0, {40, 41}));
  const Tokens zero{50, 51, 52}, one = range(20, 23), two{40, 41};
  expect_attends(*cache_, *forward, {zero, one, two, zero, one});
  const auto history = cache_->get(*forward, kSecond);
  ASSERT_EQ(history.mask.shape(), (Shape{5, 8}));
  const Tokens columns{50, 51, 52, 20, 21, 22, 40, 41};
  const Tensor wanted = encoded(cache_->shape(), columns, kSecond, true);
  EXPECT_TRUE(std::equal(wanted.host_span<float>().begin(), wanted.host_span<float>().end(),
                         history.v.host_span<float>().begin()));
  const std::vector<std::pair<std::size_t, std::size_t>> visible{{0, 3}, {3, 6}, {6, 8}, {0, 3}, {3, 6}};
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      const bool sees = column >= visible[row].first && column < visible[row].second;
      EXPECT_EQ(history.mask.host_span<float>()[row * 8 + column], sees ? 0.0f : -INFINITY) << row << ' ' << column;
    }
  }
}

TEST_F(EncoderTest, ASharedItemComesOnce) {
  step_with(*cache_, 0, 3, 1, range(5, 9));
  cache_->copy_prefix(0, 1, 2);
  const EncoderForwardPtr forward = cache_->start_forward(Tokens{3, 2}, Tokens{0, 1});
  EXPECT_EQ(cache_->get(*forward, kFirst).mask.shape(), (Shape{2, 4}));
  expect_attends(*cache_, *forward, {range(5, 9), range(5, 9)});
}

// ---- when it is there ---------------------------------------------------------------------------------------------

TEST_F(EncoderTest, AnItemReplacesTheOneBeforeWhenAllLayersWerePut) {
  step_with(*cache_, 0, 2, 0, range(10, 16));
  const EncoderForwardPtr forward = text(*cache_, 0, 3, {{0, 4, 7}});
  put_item_layer(*cache_, *forward, range(30, 37), kFirst);
  EXPECT_FALSE(forward->complete());
  EXPECT_EQ(cache_->length(0), 2);
  EXPECT_TRUE(has_item(*cache_, 0, 0, range(10, 16)));
  EXPECT_EQ(cache_->free_cells(), 3u);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument,
                      [&] { cache_->attend(*forward, kSecond, queries(cache_->shape(), 3), {}); }));
  put_item_layer(*cache_, *forward, range(30, 37), kSecond);
  EXPECT_TRUE(has_item(*cache_, 0, 4, range(30, 37)));
  EXPECT_EQ(cache_->length(0), 5);
  EXPECT_EQ(cache_->free_cells(), 9u);
  expect_attends(*cache_, *forward, std::vector<Tokens>(3, range(30, 37)));
}

TEST_F(EncoderTest, AnIncompleteForwardChangesNothing) {
  step_with(*cache_, 0, 2, 0, range(10, 16));
  const std::string before = cache_->dump();
  for (const bool drop : {false, true}) {
    const EncoderForwardPtr forward = text(*cache_, 0, 3, {{0, 2, 4}});
    put_item_layer(*cache_, *forward, range(30, 34), kFirst);
    if (drop) {
      cache_->drop(*forward);
      EXPECT_EQ(cache_->dump(), before);
    }
    const EncoderForwardPtr next = text(*cache_, 0, 1);  // ends it, too
    EXPECT_THROW(put_item_layer(*cache_, *forward, range(30, 34), kSecond), Error);
    expect_attends(*cache_, *next, {range(10, 16)});
    cache_->drop(*next);
    EXPECT_EQ(cache_->dump(), before) << "rows of a dropped forward do not count";
  }
}

TEST_F(EncoderTest, TheFirstPutBringsAnItemToOneSequence) {
  const EncoderForwardPtr forward = text(*cache_, 4, 3);
  EXPECT_EQ(cache_->length(4), 3);
  put_item_layer(*cache_, *forward, range(1, 6), kFirst);
  EXPECT_EQ(cache_->length(4), 0) << "from the first put on it is incomplete";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_item_layer(*cache_, *forward, range(1, 5), kSecond); }));
  put_item_layer(*cache_, *forward, range(1, 6), kSecond);
  EXPECT_EQ(cache_->length(4), 3);
  EXPECT_TRUE(has_item(*cache_, 4, 0, range(1, 6)));
  const EncoderForwardPtr two = cache_->start_forward(Tokens{3, 0}, Tokens{4, 5});
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_item_layer(*cache_, *two, range(1, 6), kFirst); }));
  const EncoderForwardPtr large = text(*cache_, 4, 1);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kCacheFull, [&] { put_item_layer(*cache_, *large, range(0, 12), kFirst); }));
  EXPECT_TRUE(large->complete());
  expect_attends(*cache_, *large, {range(1, 6)});
}

TEST_F(EncoderTest, RefusalsChangeNothing) {
  step_with(*cache_, 0, 2, 0, range(10, 16));
  const EncoderForwardPtr open = text(*cache_, 0, 2, {{0, 3, 6}});
  const auto start = [&](const Tokens& positions, const Tokens& sequences, const std::vector<EncoderItem>& items,
                         bool reserve = false) { cache_->start_forward(positions, sequences, reserve, items); };
  const auto refuses = [&](ErrorKind kind, auto... arguments) {
    return refused(*cache_, kind, [&] { start(arguments...); });
  };
  const std::vector<EncoderItem> none;
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{}, Tokens{}, none));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2, 3}, Tokens{0}, none));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2}, Tokens{-1}, none));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{3}, Tokens{0}, none)) << "a gap";
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2, 4}, Tokens{0, 0}, none));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{1}, Tokens{9}, none));
  using Items = std::vector<EncoderItem>;
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2}, Tokens{0}, Items{{1, 2, 1}})) << "no row of it";
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2}, Tokens{0}, Items{{0, 3, 1}})) << "not at a row";
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2}, Tokens{0}, Items{{0, 2, 0}}));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, Tokens{2}, Tokens{0}, Items{{0, 2, 1}, {0, 2, 1}}));
  for (const bool reserve : {false, true}) {
    EXPECT_TRUE(refuses(ErrorKind::kCacheFull, Tokens{2}, Tokens{0}, Items{{0, 2, 11}}, reserve));
  }
  const std::string before = cache_->dump();
  EXPECT_EQ(cache_->start_forward(Tokens{2}, Tokens{0}, true, Items{{0, 2, 10}}), nullptr) << "the open one's go";
  EXPECT_EQ(cache_->dump(), before) << "reserve sets nothing";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_item_layer(*cache_, *open, range(0, 6), 4); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_item_layer(*cache_, *open, range(0, 5), kFirst); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kBusy, [&] { cache_->defrag(); }));
  put_item(*cache_, *open, range(40, 46));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { put_item_layer(*cache_, *open, range(40, 46), kFirst); }));
  EXPECT_TRUE(has_item(*cache_, 0, 3, range(40, 46)));
}

// ---- how it follows its text --------------------------------------------------------------------------------------

TEST_F(EncoderTest, RemovalsTakeTheItemOrMoveIt) {
  struct Case {
    std::int32_t begin, end, length, position;  // position -1: the item goes
  };
  for (const Case& each :
       {Case{0, 2, 6, 2}, Case{0, 4, 4, 0}, Case{2, 4, 6, 2}, Case{0, 5, 3, -1}, Case{4, 5, 7, -1}, Case{5, 7, 6, 4},
        Case{3, 6, 5, -1}, Case{5, 8, 5, 4}, Case{4, 8, 4, -1}, Case{3, 3, 8, 4}}) {
    cache_->remove(0, 0);
    step_with(*cache_, 0, 8, 4, range(10, 13));
    cache_->remove(0, each.begin, each.end);
    EXPECT_EQ(cache_->length(0), each.length) << each.begin << ' ' << each.end;
    EXPECT_TRUE(has_item(*cache_, 0, each.position, range(10, 13))) << each.begin << ' ' << each.end;
    EXPECT_EQ(cache_->free_cells(), each.position < 0 ? 16u : 13u);
    EXPECT_TRUE(cache_->can_resume(0, each.length));
    EXPECT_TRUE(cache_->can_resume(0, 0));
    EXPECT_FALSE(cache_->can_resume(0, each.length + 1));
  }
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->remove(0, 9); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->remove(0, 2, 9); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->remove(5, 0, 1); }));
}

TEST_F(EncoderTest, AForwardNoticesThatItsItemWent) {
  const EncoderForwardPtr forward = step_with(*cache_, 0, 8, 4, range(10, 13));
  cache_->remove(0, 6);
  expect_attends(*cache_, *forward, std::vector<Tokens>(8, range(10, 13)));
  cache_->remove(0, 4);
  EXPECT_TRUE(
      refused(*cache_, ErrorKind::kClosed, [&] { cache_->attend(*forward, kFirst, queries(cache_->shape(), 8), {}); }));
}

TEST_F(EncoderTest, CopiesShareAndDiverge) {
  step_with(*cache_, 0, 8, 4, range(10, 13));
  cache_->copy_prefix(0, 1, 5);
  cache_->copy_prefix(0, 2, 4);
  EXPECT_EQ(cache_->free_cells(), 13u);
  EXPECT_TRUE(has_item(*cache_, 1, 4, range(10, 13)));
  EXPECT_TRUE(has_item(*cache_, 2, -1, {}));
  EXPECT_EQ(cache_->length(2), 4);
  cache_->remove(1, 0, 3);
  EXPECT_TRUE(has_item(*cache_, 1, 1, range(10, 13)));
  EXPECT_TRUE(has_item(*cache_, 0, 4, range(10, 13))) << "its own text did not move";
  step_with(*cache_, 1, 1, 2, range(60, 64));
  EXPECT_TRUE(has_item(*cache_, 0, 4, range(10, 13)));
  cache_->copy_prefix(0, 0, 4);
  EXPECT_TRUE(has_item(*cache_, 0, -1, {}));
  EXPECT_EQ(cache_->free_cells(), 12u);
  cache_->copy_prefix(1, 1, 3);
  EXPECT_TRUE(has_item(*cache_, 1, 2, range(60, 64)));
  cache_->copy_prefix(1, 0, 0);
  EXPECT_EQ(cache_->length(0), 0);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->copy_prefix(9, 0, 0); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->copy_prefix(1, 0, 4); }));
}

TEST_F(EncoderTest, EditingASequenceEndsItsForward) {
  text(*cache_, 0, 3);
  cache_->remove(0, 2);  // its rows count
  EXPECT_EQ(cache_->length(0), 2);
  EncoderForwardPtr forward =
      cache_->start_forward(Tokens{2, 0}, Tokens{0, 1}, false, std::vector<EncoderItem>{{1, 0, 2}});
  cache_->copy_prefix(0, 1, 1);  // drops the item of 1, and 1 stays known meanwhile
  EXPECT_EQ(cache_->length(1), 1);
  EXPECT_EQ(cache_->free_cells(), 16u);
  EXPECT_THROW(put_item_layer(*cache_, *forward, range(0, 2), kFirst), Error);
  forward = text(*cache_, 0, 1);
  EXPECT_TRUE(cache_->restore(0, nullptr, 3));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { put_item_layer(*cache_, *forward, range(0, 2), kFirst); }));
}

// ---- snapshots ----------------------------------------------------------------------------------------------------

TEST_F(EncoderTest, SnapshotsRestoreAnyTargetTheyReach) {
  step_with(*cache_, 0, 8, 4, range(10, 13));
  const auto whole = cache_->snapshot(0, 0), tail = cache_->snapshot(0, 3), after = cache_->snapshot(0, 5);
  EXPECT_EQ(cache_->snapshot(0, 8), nullptr);
  EXPECT_EQ(whole->shared_nbytes(), cells(3));
  EXPECT_EQ(after->nbytes() + after->shared_nbytes(), 0u);
  cache_->remove(0, 0);
  EXPECT_EQ(cache_->free_cells(), 13u);
  for (const std::int32_t target : {-1, 9}) EXPECT_FALSE(cache_->restore(1, whole, target));
  for (std::int32_t target = 0; target <= 8; ++target) {
    ASSERT_TRUE(cache_->restore(1, whole, target));
    EXPECT_EQ(cache_->length(1), target);
    EXPECT_TRUE(has_item(*cache_, 1, target > 4 ? 4 : -1, range(10, 13))) << target;
  }
  cache_->remove(1, 0);
  EXPECT_TRUE(cache_->restore(2, tail, 7)) << "it knows the item by itself";
  EXPECT_TRUE(has_item(*cache_, 2, 4, range(10, 13)));
  EXPECT_FALSE(cache_->restore(3, tail, 4)) << "what stands below 3 is not known";
  EXPECT_FALSE(cache_->restore(3, after, 8));
  step_with(*cache_, 3, 6, 1, range(50, 52));
  EXPECT_TRUE(cache_->restore(3, after, 8)) << "below the snapshot's start its own stays";
  EXPECT_TRUE(has_item(*cache_, 3, 1, range(50, 52)));
  EXPECT_TRUE(cache_->restore(3, tail, 5));
  EXPECT_TRUE(has_item(*cache_, 3, 4, range(10, 13)));
  EXPECT_TRUE(cache_->restore(3, tail, 2)) << "a cut";
  EXPECT_EQ(cache_->length(3), 2);
  EXPECT_TRUE(has_item(*cache_, 3, -1, {}));
  EXPECT_FALSE(cache_->restore(3, nullptr, 3));
  EXPECT_TRUE(cache_->restore(3, nullptr, 1));
  EXPECT_TRUE(cache_->restore(3, nullptr, 0));
}

TEST_F(EncoderTest, SplitAndMergeKeepTheItem) {
  step_with(*cache_, 0, 8, 4, range(10, 13));
  for (const std::int32_t at : {0, 2, 4, 5, 8}) {
    auto [lower, upper] = cache_->split(cache_->snapshot(0, 0), at);
    EXPECT_EQ(lower == nullptr, at == 0);
    EXPECT_EQ(upper == nullptr, at == 8);
    const auto& with = at > 4 ? lower : upper;
    EXPECT_EQ(with->shared_nbytes(), cells(3)) << at;
    const auto merged = cache_->merge(lower, upper);
    EXPECT_EQ(merged->start(), 0);
    EXPECT_EQ(merged->end(), 8);
    ASSERT_TRUE(cache_->restore(1, merged, 8));
    EXPECT_TRUE(has_item(*cache_, 1, 4, range(10, 13))) << at;
    EXPECT_TRUE(!lower || (lower->consumed() && lower->nbytes() == 0));
  }
  cache_->remove(1, 0);
  const auto older = cache_->snapshot(0, 0);
  step_with(*cache_, 0, 2, 9, range(70, 74));
  const auto merged = cache_->merge(older, cache_->snapshot(0, 8));
  EXPECT_EQ(merged->shared_nbytes(), cells(4)) << "the later one stays";
  EXPECT_EQ(cache_->free_cells(), 12u);
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { cache_->split(older, 3); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kClosed, [&] { cache_->restore(0, older, 3); }));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->merge(merged, merged); }));
  EXPECT_EQ(cache_->merge(nullptr, nullptr), nullptr);
  const auto other = host_items(item_shape(16));
  EXPECT_THROW(other->restore(0, merged, 1), Error);
}

TEST_F(EncoderTest, ScheduledCapturesTile) {
  cache_->prepare_snapshots(0, {0, 2, 5, 9, 20});
  step_with(*cache_, 0, 4, 3, range(10, 13));
  text(*cache_, 0, 3);
  step_with(*cache_, 0, 3, 8, range(30, 32));
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {30}); }));
  const auto taken = cache_->take_snapshots(0);
  ASSERT_EQ(taken.size(), 5u);
  EXPECT_EQ(taken[0], nullptr);
  EXPECT_EQ(taken[4], nullptr);
  EXPECT_EQ((Tokens{taken[1]->start(), taken[1]->end(), taken[2]->start(), taken[2]->end(), taken[3]->end()}),
            (Tokens{0, 2, 2, 5, 9}));
  EXPECT_EQ(taken[1]->nbytes(), 0u);
  EXPECT_EQ(taken[2]->nbytes(), cells(3)) << "it alone has the item that was replaced";
  EXPECT_TRUE(cache_->restore(1, cache_->merge(taken[1], taken[2]), 5));
  EXPECT_TRUE(has_item(*cache_, 1, 3, range(10, 13)));
  EXPECT_TRUE(cache_->take_snapshots(0).empty());
  cache_->prepare_snapshots(0, {12});
  text(*cache_, 0, 4);
  ASSERT_NE(cache_->take_snapshots(0).front(), nullptr) << "rows that bring nothing count at once";
  EXPECT_TRUE(refused(*cache_, ErrorKind::kArgument, [&] { cache_->prepare_snapshots(0, {13}); }));
}

// ---- compaction, creation, ends ----------------------------------------------------------------------------------

TEST_F(EncoderTest, CompactionKeepsLabelAndData) {
  step_with(*cache_, 0, 2, 0, range(0, 4));
  step_with(*cache_, 1, 2, 0, range(20, 26));
  step_with(*cache_, 2, 2, 1, range(40, 43));
  cache_->remove(0, 0);
  const EncoderForwardPtr forward = cache_->start_forward(Tokens{2, 2}, Tokens{1, 2});
  expect_attends(*cache_, *forward, {range(20, 26), range(40, 43)});
  cache_->defrag();
  expect_attends(*cache_, *forward, {range(20, 26), range(40, 43)});
  EXPECT_EQ(cache_->item(1)->cells.front().cell, 0u);
  EXPECT_TRUE(has_item(*cache_, 1, 0, range(20, 26)));
  EXPECT_TRUE(has_item(*cache_, 2, 1, range(40, 43)));
}

TEST_F(EncoderTest, NothingIsLeftWhenTheCacheGoes) {
  step_with(*cache_, 0, 2, 0, range(0, 4));
  const auto snapshot = cache_->snapshot(0, 0);
  const EncoderForwardPtr forward = text(*cache_, 0, 1, {{0, 2, 3}});
  cache_ = host_items(item_shape(16));
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), 0u);
  EXPECT_EQ(snapshot->end(), 2);
  EXPECT_THROW(put_item_layer(*cache_, *forward, range(0, 3), kFirst), Error);
}

TEST(EncoderCreationTest, LayersAreCheckedAndNullStoresCount) {
  const auto make = [](std::vector<std::int32_t> layers) {
    return EncoderCache::create(std::make_unique<NullKvStore>(item_shape(8)), std::move(layers));
  };
  EXPECT_THROW({ make({1}); }, Error);
  EXPECT_THROW({ make({1, 1}); }, Error);
  const auto cache = make({1, 4});
  const EncoderForwardPtr forward = text(*cache, 0, 2, {{0, 0, 5}});
  for (const std::int32_t layer : {1, 4}) cache->put(*forward, layer, {}, {});
  cache->attend(*forward, 1, {}, {});
  EXPECT_EQ(cache->get(*forward, 4).mask.shape(), (Shape{2, 5}));
  EXPECT_EQ(cache->free_cells(), 3u);
  EXPECT_EQ(cache->nbytes(), 8 * cache->shape().bytes_per_cell());
  EXPECT_TRUE(cache->has_layer(4));
  EXPECT_FALSE(cache->has_layer(0));
}

}  // namespace
}  // namespace kvtrie::testing
