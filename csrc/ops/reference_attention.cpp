#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// One key as the reference sees it: where its K and V rows start, in elements, and what a mask adds to its score.
struct Key {
  std::size_t k = 0, v = 0;
  double added = 0.0;
};

// out = softmax(scale * q.k + added) v over `keys`, with the sink in the denominator.
void attend_row(const float* q, Numbers k, Numbers v, const std::vector<Key>& keys, const AttentionShape& shape,
                const AttentionParams& params, std::uint32_t head, float* out) {
  const double scale = params.scale > 0.0f ? params.scale : 1.0 / std::sqrt(static_cast<double>(shape.k_dim));
  std::vector<double> scores(keys.size());
  double top = params.sinks.empty() ? -std::numeric_limits<double>::infinity() : params.sinks[head];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    double dot = 0.0;
    for (std::uint32_t d = 0; d < shape.k_dim; ++d) dot += static_cast<double>(q[d]) * k[keys[i].k + d];
    dot *= scale;
    if (params.softcap > 0.0f) dot = params.softcap * std::tanh(dot / params.softcap);
    scores[i] = dot + keys[i].added;
    top = std::max(top, scores[i]);
  }
  if (top == -std::numeric_limits<double>::infinity()) top = 0.0;
  double sum = params.sinks.empty() ? 0.0 : std::exp(params.sinks[head] - top);
  std::vector<double> total(shape.v_dim, 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    sum += weight;
    for (std::uint32_t d = 0; d < shape.v_dim; ++d) total[d] += weight * v[keys[i].v + d];
  }
  for (std::uint32_t d = 0; d < shape.v_dim; ++d) out[d] = sum == 0.0 ? 0.0f : static_cast<float>(total[d] / sum);
}

// The keys that row `index` of `query` sees, for one KV head.
std::vector<Key> keys_of(const QueryRows& query, std::uint32_t index, std::uint32_t kv_head, std::uint64_t cells,
                         const AttentionShape& shape) {
  const RowBounds causal{0, query.position + static_cast<std::int32_t>(index) + 1};
  const RowBounds bounds = query.bounds.empty() ? causal : query.bounds[index];
  std::vector<Key> keys;
  for (const CellSpan& span : query.keys) {
    for (std::uint32_t j = 0; j < span.length; ++j) {
      const std::int64_t position = std::int64_t{span.position} + j;
      if (position < bounds.first || position >= bounds.end) continue;
      const std::size_t row = kv_head * cells + span.cell + j;
      keys.push_back({row * shape.k_dim, row * shape.v_dim, 0.0});
    }
  }
  return keys;
}

bool visible(double added) { return added != -std::numeric_limits<double>::infinity(); }

}  // namespace

float Numbers::operator[](std::size_t index) const noexcept {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void store_number(void* data, DType dtype, std::size_t index, float value) noexcept {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(data)[index] =
        dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
  }
}

void attend_spans(std::span<const float> q, Numbers k_pool, Numbers v_pool, std::uint64_t cells,
                  const AttentionShape& shape, std::span<const QueryRows> queries, const AttentionParams& params,
                  std::span<float> out) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  for (const QueryRows& query : queries) {
    for (std::uint32_t i = 0; i < query.count; ++i) {
      for (std::uint32_t head = 0; head < shape.heads; ++head) {
        const std::vector<Key> keys = keys_of(query, i, head / group, cells, shape);
        const std::size_t line = (std::size_t{query.row} + i) * shape.heads + head;
        attend_row(&q[line * shape.k_dim], k_pool, v_pool, keys, shape, params, head, &out[line * shape.v_dim]);
      }
    }
  }
}

void attention(std::span<const float> q, Numbers k, Numbers v, std::uint64_t n, const AttentionShape& shape,
               std::span<const float> mask, const AttentionParams& params, std::span<float> out) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  const std::size_t tokens = q.size() / (std::size_t{shape.heads} * shape.k_dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::uint32_t head = 0; head < shape.heads; ++head) {
      std::vector<Key> keys;
      for (std::uint64_t key = 0; key < n; ++key) {
        const double added = mask.empty() ? 0.0 : mask[token * n + key];
        const std::size_t row = key * shape.kv_heads + head / group;
        if (visible(added)) keys.push_back({row * shape.k_dim, row * shape.v_dim, added});
      }
      const std::size_t line = token * shape.heads + head;
      attend_row(&q[line * shape.k_dim], k, v, keys, shape, params, head, &out[line * shape.v_dim]);
    }
  }
}

}  // namespace kvtrie::ops::reference
