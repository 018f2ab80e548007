// Private to ops/: products of packed weights in the work-group family (kernels/matmul_group.cl).
//
// The same weights as the serial family reads, in the same order. Which variant runs follows from the rows, from what
// the device allows a group and from its units. Every variant sums alike, so a row's bits do not depend on the rows
// beside it; a variant that fails its self-test is replaced by the serial kernel, whose sums are rounded otherwise.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/matmul_enqueue.h"

namespace kvtrie::ops {

// The limits of a device for a group, and how many groups run at a time.
struct GroupLimits {
  std::size_t lanes = 32, local_bytes = 16384;
  std::uint32_t units = 1;
};
GroupLimits group_limits(const cl::Device& device);

struct GroupVariant {
  WeightDType stored = WeightDType::kFloat32;
  std::optional<Activation> gated;
  std::int32_t rows = 0;      // of a group: 1, 4 or 8; 0: many, lanes / 2
  std::int32_t lanes = 32;    // of a group: 32 to 256
  std::int32_t columns = 64;  // outputs of a group, of both weights where gated: 32 or 64
  bool aligned = false;       // rows of x begin at multiples of 16 bytes
  std::int32_t block_rows() const noexcept { return rows > 0 ? rows : lanes / 2; }
  std::size_t local_bytes() const noexcept;
  std::string options() const;
  std::string key() const;  // for self-tests
};
// For `sides.n` outputs, of one of the weights where gated.
GroupVariant choose_group(const GroupLimits& limits, const Sides& sides, WeightDType stored,
                          std::optional<Activation> gated, bool aligned);
// k of a slice: at most 64 slices, each a multiple of 16 k. It depends on k alone.
std::int32_t slice_for(std::int32_t k) noexcept;

namespace bare {
// `add`: [columns], [m, columns] or undefined; undefined where gated.
void matmul_group(const GroupVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                  const Tensor& add, const Tensor& y, const Columns& columns);
void embed(const Tensor& panels, WeightDType stored, const Sides& sides, const TableRows& range, const Tensor& ids,
           const Tensor& y);
}  // namespace bare

// Whether the work-group kernel took the product; if not, the serial one has to. REQUIRES: checked arguments.
bool launch_group(const Tensor& x, const Tensor& panels, const Sides& sides, WeightDType stored,
                  std::optional<Activation> gated, const Tensor& add, const Tensor& y, const Columns& columns);
bool launch_embed(const Tensor& panels, const Sides& sides, WeightDType stored, const TableRows& range,
                  const Tensor& ids, const Tensor& y);

}  // namespace kvtrie::ops
