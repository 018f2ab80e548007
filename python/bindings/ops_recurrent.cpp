// The recurrent operations: kvtrie.ops.causal_conv1d, gated_delta and ssd.
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "arrays.h"
#include "convert.h"
#include "operands.h"
#include "ops/recurrent.h"

namespace kvtrie::binding {
namespace {

// Where each sequence begins; None: all rows are one sequence's.
std::vector<std::int32_t> to_row_starts(const py::object& value, const char* where) {
  if (value.is_none()) return {0};
  return IntegerArgument(value, where, "row_starts").vector();
}

// A list of offsets for each sequence; None: none anywhere.
ops::RowBoundaries to_boundaries(const py::object& value, const char* where) {
  ops::RowBoundaries boundaries;
  if (value.is_none()) return boundaries;
  constexpr const char* kAllowed = "a list with a list of offsets for each sequence, or None";
  for (const py::object& offsets : to_items(value, where, "boundaries", kAllowed))
    boundaries.push_back(IntegerArgument(offsets, where, "boundaries").vector());
  return boundaries;
}

py::tuple to_python(ops::Recurrence result) {
  const py::object states = result.states.defined() ? py::cast(std::move(result.states)) : py::object(py::none());
  return py::make_tuple(std::move(result.y), states);
}

Typed<"tuple[Tensor, Tensor | None]"> causal_conv1d(const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& weight,
                                                    const Typed<"ArrayLike | None">& states,
                                                    const Typed<"Integers | None">& row_starts,
                                                    const Typed<"Sequence[Integers] | None">& boundaries) {
  constexpr const char* kWhere = "causal_conv1d";
  const Placement place = placement_among({x, weight, states});
  const Tensor rows = to_tensor(x, place, kWhere, "x", DType::kFloat32);
  const Tensor taps = to_tensor(weight, place, kWhere, "weight", DType::kFloat32);
  const Tensor before = to_optional_tensor(states, place, kWhere, "states");
  const std::vector<std::int32_t> starts = to_row_starts(row_starts, kWhere);
  const ops::RowBoundaries cuts = to_boundaries(boundaries, kWhere);
  return to_python(without_gil([&] { return ops::causal_conv1d(rows, taps, before, starts, cuts); }));
}

Typed<"tuple[Tensor, Tensor]"> gated_delta(const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& k,
                                           const Typed<"ArrayLike">& v, const Typed<"ArrayLike">& g,
                                           const Typed<"ArrayLike">& beta, const Typed<"ArrayLike | None">& states,
                                           const Typed<"Integers | None">& row_starts,
                                           const Typed<"Sequence[Integers] | None">& boundaries) {
  constexpr const char* kWhere = "gated_delta";
  const Placement place = placement_among({q, k, v, g, beta, states});
  const auto operand = [&](const py::object& value, const char* name) {
    return to_tensor(value, place, kWhere, name, DType::kFloat32);
  };
  const Tensor queries = operand(q, "q"), keys = operand(k, "k"), values = operand(v, "v");
  const Tensor gates = operand(g, "g"), betas = operand(beta, "beta");
  const Tensor before = to_optional_tensor(states, place, kWhere, "states", DType::kFloat32);
  const std::vector<std::int32_t> starts = to_row_starts(row_starts, kWhere);
  const ops::RowBoundaries cuts = to_boundaries(boundaries, kWhere);
  return to_python(
      without_gil([&] { return ops::gated_delta(queries, keys, values, gates, betas, before, starts, cuts); }));
}

Typed<"tuple[Tensor, Tensor]"> ssd(const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& dt,
                                   const Typed<"ArrayLike">& a, const Typed<"ArrayLike">& b,
                                   const Typed<"ArrayLike">& c, const Typed<"ArrayLike">& d,
                                   const Typed<"float">& dt_min, const Typed<"float | None">& dt_max,
                                   const Typed<"ArrayLike | None">& states, const Typed<"Integers | None">& row_starts,
                                   const Typed<"Sequence[Integers] | None">& boundaries) {
  constexpr const char* kWhere = "ssd";
  const Placement place = placement_among({x, dt, a, b, c, d, states});
  const ops::SsdInputs in = to_ssd({x, dt, a, b, c, d}, dt_min, dt_max, place, kWhere);
  const Tensor before = to_optional_tensor(states, place, kWhere, "states", DType::kFloat32);
  const std::vector<std::int32_t> starts = to_row_starts(row_starts, kWhere);
  const ops::RowBoundaries cuts = to_boundaries(boundaries, kWhere);
  return to_python(without_gil([&] { return ops::ssd(in, before, starts, cuts); }));
}

}  // namespace

void init_ops_recurrent(py::module_& core) {
  py::module_ m = core.attr("ops").cast<py::module_>();
  m.def("causal_conv1d", &causal_conv1d, py::arg("x"), py::arg("weight"), py::arg("states") = py::none(),
        py::arg("row_starts") = py::none(), py::arg("boundaries") = py::none(),
        R"(A causal convolution for each channel over the rows of one or several sequences: (y, states_out).

y[t, c] = sum over j of weight[c, j] * x[t - (width - 1) + j, c]; no bias, no activation. x float32 [rows, dim], weight
float32 [dim, width] -> y float32 [rows, dim]. ``states`` [sequences, width - 1, dim], float32 or float16: the inputs
before each sequence's first row, oldest first; None: zeros. ``row_starts`` [sequences + 1]: where each sequence's
rows begin, then the number of rows (which may be left out); None: one sequence. ``boundaries``: for each sequence the
offsets, in rows from its first, at which states are wanted; None: none.

states_out [n, width - 1, dim] in the dtype of ``states``: sequence by sequence the states at its boundaries, then the
one at its end (None for a width of 1). Where the cuts are changes no bit of y.)");
  m.def("gated_delta", &gated_delta, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("g"), py::arg("beta"),
        py::arg("states") = py::none(), py::arg("row_starts") = py::none(), py::arg("boundaries") = py::none(),
        R"(The gated delta rule (Yang et al., 2024) over the rows of one or several sequences: (y, states_out).

For each row t and value head h, with S [v_dim, k_dim] and the key head h * k_heads / v_heads:

    S = exp(g[t, h]) * S;  u = beta[t, h] * (v[t, h] - S k[t]);  S = S + u k[t]^T;  y[t, h] = S q[t]

q, k float32 [rows, k_heads, k_dim] (q already scaled), v [rows, v_heads, v_dim], g and beta [rows, v_heads] -> y
float32 [rows, v_heads, v_dim]. g may be [rows, v_heads, k_dim], at most 0: then each column of S fades by its own
(Kimi Team, 2025).
``states`` float32 [sequences, v_heads, v_dim, k_dim] or None for zeros; ``row_starts`` and ``boundaries`` as in
``causal_conv1d``. states_out float32 [n, v_heads, v_dim, k_dim], in the same order.)");
  m.def("ssd", &ssd, py::arg("x"), py::arg("dt"), py::arg("a"), py::arg("b"), py::arg("c"), py::arg("d"),
        py::arg("dt_min") = 0.0, py::arg("dt_max") = py::none(), py::arg("states") = py::none(),
        py::arg("row_starts") = py::none(), py::arg("boundaries") = py::none(),
        R"(The scan of Mamba-2 (SSD; Dao and Gu, 2024) over the rows of one or several sequences: (y, states_out).

For each row t and head h, with S [head_dim, state] and the group h * groups / heads of b and c:

    dt = min(max(dt[t, h], dt_min), dt_max)
    S = exp(dt * a[h]) * S + (dt * x[t, h]) b[t]^T;  y[t, h] = S c[t] + d[h] * x[t, h]

x float32 [rows, heads, head_dim], dt [rows, heads] (after bias and softplus), a (below 0) and d [heads], b and c [rows,
groups, state] -> y float32 [rows, heads, head_dim]. ``dt_max`` None: no limit. ``states`` float32 [sequences, heads,
head_dim, state] or None for zeros; ``row_starts`` and ``boundaries`` as in ``causal_conv1d``. states_out float32 [n,
heads, head_dim, state], in the same order.)");
}

}  // namespace kvtrie::binding
