// Copies of queries for keys that have moved: the q that a plan's tiles read.
#include <map>

#include "ops/attention.h"
#include "ops/rows_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {

// A head of a row is a cell of a pool of one head, so that what turns stored keys turns queries.
void DevicePlan::place_turns(std::int64_t heads, const cl::DevicePtr& device) const {
  std::vector<std::int32_t> sources;
  for (std::uint32_t row = 0; row < rows_; ++row) sources.push_back(static_cast<std::int32_t>(row));
  std::map<std::int32_t, CellSpans> by_turn;
  for (const TurnedRow& copy : turned_) {
    const auto cell = static_cast<Cell>(sources.size() * static_cast<std::size_t>(heads));
    sources.push_back(copy.row);
    if (copy.by == 0) continue;
    CellSpans& spans = by_turn[copy.by];
    if (!spans.empty() && spans.back().end_cell() == cell) {
      spans.back().length += static_cast<std::uint32_t>(heads);
    } else {
      spans.push_back({cell, static_cast<std::uint32_t>(heads), 0});
    }
  }
  turns_.clear();
  for (const auto& [by, spans] : by_turn) turns_.push_back({by, CellRuns::of_spans(device, spans, 1)});
  sources_ = Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(sources.size())}, sources.data());
  turned_heads_ = heads;
}

Tensor turn_queries(const Tensor& q, const DevicePlan& plan, const RopeParams& rope) {
  constexpr const char* kWhere = "ops.turn_queries";
  if (plan.turned_.empty()) return q;
  check_device(kWhere, "q", q);
  check_dtype(kWhere, "q", q, DType::kFloat32);
  check_rank(kWhere, "q", q, 3);
  require(q.dim(0) == plan.rows(), kWhere, "q: got ", q.dim(0), " rows, allowed the plan's ", plan.rows());
  const std::int64_t heads = q.dim(1), queries = plan.queries();
  if (plan.turned_heads_ != heads) plan.place_turns(heads, q.device());
  Tensor all = Tensor::empty(q.device(), DType::kFloat32, {queries, heads, q.dim(2)});
  launch_take_rows(q, plan.sources_, all);
  const LayerCells cells(all.reshape({1, queries * heads, q.dim(2)}),
                         Tensor::empty(q.device(), DType::kFloat32, {1, queries * heads, 0}));
  for (const DevicePlan::Turn& turn : plan.turns_) rotate_cells(cells, turn.runs, turn.by, rope);
  return all;
}

}  // namespace kvtrie::ops
