// What the tests of hybrid caches share: a hybrid of the kinds that a test names, steps in one call, and a twin.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "encoder_helpers.h"
#include "standalone/hybrid_cache.h"
#include "state_helpers.h"

namespace kvtrie::testing {

using HybridTokens = std::vector<std::int32_t>;

inline std::shared_ptr<CausalCache> causal_of(std::vector<std::int32_t> layers, Cell cells,
                                              Visibility visibility = {}) {
  KvShape shape = small_shape(cells);
  shape.layers = static_cast<std::uint32_t>(layers.size());
  CausalCache::Options options;
  options.layers = std::move(layers);
  options.rope = {ops::RopeParams{}};
  options.growth = 0;  // a reservation is a hint, which refused calls may take back
  options.visibility = visibility;
  auto cache = CausalCache::create(std::make_unique<HostKvStore>(shape), options);
  cache->store().fill(0, shape.cells, 0xff);
  cache->pool().on_free = [store = &cache->store()](Cell begin, std::uint32_t length) {
    store->fill(begin, length, 0xff);
  };
  return cache;
}

// Attention in layers 0 and 4, a window in layer 3, recurrent states in 1 and 5, items in 2 and 7; each where the test
// asks for it by a capacity above 0.
struct Hybrid {
  struct Capacity {
    Cell causal = 0, window = 0;
    std::uint32_t slots = 0;
    Cell items = 0;
    Visibility visibility = {4, 0};
  };

  explicit Hybrid(const Capacity& capacity) {
    std::vector<HybridCache::Component> components;
    if (capacity.causal > 0) components.emplace_back(causal = causal_of({0, 4}, capacity.causal));
    if (capacity.slots > 0) components.emplace_back(states = host_states(small_states(capacity.slots)));
    if (capacity.items > 0) components.emplace_back(items = host_items(item_shape(capacity.items)));
    if (capacity.window > 0) components.emplace_back(window = causal_of({3}, capacity.window, capacity.visibility));
    cache = HybridCache::create(components);
  }
  HybridCache* operator->() const { return cache.get(); }

  void start(SequenceId id, std::size_t count, const std::vector<EncoderItem>& with = {}) const {
    const std::int32_t length = cache->length(id);
    cache->start_forward(range(length, length + static_cast<std::int32_t>(count)), std::vector<SequenceId>(count, id),
                         false, with);
  }

  // One layer of a step with these tokens row by row, and the items' cells.
  void write(std::int32_t layer, const HybridTokens& tokens, const HybridTokens& item_cells = {}) const {
    if (states && states->has_layer(layer)) return write_states(layer, tokens);
    const bool encoded_layer = items && items->has_layer(layer);
    if (encoded_layer && item_cells.empty()) return;
    const HybridTokens& rows = encoded_layer ? item_cells : tokens;
    const KvShape& shape = encoded_layer                        ? items->shape()
                           : causal && causal->has_layer(layer) ? causal->shape()
                                                                : window->shape();
    cache->put(layer, encoded(shape, rows, layer, false), encoded(shape, rows, layer, true));
  }

  void write_states(std::int32_t layer, const HybridTokens& tokens) const {
    const StateShape& shape = states->shape();
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const RowInputs in = row_inputs(shape, layer == states->layers()[0] ? 0 : 1, tokens);
    cache->conv(layer, placed(nullptr, in.x, {rows, shape.conv_dim}),
                placed(nullptr, in.weight, {shape.conv_dim, std::int64_t{shape.conv_tail} + 1}));
    cache->gated_delta(layer, placed(nullptr, in.q, {rows, kKeyHeads, shape.k_dim}),
                       placed(nullptr, in.k, {rows, kKeyHeads, shape.k_dim}),
                       placed(nullptr, in.v, {rows, shape.v_heads, shape.v_dim}),
                       placed(nullptr, in.g, {rows, shape.v_heads}), placed(nullptr, in.beta, {rows, shape.v_heads}));
  }

  // All layers in ascending order, as a model writes them; the first `count` only.
  void write_all(const HybridTokens& tokens, const HybridTokens& item_cells = {}, std::size_t count = 99) const {
    for (const std::int32_t layer : cache->layers()) {
      if (count-- == 0) return;
      write(layer, tokens, item_cells);
    }
  }

  void append(SequenceId id, const HybridTokens& tokens) const {
    start(id, tokens.size());
    write_all(tokens);
  }

  // Rows with an item whose position is the `at`-th of them.
  void append_item(SequenceId id, const HybridTokens& tokens, std::int32_t at, const HybridTokens& item_cells) const {
    start(id, tokens.size(), {{id, cache->length(id) + at, static_cast<std::uint32_t>(item_cells.size())}});
    write_all(tokens, item_cells);
  }

  std::shared_ptr<CausalCache> causal, window;
  std::shared_ptr<RecurrentCache> states;
  std::shared_ptr<EncoderCache> items;
  HybridCache::Ptr cache;
};

inline ::testing::AssertionResult sound(const Hybrid& hybrid) {
  const auto faults = hybrid->check();
  if (faults.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << faults.front();
}

// What a sequence should be.
struct HybridTwin {
  HybridTokens tokens;
  std::int32_t item_at = -1;
  HybridTokens item;

  std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
  void cut(std::int32_t at) {
    tokens.resize(static_cast<std::size_t>(at));
    if (item_at >= at) item_at = -1;
  }
};

inline HybridTwin twin(const HybridTokens& tokens, std::int32_t at = -1, const HybridTokens& item = {}) {
  return {tokens, at, item};
}

// Whether every component has exactly that: the lengths, and the numbers that follow from the tokens. `keys`: K were
// not rotated.
inline ::testing::AssertionResult is(const Hybrid& hybrid, SequenceId id, const HybridTwin& twin, bool keys = true) {
  const auto failure = [&] { return ::testing::AssertionFailure() << "sequence " << id << ": "; };
  if (hybrid->length(id) != twin.length()) return failure() << hybrid->length(id) << " tokens, not " << twin.length();
  for (const auto& cache : {hybrid.causal, hybrid.window}) {
    if (!cache) continue;
    const std::int32_t from = cache->held_from(id);
    if (cache->length(id) != twin.length()) return failure() << "length " << cache->length(id);
    if (from > cache->visibility().floor(twin.length())) return failure() << "held from " << from;
    const HybridTokens held(twin.tokens.begin() + from, twin.tokens.end());
    const CellSpans spans = cache->spans(id);
    if (spans.empty() != held.empty()) return failure() << "other cells";
    if (spans.empty()) continue;
    if (const auto result = holds(*cache, spans, held, keys); !result) return failure() << result.message();
  }
  if (hybrid.states) {
    if (hybrid.states->length(id) != twin.length()) return failure() << "state of " << hybrid.states->length(id);
    const Slot slot = hybrid.states->slot(id).slot();
    if (slot >= 0) {
      const PointPtr point = point_after(hybrid.states->shape(), nullptr, twin.tokens);
      if (const auto result = holds_state(*hybrid.states, slot, point); !result) return failure() << result.message();
    }
  }
  if (!hybrid.items) return ::testing::AssertionSuccess();
  if (hybrid.items->length(id) != twin.length()) return failure() << "items of " << hybrid.items->length(id);
  return has_item(*hybrid.items, id, twin.item_at, twin.item);
}

// The call fails with `kind` and changes nothing, in no component.
template <class Call>
::testing::AssertionResult refused(const Hybrid& hybrid, ErrorKind kind, Call call) {
  const std::string before = hybrid->dump();
  try {
    call();
  } catch (const Error& error) {
    if (error.kind() != kind) return ::testing::AssertionFailure() << "another kind of error: " << error.what();
    if (hybrid->dump() != before)
      return ::testing::AssertionFailure() << "changed:\n" << before << "to:\n" << hybrid->dump();
    return sound(hybrid);
  }
  return ::testing::AssertionFailure() << "not refused";
}

}  // namespace kvtrie::testing
