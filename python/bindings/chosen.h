// choose_keys and attend_chosen of the two classes that have rows over cells: CausalCache and Step.
//
// Threads: called with the GIL, computed without.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "arrays.h"
#include "convert.h"
#include "gil.h"
#include "operands.h"
#include "typed.h"

namespace kvtrie::binding {

inline constexpr const char* kChooseKeys =
    R"(The keys that each row finds best among those that it sees of a layer, after ``put`` (see ``ops.choose_keys``).

q float32 [rows, heads, head_dim], weights float32 [rows, heads] -> int32 [rows, min(count, n)], numbers of the n keys of
``get``. They are read where they lie, not copied; keys in blocks (q8_0) and those of a session that was shifted are. Raises
``NotSupportedError`` for a cache with several K/V heads, or without a device.)";
inline constexpr const char* kAttendChosen =
    R"(Attention of each row to those keys of a layer that it chose, after ``put`` (see ``ops.attend_chosen``).

q float32 [rows, heads, head_dim], chosen int32 [rows, count] as ``choose_keys`` gave it, of any layer with the same rows of
the same sequences -> float32 [rows, heads, v_head_dim], or latent_dim; heads is a multiple of kv_heads. ``scale``: None for
1 / sqrt(head_dim). Raises ``NotSupportedError`` for a cache without values, or without a device.)";

// place_of(self, layer), choose(self, layer, q, weights, count), attend(self, layer, q, chosen, options).
template <class Owner, class... Held, class PlaceOf, class Choose, class Attend>
void add_chosen(py::class_<Owner, Held...>& c, PlaceOf place_of, Choose choose, Attend attend) {
  c.def(
      "choose_keys",
      [=](Owner& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& weights,
          const Typed<"int">& count) -> Tensor {
        constexpr const char* kWhere = "choose_keys";
        const std::int32_t number = to_int32(layer, kWhere, "layer"), most = to_int32(count, kWhere, "count");
        const Placement place = place_of(self, number);
        const Tensor queries = to_tensor(q, place, kWhere, "q", DType::kFloat32),
                     factors = to_tensor(weights, place, kWhere, "weights", DType::kFloat32);
        return without_gil([&] { return choose(self, number, queries, factors, most); });
      },
      py::arg("layer"), py::arg("q"), py::arg("weights"), py::arg("count"), kChooseKeys);
  c.def(
      "attend_chosen",
      [=](Owner& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& chosen,
          const Typed<"float | None">& scale) -> Tensor {
        constexpr const char* kWhere = "attend_chosen";
        const std::int32_t number = to_int32(layer, kWhere, "layer");
        const Placement place = place_of(self, number);
        const Tensor queries = to_tensor(q, place, kWhere, "q", DType::kFloat32),
                     numbers = to_tensor(chosen, place, kWhere, "chosen", DType::kInt32);
        const ops::AttentionOptions options = to_attention(scale, py::none(), py::none(), place, kWhere);
        return without_gil([&] { return attend(self, number, queries, numbers, options); });
      },
      py::arg("layer"), py::arg("q"), py::arg("chosen"), py::arg("scale") = py::none(), kAttendChosen);
}

}  // namespace kvtrie::binding
