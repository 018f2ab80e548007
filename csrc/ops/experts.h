// A mixture of experts on the device: which experts each row goes to, their products, and the sum of what they give.
//
// Concept. A router scores the experts for each row; the row goes through the k best, whose results are added up with
// factors. Nothing of it is read back: which weights a work-item multiplies by is a number on the device.
//
//     scores [rows, experts]  --route-->  chosen, factors [rows, k]       (or route_biased)
//     h [rows, in]  --matmul_routed(gate and up, chosen)-->  [rows, k, inner]
//                   --matmul_routed(down, chosen)-->         [rows, k, out]  --weighted_sum(factors)-->  [rows, out]
//
// Each (row, expert) is a product of its own, so this is for a few rows: with many, rows that share an expert are
// better multiplied at once. The bits are the same: a row's result does not depend on the rows beside it.
//
// Threads: functions may be called from any thread; a PackedSet is filled by one.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/matmul.h"

namespace kvtrie::ops {

// The factors are: the sigmoid of the expert's score; its share of all experts (softmax); its share of the k chosen;
// its sigmoid's share of those of the k chosen.
enum class Weighting : std::uint8_t { kSigmoid, kSoftmax, kNormed, kSigmoidNormed };
// "sigmoid", "softmax", "normed", "sigmoid_normed"; kArgument for others.
Weighting weighting_from_name(const std::string& name);

// scores float32 [rows, experts] -> the k best (int32 [rows, k], best first, the lower index first among equals) and
// their factors (float32 [rows, k]). 1 <= k <= experts. A score that is NaN comes last and makes the row's factors NaN.
struct Routes {
  Tensor chosen, factors;
};
Routes route(const Tensor& scores, std::int64_t k, Weighting weighting);

// The same, the best by rank: an expert's sigmoid or softmax, as its factor is made of, and its bias (float32
// [experts]; undefined: none). Experts lie in `groups` of equal size; those of the `kept` groups are taken whose
// `summed` best ranks, one or two, add up to most. 1 <= kept <= groups, k <= experts in kept groups.
struct Ranking {
  Tensor bias;
  std::int64_t groups = 1, kept = 1, summed = 2;
};
Routes route_biased(const Tensor& scores, std::int64_t k, Weighting weighting, const Ranking& ranking);

// x float32 [rows, dim] times each of factors [rows, k] -> [rows, k, dim].
Tensor scale_rows(const Tensor& x, const Tensor& factors);
// x float32 [rows, k, dim], factors [rows, k] -> the sum over k of x * factor [rows, dim]; without factors that of x.
Tensor weighted_sum(const Tensor& x, const Tensor& factors);

// Packed weights, or pairs of them, of one shape, dtype and precision, in one buffer.
class PackedSet {
 public:
  PackedSet() = default;
  // Room for `count`, shaped as `like`; what was not put yet is undefined. Throws kArgument for a count below 1 or a
  // buffer that the device cannot have, kDevice.
  PackedSet(const PackedWeight& like, std::int64_t count);
  PackedSet(const PackedPair& like, std::int64_t count);

  bool defined() const noexcept { return panels_.defined(); }
  bool holds_pairs() const noexcept { return pairs_; }
  std::int64_t count() const noexcept { return count_; }
  std::int64_t out_features() const noexcept { return out_features_; }  // of one weight
  std::int64_t in_features() const noexcept { return in_features_; }
  WeightDType dtype() const noexcept { return dtype_; }
  Precision precision() const noexcept { return precision_; }
  std::size_t nbytes() const { return panels_.nbytes(); }
  const Tensor& panels() const noexcept { return panels_; }

  // Copies one in. Throws kArgument for an index outside, another shape, dtype or precision, or a pair among weights.
  void put(std::int64_t index, const PackedWeight& weight);
  void put(std::int64_t index, const PackedPair& pair);
  // One of them, in place: it keeps the buffer.
  PackedWeight weight(std::int64_t index) const;
  PackedPair pair(std::int64_t index) const;

 private:
  template <class Packed>
  PackedSet(const Packed& like, std::int64_t count, bool pairs);
  Tensor place(std::int64_t index, const char* where, bool pairs) const;
  void put_panels(std::int64_t index, const Tensor& panels, bool pairs);
  template <class Packed>
  void require_alike(const char* name, const Packed& packed) const;
  template <class Packed>
  Packed member(std::int64_t index, bool pairs) const;

  Tensor panels_;
  std::int64_t count_ = 0, out_features_ = 0, in_features_ = 0;
  WeightDType dtype_ = WeightDType::kFloat32;
  Precision precision_ = Precision::kAuto;
  bool pairs_ = false;
};

// Whether matmul_routed works on this device: in the serial family.
bool can_route(cl::Device& device);

// Row r, choice j: x times weight chosen[r, j] of the set, or the gated product with that pair. x float32 [rows, in],
// or [rows, k, in] where each choice has its own; chosen int32 [rows, k] -> [rows, k, out]. A number that is no weight
// of the set gives NaN. The bits are those of matmul and matmul_gated. Throws kNotSupported where can_route is false.
Tensor matmul_routed(const Tensor& x, const PackedSet& weights, const Tensor& chosen,
                     Activation activation = Activation::kSilu);

}  // namespace kvtrie::ops
