// Attention on the device: planned attention over spans of a cell pool, and dense attention for models that bring their
// own K and V.
//
// Concept. `plan_attention` (attention_plan.h) cuts a step's work into tiles on the host; `upload_plan` sends the whole
// plan in one transfer; `attend_spans` runs it for one layer. A plan is uploaded once per step and used by every layer.
//
// A row's result depends on the contents and positions that it sees only: not on the other rows of the step or on what
// they see, on how the history lies in cells, on the size of the chunk, or on the number of threads. Bits are equal in
// all these cases.
//
// Threads: functions may be called from any thread; one DevicePlan is used by one thread at a time.
#pragma once

#include <cstdint>

#include "ops/attention_plan.h"
#include "ops/cells.h"
#include "ops/rope.h"
#include "ops/weight_dtype.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

struct AttentionOptions {
  float scale = 0.0f;    // factor on q.k; 0 or less: 1 / sqrt(k_dim)
  float softcap = 0.0f;  // above 0: scores become softcap * tanh(score / softcap)
  Tensor sinks;          // undefined, or float32 [heads]: a logit per head that only adds to the softmax denominator
  Precision precision = Precision::kAuto;  // kFast: q and weights as one half each where there are matrix instructions
};

// How `plan_attention` should cut work for this device.
PlanLimits plan_limits(const cl::Device& device);

// A plan on the device: one int32 buffer with every array of AttentionPlan, and the scratch its partials need.
class DevicePlan {
 public:
  DevicePlan() = default;
  std::uint32_t rows() const noexcept { return rows_; }
  std::uint32_t queries() const noexcept { return rows_ + static_cast<std::uint32_t>(turned_.size()); }  // and copies
  std::uint64_t nbytes() const;                                 // of device memory held now
  std::int64_t end_cell() const noexcept { return end_cell_; }  // one past the largest cell it names
  const Tensor& table() const noexcept { return table_; }

 private:
  friend DevicePlan upload_plan(const cl::DevicePtr& device, const AttentionPlan& plan);
  friend struct AttentionLaunch;
  friend Tensor turn_queries(const Tensor& q, const DevicePlan& plan, const RopeParams& rope);

  PlanOffsets offsets_;  // into `table_`
  std::uint32_t rows_ = 0, tiles_ = 0, partials_ = 0;
  std::uint32_t split_ = 512;
  std::int32_t most_rows_ = 0;       // of a tile
  std::uint32_t most_partials_ = 0;  // of a row
  std::int64_t end_cell_ = 0;
  Tensor table_;
  std::vector<TurnedRow> turned_;
  // Kept from layer to layer; the in-order queue makes reuse safe.
  mutable Tensor partial_out_;    // float32 [partials, heads, v_dim]
  mutable Tensor partial_stats_;  // float32 [partials, heads, 2]: running max, sum of exponentials
  // Where tiles merge (kernels/attention_merged.clh): counters int32 [rows, kv_heads], 0 between launches, then the row
  // of each copy.
  mutable Tensor lines_done_;
  // Of turn_queries: the table that kernels/turn.cl reads, for each rope that was asked for.
  struct Turns {
    RopeParams rope;
    std::int32_t k_dim = 0, sources_at = 0, ropes_at = 0;
    Tensor table;
  };
  const Turns& turns_of(const RopeParams& rope, std::int32_t k_dim, const cl::DevicePtr& device) const;
  mutable std::vector<Turns> turns_;
};

DevicePlan upload_plan(const cl::DevicePtr& device, const AttentionPlan& plan);

// q [rows, heads, k_dim] float32 -> float32 [queries, heads, k_dim]: the rows as they are, then the copies that the
// plan's tiles read for keys that have moved, each rotated on by as many positions, in float32 with angles of float64:
// one launch. Returns q itself for a plan without copies. Throws kArgument for other rows, and for a rope that cannot
// shift.
Tensor turn_queries(const Tensor& q, const DevicePlan& plan, const RopeParams& rope);

// q [queries, heads, k_dim] float32, of turn_queries where the plan has copies; heads must be a multiple of the pool's
// KV heads. Returns float32 [rows, heads, value_dim]: with latent keys no V is read.
Tensor attend_spans(const Tensor& q, const LayerCells& pool, const DevicePlan& plan, const AttentionOptions& options);

// q [tokens, heads, k_dim] float32; k [n, kv_heads, k_dim], v [n, kv_heads, v_dim], float32 or float16; mask undefined
// (every key is visible) or float32 [tokens, n], added to the scores: -inf hides a key, whose K and V are then not
// multiplied in. A row that sees nothing is 0. Returns float32 [tokens, heads, v_dim].
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                 const AttentionOptions& options);

}  // namespace kvtrie::ops
