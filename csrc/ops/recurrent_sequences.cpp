// The recurrent operations for callers without a pool of slots: states come in and go out in the order of sequences.
#include "ops/recurrent.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// Sequence i reads slot i and writes the next slots of the result.
struct Sequences {
  std::vector<StateRows> rows;
  std::int64_t states = 0;  // of the result
};

std::vector<StateWrite> writes_of(const char* where, std::size_t sequence, std::uint32_t count,
                                  std::span<const std::int32_t> boundaries, std::int64_t& slot) {
  std::vector<StateWrite> writes;
  std::int32_t before = 0;
  for (const std::int32_t boundary : boundaries) {
    require(boundary > before && boundary < static_cast<std::int64_t>(count), where, "boundaries[", sequence, "]: got ",
            boundary, " after ", before, ", allowed more, and below its ", count, " rows");
    writes.push_back({static_cast<std::uint32_t>(boundary), static_cast<std::int32_t>(slot++)});
    before = boundary;
  }
  writes.push_back({count, static_cast<std::int32_t>(slot++)});
  return writes;
}

Sequences sequences_of(const char* where, std::int64_t rows, const Tensor& states,
                       std::span<const std::int32_t> row_starts, const RowBoundaries& boundaries) {
  require(rows <= INT32_MAX, where, "rows: got ", rows, ", allowed ", INT32_MAX);
  std::vector<std::int32_t> starts(row_starts.begin(), row_starts.end());
  require(!starts.empty() && starts.front() == 0, where, "row_starts: got ",
          starts.empty() ? "none" : cat(starts.front(), " first"), ", allowed 0 first");
  if (starts.back() != rows) starts.push_back(static_cast<std::int32_t>(rows));
  const std::size_t count = starts.size() - 1;
  require(boundaries.empty() || boundaries.size() == count, where, "boundaries: got ", boundaries.size(),
          " lists, allowed ", count, ", one for each sequence");
  require(!states.defined() || (states.rank() > 0 && states.dim(0) == static_cast<std::int64_t>(count)), where,
          "states: got ", describe(states), ", allowed ", count, " states, one for each sequence");
  Sequences result;
  for (std::size_t i = 0; i < count; ++i) {
    require(starts[i + 1] > starts[i], where, "row_starts: got ", starts[i + 1], " after ", starts[i],
            ", allowed more, up to the ", rows, " rows");
    const auto length = static_cast<std::uint32_t>(starts[i + 1] - starts[i]);
    const std::span<const std::int32_t> cuts = boundaries.empty() ? std::span<const std::int32_t>() : boundaries[i];
    result.rows.push_back({static_cast<std::uint32_t>(starts[i]), length,
                           states.defined() ? static_cast<std::int32_t>(i) : -1,
                           writes_of(where, i, length, cuts, result.states)});
  }
  return result;
}

}  // namespace

Recurrence causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& states,
                         std::span<const std::int32_t> row_starts, const RowBoundaries& boundaries) {
  constexpr const char* kWhere = "ops.causal_conv1d";
  check_device(kWhere, "x", x);
  check_rank(kWhere, "x", x, 2);
  check_device(kWhere, "weight", weight);
  check_rank(kWhere, "weight", weight, 2);
  const Sequences sequences = sequences_of(kWhere, x.dim(0), states, row_starts, boundaries);
  Recurrence result;
  const DType dtype = states.defined() ? states.dtype() : DType::kFloat32;
  if (weight.dim(1) > 1) {
    result.states = Tensor::empty(x.device(), dtype, {sequences.states, weight.dim(1) - 1, x.dim(1)});
  }
  result.y = causal_conv1d(x, weight, states, result.states, DeviceStateRuns(x.device(), sequences.rows));
  return result;
}

Recurrence gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const Tensor& states, std::span<const std::int32_t> row_starts,
                       const RowBoundaries& boundaries) {
  constexpr const char* kWhere = "ops.gated_delta";
  check_device(kWhere, "q", q);
  check_rank(kWhere, "q", q, 3);
  check_same_device(kWhere, "v", v, q);
  check_rank(kWhere, "v", v, 3);
  const Sequences sequences = sequences_of(kWhere, q.dim(0), states, row_starts, boundaries);
  Recurrence result;
  result.states = Tensor::empty(q.device(), DType::kFloat32, {sequences.states, v.dim(1), v.dim(2), q.dim(2)});
  result.y = gated_delta(q, k, v, g, beta, states, result.states, DeviceStateRuns(q.device(), sequences.rows));
  return result;
}

Recurrence ssd(const SsdInputs& in, const Tensor& states, std::span<const std::int32_t> row_starts,
               const RowBoundaries& boundaries) {
  constexpr const char* kWhere = "ops.ssd";
  check_device(kWhere, "x", in.x);
  check_rank(kWhere, "x", in.x, 3);
  check_same_device(kWhere, "b", in.b, in.x);
  check_rank(kWhere, "b", in.b, 3);
  const Sequences sequences = sequences_of(kWhere, in.x.dim(0), states, row_starts, boundaries);
  Recurrence result;
  result.states =
      Tensor::empty(in.x.device(), DType::kFloat32, {sequences.states, in.x.dim(1), in.x.dim(2), in.b.dim(2)});
  result.y = ssd(in, states, result.states, DeviceStateRuns(in.x.device(), sequences.rows));
  return result;
}

}  // namespace kvtrie::ops
