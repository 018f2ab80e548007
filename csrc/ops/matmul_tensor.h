// Private to ops/: products of packed weights by NVIDIA's matrix instructions (kernels/matmul_tensor.cl,
// matmul_tensor_many.cl).
//
// The same weights as the other families read, float16, bfloat16 or quantised, in the same order; k is a multiple
// of 32. Up to 8 rows are one launch, which can norm them itself, with the bits of rms_norm before it. More are split
// into terms of 16 bits first, by a launch of their own; and where there would be fewer groups than the device has
// units for, each group takes a slice of k, and one more launch adds these.
//
// The product of few rows of a layer's q, k and v may rotate and store them, too (qkv_tensor.h).
//
// Every form of as many terms sums alike, so a row's bits do not depend on the rows beside it. A form that fails its
// self-test is replaced: one of one term by that of two, that by the work-group family (matmul_group.h), whose sums are
// rounded otherwise.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/matmul_enqueue.h"
#include "ops/qkv.h"

namespace kvtrie::ops {

struct TensorVariant {
  WeightDType stored = WeightDType::kFloat16;
  std::optional<Activation> gated;
  std::int32_t terms = 2;                  // halves that stand for a number of x, as terms_of has them
  std::int32_t rows = 0;                   // of a group: 1 or 8; 0: many, warp_rows * warps_n
  std::int32_t warps_m = 2, warps_n = 2;   // of many: warps of 64 packed outputs x warp_rows rows
  std::int32_t warp_rows = 32;             // 32, or 64
  bool split = false;                      // of many: a group for each slice of k
  std::size_t ring_bytes = 0;              // of local memory, for what is on its way
  bool saves_locally = true;               // of many: sums of earlier slices in local memory, not in registers
  bool normed = false;                     // of few: x is normed first
  std::optional<CellFormats> stored_in{};  // of few: q, k and v are rotated, and k and v stored in such cells
  std::int32_t x_terms() const noexcept { return x_terms_of(stored, terms); }
  std::string options() const;
  std::string key() const;  // for self-tests
};

// Compute units of a device, and local memory that the groups of one share.
struct TensorLimits {
  std::size_t units = 1, local_bytes = 0;
};
// REQUIRES: tensor_takes.
TensorVariant choose_tensor(const TensorLimits& limits, const Sides& sides, WeightDType stored,
                            std::optional<Activation> gated, std::int32_t terms = 2);
// Whether there is a form for such a product at all: by type, by k and by where x begins.
bool tensor_takes(const Tensor& x, const Sides& sides, WeightDType stored) noexcept;
// Whether a product of few rows is to norm them itself: each of its groups reads all of x once more for that, so x must
// not be large (norm_numbers). Where rms_norm adds in the order that kernels/matmul_tensor_norm.clh follows.
bool tensor_norms(cl::Device& device, const InputNorm& norm, const Sides& sides);

// Where q, k and v go: q [rows, heads, k_dim] float32, k and v into the cells of `rows`.
struct QkvEnd {
  const QkvRows& rows;
  const LayerCells& pool;
  const QkvOptions& options;
  const Tensor& q;
};

namespace bare {
// `add`: [columns], [m, columns] or undefined; undefined where gated. `norm`: where the variant is normed.
void matmul_tensor(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns, const InputNorm& norm = {});
// Of a variant that stores, for outputs `columns` of q, k and v. `bias`: [columns.all] or undefined.
void matmul_tensor(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& bias, const QkvEnd& end, const Columns& columns, const InputNorm& norm = {});
}  // namespace bare

// What a product is of: weights, or pairs of them where `gated`.
struct TensorKind {
  WeightDType stored = WeightDType::kFloat16;
  Precision precision = Precision::kAuto;
  std::optional<Activation> gated{};
};
// The form for such a product, if the precision allows one and it works here; with a norm, if it is defined, for few
// rows only. One term that does not work is replaced by two.
std::optional<TensorVariant> tensor_form(const Tensor& x, const Sides& sides, const TensorKind& kind,
                                         const InputNorm& norm = {});
// Whether matrix instructions took the product. REQUIRES: checked arguments.
bool launch_tensor(const Tensor& x, const Tensor& panels, const Sides& sides, const TensorKind& kind, const Tensor& add,
                   const Tensor& y, const Columns& columns);
// The same of rms_norm of x, in one launch; false: nothing was launched.
bool launch_tensor_normed(const Tensor& x, const InputNorm& norm, const Tensor& panels, const Sides& sides,
                          const TensorKind& kind, const Tensor& add, const Tensor& y, const Columns& columns);

}  // namespace kvtrie::ops
