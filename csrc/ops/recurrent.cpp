#include "ops/recurrent.h"

#include <algorithm>

#include "base/checked.h"
#include "ops/recurrent_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kRuns = "ops.state_runs";

void check_sequence(const StateRows& rows, std::size_t index) {
  require(rows.count >= 1, kRuns, "rows of sequence ", index, ": got 0, allowed 1 or more");
  require(rows.from >= -1, kRuns, "from: got ", rows.from, ", allowed -1 or more");
  std::uint32_t before = 0;
  for (const StateWrite& write : rows.writes) {
    require(write.rows > before && write.rows <= rows.count, kRuns, "write of sequence ", index, ": got ", write.rows,
            " rows after ", before, ", allowed more, up to ", rows.count);
    require(write.slot >= 0, kRuns, "slot to write: got ", write.slot, ", allowed 0 or more");
    before = write.rows;
  }
}

// The number of rows; throws unless they are 0 .. rows-1, each once.
std::uint32_t count_rows(std::span<const StateRows> sequences) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
  for (const StateRows& rows : sequences) runs.emplace_back(rows.row, rows.count);
  std::sort(runs.begin(), runs.end());
  std::uint32_t next = 0;
  for (const auto& [row, count] : runs) {
    require(row == next, kRuns, "rows: got a sequence from row ", row, ", allowed one from ", next);
    next = checked_add(next, count, kRuns, "rows");
  }
  require(next <= INT32_MAX, kRuns, "rows: got ", next, ", allowed ", INT32_MAX);
  return next;
}

// One past the largest; throws when a slot is there twice.
std::int32_t end_of(std::vector<std::int32_t> slots) {
  std::sort(slots.begin(), slots.end());
  const auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) fail(ErrorKind::kArgument, kRuns, "slot to write: got ", *twice, " twice, allowed once");
  return slots.empty() ? 0 : checked_add(slots.back(), 1, kRuns, "slot to write");
}

void check_rows(const char* where, const char* name, const Tensor& tensor, const Tensor& first, Shape allowed) {
  check_same_device(where, name, tensor, first);
  check_dtype(where, name, tensor, DType::kFloat32);
  check_shape(where, name, tensor, allowed);
}

// `tail`: a state's shape. A tensor that no sequence uses may be undefined.
void check_states(const char* where, const char* name, const Tensor& states, const Tensor& first, std::int32_t slots,
                  const Shape& tail) {
  if (slots == 0 && !states.defined()) return;
  check_same_device(where, name, states, first);
  check_rank(where, name, states, static_cast<int>(tail.size()) + 1);
  Shape allowed{states.dim(0)};
  allowed.insert(allowed.end(), tail.begin(), tail.end());
  check_shape(where, name, states, allowed);
  require(states.dim(0) >= slots, where, name, ": got ", states.dim(0), " slots, allowed ", slots, " or more");
}

// REQUIRES: both defined. Whether a slot of one may be a slot of the other.
bool share_memory(const Tensor& a, const Tensor& b) { return a.buffer().handle() == b.buffer().handle(); }

void check_apart(const char* where, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs) {
  if (!states_in.defined() || !states_out.defined() || !share_memory(states_in, states_out)) return;
  require(states_in.offset() == states_out.offset() && states_in.shape() == states_out.shape(), where,
          "states_out: got a tensor that overlaps states_in, allowed the same one or another");
  require(!runs.writes_what_it_reads(), where, "states_out: got slots that are read, too, allowed others");
}

}  // namespace

StateRuns::StateRuns(std::span<const StateRows> sequences) {
  require(!sequences.empty(), kRuns, "sequences: got none, allowed 1 or more");
  sequences_ = narrow<std::uint32_t>(sequences.size(), kRuns, "sequences");
  std::vector<std::int32_t> writes, read, written;
  for (std::size_t i = 0; i < sequences.size(); ++i) check_sequence(sequences[i], i);
  rows_ = count_rows(sequences);
  const std::size_t first = sequences.size() * 5;
  for (const StateRows& rows : sequences) {
    const auto begin = static_cast<std::int32_t>(first + writes.size());
    for (const StateWrite& write : rows.writes) {
      writes.insert(writes.end(), {static_cast<std::int32_t>(write.rows), write.slot});
      written.push_back(write.slot);
    }
    const auto end = static_cast<std::int32_t>(first + writes.size());
    table_.insert(table_.end(),
                  {static_cast<std::int32_t>(rows.row), static_cast<std::int32_t>(rows.count), rows.from, begin, end});
    read_slots_ = std::max(read_slots_, checked_add(rows.from, 1, kRuns, "from"));
    if (rows.from >= 0) read.push_back(rows.from);
  }
  write_slots_ = end_of(written);
  std::sort(written.begin(), written.end());
  writes_what_it_reads_ = std::any_of(read.begin(), read.end(), [&](std::int32_t slot) {
    return std::binary_search(written.begin(), written.end(), slot);
  });
  table_.insert(table_.end(), writes.begin(), writes.end());
  narrow<std::int32_t>(table_.size(), kRuns, "table");
}

DeviceStateRuns::DeviceStateRuns(const cl::DevicePtr& device, std::span<const StateRows> sequences)
    : runs_(sequences),
      table_(Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(runs_.table().size())},
                               runs_.table().data())) {}

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& states_in, const Tensor& states_out,
                     const DeviceStateRuns& runs) {
  constexpr const char* kWhere = "ops.causal_conv1d";
  check_device(kWhere, "x", x);
  check_rank(kWhere, "x", x, 2);
  check_rows(kWhere, "x", x, x, {runs.rows(), x.dim(1)});
  check_same_device(kWhere, "weight", weight, x);
  check_rank(kWhere, "weight", weight, 2);
  check_rows(kWhere, "weight", weight, x, {x.dim(1), weight.dim(1)});
  require(runs.table().device() == x.device(), kWhere, "runs: got a table on another device");
  require(x.dim(1) * weight.dim(1) <= INT32_MAX, kWhere, "weight: got ", describe(weight), ", allowed ", INT32_MAX,
          " numbers");
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, x.shape());
  if (weight.dim(1) == 1) {  // nothing is carried over
    launch_conv(x, weight, {}, {}, runs, y);
    return y;
  }
  const Shape state{weight.dim(1) - 1, x.dim(1)};
  check_states(kWhere, "states_in", states_in, x, runs.read_slots(), state);
  check_states(kWhere, "states_out", states_out, x, runs.write_slots(), state);
  for (const Tensor& states : {states_in, states_out}) {
    if (!states.defined() || states.dtype() == DType::kFloat32 || states.dtype() == DType::kFloat16) continue;
    fail(ErrorKind::kType, kWhere, "states: got ", describe(states), ", allowed float32 or float16");
  }
  if (states_in.defined() && states_out.defined()) check_dtype(kWhere, "states_out", states_out, states_in.dtype());
  check_apart(kWhere, states_in, states_out, runs);
  launch_conv(x, weight, states_in, states_out, runs, y);
  return y;
}

Tensor gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                   const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs) {
  constexpr const char* kWhere = "ops.gated_delta";
  const std::int64_t rows = runs.rows();
  check_device(kWhere, "q", q);
  check_rank(kWhere, "q", q, 3);
  check_rows(kWhere, "q", q, q, {rows, q.dim(1), q.dim(2)});
  check_rows(kWhere, "k", k, q, q.shape());
  check_same_device(kWhere, "v", v, q);
  check_rank(kWhere, "v", v, 3);
  check_rows(kWhere, "v", v, q, {rows, v.dim(1), v.dim(2)});
  require(v.dim(1) % q.dim(1) == 0, kWhere, "v: got ", v.dim(1), " heads, allowed a multiple of ", q.dim(1));
  check_rows(kWhere, "g", g, q, g.rank() == 3 ? Shape{rows, v.dim(1), q.dim(2)} : Shape{rows, v.dim(1)});
  check_rows(kWhere, "beta", beta, q, {rows, v.dim(1)});
  require(runs.table().device() == q.device(), kWhere, "runs: got a table on another device");
  const Shape state{v.dim(1), v.dim(2), q.dim(2)};
  check_states(kWhere, "states_in", states_in, q, runs.read_slots(), state);
  check_states(kWhere, "states_out", states_out, q, runs.write_slots(), state);
  for (const Tensor& states : {states_in, states_out}) {
    if (states.defined()) check_dtype(kWhere, "states", states, DType::kFloat32);
  }
  check_apart(kWhere, states_in, states_out, runs);
  Tensor y = Tensor::empty(q.device(), DType::kFloat32, v.shape());
  launch_delta({q, k, v, g, beta}, states_in, states_out, runs, y);
  return y;
}

Tensor ssd(const SsdInputs& in, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs) {
  constexpr const char* kWhere = "ops.ssd";
  const std::int64_t rows = runs.rows();
  check_device(kWhere, "x", in.x);
  check_rank(kWhere, "x", in.x, 3);
  check_rows(kWhere, "x", in.x, in.x, {rows, in.x.dim(1), in.x.dim(2)});
  const std::int64_t heads = in.x.dim(1);
  check_same_device(kWhere, "b", in.b, in.x);
  check_rank(kWhere, "b", in.b, 3);
  check_rows(kWhere, "b", in.b, in.x, {rows, in.b.dim(1), in.b.dim(2)});
  require(heads % in.b.dim(1) == 0, kWhere, "x: got ", heads, " heads, allowed a multiple of ", in.b.dim(1));
  check_rows(kWhere, "c", in.c, in.x, in.b.shape());
  check_rows(kWhere, "dt", in.dt, in.x, {rows, heads});
  check_rows(kWhere, "a", in.a, in.x, {heads});
  check_rows(kWhere, "d", in.d, in.x, {heads});
  require(in.least >= 0.0f && in.most >= in.least, kWhere, "dt_limits: got ", in.least, " and ", in.most,
          ", allowed 0 or more, and as much or more");
  require(runs.table().device() == in.x.device(), kWhere, "runs: got a table on another device");
  const Shape state{heads, in.x.dim(2), in.b.dim(2)};
  check_states(kWhere, "states_in", states_in, in.x, runs.read_slots(), state);
  check_states(kWhere, "states_out", states_out, in.x, runs.write_slots(), state);
  for (const Tensor& states : {states_in, states_out}) {
    if (states.defined()) check_dtype(kWhere, "states", states, DType::kFloat32);
  }
  check_apart(kWhere, states_in, states_out, runs);
  Tensor y = Tensor::empty(in.x.device(), DType::kFloat32, in.x.shape());
  launch_ssd(in, states_in, states_out, runs, y);
  return y;
}

void warm_up_recurrent(const cl::DevicePtr& device, const RecurrentSizes& sizes) {
  const auto zeros = [&](Shape shape) { return Tensor::zeros(device, DType::kFloat32, std::move(shape)); };
  const std::vector<StateRows> rows{{0, 2, -1, {{2, 0}}}};
  const DeviceStateRuns runs(device, rows);
  if (sizes.conv_width > 0) {
    Tensor states;
    if (sizes.conv_width > 1) states = Tensor::zeros(device, sizes.conv_dtype, {1, sizes.conv_width - 1, 16});
    causal_conv1d(zeros({2, 16}), zeros({16, sizes.conv_width}), states, states, runs);
  }
  if (sizes.k_dim > 0) {
    const Tensor keys = zeros({2, 1, sizes.k_dim}), values = zeros({2, 1, sizes.v_dim}), gates = zeros({2, 1});
    const Tensor states = zeros({1, 1, sizes.v_dim, sizes.k_dim});
    gated_delta(keys, keys, values, gates, gates, states, states, runs);
    ssd({values, gates, zeros({1}), keys, keys, zeros({1})}, states, states, runs);
  }
  device->finish();
}

}  // namespace kvtrie::ops
