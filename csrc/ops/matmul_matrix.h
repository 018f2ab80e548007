// Private to ops/: products of packed weights by matrix units that are not NVIDIA's (kernels/matmul_matrix.cl).
//
// The same weights as the other families read, float16, bfloat16 or quantised, in the same order; k is a multiple of
// 32. Up to 16 rows are one launch, of groups with 32 outputs each; more are split into terms of 16 bits by a launch of
// their own, then a group takes 64 outputs of 64 rows. Both forms sum alike, so a row's bits do not depend on the rows
// beside it: where either fails its self-test, neither is used. One term that fails is replaced by two, these by the
// work-group family (matmul_group.h), whose sums are rounded otherwise.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/matmul_enqueue.h"
#include "ops/matmul_tensor.h"

namespace kvtrie::ops {

struct MatrixVariant {
  WeightDType stored = WeightDType::kFloat16;
  std::optional<Activation> gated;
  cl::MatrixUnit unit = cl::MatrixUnit::kWmma;
  bool emulated = false;                  // by plain OpenCL C
  std::int32_t terms = 2;                 // halves that stand for a number of x, as terms_of has them
  bool few = true;                        // a group has one tile of rows
  std::int32_t rows() const noexcept;     // of a group
  std::int32_t outputs() const noexcept;  // of a group, packed
  std::size_t lanes() const noexcept;     // of a group
  std::int32_t x_terms() const noexcept { return x_terms_of(stored, terms); }
  std::string options() const;
  std::string key() const;  // for self-tests; of both forms
};
// REQUIRES: a device with a matrix unit.
MatrixVariant choose_matrix(const cl::Device& device, const Sides& sides, const TensorKind& kind, std::int32_t terms);

namespace bare {
// `add`: [columns], [m, columns] or undefined; undefined where gated.
void matmul_matrix(const MatrixVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns);
}  // namespace bare

// Whether a matrix unit took the product. REQUIRES: checked arguments.
bool launch_matrix(const Tensor& x, const Tensor& panels, const Sides& sides, const TensorKind& kind, const Tensor& add,
                   const Tensor& y, const Columns& columns);

}  // namespace kvtrie::ops
