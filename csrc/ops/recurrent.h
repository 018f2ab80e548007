// Recurrent layers on the device: a short causal convolution, the gated delta rule and the scan of Mamba-2 (SSD), with
// states in slots of a pool.
//
// Concept. Each operation goes through the rows of each sequence in order and carries a state. The state comes from one
// slot of a pool (or is zero) and is written, at the end and at scheduled offsets before it, to other slots: a slot
// that is read is never written, so a state that somebody holds stays as it is. The rows of a step are cut at the
// offsets inside the kernel; the forward pass is not:
//
//     rows of one sequence     0 ............ 512 ........ 700       one launch
//     states                   read slot 3    write 8      write 9
//
// A row's result and the states do not depend on where the cuts are, bit for bit, nor on other sequences in the step.
//
// Sources: causal_conv1d and the gated delta rule as in Yang et al. 2024 (arXiv 2412.06464) and Qwen3-Next; ssd as in
// Dao and Gu 2024 (arXiv 2405.21060). States of both are always float32 (accumulators in fewer bits drift).
// Threads: functions may be called from any thread; one DeviceStateRuns is used by one thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace kvtrie::ops {

// A state is written to `slot` after `rows` of the sequence's rows.
struct StateWrite {
  std::uint32_t rows = 0;
  std::int32_t slot = 0;
};

// The rows of one sequence in a step: `count` (>= 1) consecutive rows from `row`. `from`: the slot read before them, -1
// for a zero state. `writes`: ascending in rows, within 1 .. count; usually the last one is at `count`.
struct StateRows {
  std::uint32_t row = 0, count = 0;
  std::int32_t from = -1;
  std::vector<StateWrite> writes;
};

// Arrays that all recurrent layers of a step share, laid out as in kernels/recurrent.cl.
class StateRuns {
 public:
  StateRuns() = default;
  // Throws kArgument unless the rows of all sequences are 0 .. rows-1, each once, writes are as above, and no slot is
  // written twice. Rows that belong to nobody (padding) are a sequence from zeros without writes.
  explicit StateRuns(std::span<const StateRows> sequences);

  std::uint32_t sequences() const noexcept { return sequences_; }
  std::uint32_t rows() const noexcept { return rows_; }
  std::int32_t read_slots() const noexcept { return read_slots_; }              // one past the largest slot read
  std::int32_t write_slots() const noexcept { return write_slots_; }            // one past the largest slot written
  bool writes_what_it_reads() const noexcept { return writes_what_it_reads_; }  // then the states are two tensors
  const std::vector<std::int32_t>& table() const noexcept { return table_; }

 private:
  std::uint32_t sequences_ = 0, rows_ = 0;
  std::int32_t read_slots_ = 0, write_slots_ = 0;
  bool writes_what_it_reads_ = false;
  std::vector<std::int32_t> table_;
};

// The same on the device: uploaded once per step.
class DeviceStateRuns {
 public:
  DeviceStateRuns() = default;
  DeviceStateRuns(const cl::DevicePtr& device, std::span<const StateRows> sequences);  // throws as StateRuns, kDevice

  std::uint32_t sequences() const noexcept { return runs_.sequences(); }
  std::uint32_t rows() const noexcept { return runs_.rows(); }
  std::int32_t read_slots() const noexcept { return runs_.read_slots(); }
  std::int32_t write_slots() const noexcept { return runs_.write_slots(); }
  bool writes_what_it_reads() const noexcept { return runs_.writes_what_it_reads(); }
  const Tensor& table() const noexcept { return table_; }  // int32

 private:
  StateRuns runs_;
  Tensor table_;
};

// y[t, c] = sum over j of weight[c, j] * input[t - (width - 1) + j, c], where the inputs before a sequence's first row
// are the rows of its state. x [rows, dim], float32; weight [dim, width], float32, width >= 1; states_in and states_out
// [slots, width - 1, dim], float32 or float16, may be one tensor: a state is the last width - 1 inputs, oldest first.
// Returns [rows, dim] float32. No bias, no activation. States that no sequence reads or writes may be undefined; with
// a width of 1 there are none.
Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& states_in, const Tensor& states_out,
                     const DeviceStateRuns& runs);

// The gated delta rule. For every row t and value head h, with key head h * k_heads / v_heads, S [v_dim, k_dim]:
//
//     S = exp(g[t,h]) * S;   u = beta[t,h] * (v[t,h] - S k[t]);   S = S + u k[t]^T;   y[t,h] = S q[t]
//
// q, k [rows, k_heads, k_dim], v [rows, v_heads, v_dim], g and beta [rows, v_heads], all float32 (q already scaled); g
// may be [rows, v_heads, k_dim], at most 0: then each column of S fades by its own (Kimi Team 2025, arXiv 2510.26692);
// v_heads a multiple of k_heads; states_in, states_out float32 [slots, v_heads, v_dim, k_dim], as above.
// Returns [rows, v_heads, v_dim] float32.
Tensor gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                   const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs);

// The scan of Mamba-2. For every row t and head h, with the group h * groups / heads of B and C, S [head_dim, state]:
//
//     dt = min(max(dt[t,h], least), most)
//     S = exp(dt * a[h]) * S + (dt * x[t,h]) b[t]^T;   y[t,h] = S c[t] + d[h] * x[t,h]
//
// x [rows, heads, head_dim], dt [rows, heads], after bias and softplus, b, c [rows, groups, state], a (below 0) and d
// [heads], all float32; heads a multiple of groups. `least` <= `most`, both 0 or more; `most` may be infinite.
struct SsdInputs {
  Tensor x, dt, a, b, c, d;
  float least = 0.0f, most = std::numeric_limits<float>::infinity();
};
// states_in, states_out float32 [slots, heads, head_dim, state], as above. Returns [rows, heads, head_dim] float32.
Tensor ssd(const SsdInputs& inputs, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs);

// The same for callers without a pool: sequence i has the rows [row_starts[i], row_starts[i + 1]) and begins from
// states[i]; `states` undefined: from zeros. The last of `row_starts` is the number of rows, or left out.
// boundaries[i]: how many rows of sequence i come before each further state, ascending, 1 to its rows - 1; empty: none
// anywhere. `states` of the result: sequence by sequence, those at the boundaries, then the one at the end; for the
// convolution in the dtype of the states that came in (float32 without), undefined for a width of 1.
struct Recurrence {
  Tensor y, states;
};
using RowBoundaries = std::vector<std::vector<std::int32_t>>;
Recurrence causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& states,
                         std::span<const std::int32_t> row_starts, const RowBoundaries& boundaries);
Recurrence gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const Tensor& states, std::span<const std::int32_t> row_starts, const RowBoundaries& boundaries);
Recurrence ssd(const SsdInputs& inputs, const Tensor& states, std::span<const std::int32_t> row_starts,
               const RowBoundaries& boundaries);

// Builds and proves the kernels for these sizes, and runs each once, so that no step waits for a compiler. A width or
// k_dim of 0: without that operation. Waits.
struct RecurrentSizes {
  std::int64_t conv_width = 0, v_dim = 0, k_dim = 0;
  DType conv_dtype = DType::kFloat32;
};
void warm_up_recurrent(const cl::DevicePtr& device, const RecurrentSizes& sizes);

}  // namespace kvtrie::ops
