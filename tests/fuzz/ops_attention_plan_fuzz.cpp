// Steps made from bytes, planned: sequences that share cells or not, windows, bounds of any kind, limits of any kind.
//
// Holds to: a step is refused with kArgument, or the plan has every key that a row sees exactly once, at its own cell,
// and every partial is written and read once (tests/cpp/attention_plan_check.h). One that is made as the caches make
// them is not refused.
//
// Input: [1: limits][1: made as it should be, or not], then sequences.
#include <limits>

#include "attention_plan_check.h"
#include "fuzz_bytes.h"

namespace kvtrie::fuzz {
namespace {

using ops::AttentionPlan;
using ops::PlanLimits;
using ops::QueryRows;
using ops::RowBounds;

constexpr std::uint32_t kLongest = 120;  // tokens of a span

class StepMaker {
 public:
  explicit StepMaker(Input input) : from_(input) {}

  void play() {
    const PlanLimits limits{static_cast<std::uint32_t>(32 << from_.below(3)),
                            from_.pick<std::uint32_t>({1, 2, 3, 16, 40}), from_.pick<std::uint32_t>({1, 2, 8, 100})};
    wild_ = from_.flag();
    far_ = wild_ && from_.flag();
    while (histories_.size() < 6 && !from_.empty()) add_sequence();
    for (std::size_t i = 0; i < queries_.size(); ++i) queries_[i].keys = histories_[i], queries_[i].bounds = bounds_[i];
    try {
      const AttentionPlan plan = plan_attention(queries_, limits);
      expect(plan.rows == row_, "rows: ", plan.rows, ", expected ", row_);
      check_plan(plan, queries_, limits);
      expect_table(plan);
    } catch (const Error& error) {
      expect(wild_ && error.kind() == ErrorKind::kArgument, error.what());
    }
  }

 private:
  void add_sequence() {
    const std::size_t number = histories_.size();
    // Of the sequence before it, as far as it shares its cells; then cells of its own.
    CellSpans spans;
    const std::int32_t first = far_ ? std::numeric_limits<std::int32_t>::max() - 900 : 0;
    std::int32_t at = first;
    if (number > 0 && from_.flag()) {
      const auto shared = first + static_cast<std::int32_t>(from_.below(400));
      for (const CellSpan& span : histories_.back()) {
        if (span.position != at || at >= shared || span.length > kLongest) break;  // or it was spoilt
        spans.push_back(span);
        at = span.end_position();
      }
    }
    Cell cell = 5000 * static_cast<Cell>(number + 1);
    for (std::size_t left = from_.below(6); left > 0 || at == first; left -= left > 0 ? 1 : 0) {
      const auto length = static_cast<std::uint32_t>(1 + from_.below(kLongest));
      spans.push_back({cell, length, at});
      at += static_cast<std::int32_t>(length);
      cell += length + static_cast<Cell>(from_.below(3));
    }
    const auto count = static_cast<std::uint32_t>(1 + from_.below(std::min<std::size_t>(30, at - first)));
    queries_.push_back({row_, count, at - static_cast<std::int32_t>(count)});
    row_ += count;
    histories_.push_back(std::move(spans));
    bounds_.push_back(some_bounds(queries_.back(), first, at));
    if (wild_ && from_.flag()) spoil(queries_.back(), histories_.back());
  }

  std::vector<RowBounds> some_bounds(const QueryRows& query, std::int32_t first, std::int32_t end) {
    const std::size_t kind = far_ ? 1 + from_.below(2) : from_.below(3);
    if (kind == 0) return {};
    const auto window = 1 + static_cast<std::int32_t>(from_.below(200));
    std::vector<RowBounds> bounds(query.count);
    for (std::uint32_t i = 0; i < query.count; ++i) {
      const std::int32_t own = query.position + static_cast<std::int32_t>(i) + 1;
      bounds[i] = {std::max(first, own - window), own};
      if (kind == 2) bounds[i] = {first + position(end - first), first + position(end - first + 1)};
    }
    return bounds;
  }

  std::int32_t position(std::int32_t limit) {
    return static_cast<std::int32_t>(from_.below(static_cast<std::size_t>(limit)));
  }

  void spoil(QueryRows& query, CellSpans& spans) {
    CellSpan& span = spans[from_.below(spans.size())];
    switch (from_.below(6)) {
      case 0:
        span.position += from_.pick({-1, 1, 100});
        break;
      case 1:
        span.length = from_.pick<std::uint32_t>({0, 0xFFFFFFFF, 0x80000000, span.length - 1});
        break;
      case 2:
        span.cell = from_.pick<Cell>({0xFFFFFFFF, 0x7FFFFFFF, 7});
        break;
      case 3:
        query.row = from_.pick<std::uint32_t>({0, query.row + 1, 0xFFFFFFFF});
        break;
      case 4:
        query.position = from_.pick({-1, std::numeric_limits<std::int32_t>::max(), query.position + 1});
        break;
      default:
        query.count = from_.pick<std::uint32_t>({0, query.count + 1});
    }
  }

  static void expect_table(const AttentionPlan& plan) {
    std::vector<std::int32_t> table{7, 7};
    const ops::PlanOffsets at = append_plan(table, plan);
    const auto size = [](const auto& list) { return static_cast<std::int32_t>(list.size()); };
    expect(at.row_bounds == 2 && at.tiles == at.segments + 3 * size(plan.segments), "the table has gaps");
    expect(size(table) == 2 + 2 * size(plan.row_bounds) + size(plan.row_ids) + 3 * size(plan.segments) +
                              5 * size(plan.tiles) + size(plan.merge_begin) + size(plan.merge_ids),
           "the table has another size");
  }

  Bytes from_;
  bool wild_ = false, far_ = false;
  std::vector<CellSpans> histories_;
  std::vector<std::vector<RowBounds>> bounds_;
  std::vector<QueryRows> queries_;
  std::uint32_t row_ = 0;
};

const Registration registered_plan("ops_attention_plan", [](Input input) { StepMaker(input).play(); });

}  // namespace
}  // namespace kvtrie::fuzz
