// What the tests of encoder caches share: small caches whose free cells hold NaN, and steps in one call.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cache_helpers.h"
#include "standalone/encoder_cache.h"

namespace kvtrie::testing {

constexpr std::int32_t kFirst = 2, kSecond = 7;  // the layers of poisoned_items

inline KvShape item_shape(Cell cells = 32, DType dtype = DType::kFloat32) {
  KvShape shape = small_shape(cells, dtype);
  shape.v_dim = shape.k_dim;
  return shape;
}

inline std::shared_ptr<EncoderCache> poisoned_items(std::unique_ptr<KvStore> store) {
  std::vector<std::int32_t> layers;
  for (std::uint32_t i = 0; i < store->shape().layers; ++i)
    layers.push_back(kFirst + static_cast<std::int32_t>(i) * (kSecond - kFirst));
  auto cache = EncoderCache::create(std::move(store), layers);
  cache->store().fill(0, cache->capacity(), 0xff);
  cache->pool().on_free = [store = &cache->store()](Cell begin, std::uint32_t length) {
    store->fill(begin, length, 0xff);
  };
  return cache;
}

inline std::shared_ptr<EncoderCache> host_items(const KvShape& shape) {
  return poisoned_items(std::make_unique<HostKvStore>(shape));
}

inline Tensor on(const cl::DevicePtr& device, const Tensor& tensor) {
  return Tensor::from_host(device, tensor.dtype(), tensor.shape(), tensor.host_data());
}

// One layer of the items of a forward, whose cells are these tokens one after the other.
inline void put_item_layer(EncoderCache& cache, EncoderForward& forward, const std::vector<std::int32_t>& tokens,
                           std::int32_t layer, const cl::DevicePtr& device = nullptr) {
  cache.put(forward, layer, on(device, encoded(cache.shape(), tokens, layer, false)),
            on(device, encoded(cache.shape(), tokens, layer, true)));
}

inline void put_item(EncoderCache& cache, EncoderForward& forward, const std::vector<std::int32_t>& tokens,
                     const cl::DevicePtr& device = nullptr) {
  for (const std::int32_t layer : cache.layers()) put_item_layer(cache, forward, tokens, layer, device);
}

// `count` rows of text that go on from the sequence's length.
inline EncoderForwardPtr text(EncoderCache& cache, SequenceId id, std::int32_t count,
                              const std::vector<EncoderItem>& items = {}) {
  const std::int32_t length = cache.length(id);
  return cache.start_forward(range(length, length + count),
                             std::vector<SequenceId>(static_cast<std::size_t>(count), id), false, items);
}

// The same with an item, put in all layers.
inline EncoderForwardPtr step_with(EncoderCache& cache, SequenceId id, std::int32_t count, std::int32_t position,
                                   const std::vector<std::int32_t>& tokens) {
  EncoderForwardPtr forward = text(cache, id, count, {{id, position, static_cast<std::uint32_t>(tokens.size())}});
  put_item(cache, *forward, tokens);
  return forward;
}

// Whether the sequence's item stands at `position` and has these tokens in every layer; -1 and none: it has no item.
inline ::testing::AssertionResult has_item(EncoderCache& cache, SequenceId id, std::int32_t position,
                                           const std::vector<std::int32_t>& tokens) {
  const auto item = cache.item(id);
  if (!item) {
    return position < 0 ? ::testing::AssertionSuccess()
                        : ::testing::AssertionFailure() << "sequence " << id << ": none";
  }
  if (item->position != position) {
    return ::testing::AssertionFailure() << "sequence " << id << ": at " << item->position << ", not " << position;
  }
  for (std::uint32_t index = 0; index < cache.shape().layers; ++index) {
    const auto [k, v] = cache.store().rows(index, item->cells);
    for (const bool value : {false, true}) {
      const Tensor& got = value ? v : k;
      const Tensor wanted = encoded(cache.shape(), tokens, cache.layers()[index], value);
      if (got.shape() != wanted.shape()) return ::testing::AssertionFailure() << "got " << to_string(got.shape());
      const auto numbers = got.host_span<const float>(), expected = wanted.host_span<const float>();
      if (!std::equal(numbers.begin(), numbers.end(), expected.begin())) {
        return ::testing::AssertionFailure() << "sequence " << id << ": other numbers in layer " << index;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

inline Tensor queries(const KvShape& shape, std::int64_t rows, std::int64_t heads = 4) {
  Tensor q = Tensor::host(DType::kFloat32, {rows, heads, shape.k_dim});
  for (std::size_t i = 0; i < q.size(); ++i) q.host_span<float>()[i] = static_cast<float>(i * 37 % 11) / 1000.0f;
  return q;
}

// Softmax attention of one row to all cells of an item, in double.
inline std::vector<double> attended(const KvShape& shape, const Tensor& q, std::int64_t row,
                                    const std::vector<std::int32_t>& tokens, std::int32_t layer) {
  const std::int64_t heads = q.dim(1), group = heads / shape.kv_heads;
  std::vector<double> out(static_cast<std::size_t>(heads) * shape.v_dim, 0.0);
  for (std::int64_t head = 0; head < heads; ++head) {
    std::vector<double> scores;
    for (const std::int32_t token : tokens) {
      double score = 0;
      for (std::int64_t d = 0; d < shape.k_dim; ++d) {
        score += q.host_span<const float>()[static_cast<std::size_t>((row * heads + head) * shape.k_dim + d)] *
                 number(token, layer, false, head / group, d);
      }
      scores.push_back(score / std::sqrt(static_cast<double>(shape.k_dim)));
    }
    const double top = tokens.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      for (std::int64_t d = 0; d < shape.v_dim; ++d) {
        out[static_cast<std::size_t>(head * shape.v_dim + d)] +=
            scores[i] / sum * number(tokens[i], layer, true, head / group, d);
      }
    }
  }
  return out;
}

// Each row's attention is that to the item of these tokens.
inline void expect_attends(EncoderCache& cache, EncoderForward& forward,
                           const std::vector<std::vector<std::int32_t>>& seen) {
  const Tensor q = queries(cache.shape(), forward.rows());
  for (const std::int32_t layer : cache.layers()) {
    const Tensor out = cache.attend(forward, layer, q, {});
    const std::size_t width = static_cast<std::size_t>(out.dim(1) * out.dim(2));
    for (std::size_t row = 0; row < seen.size(); ++row) {
      const auto wanted = attended(cache.shape(), q, static_cast<std::int64_t>(row), seen[row], layer);
      Difference difference;
      for (std::size_t i = 0; i < width; ++i) difference.add(out.host_span<const float>()[row * width + i], wanted[i]);
      ASSERT_WITHIN(difference.of_largest(), kHostAndDevice) << "row " << row;
    }
  }
}

inline ::testing::AssertionResult sound(const EncoderCache& cache) {
  const auto faults = cache.check();
  if (faults.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << faults.front();
}

// The call fails with `kind` and changes nothing.
template <class Call>
::testing::AssertionResult refused(EncoderCache& cache, ErrorKind kind, Call call) {
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

}  // namespace kvtrie::testing
