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
// Where matrix instructions multiply few rows, and heads are not normed, the product does all of that itself
// (kernels/matmul_tensor_qkv.clh): whoever has a QkvProduct asks it first, and gets the same bits from one launch less.
//
// Threads: any. Enqueued, never waited for. Wrong arguments are kType or kArgument and change nothing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cells.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

struct QkvOptions {
  const DeviceRope* rope = nullptr;  // null: no rotation; must outlive the call
  Tensor q_norm, k_norm;             // float32 [k_dim], or undefined: no norm
  float eps = 1e-6f, offset = 0.0f;  // of the norms, which multiply by (offset + weight)
};

// The product that gives packed rows: matmul(x, weights, bias, norm), x float32 [rows, in].
struct QkvProduct {
  Tensor x;
  std::span<const PackedWeight> weights;  // must outlive the call
  Tensor bias;                            // float32 [outputs], or undefined
  InputNorm norm;
  std::int64_t width() const noexcept;  // of a packed row
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
// Returns q [rows, heads, k_dim] float32. One launch.
Tensor put_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options);

// Whether it is worth asking product_puts_qkv: quick, and without a device's answer.
bool may_put_qkv(const QkvProduct& product, const QkvOptions& options);
// The same as put_qkv of the product, in one launch for each weight; undefined, with nothing launched, where there is
// no such form: then matmul and put_qkv have the same bits. Throws what they would.
Tensor product_puts_qkv(const QkvProduct& product, const QkvRows& rows, const LayerCells& pool,
                        const QkvOptions& options);

}  // namespace kvtrie::ops
