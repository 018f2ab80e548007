// What the tests of cache/ share: small caches, K and V whose numbers say where they belong, and forwards in one call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bounds.h"
#include "cache/causal_cache.h"
#include "cache/host_kv_store.h"

namespace kvtrie::testing {

inline KvShape small_shape(Cell cells = 32, DType dtype = DType::kFloat32) {
  KvShape shape;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.k_dim = 4;
  shape.v_dim = 6;  // unlike k_dim: a wrong stride shows
  shape.cells = cells;
  shape.formats = plain_format(dtype);
  return shape;
}

inline std::shared_ptr<CausalCache> host_cache(const KvShape& shape, std::vector<ops::RopeParams> rope = {},
                                               std::uint32_t growth = 4, Visibility visibility = {},
                                               std::int32_t memory = 0) {
  CausalCache::Options options;
  options.visibility = visibility;
  options.memory = memory;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
    options.layers.push_back(static_cast<std::int32_t>(3 * layer));
  options.rope = std::move(rope);
  options.growth = growth;
  auto cache = CausalCache::create(std::make_unique<HostKvStore>(shape), options);
  cache->store().fill(0, shape.cells, 0xff);  // NaN: whatever is read before it was written shows
  cache->pool().on_free = [store = &cache->store()](Cell begin, std::uint32_t length) {
    store->fill(begin, length, 0xff);
  };
  return cache;
}

// The number at (token, layer, K or V, head, d): an integer below 2^11, exact in every dtype.
inline float number(std::int32_t token, std::int32_t layer, bool value, std::int64_t head, std::int64_t d) {
  return static_cast<float>((token * 31 + layer * 7 + (value ? 577 : 0) + head * 101 + d * 13) % 2039);
}

// [tokens, kv_heads, dim] for the given tokens.
inline Tensor encoded(const KvShape& shape, const std::vector<std::int32_t>& tokens, std::int32_t layer, bool value) {
  const std::int64_t dim = value ? shape.v_dim : shape.k_dim;
  Tensor tensor = Tensor::host(DType::kFloat32, {static_cast<std::int64_t>(tokens.size()), shape.kv_heads, dim});
  auto numbers = tensor.host_span<float>();
  std::size_t at = 0;
  for (const std::int32_t token : tokens) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      for (std::int64_t d = 0; d < dim; ++d) numbers[at++] = number(token, layer, value, head, d);
    }
  }
  return tensor;
}

inline void put_layer(CausalCache& cache, Forward& forward, const std::vector<std::int32_t>& tokens,
                      std::int32_t layer) {
  cache.put(forward, layer, encoded(cache.shape(), tokens, layer, false), encoded(cache.shape(), tokens, layer, true));
}

inline void put_all(CausalCache& cache, Forward& forward, const std::vector<std::int32_t>& tokens) {
  for (const std::int32_t layer : cache.layers()) put_layer(cache, forward, tokens, layer);
}

// Appends tokens to one sequence of the caller's numbering.
inline ForwardPtr append(CausalCache& cache, SequenceId id, const std::vector<std::int32_t>& tokens) {
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < tokens.size(); ++i) positions.push_back(cache.length(id) + static_cast<std::int32_t>(i));
  ForwardPtr forward = cache.start_forward(positions, std::vector<SequenceId>(tokens.size(), id));
  put_all(cache, *forward, tokens);
  return forward;
}

inline std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = begin; token < end; ++token) tokens.push_back(token);
  return tokens;
}

// Whether `spans` hold exactly `tokens` in every layer; V always, K unless it was rotated.
inline ::testing::AssertionResult holds(CausalCache& cache, const CellSpans& spans,
                                        const std::vector<std::int32_t>& tokens, bool keys = true) {
  for (std::uint32_t index = 0; index < cache.shape().layers; ++index) {
    const auto [k, v] = cache.store().rows(index, spans);
    const std::int32_t layer = cache.layers()[index];
    for (const bool value : {false, true}) {
      if (!value && !keys) continue;
      const Tensor& got = value ? v : k;
      const Tensor expected = encoded(cache.shape(), tokens, layer, value);
      if (got.shape() != expected.shape()) {
        return ::testing::AssertionFailure()
               << "got " << to_string(got.shape()) << ", expected " << to_string(expected.shape());
      }
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float number = got.dtype() == DType::kFloat16 ? half_to_float(got.host_span<std::uint16_t>()[i])
                                                            : got.host_span<float>()[i];
        if (number == expected.host_span<float>()[i]) continue;
        return ::testing::AssertionFailure() << "layer " << layer << (value ? " V" : " K") << " element " << i
                                             << ": got " << number << ", expected " << expected.host_span<float>()[i];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// The tokens that each row of the forward sees, in the order of get()'s columns; recognised by their V. Tokens are
// below 128.
inline std::vector<std::vector<std::int32_t>> seen_by(CausalCache& cache, Forward& forward, std::int32_t layer) {
  const CausalCache::History history = cache.get(forward, layer);
  const auto columns = static_cast<std::size_t>(history.k.dim(0));
  const std::size_t width = cache.shape().kv_heads * cache.shape().v_dim;
  std::vector<std::vector<std::int32_t>> seen(forward.rows());
  for (std::size_t i = 0; i < forward.rows() * columns; ++i) {
    if (history.mask.host_span<const float>()[i] != 0.0f) continue;
    const float stored = history.v.host_span<const float>()[i % columns * width];
    std::int32_t token = 0;
    while (token < 128 && number(token, layer, true, 0, 0) != stored) ++token;
    seen[i / columns].push_back(token);
  }
  return seen;
}

inline ::testing::AssertionResult sound(const CausalCache& cache) {
  const auto faults = cache.check();
  if (faults.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << faults.front();
}

// The call fails with `kind` and changes nothing.
template <class Call>
::testing::AssertionResult refused(CausalCache& cache, ErrorKind kind, Call call) {
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

// The length that a call refused with kNotRestorable names as the nearest one; -2 when it was not refused that way.
template <class Call>
std::int64_t nearest_of(CausalCache& cache, Call call) {
  std::int64_t nearest = -2;
  EXPECT_TRUE(refused(cache, ErrorKind::kNotRestorable, [&] {
    try {
      call();
    } catch (const Error& error) {
      nearest = error.nearest();
      throw;
    }
  }));
  return nearest;
}

}  // namespace kvtrie::testing
