#include "ops/qkv.h"

#include <algorithm>
#include <cmath>

#include "ops/matmul_variant.h"
#include "ops/qkv_tensor.h"
#include "ops/qkv_variant.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kPutQkv = "ops.put_qkv";

void check_norm(const char* name, const Tensor& weight, const LayerCells& pool) {
  if (!weight.defined()) return;
  check_same_device(kPutQkv, name, weight, pool.k);
  check_dtype(kPutQkv, name, weight, DType::kFloat32);
  check_shape(kPutQkv, name, weight, {pool.k_dim()});
}

void check_options(const QkvRows& rows, const LayerCells& pool, const QkvOptions& options) {
  require(rows.end_cell() <= pool.cells(), kPutQkv, "rows: got cells up to ", rows.end_cell(), ", allowed ",
          pool.cells());
  check_norm("q_norm", options.q_norm, pool);
  check_norm("k_norm", options.k_norm, pool);
  require(std::isfinite(options.eps) && options.eps >= 0.0f, kPutQkv, "eps: got ", options.eps,
          ", allowed finite numbers from 0 on");
  if (options.rope == nullptr) return;
  check_same_device(kPutQkv, "rope", options.rope->inverse_frequencies(), pool.k);
  require(options.rope->head_dim() == pool.k_dim(), kPutQkv, "rope: got a table for heads of ",
          options.rope->head_dim(), " numbers, allowed ", pool.k_dim());
}

// Room for q of so many rows of `width` numbers.
Tensor queries(const Tensor& like, std::int64_t rows, std::int64_t width, const LayerCells& pool) {
  const std::int64_t heads = qkv_heads(width, pool.kv_heads(), pool.k_dim(), pool.v_dim());
  return Tensor::empty(like.device(), DType::kFloat32, {rows, heads, pool.k_dim()});
}

}  // namespace

QkvRows::QkvRows(const cl::DevicePtr& device, std::span<const Row> rows) {
  static_assert(sizeof(Row) == 2 * sizeof(std::int32_t));
  require(!rows.empty(), kPutQkv, "rows: got none, allowed 1 or more");
  for (const Row& row : rows) {
    require(row.position >= 0 && row.cell >= -1, kPutQkv, "rows: got position ", row.position, " and cell ", row.cell,
            ", allowed from 0 on, and -1 for no cell");
    end_cell_ = std::max(end_cell_, std::int64_t{row.cell} + 1);
  }
  table_ = Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(rows.size()), 2}, rows.data());
}

std::int64_t qkv_heads(std::int64_t width, std::int64_t kv_heads, std::int64_t k_dim, std::int64_t v_dim) {
  const std::int64_t stored = kv_heads * (k_dim + v_dim), group = kv_heads * k_dim;
  require(width > stored && (width - stored) % group == 0, kPutQkv, "qkv: got rows of ", width, " numbers, allowed ",
          stored, " for ", kv_heads, " KV heads and multiples of ", group, " for the query heads");
  return (width - stored) / k_dim;
}

Tensor put_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options) {
  check_same_device(kPutQkv, "qkv", qkv, pool.k);
  check_dtype(kPutQkv, "qkv", qkv, DType::kFloat32);
  check_rank(kPutQkv, "qkv", qkv, 2);
  require(qkv.dim(0) == rows.count(), kPutQkv, "qkv: got ", qkv.dim(0), " rows, allowed ", rows.count());
  Tensor q = queries(qkv, rows.count(), qkv.dim(1), pool);
  check_options(rows, pool, options);
  launch_qkv(qkv, rows, pool, options, q);
  return q;
}

std::int64_t QkvProduct::width() const noexcept {
  std::int64_t outputs = 0;
  for (const PackedWeight& w : weights) outputs += w.out_features();
  return outputs;
}

bool may_put_qkv(const QkvProduct& product, const QkvOptions& options) {
  const cl::DevicePtr device = product.x.defined() ? product.x.device() : nullptr;
  return device != nullptr && product.x.rank() > 0 &&
         product.x.dim(0) <= family_row(KernelFamily::kWorkGroup).few_rows && tensor_cores(*device) &&
         puts_in_products(*device) && !options.q_norm.defined() && !options.k_norm.defined();
}

Tensor product_puts_qkv(const QkvProduct& product, const QkvRows& rows, const LayerCells& pool,
                        const QkvOptions& options) {
  const Tensor& x = product.x;
  check_added(product.bias, x, check_product(x, product.weights, product.norm));
  check_rank(kPutQkv, "x", x, 2);
  check_same_device(kPutQkv, "x", x, pool.k);
  require(x.dim(0) == rows.count(), kPutQkv, "x: got ", x.dim(0), " rows, allowed ", rows.count());
  check_options(rows, pool, options);
  if (!may_put_qkv(product, options)) return {};
  Tensor q = queries(x, rows.count(), product.width(), pool);
  return launch_tensor_qkv(product, {rows, pool, options, q}) ? q : Tensor();
}

}  // namespace kvtrie::ops
