// Attention over chosen keys: kvtrie.ops.choose_keys and attend_chosen.
#include "arrays.h"
#include "base/error.h"
#include "convert.h"
#include "ops/chosen.h"

namespace kvtrie::binding {
namespace {

Tensor choose_keys(const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& weights,
                   const Typed<"ArrayLike">& mask, const Typed<"int">& count) {
  constexpr const char* kWhere = "choose_keys";
  const Placement place = placement_among({q, k, weights, mask});
  const Tensor queries = to_tensor(q, place, kWhere, "q", DType::kFloat32), keys = to_tensor(k, place, kWhere, "k"),
               factors = to_tensor(weights, place, kWhere, "weights", DType::kFloat32),
               hidden = to_tensor(mask, place, kWhere, "mask", DType::kFloat32);
  const std::int32_t most = to_int32(count, kWhere, "count");
  return without_gil([&] { return ops::choose_keys(queries, {keys}, factors, hidden, most); });
}

Tensor attend_chosen(const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& chosen,
                     const Typed<"int">& v_dim, const Typed<"float | None">& scale) {
  constexpr const char* kWhere = "attend_chosen";
  const Placement place = placement_among({q, k, chosen});
  const Tensor queries = to_tensor(q, place, kWhere, "q", DType::kFloat32), keys = to_tensor(k, place, kWhere, "k"),
               numbers = to_tensor(chosen, place, kWhere, "chosen", DType::kInt32);
  const std::int32_t values = to_int32(v_dim, kWhere, "v_dim");
  const float factor = scale.is_none() ? 0.0f : static_cast<float>(to_number(scale, kWhere, "scale"));
  require(scale.is_none() || factor > 0.0f, kWhere, "scale: got ", factor, ", allowed numbers above 0, or None");
  return without_gil([&] { return ops::attend_chosen(queries, keys, numbers, values, factor); });
}

}  // namespace

void init_ops_chosen(py::module_& core) {
  py::module_ m = core.attr("ops").cast<py::module_>();
  m.def("choose_keys", &choose_keys, py::arg("q"), py::arg("k"), py::arg("weights"), py::arg("mask"), py::arg("count"),
        R"(The keys that an index finds best for each row (DeepSeek-V3.2's lightning indexer).

q float32 [rows, heads, dim], k [n, 1, dim], weights float32 [rows, heads], mask float32 [rows, n], where -inf hides a key
-> int32 [rows, min(count, n)]: the keys of the largest sum over heads of weight * max(0, q . k), the earlier of a tie,
in ascending order; -1 behind the last of a row that sees fewer. A row's keys do not depend on the other rows. Raises
``ArgumentError`` or ``ArgumentTypeError``. Source: DeepSeek-AI 2025, DeepSeek-V3.2-Exp.)");
  m.def("attend_chosen", &attend_chosen, py::arg("q"), py::arg("k"), py::arg("chosen"), py::arg("v_dim"),
        py::arg("scale") = py::none(),
        R"(Attention of each row to the keys that it chose, and to no others; nothing else is read.

q float32 [rows, heads, dim], k [n, 1, dim] float32 or float16, chosen int32 [rows, count] as ``choose_keys`` gives it
-> float32 [rows, heads, v_dim]. The last ``v_dim`` numbers of a key are its value. ``scale``: None for 1 / sqrt(dim).
Numbers that are no key's do not count; a row without a key gives 0. Raises ``ArgumentError`` or ``ArgumentTypeError``.)");
}

}  // namespace kvtrie::binding
