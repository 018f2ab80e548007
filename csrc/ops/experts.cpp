#include "ops/experts.h"

#include <limits>

#include "base/checked.h"
#include "ops/experts_variant.h"
#include "ops/family.h"
#include "ops/matmul_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kMaxSide = std::numeric_limits<std::int32_t>::max() / 64;
constexpr const char* kSet = "ops.packed_set";
constexpr const char* kRoute = "ops.route";

void check_activations(const char* where, const char* name, const Tensor& x, int rank) {
  check_device(where, name, x);
  check_dtype(where, name, x, DType::kFloat32);
  check_rank(where, name, x, rank);
  for (const std::int64_t side : x.shape())
    require(side >= 1 && side <= kMaxSide, where, name, ": got ", describe(x), ", allowed sizes from 1 to ", kMaxSide);
}

void check_of_rows(const char* where, const char* name, const Tensor& tensor, DType dtype, const Tensor& x) {
  check_same_device(where, name, tensor, x);
  check_dtype(where, name, tensor, dtype);
  check_rank(where, name, tensor, 2);
  require(tensor.dim(0) == x.dim(0) && tensor.dim(1) >= 1, where, name, ": got ", describe(tensor), ", allowed [",
          x.dim(0), ", k]");
  require(tensor.dim(1) <= kMaxSide / x.dim(0), where, name, ": got ", describe(tensor), ", allowed up to ", kMaxSide,
          " numbers");
}

void check_choice(const Tensor& scores, std::int64_t k, std::int64_t most) {
  require(k >= 1 && k <= most, kRoute, "k: got ", k, ", allowed 1 to the ", most, " experts",
          most < scores.dim(1) ? " of kept groups" : "");
}

void check_ranking(const Tensor& scores, const Ranking& ranking) {
  const std::int64_t experts = scores.dim(1), groups = ranking.groups;
  require(ranking.summed == 1 || ranking.summed == 2, kRoute, "summed: got ", ranking.summed, ", allowed 1 or 2");
  require(groups == 1 || (groups >= 1 && experts % groups == 0 && experts / groups >= ranking.summed), kRoute,
          "groups: got ", groups, ", allowed 1, or groups of ", ranking.summed, " or more of the ", experts,
          " experts");
  require(ranking.kept >= 1 && ranking.kept <= groups, kRoute, "kept: got ", ranking.kept, ", allowed 1 to the ",
          groups, " groups");
  if (!ranking.bias.defined()) return;
  check_same_device(kRoute, "bias", ranking.bias, scores);
  check_dtype(kRoute, "bias", ranking.bias, DType::kFloat32);
  check_rank(kRoute, "bias", ranking.bias, 1);
  require(ranking.bias.dim(0) == experts, kRoute, "bias: got ", describe(ranking.bias), ", allowed [", experts, "]");
}

Routes empty_routes(const Tensor& scores, std::int64_t k) {
  const Shape shape{scores.dim(0), k};
  return {Tensor::empty(scores.device(), DType::kInt32, shape), Tensor::empty(scores.device(), DType::kFloat32, shape)};
}

// Room for `count` times `panels`.
Tensor room_for(const Tensor& panels, std::int64_t count) {
  require(count >= 1 && count <= kMaxSide, kSet, "count: got ", count, ", allowed 1 to ", kMaxSide);
  Shape shape = panels.shape();
  shape.front() = checked_mul(shape.front(), count, kSet, "count");
  const std::uint64_t bytes = checked_mul(static_cast<std::uint64_t>(panels.nbytes()),
                                          static_cast<std::uint64_t>(count), kSet, "count"),
                      limit = panels.device()->info().max_alloc_bytes;
  require(bytes <= limit, kSet, "count: got ", count, " of ", panels.nbytes(), " bytes, allowed ", limit,
          " bytes in one buffer of ", panels.device()->info().name);
  return Tensor::empty(panels.device(), panels.dtype(), std::move(shape));
}

}  // namespace

Weighting weighting_from_name(const std::string& name) {
  if (name == "sigmoid") return Weighting::kSigmoid;
  if (name == "softmax") return Weighting::kSoftmax;
  if (name == "normed") return Weighting::kNormed;
  require(name == "sigmoid_normed", "ops.route", "weighting: got \"", name,
          "\", allowed \"sigmoid\", \"softmax\", \"normed\", \"sigmoid_normed\"");
  return Weighting::kSigmoidNormed;
}

Routes route(const Tensor& scores, std::int64_t k, Weighting weighting) {
  if (weighting == Weighting::kSigmoidNormed) return route_biased(scores, k, weighting, {});
  check_activations(kRoute, "scores", scores, 2);
  check_choice(scores, k, scores.dim(1));
  Routes routes = empty_routes(scores, k);
  launch_route(scores, weighting, routes);
  return routes;
}

Routes route_biased(const Tensor& scores, std::int64_t k, Weighting weighting, const Ranking& ranking) {
  check_activations(kRoute, "scores", scores, 2);
  check_ranking(scores, ranking);
  check_choice(scores, k, ranking.kept * (scores.dim(1) / ranking.groups));
  Routes routes = empty_routes(scores, k);
  launch_route_biased(scores, weighting, ranking, routes);
  return routes;
}

Tensor scale_rows(const Tensor& x, const Tensor& factors) {
  constexpr const char* kWhere = "ops.scale_rows";
  check_activations(kWhere, "x", x, 2);
  check_of_rows(kWhere, "factors", factors, DType::kFloat32, x);
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, {x.dim(0), factors.dim(1), x.dim(1)});
  launch_scale_rows(x, factors, y);
  return y;
}

Tensor weighted_sum(const Tensor& x, const Tensor& factors) {
  constexpr const char* kWhere = "ops.weighted_sum";
  check_activations(kWhere, "x", x, 3);
  if (factors.defined()) {
    check_of_rows(kWhere, "factors", factors, DType::kFloat32, x);
    check_shape(kWhere, "factors", factors, {x.dim(0), x.dim(1)});
  }
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, {x.dim(0), x.dim(2)});
  launch_weighted_sum(x, factors, y);
  return y;
}

// ---- sets -----------------------------------------------------------------------------------------------------------

template <class Packed>
PackedSet::PackedSet(const Packed& like, std::int64_t count, bool pairs)
    : panels_(room_for(like.panels(), count)),
      count_(count),
      out_features_(like.out_features()),
      in_features_(like.in_features()),
      dtype_(like.dtype()),
      precision_(like.precision()),
      pairs_(pairs) {}

PackedSet::PackedSet(const PackedWeight& like, std::int64_t count) : PackedSet(like, count, false) {}
PackedSet::PackedSet(const PackedPair& like, std::int64_t count) : PackedSet(like, count, true) {}

Tensor PackedSet::place(std::int64_t index, const char* where, bool pairs) const {
  require(defined(), where, "the set is empty: it was made without a shape");
  require(pairs == pairs_, where, "got a ", pairs ? "pair" : "weight", ", allowed the ", pairs_ ? "pairs" : "weights",
          " that the set is of");
  require(index >= 0 && index < count_, where, "index: got ", index, ", allowed 0 to ", count_ - 1);
  const std::int64_t groups = panels_.dim(0) / count_;
  return panels_.slice(index * groups, (index + 1) * groups);
}

void PackedSet::put_panels(std::int64_t index, const Tensor& panels, bool pairs) {
  const Tensor to = place(index, kSet, pairs);
  check_same_device(kSet, "weight", panels, to);
  const std::size_t size = size_of(to.dtype());
  to.device()->copy(panels.buffer(), panels.offset() * size, to.buffer(), to.offset() * size, to.nbytes());
}

template <class Packed>
void PackedSet::require_alike(const char* name, const Packed& packed) const {
  const bool alike =
      packed.dtype() == dtype_ && packed.out_features() == out_features_ && packed.in_features() == in_features_;
  require(alike, kSet, name, ": got ", name_of(packed.dtype()), " [", packed.out_features(), ", ", packed.in_features(),
          "], allowed ", name_of(dtype_), " [", out_features_, ", ", in_features_, "]");
  require(packed.precision() == precision_, kSet, name, ": got precision ", name_of(packed.precision()), ", allowed ",
          name_of(precision_));
}

template <class Packed>
Packed PackedSet::member(std::int64_t index, bool pairs) const {
  Packed packed;
  packed.panels_ = place(index, kSet, pairs);
  packed.dtype_ = dtype_;
  packed.precision_ = precision_;
  packed.out_features_ = out_features_;
  packed.in_features_ = in_features_;
  return packed;
}

void PackedSet::put(std::int64_t index, const PackedWeight& weight) {
  require_alike("weight", weight);
  put_panels(index, weight.panels(), false);
}

void PackedSet::put(std::int64_t index, const PackedPair& pair) {
  require_alike("pair", pair);
  put_panels(index, pair.panels(), true);
}

PackedWeight PackedSet::weight(std::int64_t index) const { return member<PackedWeight>(index, false); }
PackedPair PackedSet::pair(std::int64_t index) const { return member<PackedPair>(index, true); }

// ---- products -------------------------------------------------------------------------------------------------------

bool can_route(cl::Device& device) { return kernel_family(device) == KernelFamily::kSerial; }

Tensor matmul_routed(const Tensor& x, const PackedSet& weights, const Tensor& chosen, Activation activation) {
  constexpr const char* kWhere = "ops.matmul_routed";
  require(weights.defined(), kWhere, "weights: got an empty set, allowed one with a shape");
  check_device(kWhere, "x", x);  // before its rank is asked for
  check_activations(kWhere, "x", x, x.rank() == 3 ? 3 : 2);
  check_same_device(kWhere, "x", x, weights.panels());
  check_of_rows(kWhere, "chosen", chosen, DType::kInt32, x);
  const std::int64_t k = chosen.dim(1), in = weights.in_features();
  check_shape(kWhere, "x", x, x.rank() == 3 ? Shape{x.dim(0), k, in} : Shape{x.dim(0), in});
  if (!can_route(*x.device()))
    fail(ErrorKind::kNotSupported, kWhere, "device: got ", x.device()->info().name, ", allowed CPU devices");
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, {x.dim(0), k, weights.out_features()});
  const std::optional<Activation> gated = weights.holds_pairs() ? std::optional(activation) : std::nullopt;
  const RoutedSet set{weights.panels(), static_cast<std::int32_t>(weights.count()), weights.dtype(), gated,
                      weights.precision()};
  launch_routed(set, x, chosen, x.rank() == 3 ? 1 : static_cast<std::int32_t>(k), y);
  return y;
}

}  // namespace kvtrie::ops
