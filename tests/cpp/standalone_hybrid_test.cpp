// Several caches as one: who answers, what all can do, and that a failure in one leaves all as they were.
#include <algorithm>

#include "hybrid_helpers.h"

namespace kvtrie::testing {
namespace {

using Tokens = HybridTokens;
using Twin = HybridTwin;
using SnapshotPtr = HybridCache::SnapshotPtr;

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Hybrid::Capacity kAll{40, 40, 12, 24};

// ---- who answers --------------------------------------------------------------------------------------------------

TEST(HybridTest, LayersDecideWhoAnswers) {
  const Hybrid all(kAll);
  EXPECT_EQ(all->layers(), (Tokens{0, 1, 2, 3, 4, 5, 7}));
  EXPECT_TRUE(all->has_layer(7));
  EXPECT_FALSE(all->has_layer(6));
  all.start(0, 2, {{0, 1, 3}});
  const Tensor none;
  const auto message = [&](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kArgument));
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { all->put(6, none, none); }), "[hybrid_cache.put] layer: got 6, allowed 0, 2 to 4, 7");
  EXPECT_EQ(message([&] { all->attend(1, none, {}); }), "[hybrid_cache.attend] layer: got 1, allowed 0, 2 to 4, 7");
  EXPECT_EQ(message([&] { all->get(5); }), "[hybrid_cache.get] layer: got 5, allowed 0, 2 to 4, 7");
  EXPECT_EQ(message([&] { all->conv(0, none, none); }), "[hybrid_cache.conv] layer: got 0, allowed 1, 5");
  EXPECT_EQ(message([&] { all->states(8); }), "[hybrid_cache.states] layer: got 8, allowed 1, 5");
  EXPECT_EQ(message([&] { all->boundaries(2); }), "[hybrid_cache.boundaries] layer: got 2, allowed 1, 5");
  EXPECT_NE(message([&] { all->put_states(2, none, none); }), "");
  EXPECT_NE(message([&] { all->gated_delta(2, none, none, none, none, none); }), "");
  EXPECT_EQ(std::get<std::shared_ptr<CausalCache>>(all->attention_component(3, "here")), all.window);
  EXPECT_EQ(std::get<std::shared_ptr<RecurrentCache>>(all->recurrent_component(5, "here")), all.states);
  EXPECT_EQ(all->row_starts(1), (Tokens{0, 2}));
  EXPECT_EQ(all->boundaries(5), (std::vector<Tokens>{{}}));
}

TEST(HybridTest, LayersAreInOneComponent) {
  const auto a = causal_of({0, 1}, 8), b = causal_of({1, 2}, 8);
  EXPECT_THROW(HybridCache::create({a, b}), Error);
  EXPECT_THROW(HybridCache::create({a, a}), Error);
  EXPECT_THROW(HybridCache::create({}), Error);
  EXPECT_THROW(HybridCache::create({std::shared_ptr<CausalCache>()}), Error);
  const auto one = HybridCache::create({a});
  EXPECT_THROW(one->put(0, {}, {}), Error) << "no forward was started";
  EXPECT_FALSE(one->complete());
  EXPECT_EQ(one->free_slots(), std::nullopt);
}

TEST(HybridTest, StepsRunInAllComponents) {
  const Hybrid all(kAll);
  all.append_item(0, {1, 2, 3}, 1, {60, 61});
  EXPECT_TRUE(all->complete());
  EXPECT_TRUE(is(all, 0, twin({1, 2, 3}, 1, {60, 61})));
  all.append(0, {4});
  all.append(3, {9, 8, 7, 6, 5, 4});
  EXPECT_TRUE(is(all, 0, twin({1, 2, 3, 4}, 1, {60, 61})));
  EXPECT_TRUE(is(all, 3, twin({9, 8, 7, 6, 5, 4})));
  all->start_forward(Tokens{4, 5, 6}, Tokens{0, 0, 3}, false, std::vector<EncoderItem>{{3, 6, 2}, {0, 4, 1}});
  EXPECT_FALSE(all->complete());
  all.write_all({5, 6, 3}, {70, 71, 80});
  EXPECT_TRUE(is(all, 0, twin({1, 2, 3, 4, 5, 6}, 4, {80})));
  EXPECT_TRUE(is(all, 3, twin({9, 8, 7, 6, 5, 4, 3}, 6, {70, 71})));
  all.start(5, 2);
  all.write_all({1, 2}, {90});  // the first put brings it
  EXPECT_TRUE(is(all, 5, twin({1, 2}, 0, {90})));
  EXPECT_EQ(all->free_cells(), 20u) << "of the items, the fewest";
  EXPECT_EQ(all->free_slots(), all.states->free_slots());
  EXPECT_EQ(all->nbytes(), all.causal->nbytes() + all.window->nbytes() + all.states->nbytes() + all.items->nbytes());
  EXPECT_EQ(all.states->free_slots(), 9u) << "nothing is held once a step is complete";
  EXPECT_TRUE(sound(all));
}

// ---- a step that cannot be in one component -------------------------------------------------------------------------

TEST(HybridTest, ACacheThatIsFullRefusesForAll) {
  struct Case {
    Hybrid::Capacity capacity;
    std::size_t rows;
    std::uint32_t item;
  };
  for (const Case& each : {Case{{40, 8, 12, 24}, 7, 0}, Case{{8, 40, 12, 24}, 7, 0}, Case{{40, 40, 2, 24}, 1, 0},
                           Case{{40, 40, 12, 4}, 1, 3}}) {
    const Hybrid all(each.capacity);
    all.append_item(0, {1, 2}, 0, {60, 61});
    if (each.capacity.slots == 2) all.append(1, {3});
    const std::vector<EncoderItem> items =
        each.item > 0 ? std::vector<EncoderItem>{{4, 0, each.item}} : std::vector<EncoderItem>{};
    for (const bool reserve : {true, false}) {
      const auto start = [&] {
        all->start_forward(range(0, static_cast<std::int32_t>(each.rows)), std::vector<SequenceId>(each.rows, 4),
                           reserve, items);
      };
      EXPECT_TRUE(refused(all, ErrorKind::kCacheFull, start));
      EXPECT_TRUE(all->complete());
      EXPECT_NO_THROW(all->get(4)) << "the complete step is untouched";
    }
    EXPECT_TRUE(is(all, 0, twin({1, 2}, 0, {60, 61})));
  }
}

TEST(HybridTest, AnOpenStepStaysWhenTheNextIsRefused) {
  const Hybrid all({16, 16, 6, 8});
  all.append(0, {1, 2});
  all.start(0, 2);
  all.write(0, {3, 4});
  EXPECT_TRUE(refused(all, ErrorKind::kCacheFull, [&] { all.start(1, 17); }));
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->start_forward(Tokens{3}, Tokens{0}); }));
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] {
    all->start_forward(Tokens{2, 0, 3}, Tokens{0, 1, 0});
  })) << "recurrent rows come together";
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] {
    all->start_forward(Tokens{2}, Tokens{0}, false, std::vector<EncoderItem>{{1, 0, 1}});
  }));
  for (const std::int32_t layer : {1, 3, 4, 5}) all.write(layer, {3, 4});
  EXPECT_TRUE(all->complete());
  EXPECT_TRUE(is(all, 0, twin({1, 2, 3, 4})));
  const Hybrid none({16, 0, 6, 0});
  EXPECT_TRUE(refused(none, ErrorKind::kArgument, [&] { none.start(0, 1, {{0, 0, 1}}); })) << "nobody takes items";
}

// ---- steps that end half-way ----------------------------------------------------------------------------------------

TEST(HybridTest, AStepThatEndsHalfWayIsTakenBack) {
  const std::size_t layers = 7;
  for (std::size_t written = 0; written < layers; ++written) {
    SCOPED_TRACE(written);
    const Hybrid all(kAll);
    all.append_item(0, {1, 2, 3, 4, 5, 6}, 1, {60, 61});
    all.append(1, {7});
    const Twin zero = twin({1, 2, 3, 4, 5, 6}, 1, {60, 61});
    const auto cells = all->free_cells();
    const auto slots = all->free_slots();
    all->start_forward(Tokens{6, 7, 1, 0}, Tokens{0, 0, 1, 2}, false, std::vector<EncoderItem>{{0, 7, 3}});
    all.write_all({50, 51, 52, 53}, {70, 71, 72}, written);
    EXPECT_EQ(all->length(0), 6);
    EXPECT_EQ(all->length(2), 0);
    EXPECT_TRUE(all->can_resume(0, 6));
    EXPECT_FALSE(all->can_resume(0, 7));
    EXPECT_FALSE(all->can_resume(0, 5)) << "a recurrent state exists at its own length";
    if (written % 3 == 0) all->drop_forward();
    if (written % 3 == 1) {
      EXPECT_EQ(all->snapshot(0, 0)->end(), 6);
    }
    all->start_forward(Tokens{6, 0}, Tokens{0, 2});  // the model is called again, with other tokens
    all.write_all({30, 31});
    EXPECT_TRUE(is(all, 0, twin(joined(zero.tokens, {30}), 1, {60, 61})));
    EXPECT_TRUE(is(all, 1, twin({7})));
    EXPECT_TRUE(is(all, 2, twin({31})));
    EXPECT_EQ(all->free_cells(), cells);
    EXPECT_EQ(*all->free_slots() + 1, *slots);
    EXPECT_TRUE(sound(all));
  }
}

TEST(HybridTest, EditingTakesBackOneThatIsHalfComplete) {
  for (std::size_t written = 0; written < 6; ++written) {
    SCOPED_TRACE(written);
    const Hybrid all(kAll);
    all.append(0, {1, 2, 3, 4, 5, 6});
    const SnapshotPtr before = all->snapshot(0, 0);
    all.start(0, 2);
    all.write_all({50, 51}, {}, written);
    EXPECT_THROW(all->remove(0, 7), Error);
    all->copy_prefix(0, 1, 6);
    EXPECT_TRUE(is(all, 1, twin({1, 2, 3, 4, 5, 6})));
    EXPECT_TRUE(all->restore(0, before, 6));
    EXPECT_TRUE(is(all, 0, twin({1, 2, 3, 4, 5, 6})));
    EXPECT_THROW(all.write(0, {50, 51}), Error) << "it was dropped";
    all.start(0, 2);
    all.write_all({50, 51}, {}, written);
    all->remove(0, 0);
    EXPECT_TRUE(is(all, 0, twin({})));
    EXPECT_TRUE(is(all, 1, twin({1, 2, 3, 4, 5, 6})));
    EXPECT_TRUE(sound(all));
  }
}

TEST(HybridTest, ALateItemIsTakenBackToo) {
  // The encoder cache's layers come last, and the item with the first put.
  const auto states = host_states(small_states(6));
  const auto items = host_items(item_shape(16));
  const auto both = HybridCache::create({states, items});
  both->start_forward(Tokens{0, 1}, Tokens{0, 0});
  for (const std::int32_t layer : {1, 5}) {
    const Tensor conv = Tensor::host(DType::kFloat32, {1, 3, 5}), delta = Tensor::host(DType::kFloat32, {1, 2, 3, 4});
    both->put_states(layer, conv, delta);
  }
  EXPECT_TRUE(both->complete());
  EXPECT_EQ(both->length(0), 2);
  both->put(2, encoded(items->shape(), {60, 61}, 2, false), encoded(items->shape(), {60, 61}, 2, true));
  EXPECT_FALSE(both->complete());
  EXPECT_EQ(both->length(0), 0);
  both->start_forward(Tokens{0}, Tokens{0});
  EXPECT_EQ(states->length(0), 0);
  EXPECT_EQ(items->free_cells(), 16u);
}

// ---- editing --------------------------------------------------------------------------------------------------------

TEST(HybridTest, ResumesWhereAllCan) {
  const Hybrid mixed({40, 0, 8, 0});
  mixed.append(0, {1, 2, 3, 4, 5});
  for (std::int32_t position = -1; position <= 6; ++position) {
    EXPECT_EQ(mixed->can_resume(0, position), position == 0 || position == 5) << position;
  }
  const Hybrid windows({40, 40, 0, 16});
  windows.append(0, range(0, 9));
  for (std::int32_t position = 0; position <= 10; ++position) {
    EXPECT_EQ(windows->can_resume(0, position), position == 0 || position == 9) << position;
  }
  EXPECT_TRUE(mixed->can_resume(7, 0));
  EXPECT_FALSE(mixed->can_resume(7, 1));
  const Hybrid chunks({40, 40, 0, 0, {0, 4}});
  chunks.append(0, range(0, 10));
  for (std::int32_t position = 0; position <= 10; ++position) {
    EXPECT_EQ(chunks->can_resume(0, position), position % 4 == 0 || position > 8) << position;
  }
  try {
    chunks->copy_prefix(0, 1, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kNotRestorable));
    EXPECT_EQ(error.nearest(), 4);
  }
}

TEST(HybridTest, RemovalsAreRefusedForAll) {
  const Hybrid mixed({40, 0, 8, 24});
  mixed.append_item(0, {1, 2, 3, 4, 5}, 3, {60});
  EXPECT_TRUE(refused(mixed, ErrorKind::kNotSupported, [&] { mixed->remove(0, 1, 2); })) << "the second is recurrent";
  EXPECT_TRUE(refused(mixed, ErrorKind::kNotRestorable, [&] { mixed->remove(0, 3); }));
  EXPECT_TRUE(refused(mixed, ErrorKind::kArgument, [&] { mixed->remove(0, 6); }));
  EXPECT_TRUE(refused(mixed, ErrorKind::kArgument, [&] { mixed->remove(0, 2, 6); }));
  const Hybrid chunks({40, 40, 0, 24, {0, 4}});
  chunks.append_item(0, range(0, 8), 3, {60});
  EXPECT_TRUE(refused(chunks, ErrorKind::kNotSupported, [&] { chunks->remove(0, 1, 2); })) << "the last has chunks";
  EXPECT_TRUE(refused(chunks, ErrorKind::kNotRestorable, [&] { chunks->remove(0, 3); }));
  const Hybrid windows({40, 40, 0, 24});
  windows.append(0, range(0, 8));
  EXPECT_TRUE(refused(windows, ErrorKind::kNotSupported, [&] { windows->remove(0, 6, 7); })) << "an incomplete window";
  windows->remove(0, 0, 1);  // what it sees later is whole
  EXPECT_TRUE(is(windows, 0, twin(range(1, 8)), false));
  windows->remove(0, 7);
  windows->remove(0, 7, 7);
  EXPECT_EQ(windows->length(0), 7);
}

TEST(HybridTest, ARemovalNeedsNoRoomInAnyComponent) {
  const auto wide = causal_of({0}, 40), narrow = causal_of({1}, 10);
  Hybrid two({0, 0, 0, 16});
  two.causal = wide;
  two.window = narrow;
  two.cache = HybridCache::create({wide, narrow, two.items});
  two.append_item(0, range(0, 6), 1, {60});
  two->copy_prefix(0, 1, 6);
  two.append(0, {70});
  two.append(1, {80, 81, 82});  // all 10 cells of the narrow one are held
  two->remove(1, 6);
  two->remove(1, 0, 3);
  EXPECT_TRUE(is(two, 1, twin({3, 4, 5}), false));
  EXPECT_TRUE(is(two, 0, twin({0, 1, 2, 3, 4, 5, 70}, 1, {60})));
  two->remove(0, 0, 1);
  EXPECT_TRUE(is(two, 0, twin({1, 2, 3, 4, 5, 70}, 0, {60}), false));
}

TEST(HybridTest, BusyInOneComponentRefusesForAll) {
  const Hybrid all(kAll);
  all.append(0, {1, 2});
  // Somebody who drives one component alone, under a number that only that one knows.
  const SequenceId own = all.states->open_sequence();
  const auto forward = all.states->begin(std::vector<ForwardRows>{{own, 1, {}}});
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->copy_prefix(0, own, 2); }));
  all.append(1, {3});
  const auto busy = all.window->begin(std::vector<ForwardRows>{{1, 1}});
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->copy_prefix(0, 1, 2); }));
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->remove(1, 0); }));
  const SnapshotPtr snapshot = all->snapshot(0, 0);
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->restore(1, snapshot, 2); }));
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->prepare_snapshots(1, {4}); }));
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->start_forward(Tokens{1}, Tokens{1}); }));
}

TEST(HybridTest, CopiesAreOneInAllComponents) {
  const Hybrid all(kAll);
  all.append_item(0, {1, 2, 3, 4, 5}, 2, {60, 61});
  all.append(1, {9, 9});
  all->prepare_snapshots(1, {4});
  EXPECT_TRUE(refused(all, ErrorKind::kNotRestorable, [&] { all->copy_prefix(0, 1, 3); }));
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->copy_prefix(0, 1, 6); }));
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->copy_prefix(0, -1, 5); }));
  all->copy_prefix(0, 1, 5);
  EXPECT_TRUE(all->take_snapshots(1).empty()) << "the schedule was the old one's";
  all.append(1, {6});
  EXPECT_TRUE(is(all, 1, twin({1, 2, 3, 4, 5, 6}, 2, {60, 61})));
  EXPECT_TRUE(is(all, 0, twin({1, 2, 3, 4, 5}, 2, {60, 61})));
  all->copy_prefix(0, 0, 5);
  all->copy_prefix(8, 1, 0);  // an unknown one is empty
  EXPECT_TRUE(is(all, 1, twin({})));
  EXPECT_THROW(all->copy_prefix(8, 1, 1), Error);
  all->copy_prefix(0, 0, 0);
  EXPECT_EQ(all->free_cells(), 24u);
  EXPECT_EQ(all->free_slots(), 12u);
}

TEST(HybridTest, CausalCachesAreToldWhatIsNotCausal) {
  const Hybrid all(kAll);
  all.start(0, 3);
  all->set_causal(std::vector<std::uint32_t>{0});
  all.write_all({1, 2, 3});
  for (const std::int32_t layer : {0, 3}) {
    const auto mask = all->get(layer).mask;
    EXPECT_EQ(mask.host_span<const float>()[2], 0.0f) << "row 0 sees the last";
  }
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->set_causal(std::vector<std::uint32_t>{1}); }));
  all.start(0, 2);
  all.write(3, {4, 5});
  all->get(3);  // the last component was read, the first was not
  EXPECT_TRUE(refused(all, ErrorKind::kArgument, [&] { all->set_causal(std::vector<std::uint32_t>{0}); }));
  all.write(0, {4, 5});
  const auto mask = all->get(0).mask;
  EXPECT_EQ(mask.host_span<const float>()[4], -INFINITY) << "it was not told, then";
  const Hybrid none({0, 0, 4, 8});
  none.start(0, 1);
  EXPECT_TRUE(refused(none, ErrorKind::kNotSupported, [&] { none->set_causal(std::vector<std::uint32_t>{0}); }));
}

TEST(HybridTest, CompactionIsForAll) {
  const Hybrid all(kAll);
  all.append_item(0, {1, 2, 3}, 0, {60});
  all.append_item(1, {4, 5, 6, 7, 8}, 0, {70, 71});
  all->remove(0, 0);
  all->defrag();
  EXPECT_EQ(all.causal->spans(1).front().cell, 0u);
  EXPECT_EQ(all.items->item(1)->cells.front().cell, 0u);
  EXPECT_TRUE(is(all, 1, twin({4, 5, 6, 7, 8}, 0, {70, 71})));
  all.start(1, 1);
  EXPECT_TRUE(refused(all, ErrorKind::kBusy, [&] { all->defrag(); }));
}

}  // namespace
}  // namespace kvtrie::testing
