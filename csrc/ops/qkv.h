// From one packed projection to attention's operands: norms and rotation of q and k, and the store of k and v, at once.
//
// Concept. A decode step is made of kernels that take microseconds, so what each one costs to launch counts. A model
// whose q, k and v come out of one product hands the whole row over:
//
//     qkv [rows, heads * k_dim | kv_heads * k_dim | kv_heads * v_dim]
//       q heads: rms_norm, rope ---> a tensor [rows, heads, k_dim]
//       k heads: rms_norm, rope ---> the row's cell
//       v heads -------------------> the row's cell
//
// The bits are those of rms_norm, rope and put_rows one after the other, whatever the other rows are.
//
// Threads: any. Enqueued, never waited for. Wrong arguments are kType or kArgument and change nothing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cells.h"
#include "ops/rope.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

struct QkvOptions {
  const DeviceRope* rope = nullptr;  // null: no rotation; must outlive the call
  Tensor q_norm, k_norm;             // float32 [k_dim], or undefined: no norm
  float eps = 1e-6f, offset = 0.0f;  // of the norms, which multiply by (offset + weight)
};

// Where each row of a step stands and goes, on the device: int32 [rows, 2] = (position, cell or -1).
class QkvRows {
 public:
  struct Row {
    std::int32_t position = 0, cell = -1;  // -1: attends, and stores nothing
  };
  QkvRows() = default;
  QkvRows(const cl::DevicePtr& device, std::span<const Row> rows);
  bool defined() const noexcept { return table_.defined(); }
  std::int64_t count() const noexcept { return table_.defined() ? table_.dim(0) : 0; }
  std::int64_t end_cell() const noexcept { return end_cell_; }
  const Tensor& table() const noexcept { return table_; }

 private:
  Tensor table_;
  std::int64_t end_cell_ = 0;
};

// The query heads of a packed row of `width` numbers. Throws kArgument when there is no such number of heads.
std::int64_t qkv_heads(std::int64_t width, std::int64_t kv_heads, std::int64_t k_dim, std::int64_t v_dim);
// Throws what put_qkv would throw for these.
void check_qkv(const Tensor& qkv, std::int64_t rows, const LayerCells& pool, const QkvOptions& options);
// Returns q [rows, heads, k_dim] float32. One launch.
Tensor put_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options);

}  // namespace kvtrie::ops
