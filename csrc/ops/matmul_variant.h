// Private to ops/: launches of kernels/matmul.cl and kernels/matmul_rows.cl, each proved before its first use.
// REQUIRES of all: checked arguments.
#pragma once

#include <optional>
#include <string>

#include "ops/matmul.h"
#include "ops/support.h"
#include "ops/tuning.h"

namespace kvtrie::ops {

// One compiled form of the packed kernels.
struct PackedVariant {
  PackedTile tile;
  WeightDType stored = WeightDType::kFloat32;
  std::optional<Activation> gated;              // set: matmul_gated
  std::int32_t width = 4;                       // floats of a vector: 4, 8 or 16
  bool routed = false;                          // matmul_routed and matmul_gated_routed
  IntegerUnits integers = IntegerUnits::kNone;  // kernels/matmul_integer.clh by these; then blocks of a width of 16
  Precision precision = Precision::kAuto;       // of their integers
  std::int32_t bytes() const noexcept { return precision == Precision::kFast ? 1 : 2; }  // of one
  std::string options() const;
  std::string key() const;  // for self-tests
};

// The variant for so many rows and vectors of `width` floats. Results do not depend on it.
PackedVariant choose_variant(std::int32_t width, std::int32_t rows, WeightDType stored,
                             std::optional<Activation> gated = {});
// The same by integer units, of weights in blocks; fewer rows than a tile has by VNNI. Results do not depend on it, but
// differ from those above.
PackedVariant choose_integers(IntegerUnits units, std::int32_t rows, WeightDType stored,
                              std::optional<Activation> gated = {}, Precision precision = Precision::kAuto);
// The replacement of a variant that does not work, with the same results.
PackedVariant general_variant(const PackedVariant& variant);
// Panels of a work-item for m rows and so many panels: as many as leave no unit without work for long, since what a
// work-item does with its rows first is the same for one group of panels and for several.
std::int32_t item_panels_for(const PackedTile& tile, std::int64_t panels, std::int32_t m, std::uint32_t units);

Tensor launch_pack(const Tensor& w, bool transpose_w, WeightDType stored, Precision precision);
Tensor launch_pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored, Precision precision);
Tensor launch_pack_blocks(const BlockMatrix& w, std::int64_t in);
Tensor launch_pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in);
// Where a product's outputs are in each row of y.
struct Columns {
  std::int64_t begin = 0, all = 0;
};
// Throws what matmul would of these; the outputs of all weights, which check_added takes.
std::int64_t check_product(const Tensor& x, std::span<const PackedWeight> weights, const InputNorm& norm);
void check_added(const Tensor& add, const Tensor& x, std::int64_t outputs);
void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& add, const Tensor& y,
                   const Columns& columns);  // add: may be undefined
// The same of rows that the product norms itself; false: there is no such form here, and nothing was launched.
bool launch_normed(const Tensor& x, const InputNorm& norm, const PackedWeight& w, const Tensor& add, const Tensor& y,
                   const Columns& columns);
bool launch_normed(const Tensor& x, const InputNorm& norm, const PackedPair& w, Activation activation, const Tensor& y);
void launch_unpack(const PackedWeight& w, const TableRows& range, const Tensor& ids, const Tensor& y);
void launch_gated(const Tensor& x, const PackedPair& w, Activation activation, const Tensor& y);
void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);
// Weights, or pairs where `gated`, one after the other.
struct RoutedSet {
  Tensor panels;
  std::int32_t count = 0;
  WeightDType stored = WeightDType::kFloat32;
  std::optional<Activation> gated;
  Precision precision = Precision::kAuto;
};
// Row r of y [choices, out]: row r / share of x times the weight chosen[r].
void launch_routed(const RoutedSet& set, const Tensor& x, const Tensor& chosen, std::int32_t share, const Tensor& y);

// Products of a few rows, of each number of rows that has a variant of its own, with weights of `stored` in the layout
// that is the device's fastest; their gated forms when there is one.
void warm_up_matmul(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated,
                    Precision precision);

}  // namespace kvtrie::ops
