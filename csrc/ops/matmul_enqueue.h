// Private to ops/: the bare launches behind matmul_variant.h, without proof. REQUIRES of all: checked arguments.
#pragma once

#include "ops/matmul_variant.h"

namespace kvtrie::ops {

// Of a product: rows, outputs, inputs.
struct Sides {
  std::int32_t m = 0, n = 0, k = 0;
};
Sides sides_of(const Tensor& x, std::int64_t out, std::int64_t in);
// Outputs in the order in which they are packed: of a pair 16 and 16 take turns.
inline std::size_t packed_outputs(const Sides& sides, bool gated) {
  return gated ? 2 * round_up(sides.n, 16) : static_cast<std::size_t>(sides.n);
}
// The dtype from which a weight is packed that is kept as `stored`, unless it is blocks.
DType source_of(WeightDType stored);

// The arguments of a product's kernel for `add` and y.
struct Ends {
  const Tensor& added;  // never read where there is no `add`
  std::uint64_t add_at, add_stride;
  std::int32_t has_add;
  std::uint64_t y_at;
  std::int32_t y_stride;
};
Ends ends_of(const Tensor& x, const Tensor& add, const Tensor& y, const Columns& columns);

namespace bare {

// `add` [columns] or [m, columns] or undefined.
void matmul_packed(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns);
void matmul_gated(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                  const Tensor& y);
void unpack_rows(const PackedVariant& variant, const Tensor& panels, const Sides& sides, const TableRows& range,
                 const Tensor& ids, const Tensor& y);
void matmul_routed(const PackedVariant& variant, const RoutedSet& set, const Tensor& x, const Tensor& chosen,
                   std::int32_t share, const Tensor& y);
void matmul_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Sides& sides, const Tensor& y);

Tensor pack(const Tensor& w, bool transpose_w, WeightDType stored);
Tensor pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored);
Tensor pack_blocks(const BlockMatrix& w, std::int64_t in);
Tensor pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in);

}  // namespace bare
}  // namespace kvtrie::ops
