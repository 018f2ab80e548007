// Histories in one pool, rows that attend to them, on the device and by the reference. Cells that no history names hold
// NaN.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/attention.h"
#include "ops_helpers.h"

namespace kvtrie::ops {

// `latent`: values are the last v_dim numbers of keys.
struct Sizes {
  std::uint32_t heads, kv_heads, k_dim, v_dim;
  bool latent = false;
};

// Histories in one pool. Cells that no history names hold NaN.
class Scene {
 public:
  Scene(Sizes sizes, std::uint32_t cells, DType dtype, std::uint32_t salt)
      : sizes_(sizes), cells_(cells), dtype_(dtype), random_(salt), held_(cells, false) {}

  // A history of `length` positions: the first `shared` ones of `parent`, then spans of random lengths up to `longest`
  // in random free cells.
  std::size_t add_history(std::int32_t length, std::int32_t longest, std::size_t parent = 0, std::int32_t shared = 0) {
    CellSpans spans;
    if (shared > 0)
      for (const CellSpan& span : histories_[parent]) {
        if (span.position >= shared) break;
        spans.push_back(span);
        spans.back().length = std::min<std::uint32_t>(span.length, static_cast<std::uint32_t>(shared - span.position));
      }
    for (std::int32_t position = shared; position < length;) {
      const std::int32_t wanted = std::min(length - position, 1 + random_.below(longest));
      const CellSpan span = claim(wanted, position);
      spans.push_back(span);
      position += static_cast<std::int32_t>(span.length);
    }
    histories_.push_back(std::move(spans));
    return histories_.size() - 1;
  }

  // Positions from `from` on have moved by `by` more since their keys were stored. Before add_rows.
  void move_down(std::size_t history, std::int32_t from, std::int32_t by) {
    CellSpans moved;
    for (const CellSpan& span : histories_[history]) {
      const auto below = static_cast<std::uint32_t>(
          std::clamp<std::int64_t>(std::int64_t{from} - span.position, 0, std::int64_t{span.length}));
      if (below > 0) moved.push_back({span.cell, below, span.position, span.moved});
      if (below < span.length) {
        moved.push_back({span.cell + below, span.length - below, span.position + static_cast<std::int32_t>(below),
                         span.moved + by});
      }
    }
    histories_[history] = std::move(moved);
  }

  // The last `count` positions of a history become rows of the step.
  void add_rows(std::size_t history, std::uint32_t count) {
    const std::int32_t length = histories_[history].back().end_position();
    const std::uint32_t row = queries_.empty() ? 0 : queries_.back().row + queries_.back().count;
    queries_.push_back({row, count, length - static_cast<std::int32_t>(count), histories_[history]});
  }

  void fill() {
    k_ = pool(sizes_.k_dim);
    v_ = sizes_.latent ? ends_of_keys() : pool(sizes_.v_dim);
    const std::uint32_t rows = queries_.back().row + queries_.back().count;
    q_ = random_.normals(std::size_t{rows} * sizes_.heads * sizes_.k_dim);
    sinks_ = random_.normals(sizes_.heads, 2.0f);
  }

  std::vector<float> run(float softcap = 0.0f, bool sinks = false, float scale = 0.0f,
                         const PlanLimits* limits = nullptr) {
    const cl::DevicePtr& device = shared_device();
    AttentionOptions options{scale, softcap, sinks ? upload(sinks_, {sizes_.heads}) : Tensor()};
    const AttentionPlan plan = plan_attention(queries_, limits ? *limits : plan_limits(*device));
    const Tensor q = upload(q_, {plan.rows, sizes_.heads, sizes_.k_dim});
    const Tensor k = upload_as(k_, dtype_, {sizes_.kv_heads, cells_, sizes_.k_dim});
    const DevicePlan uploaded = upload_plan(device, plan);
    return download(attend_spans(turn_queries(q, uploaded, rope_), cells_of(k), uploaded, options));
  }

  // The same contents, with values of their own.
  Scene with_values_apart() const {
    Scene other = *this;
    other.sizes_.latent = false;
    return other;
  }

  std::vector<float> wanted(float softcap = 0.0f, bool sinks = false, float scale = 0.0f) const {
    auto k = stored(k_, dtype_), v = stored(v_, dtype_);
    const auto pool = [&](std::vector<std::byte>& bytes, std::int32_t dim) {
      return reference::HostPool{bytes.data(), plain_format(dtype_), static_cast<std::uint32_t>(sizes_.kv_heads),
                                 cells_, static_cast<std::uint32_t>(dim)};
    };
    std::vector<float> out(q_.size() / sizes_.k_dim * sizes_.v_dim);
    const std::vector<float> logits = sinks ? sinks_ : std::vector<float>();
    reference::attend_spans(q_, pool(k, sizes_.k_dim), pool(v, sizes_.v_dim), sizes_.heads, queries_,
                            {scale, softcap, logits, &rope_}, out);
    return out;
  }

  // The same contents in other cells: every history is moved to fresh spans of at most `longest` cells.
  Scene rearranged(std::int32_t longest, std::uint32_t salt) const {
    Scene other(sizes_, cells_, dtype_, salt);
    for (const CellSpans& spans : histories_) other.add_history(spans.back().end_position(), longest);
    for (const QueryRows& query : queries_) {
      const auto at = std::find_if(histories_.begin(), histories_.end(),
                                   [&](const CellSpans& spans) { return spans.data() == query.keys.data(); });
      other.add_rows(static_cast<std::size_t>(at - histories_.begin()), query.count);
    }
    other.fill();
    other.q_ = q_;
    other.sinks_ = sinks_;
    for (std::size_t h = 0; h < histories_.size(); ++h) other.copy_contents(histories_[h], other.histories_[h], *this);
    return other;
  }

  Scene with_rows_of(std::size_t query) const {
    Scene one = *this;
    const QueryRows kept = queries_[query];
    one.queries_ = {{0, kept.count, kept.position, kept.keys}};
    const std::size_t row = std::size_t{sizes_.heads} * sizes_.k_dim;
    one.q_.assign(q_.begin() + static_cast<std::ptrdiff_t>(kept.row * row),
                  q_.begin() + static_cast<std::ptrdiff_t>((kept.row + kept.count) * row));
    return one;
  }

  const std::vector<QueryRows>& queries() const { return queries_; }
  const std::vector<float>& q() const { return q_; }
  void set_queries(std::vector<QueryRows> queries, std::vector<float> q) {
    queries_ = std::move(queries);
    q_ = std::move(q);
  }
  const CellSpans& history(std::size_t index) const { return histories_[index]; }

 private:
  LayerCells cells_of(const Tensor& k) const {
    const bool latent = sizes_.latent;
    LayerCells cells(k, latent ? Tensor::zeros(shared_device(), dtype_, {sizes_.kv_heads, cells_, 0})
                               : upload_as(v_, dtype_, {sizes_.kv_heads, cells_, sizes_.v_dim}));
    cells.latent_dim = latent ? sizes_.v_dim : 0;
    return cells;
  }

  std::vector<float> ends_of_keys() const {
    std::vector<float> values;
    for (std::size_t at = sizes_.k_dim; at <= k_.size(); at += sizes_.k_dim)
      values.insert(values.end(), k_.begin() + static_cast<std::ptrdiff_t>(at - sizes_.v_dim),
                    k_.begin() + static_cast<std::ptrdiff_t>(at));
    return values;
  }

  CellSpan claim(std::int32_t wanted, std::int32_t position) {
    for (;;) {
      const auto begin = static_cast<Cell>(random_.below(static_cast<std::int32_t>(cells_)));
      Cell end = begin;
      while (end < cells_ && !held_[end] && end - begin < static_cast<Cell>(wanted)) held_[end++] = true;
      if (end > begin) return {begin, end - begin, position};
    }
  }

  std::vector<float> pool(std::uint32_t dim) {
    std::vector<float> values = random_.normals(std::size_t{sizes_.kv_heads} * cells_ * dim);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!held_[i / dim % cells_]) values[i] = NAN;
    return values;
  }

  void copy_contents(const CellSpans& from, const CellSpans& to, const Scene& source) {
    std::vector<Cell> from_cells, to_cells;
    for (const CellSpan& span : from)
      for (std::uint32_t i = 0; i < span.length; ++i) from_cells.push_back(span.cell + i);
    for (const CellSpan& span : to)
      for (std::uint32_t i = 0; i < span.length; ++i) to_cells.push_back(span.cell + i);
    for (std::size_t head = 0; head < sizes_.kv_heads; ++head)
      for (std::size_t i = 0; i < from_cells.size(); ++i) {
        const std::size_t a = head * cells_ + from_cells[i], b = head * cells_ + to_cells[i];
        std::copy_n(&source.k_[a * sizes_.k_dim], sizes_.k_dim, &k_[b * sizes_.k_dim]);
        std::copy_n(&source.v_[a * sizes_.v_dim], sizes_.v_dim, &v_[b * sizes_.v_dim]);
      }
  }

  Sizes sizes_;
  std::uint32_t cells_;
  DType dtype_;
  RopeParams rope_;
  Random random_;
  std::vector<bool> held_;
  std::vector<CellSpans> histories_ = [] {
    std::vector<CellSpans> reserved;
    reserved.reserve(16);  // queries point into the histories
    return reserved;
  }();
  std::vector<QueryRows> queries_;
  std::vector<float> q_, k_, v_, sinks_;
};

// A decode row, a few rows and a prefill over scattered histories, plain and with every option.
inline void check_sizes(Sizes sizes, DType dtype, std::uint32_t salt) {
  Scene scene(sizes, 1400, dtype, salt);
  scene.add_rows(scene.add_history(600, 200), 1);
  scene.add_rows(scene.add_history(75, 9), 5);
  scene.add_rows(scene.add_history(130, 40), 41);
  scene.fill();
  expect_close(scene.run(), scene.wanted(), kAttention, "plain");
  expect_close(scene.run(5.0f, true, 0.3f), scene.wanted(5.0f, true, 0.3f), kAttention, "softcap, sinks, scale");
}

}  // namespace kvtrie::ops
