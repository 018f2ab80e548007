// What the tests of recurrent caches share: small caches whose free slots hold NaN, and forwards in one call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bounds.h"
#include "cache/host_state_store.h"
#include "cache/recurrent_cache.h"
#include "recurrent_rows.h"

namespace kvtrie::testing {

inline StateShape small_states(std::uint32_t slots = 16) {
  StateShape shape;
  shape.layers = 2;
  shape.conv_tail = 3;
  shape.conv_dim = 5;
  shape.v_heads = 2;
  shape.v_dim = 3;
  shape.k_dim = 4;
  shape.slots = slots;
  return shape;
}

inline std::shared_ptr<RecurrentCache> poisoned(std::unique_ptr<StateStore> store) {
  std::vector<std::int32_t> layers;
  for (std::uint32_t i = 0; i < store->shape().layers; ++i) layers.push_back(static_cast<std::int32_t>(4 * i + 1));
  auto cache = RecurrentCache::create(std::move(store), layers);
  for (std::uint32_t slot = 0; slot < cache->capacity(); ++slot) cache->store().fill(static_cast<Slot>(slot), 0xff);
  cache->pool().on_free = [store = &cache->store()](Slot slot) { store->fill(slot, 0xff); };
  return cache;
}

inline std::shared_ptr<RecurrentCache> host_states(const StateShape& shape) {
  return poisoned(std::make_unique<HostStateStore>(shape));
}

// Tensors where the cache's store can reach them. `device` null: on the host.
inline Tensor placed(const cl::DevicePtr& device, const std::vector<float>& values, Shape shape) {
  return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
}

inline std::vector<float> numbers_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.nbytes());
  tensor.copy_to_host(bytes.data());
  std::vector<float> numbers;
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    numbers.push_back(ops::reference::Numbers{bytes.data(), tensor.dtype()}[i]);
  }
  return numbers;
}

struct StepOutputs {
  std::vector<std::vector<float>> y, out;  // per layer: [rows, conv_dim], [rows, v_heads, v_dim]
};

// All layers of a forward by the fused operations; `tokens` row by row, padding included.
inline StepOutputs run_forward(RecurrentCache& cache, StateForward& forward, const std::vector<std::int32_t>& tokens,
                               const cl::DevicePtr& device = nullptr) {
  const StateShape& shape = cache.shape();
  const auto rows = static_cast<std::int64_t>(tokens.size());
  StepOutputs outputs;
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const std::int32_t layer = cache.layers()[i];
    const RowInputs in = row_inputs(shape, i, tokens);
    if (shape.has_conv()) {
      outputs.y.push_back(
          numbers_of(cache.conv(forward, layer, placed(device, in.x, {rows, shape.conv_dim}),
                                placed(device, in.weight, {shape.conv_dim, std::int64_t{shape.conv_tail} + 1}))));
    }
    if (!shape.has_delta()) continue;
    outputs.out.push_back(numbers_of(cache.gated_delta(
        forward, layer, placed(device, in.q, {rows, kKeyHeads, shape.k_dim}),
        placed(device, in.k, {rows, kKeyHeads, shape.k_dim}), placed(device, in.v, {rows, shape.v_heads, shape.v_dim}),
        placed(device, in.g, {rows, shape.v_heads}), placed(device, in.beta, {rows, shape.v_heads}))));
  }
  return outputs;
}

inline StateForwardPtr start(RecurrentCache& cache, SequenceId id, std::size_t count) {
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < count; ++i) positions.push_back(cache.length(id) + static_cast<std::int32_t>(i));
  return cache.start_forward(positions, std::vector<SequenceId>(count, id));
}

inline StepOutputs append(RecurrentCache& cache, SequenceId id, const std::vector<std::int32_t>& tokens,
                          const cl::DevicePtr& device = nullptr) {
  return run_forward(cache, *start(cache, id, tokens.size()), tokens, device);
}

// Whether the slot holds the state of the history that ends at `point` (null: zeros); bit for bit without a bound.
inline ::testing::AssertionResult holds_state(RecurrentCache& cache, Slot slot, const PointPtr& point,
                                              const Bound* bound = nullptr) {
  const StateShape& shape = cache.shape();
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const auto [conv, delta] = cache.store().read(i, std::vector<Slot>{slot});
    const LayerPoint expected = point ? point->layers[i] : zero_layer(shape);
    for (const bool is_delta : {false, true}) {
      if (!(is_delta ? shape.has_delta() : shape.has_conv())) continue;
      const std::vector<float> got = numbers_of(is_delta ? delta : conv);
      const std::vector<float>& wanted = is_delta ? expected.delta : expected.conv;
      if (got.size() != wanted.size()) return ::testing::AssertionFailure() << "got " << got.size() << " numbers";
      Difference difference;
      for (std::size_t at = 0; at < got.size(); ++at) {
        difference.add(got[at], wanted[at]);
        if (difference.of_each() <= (bound == nullptr ? 0.0 : bound->value)) continue;
        return ::testing::AssertionFailure() << "layer " << i << (is_delta ? " delta " : " conv ") << at << ": got "
                                             << got[at] << ", expected " << wanted[at];
      }
      if (bound != nullptr) Measurements::note(__FILE__, __LINE__, difference.of_each(), *bound);
    }
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult sound(const RecurrentCache& cache) {
  const auto faults = cache.check();
  if (faults.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << faults.front();
}

// The call fails with `kind` and changes nothing.
template <class Call>
::testing::AssertionResult refused(RecurrentCache& cache, ErrorKind kind, Call call) {
  const std::string before = cache.dump();
  try {
    call();
  } catch (const Error& error) {
    if (error.kind() != kind) return ::testing::AssertionFailure() << "another kind of error: " << error.what();
    if (cache.dump() != before)
      return ::testing::AssertionFailure() << "changed:\n" << before << "to:\n" << cache.dump();
    return sound(cache);
  }
  return ::testing::AssertionFailure() << "not refused";
}

inline PointPtr history(const RecurrentCache& cache, const std::vector<std::int32_t>& tokens) {
  return point_after(cache.shape(), nullptr, tokens);
}

}  // namespace kvtrie::testing
