// Recurrent caches on host memory: forwards, boundaries, what is refused, and images.
#include <gtest/gtest.h>

#include <numeric>

#include "state_helpers.h"

namespace kvtrie::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

// The outputs of the last `count` tokens of a history, as a forward gives them.
std::vector<float> outputs_of(PointPtr point, std::size_t count, std::size_t layer, bool delta) {
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i < count; ++i, point = point->before) {
    rows.push_back(delta ? point->layers[layer].out : point->layers[layer].y);
  }
  std::vector<float> all;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) all.insert(all.end(), row->begin(), row->end());
  return all;
}

TEST(RecurrentCache, StartsFromZerosThatNobodyHolds) {  // GetLazyInit
  const auto cache = host_states(small_states());
  const auto forward = start(*cache, 0, 2);
  const auto [conv, delta] = cache->states(*forward, 5);
  EXPECT_EQ(conv.shape(), (Shape{1, 3, 5}));
  EXPECT_EQ(delta.shape(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(numbers_of(conv), std::vector<float>(15, 0.0f));
  EXPECT_EQ(numbers_of(delta), std::vector<float>(24, 0.0f));
  EXPECT_FALSE(cache->slot(0));
  EXPECT_EQ(cache->free_slots(), 15u);  // the end of the open forward
  EXPECT_EQ(delta.dtype(), DType::kFloat32);
}

TEST(RecurrentCache, AForwardAdvancesAndLeavesTheOldStateAlone) {  // PutAdvances
  const auto cache = host_states(small_states());
  const StepOutputs first = append(*cache, 0, {1, 2, 3});
  const PointPtr three = history(*cache, {1, 2, 3});
  EXPECT_EQ(cache->length(0), 3);
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), three));
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(first.y[layer], outputs_of(three, 3, layer, false));
    EXPECT_EQ(first.out[layer], outputs_of(three, 3, layer, true));
  }
  const SlotRef held = cache->slot(0);
  append(*cache, 0, {4});
  EXPECT_TRUE(holds_state(*cache, held.slot(), three));
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3, 4})));
  EXPECT_EQ(cache->free_slots(), 14u);
  EXPECT_TRUE(sound(*cache));
}

TEST(RecurrentCache, AnOldStateThatNobodyHoldsGoesBack) {
  const auto cache = host_states(small_states(2));
  for (std::int32_t token = 0; token < 9; ++token) append(*cache, 0, {token});
  EXPECT_EQ(cache->free_slots(), 1u);
}

TEST(RecurrentCache, SequencesOfDifferentLengthShareAStep) {
  const auto cache = host_states(small_states());
  append(*cache, 3, {9, 8});
  const auto forward = cache->start_forward(Tokens{2, 3, 0, 0, 1, 2}, Tokens{3, 3, 1, 7, 7, 7});
  run_forward(*cache, *forward, {7, 6, 5, 9, 8, 1});
  EXPECT_TRUE(forward->complete());
  EXPECT_FALSE(cache->drop(*forward)) << "too late: whoever drops it has to know";
  EXPECT_TRUE(holds_state(*cache, cache->slot(3).slot(), history(*cache, {9, 8, 7, 6})));
  EXPECT_TRUE(holds_state(*cache, cache->slot(1).slot(), history(*cache, {5})));
  EXPECT_TRUE(holds_state(*cache, cache->slot(7).slot(), history(*cache, {9, 8, 1})));
}

TEST(RecurrentCache, BoundariesComeOutOfTheSameForward) {  // SnapshotSplitsAndSegmentedCapture
  const auto cache = host_states(small_states());
  const SequenceId a = cache->open_sequence(), b = cache->open_sequence();
  const std::vector<ForwardRows> rows{{a, 6, {1, 4}}, {b, 3, {}}};
  const auto forward = cache->begin(rows);
  EXPECT_EQ(cache->free_slots(), 12u);
  EXPECT_EQ(forward->boundaries(), (std::vector<Tokens>{{1, 4}, {}}));
  EXPECT_THROW(forward->take_captured(0), Error);  // not complete
  run_forward(*cache, *forward, {1, 2, 3, 4, 5, 6, 1, 2, 9});
  std::vector<HeldState> captured = forward->take_captured(0);
  ASSERT_EQ(captured.size(), 2u);
  EXPECT_TRUE(holds_state(*cache, captured[0].slot().slot(), history(*cache, {1})));
  EXPECT_TRUE(holds_state(*cache, captured[1].slot().slot(), history(*cache, {1, 2, 3, 4})));
  EXPECT_TRUE(holds_state(*cache, cache->slot(a).slot(), history(*cache, {1, 2, 3, 4, 5, 6})));
  EXPECT_TRUE(holds_state(*cache, cache->slot(b).slot(), history(*cache, {1, 2, 9})));
  EXPECT_TRUE(forward->take_captured(0).empty());
  EXPECT_TRUE(forward->take_captured(1).empty());
  captured.clear();
  EXPECT_EQ(cache->free_slots(), 14u);
  cache->close_sequence(a);
  cache->close_sequence(b);
  EXPECT_EQ(cache->free_slots(), 16u);
}

TEST(RecurrentCache, CutsChangeNoBit) {  // SegmentEquivalence
  const StateShape shape = small_states(40);
  const auto cache = host_states(shape);
  Tokens tokens(24), all(23);
  std::iota(tokens.begin(), tokens.end(), 100);
  std::iota(all.begin(), all.end(), 1);
  const SequenceId a = cache->open_sequence(), b = cache->open_sequence();
  const StepOutputs whole = run_forward(*cache, *cache->begin(std::vector<ForwardRows>{{a, 24, {}}}), tokens);
  const StepOutputs cut = run_forward(*cache, *cache->begin(std::vector<ForwardRows>{{b, 24, all}}), tokens);
  EXPECT_EQ(whole.y, cut.y);
  EXPECT_EQ(whole.out, cut.out);
}

TEST(RecurrentCache, PaddingBelongsToNobody) {  // PaddedRoundTrip
  const auto cache = host_states(small_states());
  const auto forward = cache->start_forward(Tokens{0, 1, 0, 0, 0}, Tokens{0, 0, 4, -1, -1});
  EXPECT_EQ(forward->rows(), 5u);
  EXPECT_EQ(forward->boundaries().size(), 2u);
  const StepOutputs outputs = run_forward(*cache, *forward, {1, 2, 3, 77, 78});
  for (const auto& y : outputs.y) {
    EXPECT_EQ(y.size(), 25u);
    for (const float number : y) EXPECT_FALSE(std::isnan(number));
  }
  EXPECT_EQ(cache->length(0), 2);
  EXPECT_EQ(cache->length(4), 1);
  EXPECT_EQ(cache->free_slots(), 14u);
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2})));
}

TEST(RecurrentCache, StatesPutByTheModelAreTheStates) {
  const auto cache = host_states(small_states());
  const SequenceId a = cache->open_sequence(), b = cache->open_sequence();
  const auto forward = cache->begin(std::vector<ForwardRows>{{a, 3, {2}}, {b, 1, {}}});
  const std::vector<PointPtr> points{history(*cache, {1, 2}), history(*cache, {1, 2, 3}), history(*cache, {9})};
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<float> conv, delta;
    for (const PointPtr& point : points) {
      conv.insert(conv.end(), point->layers[i].conv.begin(), point->layers[i].conv.end());
      delta.insert(delta.end(), point->layers[i].delta.begin(), point->layers[i].delta.end());
    }
    const std::int32_t layer = cache->layers()[i];
    const Tensor conv_tensor = placed(nullptr, conv, {3, 3, 5}), delta_tensor = placed(nullptr, delta, {3, 2, 3, 4});
    EXPECT_TRUE(refused(*cache, ErrorKind::kArgument,
                        [&] { cache->put_states(*forward, layer, conv_tensor.slice(0, 2), delta_tensor); }));
    if (i == 0) {
      cache->put_states(*forward, layer, conv_tensor, delta_tensor);
    } else {  // half by half
      cache->put_states(*forward, layer, {}, delta_tensor);
      EXPECT_TRUE(refused(*cache, ErrorKind::kArgument,
                          [&] { cache->put_states(*forward, layer, conv_tensor, delta_tensor); }));
      cache->put_states(*forward, layer, conv_tensor, {});
    }
  }
  EXPECT_TRUE(forward->complete());
  EXPECT_TRUE(holds_state(*cache, forward->take_captured(0).front().slot().slot(), points[0]));
  EXPECT_TRUE(holds_state(*cache, cache->slot(a).slot(), points[1]));
  EXPECT_TRUE(holds_state(*cache, cache->slot(b).slot(), points[2]));
}

TEST(RecurrentCache, ADroppedForwardGivesItsSlotsBack) {
  const auto cache = host_states(small_states(4));
  append(*cache, 0, {1});
  {
    const SequenceId id = cache->open_sequence();
    const auto forward = cache->begin(std::vector<ForwardRows>{{id, 3, {1, 2}}});
    EXPECT_EQ(cache->free_slots(), 0u);
    EXPECT_TRUE(refused(*cache, ErrorKind::kCacheFull, [&] { start(*cache, 0, 1); }));
    EXPECT_TRUE(refused(*cache, ErrorKind::kCacheFull, [&] { cache->claim(1); }));
    cache->close_sequence(id);
    EXPECT_THROW(cache->states(*forward, 1), Error);
  }
  EXPECT_EQ(cache->free_slots(), 3u);
  const auto open = start(*cache, 0, 1);
  const auto next = start(*cache, 0, 2);  // replaces it
  EXPECT_EQ(cache->free_slots(), 2u);
  EXPECT_THROW(cache->states(*open, 1), Error);
  EXPECT_TRUE(cache->drop(*next));
  EXPECT_FALSE(cache->drop(*next)) << "it was dropped before";
  EXPECT_EQ(cache->free_slots(), 3u);
  EXPECT_EQ(cache->length(0), 1);
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1})));
}

TEST(RecurrentCache, AReservationChangesNothing) {
  const auto cache = host_states(small_states(2));
  const auto open = start(*cache, 0, 1);
  EXPECT_EQ(cache->start_forward(Tokens{0, 0}, Tokens{5, 6}, true), nullptr);
  EXPECT_TRUE(refused(*cache, ErrorKind::kCacheFull, [&] {
    cache->start_forward(Tokens{0, 0, 0}, Tokens{5, 6, 7}, true);
  }));
  run_forward(*cache, *open, {1});
  EXPECT_TRUE(open->complete());
  EXPECT_TRUE(refused(*cache, ErrorKind::kCacheFull, [&] { cache->start_forward(Tokens{0, 0}, Tokens{5, 6}); }));
}

TEST(RecurrentCache, RefusesWrongForwards) {
  const auto cache = host_states(small_states());
  append(*cache, 0, {1, 2});
  const SequenceId a = cache->open_sequence();
  const auto refuses = [&](ErrorKind kind, const Tokens& positions, const Tokens& sequences) {
    return refused(*cache, kind, [&] { cache->start_forward(positions, sequences); });
  };
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {}, {}));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {2}, {0, 0}));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {1}, {0}));              // not the length
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {2, 4}, {0, 0}));        // a gap
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {2, 0, 3}, {0, 1, 0}));  // not consecutive
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {0, 2}, {-1, 0}));       // padding in front
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {0}, {-1}));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {0}, {-2}));
  EXPECT_TRUE(refuses(ErrorKind::kArgument, {0}, {kFirstOpenedSequence}));
  const auto begins = [&](ErrorKind kind, std::vector<ForwardRows> rows) {
    return refused(*cache, kind, [&] { cache->begin(rows); });
  };
  EXPECT_TRUE(begins(ErrorKind::kArgument, {}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 0, {}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a + 1, 1, {}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 1, {}}, {a, 1, {}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 4, {0}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 4, {4}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 4, {2, 2}}}));
  EXPECT_TRUE(begins(ErrorKind::kArgument, {{a, 0xffffffffu, {}}}));
  const auto open = cache->begin(std::vector<ForwardRows>{{a, 1, {}}});
  EXPECT_TRUE(begins(ErrorKind::kBusy, {{a, 1, {}}}));
  EXPECT_TRUE(refused(*cache, ErrorKind::kBusy, [&] { cache->resume(a, 0, {}); }));
}

TEST(RecurrentCache, RefusesWrongOperands) {
  const auto cache = host_states(small_states());
  const auto other = host_states(small_states());
  const auto forward = start(*cache, 0, 2);
  const auto tensor = [](Shape shape, DType dtype = DType::kFloat32) { return Tensor::host(dtype, shape); };
  const auto conv = [&](std::int32_t layer, Tensor x, Tensor weight) {
    return [&, layer, x, weight] { cache->conv(*forward, layer, x, weight); };
  };
  const Tensor x = tensor({2, 5}), weight = tensor({5, 4});
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, conv(2, x, weight)));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, conv(1, tensor({1, 5}), weight)));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, conv(1, x, tensor({5, 3}))));
  EXPECT_TRUE(refused(*cache, ErrorKind::kType, conv(1, tensor({2, 5}, DType::kFloat16), weight)));
  const auto delta = [&](Shape q, Shape k, Shape v, Shape g, Shape beta) {
    return refused(*cache, ErrorKind::kArgument,
                   [&] { cache->gated_delta(*forward, 1, tensor(q), tensor(k), tensor(v), tensor(g), tensor(beta)); });
  };
  EXPECT_TRUE(delta({2, 3, 4}, {2, 3, 4}, {2, 2, 3}, {2, 2}, {2, 2}));  // 3 does not divide 2
  EXPECT_TRUE(delta({2, 1, 4}, {2, 2, 4}, {2, 2, 3}, {2, 2}, {2, 2}));
  EXPECT_TRUE(delta({2, 1, 4}, {2, 1, 4}, {2, 2, 4}, {2, 2}, {2, 2}));
  EXPECT_TRUE(delta({2, 1, 4}, {2, 1, 4}, {2, 2, 3}, {2, 1}, {2, 2}));
  EXPECT_TRUE(delta({2, 1, 4}, {2, 1, 4}, {2, 2, 3}, {2, 2}, {1, 2}));
  EXPECT_TRUE(refused(*cache, ErrorKind::kType, [&] {
    cache->put_states(*forward, 1, {}, tensor({1, 2, 3, 4}, DType::kFloat16));
  }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->put_states(*forward, 1, {}, {}); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { other->states(*forward, 1); }));
  cache->conv(*forward, 1, x, weight);
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, conv(1, x, weight)));  // a second time
  run_forward(*other, *start(*other, 0, 1), {1});
  EXPECT_THROW(other->states(*other->current_forward(), 1), Error);  // complete
  EXPECT_THROW(host_states(small_states())->current_forward(), Error);
}

TEST(RecurrentCache, OneKindOfStateIsEnough) {
  for (const bool with_conv : {true, false}) {
    StateShape shape = small_states();
    (with_conv ? shape.v_heads : shape.conv_tail) = 0;
    if (with_conv) shape.v_dim = shape.k_dim = 0;
    if (!with_conv) shape.conv_dim = 0;
    const auto cache = host_states(shape);
    append(*cache, 0, {1, 2});
    append(*cache, 0, {3});
    EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3})));
    const auto forward = start(*cache, 0, 1);
    const auto [conv, delta] = cache->states(*forward, 1);
    EXPECT_EQ(conv.defined(), with_conv);
    EXPECT_EQ(delta.defined(), !with_conv);
    const Tensor x = Tensor::host(DType::kFloat32, {1, 5});
    EXPECT_TRUE(refused(*cache, ErrorKind::kNotSupported, [&] {
      if (with_conv) cache->gated_delta(*forward, 1, x, x, x, x, x);
      if (!with_conv) cache->conv(*forward, 1, x, x);
    }));
  }
}

TEST(RecurrentCache, HalfPrecisionIsForTheConvStateOnly) {
  StateShape shape = small_states();
  shape.dtype = DType::kFloat16;
  const auto cache = host_states(shape);
  append(*cache, 0, {1, 2, 3, 4, 5});
  EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3, 4, 5})));
  EXPECT_EQ(cache->states(*start(*cache, 0, 1), 1).conv.dtype(), DType::kFloat16);
}

TEST(RecurrentCache, IsDrivenAsEveryLayerCache) {
  const auto cache = host_states(small_states(6)), other = host_states(small_states(6));
  LayerCache& layers = *cache;
  const SequenceId id = layers.open_sequence(), twin = layers.open_sequence();
  EXPECT_EQ(layers.units_for(id, 5, std::vector<std::int32_t>{2, 3}), 3u);
  run_forward(*cache, *cache->begin(std::vector<ForwardRows>{{id, 5}}), {1, 2, 3, 4, 5});
  EXPECT_TRUE(layers.can_resume(id, 0) && layers.can_resume(id, 5));
  for (const std::int32_t length : {-1, 3, 6}) {
    EXPECT_FALSE(layers.can_resume(id, length));
    EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { layers.truncate(id, length); }));
    EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { layers.fork(id, twin, length); }));
  }
  const std::vector<ForwardRows> below{{id, 1, {}, 3}}, next{{id, 1, {}, 5}};
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { layers.begin(below); }));
  const LayerForwardPtr open = layers.begin(next);
  EXPECT_FALSE(other->drop(*open)) << "another cache's";
  EXPECT_TRUE(layers.drop(*open));
  EXPECT_FALSE(layers.drop(*open)) << "dropped before";
  layers.fork(id, twin, 5);
  layers.truncate(id, 5);
  EXPECT_EQ(layers.freed_by(layers.hold(id, 5)), 0u) << "three hold it";
  layers.truncate(id, 0);
  EXPECT_TRUE(layers.hold(id, 0).empty());
  EXPECT_EQ(layers.free_units(), 5u);
}

TEST(RecurrentCache, AnImageComesBackByteForByte) {
  const auto cache = host_states(small_states(3));
  append(*cache, 0, {1, 2, 3});
  std::vector<std::byte> image(cache->shape().bytes_per_slot()), again(image.size());
  cache->store_image(HeldState(cache->slot(0)), image.data())->wait();
  cache->remove(0, 0);
  EXPECT_EQ(cache->free_slots(), 3u);
  HeldState state = cache->claim(1);
  cache->load_image(state, image.data())->wait();
  EXPECT_TRUE(holds_state(*cache, state.slot().slot(), history(*cache, {1, 2, 3})));
  cache->store_image(state, again.data())->wait();
  EXPECT_EQ(image, again);
  const SequenceId id = cache->open_sequence();
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->resume(id, 0, state.share()); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->resume(id, 3, {}); }));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->resume(7, 3, state.share()); }));
  cache->resume(id, 3, std::move(state));
  run_forward(*cache, *cache->begin(std::vector<ForwardRows>{{id, 1, {}}}), {4});
  EXPECT_TRUE(holds_state(*cache, cache->slot(id).slot(), history(*cache, {1, 2, 3, 4})));
  cache->resume(id, 0, {});
  EXPECT_EQ(cache->free_slots(), 3u);
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->store_image({}, image.data()); }));
}

TEST(RecurrentCache, ForwardsAndSlotsMayOutliveTheCache) {
  StateForwardPtr open, complete;
  SlotRef slot;
  RecurrentCache::SnapshotPtr snapshot;
  {
    const auto cache = host_states(small_states());
    append(*cache, 0, {1});
    complete = cache->current_forward();
    slot = cache->slot(0);
    snapshot = cache->snapshot(0, 0);
    open = start(*cache, 0, 1);
  }
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), 0u);
  EXPECT_THROW(complete->take_captured(0), Error);
}

TEST(RecurrentCache, BelongsToOnePrefixCache) {
  const auto cache = host_states(small_states());
  cache->attach();
  EXPECT_THROW(cache->attach(), Error);
  cache->detach();
  cache->attach();
  EXPECT_THROW(RecurrentCache::create(nullptr, {1}), Error);
  EXPECT_THROW(RecurrentCache::create(std::make_unique<HostStateStore>(small_states()), {1}), Error);
  EXPECT_THROW(RecurrentCache::create(std::make_unique<HostStateStore>(small_states()), {1, 1}), Error);
  EXPECT_EQ(cache->nbytes(), cache->shape().bytes());
  EXPECT_TRUE(cache->has_layer(5));
  EXPECT_FALSE(cache->has_layer(0));
}

}  // namespace
}  // namespace kvtrie::testing
