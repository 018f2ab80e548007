// What the tests of recurrent caches share: rows that follow from their tokens, and the recurrences written down once
// more, naively, token by token.
//
// A `Point` is one offset of one history: the state of every layer there, and the outputs of its row. Histories are
// chains of points, so branches share what they have in common, as the cache does.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "cache/state_store.h"

namespace kvtrie::testing {

inline constexpr std::int64_t kKeyHeads = 1;  // of the gated delta rows below

// A small number that says where it belongs: in (-0.5, 0.5), different for neighbours.
inline float row_number(std::int64_t token, std::int64_t layer, std::int64_t what, std::int64_t at) {
  const std::int64_t mixed = (token * 7919 + layer * 104729 + what * 1299709 + at * 15485863) % 1009;
  return static_cast<float>(mixed - 504) / 1009.0f;
}

// The inputs of one layer for some tokens, and its weight.
struct RowInputs {
  std::vector<float> x, weight, q, k, v, g, beta;
};

inline RowInputs row_inputs(const StateShape& shape, std::int64_t layer, const std::vector<std::int32_t>& tokens) {
  RowInputs in;
  const auto fill = [&](std::vector<float>& to, std::int64_t what, std::int64_t token, std::int64_t count, float scale,
                        float shift) {
    for (std::int64_t i = 0; i < count; ++i) to.push_back(scale * row_number(token, layer, what, i) + shift);
  };
  fill(in.weight, 0, 1, std::int64_t{shape.conv_dim} * (shape.conv_tail + 1), 1.0f, 0.0f);
  for (const std::int32_t token : tokens) {
    fill(in.x, 1, token, shape.conv_dim, 2.0f, 0.0f);
    fill(in.q, 2, token, kKeyHeads * shape.k_dim, 1.0f, 0.0f);
    fill(in.k, 3, token, kKeyHeads * shape.k_dim, 1.0f, 0.0f);
    fill(in.v, 4, token, std::int64_t{shape.v_heads} * shape.v_dim, 2.0f, 0.0f);
    fill(in.g, 5, token, shape.v_heads, 0.5f, -0.3f);
    fill(in.beta, 6, token, shape.v_heads, 0.8f, 0.5f);
  }
  return in;
}

struct LayerPoint {
  std::vector<float> conv, delta;  // the state after the token
  std::vector<float> y, out;       // the token's outputs: convolution, gated delta
};

struct Point {
  std::shared_ptr<const Point> before;
  std::int32_t token = 0, length = 0;
  std::vector<LayerPoint> layers;

  Point() = default;
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  ~Point() {  // long chains must not recurse
    while (before && before.use_count() == 1) before = std::exchange(const_cast<Point&>(*before).before, nullptr);
  }
};
using PointPtr = std::shared_ptr<const Point>;

inline LayerPoint zero_layer(const StateShape& shape) {
  LayerPoint layer;
  layer.conv.assign(std::size_t{shape.conv_tail} * shape.conv_dim, 0.0f);
  layer.delta.assign(std::size_t{shape.v_heads} * shape.v_dim * shape.k_dim, 0.0f);
  return layer;
}

inline void convolve(const StateShape& shape, const RowInputs& in, LayerPoint& layer) {
  std::deque<std::vector<float>> inputs;
  const std::size_t dim = shape.conv_dim, tail = shape.conv_tail;
  for (std::size_t i = 0; i < tail; ++i) inputs.emplace_back(&layer.conv[i * dim], &layer.conv[i * dim] + dim);
  inputs.push_back(in.x);
  for (std::size_t c = 0; c < dim; ++c) {
    double sum = 0.0;
    for (std::size_t j = 0; j <= tail; ++j) sum += double{in.weight[c * (tail + 1) + j]} * inputs[j][c];
    layer.y.push_back(static_cast<float>(sum));
  }
  for (std::size_t i = 0; i < tail; ++i) {
    for (std::size_t c = 0; c < dim; ++c) {  // as stored: float16 states lose bits here
      const float value = inputs[i + 1][c];
      layer.conv[i * dim + c] = shape.dtype == DType::kFloat16 ? half_to_float(float_to_half(value)) : value;
    }
  }
}

inline void gated_delta(const StateShape& shape, const RowInputs& in, LayerPoint& layer) {
  for (std::size_t row = 0; row < std::size_t{shape.v_heads} * shape.v_dim; ++row) {
    const std::size_t head = row / shape.v_dim, key = head * kKeyHeads / shape.v_heads * shape.k_dim;
    float* state = &layer.delta[row * shape.k_dim];
    double seen = 0.0, out = 0.0;
    for (std::size_t i = 0; i < shape.k_dim; ++i) {
      state[i] = static_cast<float>(std::exp(double{in.g[head]}) * state[i]);
      seen += double{state[i]} * in.k[key + i];
    }
    const double u = in.beta[head] * (in.v[row] - seen);
    for (std::size_t i = 0; i < shape.k_dim; ++i) {
      state[i] = static_cast<float>(state[i] + u * in.k[key + i]);
      out += double{state[i]} * in.q[key + i];
    }
    layer.out.push_back(static_cast<float>(out));
  }
}

// The point one token further; `before` null: the empty history.
inline PointPtr next_point(const StateShape& shape, const PointPtr& before, std::int32_t token) {
  auto point = std::make_shared<Point>();
  point->before = before;
  point->token = token;
  point->length = before ? before->length + 1 : 1;
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    LayerPoint layer = before ? LayerPoint{before->layers[i].conv, before->layers[i].delta, {}, {}} : zero_layer(shape);
    const RowInputs in = row_inputs(shape, i, {token});
    if (shape.has_conv()) convolve(shape, in, layer);
    if (shape.has_delta()) gated_delta(shape, in, layer);
    point->layers.push_back(std::move(layer));
  }
  return point;
}

inline PointPtr point_after(const StateShape& shape, PointPtr point, const std::vector<std::int32_t>& tokens) {
  for (const std::int32_t token : tokens) point = next_point(shape, point, token);
  return point;
}

// The point of the same history at `length`; null for 0.
inline PointPtr point_at(PointPtr point, std::int32_t length) {
  while (point && point->length > length) point = point->before;
  return point;
}

}  // namespace kvtrie::testing
