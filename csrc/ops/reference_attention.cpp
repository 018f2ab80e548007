#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// One key as the reference sees it: its rows of K and V, and what a mask adds to its score.
struct Key {
  const std::byte *k = nullptr, *v = nullptr;
  double added = 0.0;
  std::int32_t moved = 0;
};

// Properties that all keys have in common.
struct Kept {
  CellFormats formats;
  std::uint32_t k_dim = 0, v_dim = 0;
};

// A query as keys that have moved by so much see it.
class TurnedQueries {
 public:
  TurnedQueries(const float* q, std::uint32_t dim, const RopeParams* rope) : q_(q), dim_(dim), rope_(rope) {}

  const float* by(std::int32_t moved) {
    if (moved == 0) return q_;
    require(rope_ != nullptr, "reference.attend_spans", "rope: got none, allowed one where keys have moved");
    const auto [entry, fresh] = turned_.try_emplace(moved, q_, q_ + dim_);
    if (fresh) {
      const RopeTable table = rope_table(*rope_, static_cast<std::int32_t>(dim_));
      rotate_row(entry->second.data(), table, rope_->interleaved, moved);
    }
    return entry->second.data();
  }

 private:
  const float* q_;
  std::uint32_t dim_;
  const RopeParams* rope_;
  std::map<std::int32_t, std::vector<float>> turned_;
};

// out = softmax(scale * q.k + added) v over `keys`, with the sink in the denominator.
void attend_row(const float* unturned, const std::vector<Key>& keys, const Kept& kept, const AttentionParams& params,
                std::uint32_t head, float* out) {
  const double scale = params.scale > 0.0f ? params.scale : 1.0 / std::sqrt(static_cast<double>(kept.k_dim));
  std::vector<float> row(std::max(kept.k_dim, kept.v_dim));
  std::vector<double> scores(keys.size());
  TurnedQueries queries(unturned, kept.k_dim, params.rope);
  double top = params.sinks.empty() ? -std::numeric_limits<double>::infinity() : params.sinks[head];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    double dot = 0.0;
    const float* q = queries.by(keys[i].moved);
    kept.formats.k->load(keys[i].k, kept.k_dim, row.data());
    for (std::uint32_t d = 0; d < kept.k_dim; ++d) dot += static_cast<double>(q[d]) * row[d];
    dot *= scale;
    if (params.softcap > 0.0f) dot = params.softcap * std::tanh(dot / params.softcap);
    scores[i] = dot + keys[i].added;
    top = std::max(top, scores[i]);
  }
  if (top == -std::numeric_limits<double>::infinity()) top = 0.0;
  double sum = params.sinks.empty() ? 0.0 : std::exp(params.sinks[head] - top);
  std::vector<double> total(kept.v_dim, 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    sum += weight;
    kept.formats.v->load(keys[i].v, kept.v_dim, row.data());
    for (std::uint32_t d = 0; d < kept.v_dim; ++d) total[d] += weight * row[d];
  }
  for (std::uint32_t d = 0; d < kept.v_dim; ++d) out[d] = sum == 0.0 ? 0.0f : static_cast<float>(total[d] / sum);
}

// The keys that row `index` of `query` sees, for one KV head.
std::vector<Key> keys_of(const QueryRows& query, std::uint32_t index, std::uint32_t kv_head, const HostPool& k,
                         const HostPool& v) {
  const RowBounds causal{0, query.position + static_cast<std::int32_t>(index) + 1};
  const RowBounds bounds = query.bounds.empty() ? causal : query.bounds[index];
  std::vector<Key> keys;
  for (const CellSpan& span : query.keys) {
    for (std::uint32_t j = 0; j < span.length; ++j) {
      const std::int64_t position = std::int64_t{span.position} + j;
      if (position < bounds.first || position >= bounds.end) continue;
      const std::uint64_t cell = std::uint64_t{span.cell} + j;
      keys.push_back({k.row(kv_head, cell), v.row(kv_head, cell), 0.0, span.moved});
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

void attend_spans(std::span<const float> q, const HostPool& k, const HostPool& v, std::uint32_t heads,
                  std::span<const QueryRows> queries, const AttentionParams& params, std::span<float> out) {
  const std::uint32_t group = heads / k.kv_heads, v_dim = v.dim - v.first;
  for (const QueryRows& query : queries) {
    for (std::uint32_t i = 0; i < query.count; ++i) {
      for (std::uint32_t head = 0; head < heads; ++head) {
        const std::vector<Key> keys = keys_of(query, i, head / group, k, v);
        const std::size_t line = (std::size_t{query.row} + i) * heads + head;
        attend_row(&q[line * k.dim], keys, {{k.format, v.format}, k.dim, v_dim}, params, head, &out[line * v_dim]);
      }
    }
  }
}

void attention(std::span<const float> q, Numbers k, Numbers v, std::uint64_t n, const AttentionShape& shape,
               std::span<const float> mask, const AttentionParams& params, std::span<float> out) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  const std::size_t tokens = q.size() / (std::size_t{shape.heads} * shape.k_dim);
  const CellFormat* format = plain_format(k.dtype);
  const auto row_of = [&](Numbers rows, std::size_t row, std::uint32_t dim) {
    return static_cast<const std::byte*>(rows.data) + row * format->row_bytes(dim);
  };
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::uint32_t head = 0; head < shape.heads; ++head) {
      std::vector<Key> keys;
      for (std::uint64_t key = 0; key < n; ++key) {
        const double added = mask.empty() ? 0.0 : mask[token * n + key];
        const std::size_t row = key * shape.kv_heads + head / group;
        if (visible(added)) keys.push_back({row_of(k, row, shape.k_dim), row_of(v, row, shape.v_dim), added, 0});
      }
      const std::size_t line = token * shape.heads + head;
      attend_row(&q[line * shape.k_dim], keys, {format, shape.k_dim, shape.v_dim}, params, head,
                 &out[line * shape.v_dim]);
    }
  }
}

}  // namespace kvtrie::ops::reference
