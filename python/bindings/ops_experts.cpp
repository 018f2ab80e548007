// Mixtures of experts: kvtrie.ops.route, matmul_routed and what belongs to them.
#include <pybind11/stl.h>

#include <limits>
#include <string>
#include <utility>

#include "arrays.h"
#include "convert.h"
#include "ops/experts.h"
#include "packed_class.h"

namespace kvtrie::binding {
namespace {

Typed<"tuple[Tensor, Tensor]"> route(const Typed<"ArrayLike">& scores, const Typed<"int">& k,
                                     const Typed<"str">& weighting, const Typed<"ArrayLike | None">& bias,
                                     const Typed<"int">& groups, const Typed<"int">& kept, const Typed<"int">& summed) {
  const ops::Weighting wanted = ops::weighting_from_name(std::string(to_text(weighting, "route", "weighting")));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const Placement place = placement_among({scores, bias});
  const Tensor a = to_tensor(scores, place, "route", "scores");
  const std::int64_t count = to_integer(k, "route", "k", 0, kMost);
  const ops::Ranking ranking{
      to_optional_tensor(bias, place, "route", "bias"), to_integer(groups, "route", "groups", 0, kMost),
      to_integer(kept, "route", "kept", 0, kMost), to_integer(summed, "route", "summed", 0, kMost)};
  const bool plain = !ranking.bias.defined() && ranking.groups == 1 && ranking.kept == 1 && ranking.summed == 2;
  ops::Routes routes =
      without_gil([&] { return plain ? ops::route(a, count, wanted) : ops::route_biased(a, count, wanted, ranking); });
  return py::make_tuple(std::move(routes.chosen), std::move(routes.factors));
}

Tensor scale_rows(const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& factors) {
  const Placement place = placement_among({x, factors});
  const Tensor a = to_tensor(x, place, "scale_rows", "x"), f = to_tensor(factors, place, "scale_rows", "factors");
  return without_gil([&] { return ops::scale_rows(a, f); });
}

Tensor weighted_sum(const Typed<"ArrayLike">& x, const Typed<"ArrayLike | None">& factors) {
  const Placement place = placement_among({x, factors});
  const Tensor a = to_tensor(x, place, "weighted_sum", "x"),
               f = to_optional_tensor(factors, place, "weighted_sum", "factors");
  return without_gil([&] { return ops::weighted_sum(a, f); });
}

ops::PackedSet make_set(const Typed<"ops.PackedWeight | ops.PackedPair">& like, const Typed<"int">& count) {
  const auto wanted = to_integer(count, "PackedSet", "count", 0, std::numeric_limits<std::int32_t>::max());
  if (py::isinstance<ops::PackedPair>(like)) return {like.cast<ops::PackedPair&>(), wanted};
  if (!py::isinstance<ops::PackedWeight>(like))
    refuse_type(like, "PackedSet", "like", "a PackedWeight or a PackedPair");
  return {like.cast<ops::PackedWeight&>(), wanted};
}

void put(ops::PackedSet& self, const Typed<"int">& index, const Typed<"ops.PackedWeight | ops.PackedPair">& weight) {
  const auto at = to_integer(index, "PackedSet.put", "index", 0, std::numeric_limits<std::int32_t>::max());
  if (py::isinstance<ops::PackedPair>(weight)) return self.put(at, weight.cast<ops::PackedPair&>());
  if (!py::isinstance<ops::PackedWeight>(weight))
    refuse_type(weight, "PackedSet.put", "weight", "a PackedWeight or a PackedPair");
  self.put(at, weight.cast<ops::PackedWeight&>());
}

Typed<"ops.PackedWeight | ops.PackedPair"> item(const ops::PackedSet& self, const Typed<"int">& index) {
  const auto at = to_integer(index, "PackedSet", "index", 0, std::numeric_limits<std::int32_t>::max());
  if (at < 0 || at >= self.count())
    throw py::index_error(cat("[PackedSet] index: got ", at, ", allowed 0 to ", self.count() - 1));
  return self.holds_pairs() ? py::cast(self.pair(at)) : py::cast(self.weight(at));
}

Tensor matmul_routed(const Typed<"ArrayLike">& x, const Typed<"ops.PackedSet">& weights,
                     const Typed<"ArrayLike">& chosen, const Typed<"str">& activation) {
  constexpr const char* kWhere = "matmul_routed";
  if (!py::isinstance<ops::PackedSet>(weights)) refuse_type(weights, kWhere, "weights", "a PackedSet");
  const auto& set = weights.cast<ops::PackedSet&>();
  const ops::Activation gate = ops::activation_from_name(std::string(to_text(activation, kWhere, "activation")));
  const Placement place{false, set.panels().device()};
  const Tensor a = to_tensor(x, place, kWhere, "x"), c = to_tensor(chosen, place, kWhere, "chosen");
  return without_gil([&] { return ops::matmul_routed(a, set, c, gate); });
}

bool can_route(const Typed<"Place">& device) {
  const Placement place = to_placement(device, "can_route");
  return !place.on_host && without_gil([&] { return ops::can_route(*place.device); });
}

}  // namespace

void init_ops_experts(py::module_& core) {
  py::module_ m = core.attr("ops").cast<py::module_>();
  auto c = init_packed<ops::PackedSet>(
      m, "PackedSet",
      R"(Packed weights, or pairs of them, of one shape and dtype in one buffer: what ``matmul_routed`` takes.

``like``: a ``PackedWeight`` or ``PackedPair`` of the shape and dtype of all; ``count``: of how many. What was not put yet is
undefined. ``set[i]`` is one of them, in place. Raises ``ArgumentError`` when the device cannot have such a buffer.)");
  c.def(py::init(&make_set), py::arg("like"), py::arg("count"));
  c.def("put", &put, py::arg("index"), py::arg("weight"), "Copies one in; of the set's shape and dtype.");
  c.def("__getitem__", &item, py::arg("index"));
  c.def("__len__", &ops::PackedSet::count);
  m.def(
      "route", &route, py::arg("scores"), py::arg("k"), py::arg("weighting"), py::arg("bias") = py::none(),
      py::arg("groups") = 1, py::arg("kept") = 1, py::arg("summed") = 2,
      R"(Which experts rows go to: scores float32 [rows, experts] -> (chosen int32 [rows, k], factors float32 [rows, k]).

The ``k`` best, best first, the lower index first among equals. ``weighting``: "sigmoid" of an expert's score, "softmax", its
share of all experts, "normed", its share of the k, or "sigmoid_normed", its sigmoid's share of those of the k. With ``bias``
float32 [experts] the best are those whose sigmoid or softmax and bias add up to most; factors are made without it. With
``groups`` of equal size, experts of the ``kept`` groups are taken whose ``summed`` best, 1 or 2, add up to most. A NaN
among the scores of a row makes its factors NaN.)");
  m.def("scale_rows", &scale_rows, py::arg("x"), py::arg("factors"),
        "x float32 [rows, dim] times each of factors [rows, k] -> [rows, k, dim].");
  m.def("weighted_sum", &weighted_sum, py::arg("x"), py::arg("factors") = py::none(),
        "x float32 [rows, k, dim], factors [rows, k] -> the sum over k of x times factor, [rows, dim]; without factors "
        "that of x.");
  m.def(
      "matmul_routed", &matmul_routed, py::arg("x"), py::arg("weights"), py::arg("chosen"),
      py::arg("activation") = "silu",
      R"(Products with weights that are chosen on the device: x [rows, in], chosen int32 [rows, k] -> float32 [rows, k, out].

``weights``: a ``PackedSet``; of pairs: the gated product, as ``matmul_gated`` has it, with ``activation``. x may also be
[rows, k, in], one for each choice. A number that is no weight of the set gives NaN. Bits as of ``matmul``. For a few
rows, since each choice is a product of its own. Raises ``NotSupportedError`` where ``can_route`` is False.)");
  m.def("can_route", &can_route, py::arg("device") = py::none(),
        "Whether ``matmul_routed`` works on this device: on CPU devices.");
}

}  // namespace kvtrie::binding
