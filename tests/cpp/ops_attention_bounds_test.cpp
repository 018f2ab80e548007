// Attention with a visible range per row: windows, chunks, spans seen in both directions, rows that see nothing.
//
// Each step is compared with dense attention under an explicit mask, with NaN in every cell that no row may read, and
// bit by bit with the same rows computed alone, in slices and under other plans.
#include <algorithm>

#include "circle.h"
#include "ops/attention.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

using oracle::sampled;

struct Widths {
  std::uint32_t heads, kv_heads, k_dim, v_dim;
};
constexpr Widths kPairs{4, 2, 16, 24};      // two query heads per KV head; K and V of different width
constexpr Widths kStraddling{7, 1, 16, 8};  // lines of several rows share a vector's loads
constexpr Widths kWide{8, 2, 32, 64};       // vectors of 16 where the device has them

struct Options {
  float softcap = 0.0f;
  bool sinks = false;
};

using Bounds = std::vector<RowBounds>;

Bounds windows(std::int32_t position, std::int32_t count, std::int32_t window) {
  Bounds bounds;
  for (std::int32_t t = position; t < position + count; ++t) bounds.push_back({std::max(0, t - window + 1), t + 1});
  return bounds;
}

Bounds chunks(std::int32_t position, std::int32_t count, std::int32_t chunk) {
  Bounds bounds;
  for (std::int32_t t = position; t < position + count; ++t) bounds.push_back({t - t % chunk, t + 1});
  return bounds;
}

// A step over sequences whose cells are scattered over one pool.
class Step {
 public:
  Step(Widths sizes, DType dtype, std::uint32_t salt, std::uint32_t cells = 2600)
      : sizes_(sizes), dtype_(dtype), cells_(cells), random_(salt) {
    k_ = stored(random_.normals(std::size_t{sizes.kv_heads} * cells * sizes.k_dim), dtype);
    v_ = stored(random_.normals(std::size_t{sizes.kv_heads} * cells * sizes.v_dim), dtype);
    sinks_ = random_.normals(sizes.heads, 2.0f);
    sequences_.reserve(32);
    bounds_.reserve(32);
  }

  Random& random() { return random_; }

  // Positions [begin, end) in spans of at most `longest` fresh cells.
  CellSpans claim(std::int32_t begin, std::int32_t end, std::int32_t longest) {
    CellSpans spans;
    for (std::int32_t position = begin; position < end;) {
      const std::int32_t length = std::min(end - position, 1 + random_.below(longest));
      spans.push_back({next_cell_, static_cast<std::uint32_t>(length), position});
      next_cell_ += static_cast<Cell>(length + random_.below(3));
      position += length;
    }
    EXPECT_LE(next_cell_, cells_);
    return spans;
  }

  void add(CellSpans keys, std::int32_t position, Bounds bounds) {
    const auto count = static_cast<std::uint32_t>(bounds.size());
    const std::uint32_t row = rows();
    sequences_.push_back(std::move(keys));
    bounds_.push_back(std::move(bounds));
    queries_.push_back({row, count, position, sequences_.back(), bounds_.back()});
    const auto q = random_.normals(std::size_t{count} * sizes_.heads * sizes_.k_dim);
    q_.insert(q_.end(), q.begin(), q.end());
  }

  std::uint32_t rows() const { return queries_.empty() ? 0 : queries_.back().row + queries_.back().count; }
  void set_sinks(float value) { std::fill(sinks_.begin(), sinks_.end(), value); }

  std::vector<float> run(const PlanLimits& limits, const Options& options = {}) const {
    return run_queries(queries_, q_, limits, options);
  }

  // Every query cut into slices of `count` rows, each a step of its own.
  std::vector<float> run_in_slices(std::uint32_t count, const PlanLimits& limits, const Options& options = {}) const {
    std::vector<float> out;
    const std::size_t line = std::size_t{sizes_.heads} * sizes_.k_dim;
    for (const QueryRows& query : queries_) {
      for (std::uint32_t at = 0; at < query.count; at += count) {
        const std::uint32_t rows = std::min(count, query.count - at);
        const std::vector<QueryRows> slice{
            {0, rows, query.position + static_cast<std::int32_t>(at), query.keys, query.bounds.subspan(at, rows)}};
        const auto q = std::span(q_).subspan((query.row + at) * line, rows * line);
        const auto part = run_queries(slice, {q.begin(), q.end()}, limits, options);
        out.insert(out.end(), part.begin(), part.end());
      }
    }
    return out;
  }

  // Dense attention of each sequence, with -inf at every position outside a row's bounds.
  std::vector<float> wanted(const Options& options = {}) const {
    std::vector<float> out;
    for (const QueryRows& query : queries_) {
      std::size_t n = 0;
      for (const CellSpan& span : query.keys) n += span.length;
      const CellFormat& format = *plain_format(dtype_);
      std::vector<std::byte> k(n * sizes_.kv_heads * format.row_bytes(sizes_.k_dim)),
          v(n * sizes_.kv_heads * format.row_bytes(sizes_.v_dim));
      reference::gather_rows(host_pool(k_, sizes_.k_dim), query.keys, format, k.data());
      reference::gather_rows(host_pool(v_, sizes_.v_dim), query.keys, format, v.data());
      std::vector<float> mask(query.count * n, -INFINITY);
      for (std::uint32_t row = 0; row < query.count; ++row)
        for (std::size_t key = 0; key < n; ++key) {
          const auto position = query.keys[0].position + static_cast<std::int32_t>(key);
          if (position >= query.bounds[row].first && position < query.bounds[row].end) mask[row * n + key] = 0.0f;
        }
      const std::size_t line = std::size_t{sizes_.heads} * sizes_.k_dim;
      std::vector<float> part(std::size_t{query.count} * sizes_.heads * sizes_.v_dim);
      reference::attention(std::span(q_).subspan(query.row * line, query.count * line), {k.data(), dtype_},
                           {v.data(), dtype_}, n, {sizes_.heads, sizes_.kv_heads, sizes_.k_dim, sizes_.v_dim}, mask,
                           {0.0f, options.softcap, options.sinks ? sinks_ : std::vector<float>()}, part);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

 private:
  reference::HostPool host_pool(const std::vector<std::byte>& bytes, std::uint32_t dim) const {
    return {const_cast<std::byte*>(bytes.data()), plain_format(dtype_), sizes_.kv_heads, cells_, dim};
  }

  // The pool with NaN in every cell that no row of `queries` sees.
  Tensor hidden(const std::vector<std::byte>& bytes, std::uint32_t dim, std::span<const QueryRows> queries) const {
    std::vector<bool> seen(cells_, false);
    for (const QueryRows& query : queries)
      for (const RowBounds& bounds : query.bounds)
        for (const CellSpan& span : query.keys)
          for (std::int32_t p = std::max(bounds.first, span.position); p < std::min(bounds.end, span.end_position());
               ++p)
            seen[span.cell + static_cast<Cell>(p - span.position)] = true;
    std::vector<std::byte> copy = bytes;
    const std::size_t row = plain_format(dtype_)->row_bytes(dim);
    for (std::size_t i = 0; i < std::size_t{sizes_.kv_heads} * cells_; ++i)
      if (!seen[i % cells_]) std::fill_n(copy.begin() + static_cast<std::ptrdiff_t>(i * row), row, std::byte{0xff});
    return Tensor::from_host(shared_device(), dtype_, {sizes_.kv_heads, cells_, dim}, copy.data());
  }

  std::vector<float> run_queries(std::span<const QueryRows> queries, const std::vector<float>& q,
                                 const PlanLimits& limits, const Options& options) const {
    const AttentionPlan plan = plan_attention(queries, limits);
    const AttentionOptions passed{0.0f, options.softcap, options.sinks ? upload(sinks_, {sizes_.heads}) : Tensor()};
    return download(attend_spans(upload(q, {plan.rows, sizes_.heads, sizes_.k_dim}),
                                 {hidden(k_, sizes_.k_dim, queries), hidden(v_, sizes_.v_dim, queries)},
                                 upload_plan(shared_device(), plan), passed));
  }

  Widths sizes_;
  DType dtype_;
  std::uint32_t cells_;
  Random random_;
  Cell next_cell_ = 3;
  std::vector<CellSpans> sequences_;  // queries point into these two
  std::vector<Bounds> bounds_;
  std::vector<QueryRows> queries_;
  std::vector<std::byte> k_, v_;
  std::vector<float> q_, sinks_;
};

constexpr PlanLimits kSmall{64, 16, 8};  // splits of two blocks; eight rows or more walk

// Right, and the same bits alone, in slices and under other plans.
void check(const Step& step, const std::string& what, const Options& options = {}, const PlanLimits& limits = kSmall) {
  const auto together = step.run(limits, options);
  expect_close(together, step.wanted(options), kAttention, what);
  for (const std::uint32_t slice : {1U, 5U})
    EXPECT_TRUE(same_bits(step.run_in_slices(slice, limits, options), together)) << what << ", slices of " << slice;
  for (const PlanLimits other : {PlanLimits{limits.keys_per_tile, 3, 1}, PlanLimits{limits.keys_per_tile, 16, 1000}})
    EXPECT_TRUE(same_bits(step.run(other, options), together)) << what << ", tiles of " << other.rows_per_tile;
}

struct Case {
  KernelFamily family;
  DType dtype;
};

class AttentionBounds : public OpsTest, public ::testing::WithParamInterface<Case> {
 protected:
  const ForcedFamily forced_{GetParam().family};
  DType dtype() const { return GetParam().dtype; }
};

INSTANTIATE_TEST_SUITE_P(EachFamily, AttentionBounds,
                         ::testing::ValuesIn(sampled({Case{KernelFamily::kSerial, DType::kFloat16},
                                                      {KernelFamily::kWorkGroup, DType::kFloat32},
                                                      {KernelFamily::kSerial, DType::kFloat32},
                                                      {KernelFamily::kWorkGroup, DType::kFloat16}},
                                                     2, 4)),
                         [](const auto& info) {
                           return std::string(info.param.family == KernelFamily::kSerial ? "Serial" : "WorkGroup") +
                                  name_of(info.param.dtype);
                         });

TEST_P(AttentionBounds, WindowsBesideTheBordersOfBlocksAndSplits) {
  for (const std::int32_t window : sampled({1, 32, 65, 129, 31, 33, 63, 64, 1000}, 4, 9)) {
    Step step(kPairs, dtype(), 31);
    step.add(step.claim(0, 150, 40), 110, windows(110, 40, window));
    check(step, cat("window ", window));
  }
}

TEST_P(AttentionBounds, ChunksOfEverySize) {
  for (const std::int32_t chunk : sampled({50, 64, 1, 32, 65}, 2, 5)) {
    Step step(kPairs, dtype(), 32);
    step.add(step.claim(0, 140, 200), 99, chunks(99, 41, chunk));
    check(step, cat("chunk ", chunk));
  }
}

// Positions 70 to 89 see each other, as the tokens of an image do; the others are causal in a window of 40.
TEST_P(AttentionBounds, SpansSeenInBothDirections) {
  Step step(kStraddling, dtype(), 33);
  Bounds bounds = windows(60, 50, 40);
  for (std::int32_t t = 70; t < 90; ++t) bounds[static_cast<std::size_t>(t - 60)].end = 90;
  step.add(step.claim(0, 110, 30), 60, bounds);
  check(step, "span of 20");
}

TEST_P(AttentionBounds, KeysThatBeginLate) {
  for (const std::int32_t begin : sampled({77, 64, 31}, 1, 3)) {
    Step step(kPairs, dtype(), 34);
    step.add(step.claim(begin, 180, 25), 176, Bounds(4, {begin, 180}));
    step.add(step.claim(begin, 150, 9), 140, windows(140, 10, 140 - begin));
    check(step, cat("keys from ", begin));
  }
}

TEST_P(AttentionBounds, RowsThatSeeNothingAreZero) {
  for (const float sink : {1.5f, -INFINITY}) {
    Step step(kPairs, dtype(), 35);
    step.set_sinks(sink);
    step.add(step.claim(0, 30, 30), 27, {{0, 28}, {5, 5}, {9, 2}});
    step.add(step.claim(0, 90, 30), 80, Bounds(10, {0, 0}));
    Bounds mixed = windows(60, 20, 70);
    mixed[0] = mixed[7] = mixed[19] = {0, 0};
    step.add(step.claim(0, 80, 30), 60, mixed);
    check(step, "sinks", {0.0f, true});
    const auto out = step.run(kSmall);
    const std::size_t line = kPairs.heads * kPairs.v_dim;
    for (const std::size_t row : {1U, 2U, 3U, 12U, 13U, 20U, 32U})
      for (std::size_t i = 0; i < line; ++i) ASSERT_EQ(out[row * line + i], 0.0f) << "row " << row;
  }
}

// Rows see far apart splits: what lies between is neither read nor counted.
TEST_P(AttentionBounds, RowsThatSeeSplitsFarApart) {
  Step step(kStraddling, dtype(), 36);
  step.add(step.claim(0, 700, 90), 690,
           {{0, 5}, {600, 610}, {3, 40}, {690, 695}, {130, 131}, {0, 700}, {64, 128}, {1, 2}});
  step.add(step.claim(0, 700, 90), 690, {{0, 5}, {600, 610}, {690, 695}});
  check(step, "apart");
}

// Sessions on one prefix, whose windows begin at different places; some hold the prefix from their window on only.
TEST_P(AttentionBounds, SessionsOnOnePrefix) {
  Step step(kPairs, dtype(), 37);
  const CellSpans prefix = step.claim(0, 300, 70);
  for (const std::int32_t tail : {1, 20, 21, 90, 5}) {
    const std::int32_t length = 300 + tail, rows = tail == 20 ? 12 : 1, window = 150 + tail;
    CellSpans keys;
    for (const CellSpan& span : prefix) {
      const std::int32_t cut =
          tail % 2 == 0
              ? 0
              : std::max(0, std::min(length - window - rows - span.position, static_cast<std::int32_t>(span.length)));
      if (cut == static_cast<std::int32_t>(span.length)) continue;
      keys.push_back(
          {span.cell + static_cast<Cell>(cut), span.length - static_cast<std::uint32_t>(cut), span.position + cut});
    }
    for (const CellSpan& span : step.claim(300, length, 16)) keys.push_back(span);
    step.add(keys, length - rows, windows(length - rows, rows, window));
  }
  check(step, "cascade");
}

TEST_P(AttentionBounds, RandomBoundsAgree) {
  for (std::uint32_t round = 0; round < oracle::by_circle(2u, 6u, 6u); ++round) {
    Step step(round % 2 ? kStraddling : kPairs, dtype(), 40 + round);
    Random& random = step.random();
    for (int sequence = 0; sequence < 4; ++sequence) {
      const std::int32_t begin = random.below(2) * random.below(200), length = 1 + random.below(250);
      const CellSpans keys = step.claim(begin, begin + length, 1 + random.below(80));
      Bounds bounds(static_cast<std::size_t>(1 + random.below(random.below(2) ? 5 : 30)));
      for (RowBounds& each : bounds) {
        each.first = begin + random.below(length);
        each.end = begin + random.below(length + 1);
      }
      step.add(keys, begin, bounds);
    }
    check(step, cat("round ", round), {round % 3 == 0 ? 4.0f : 0.0f, round % 2 == 0});
  }
}

// The device's own limits: splits of 512.
TEST_P(AttentionBounds, LongWindowsBesideTheBordersOfSplits) {
  for (const std::int32_t window : sampled({513, 511, 512}, 1, 3)) {
    Step step(kWide, dtype(), 38);
    step.add(step.claim(300, 1100, 200), 1036, windows(1036, 64, window));
    check(step, cat("window ", window), {6.0f, true}, plan_limits(*shared_device()));
  }
}

class BoundsOclgrind : public OpsTest {};

TEST_F(BoundsOclgrind, WindowsAndEmptyRows) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    Step step({2, 1, 16, 8}, DType::kFloat16, 39, 200);
    step.add(step.claim(40, 110, 20), 109, windows(109, 1, 50));
    step.add(step.claim(0, 30, 9), 21, {{3, 22}, {4, 23}, {0, 0}, {6, 25}, {7, 26}, {8, 27}, {9, 30}, {9, 30}, {0, 1}});
    const PlanLimits limits{32, 16, 8};
    expect_close(step.run(limits, {0.0f, true}), step.wanted({0.0f, true}), kAttention);
  }
}

}  // namespace
}  // namespace kvtrie::ops
