// choose_keys, choose_blocks and attend_chosen of the two classes that have rows over cells: CausalCache and Step.
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

q float32 [rows, heads, head_dim], weights float32 [rows, heads] -> int32 [rows, min(count, capacity)], numbers of the
keys of ``get``, -1 behind the last. They are read where they lie, not copied; keys in blocks (q8_0) and those of a session that was shifted are. Raises
``NotSupportedError`` for a cache with several K/V heads, or without a device.)";
inline constexpr const char* kChooseBlocks =
    R"(The keys of the blocks of tokens that each row finds best, and those behind its last complete block, after ``put``.

A block is ``ratio`` tokens in a row along a sequence, from its first token on. Its index key is the mean of those of its
tokens, normed as ``ops.rms_norm(mean, norm, eps, offset)`` and rotated by ``rope`` to its first token's position. A row
chooses the ``count`` complete blocks whose sum over heads of weight * max(0, q . k) is largest, the earlier of a tie. q
float32 [rows, heads, head_dim], weights float32 [heads], norm float32 [head_dim] -> int32 [rows, count * ratio + ratio - 1],
or as many blocks as the cache has cells for: numbers of the keys of ``get`` in order, -1 for none. Index keys are read where
they lie, as by ``choose_keys``. Raises ``ArgumentError``; ``NotSupportedError`` for a cache with several K/V heads, with a
window or chunks, or without a device. Source: the Hugging Face model of Qwen4-Exp.)";
inline constexpr const char* kAttendChosen =
    R"(Attention of each row to those keys of a layer that it chose, after ``put`` (see ``ops.attend_chosen``).

q float32 [rows, heads, head_dim], chosen int32 [rows, count] as ``choose_keys`` gave it, of any layer with the same rows of
the same sequences -> float32 [rows, heads, v_head_dim], or latent_dim; heads is a multiple of kv_heads. ``scale``: None for
1 / sqrt(head_dim). Raises ``NotSupportedError`` for a cache without values, or without a device.)";

// place_of(self, layer), choose(self, layer, q, weights, ratio, count, made).
template <class Owner, class... Held, class PlaceOf, class Choose>
void add_blocks(py::class_<Owner, Held...>& c, PlaceOf place_of, Choose choose) {
  c.def(
      "choose_blocks",
      [=](Owner& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& weights,
          const Typed<"int">& ratio, const Typed<"int">& count, const Typed<"ops.RopeTable">& rope,
          const Typed<"ArrayLike">& norm, const Typed<"float">& eps, const Typed<"float">& offset) -> Tensor {
        constexpr const char* kWhere = "choose_blocks";
        const std::int32_t number = to_int32(layer, kWhere, "layer"), tokens = to_int32(ratio, kWhere, "ratio"),
                           most = to_int32(count, kWhere, "count");
        if (!py::isinstance<ops::DeviceRope>(rope)) refuse_type(rope, kWhere, "rope", "a RopeTable");
        const Placement place = place_of(self, number);
        const Tensor queries = to_tensor(q, place, kWhere, "q", DType::kFloat32),
                     factors = to_tensor(weights, place, kWhere, "weights", DType::kFloat32);
        const ops::BlockKeys made{
            to_tensor(norm, place, kWhere, "norm", DType::kFloat32), &rope.template cast<ops::DeviceRope&>(),
            static_cast<float>(to_number(eps, kWhere, "eps")), static_cast<float>(to_number(offset, kWhere, "offset"))};
        return without_gil([&] { return choose(self, number, queries, factors, tokens, most, made); });
      },
      py::arg("layer"), py::arg("q"), py::arg("weights"), py::arg("ratio"), py::arg("count"), py::arg("rope"),
      py::arg("norm"), py::arg("eps") = 1e-6, py::arg("offset") = 0.0, kChooseBlocks);
}

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
        const ops::AttentionOptions options =
            to_attention(scale, py::none(), py::none(), py::str("auto"), place, kWhere);
        return without_gil([&] { return attend(self, number, queries, numbers, options); });
      },
      py::arg("layer"), py::arg("q"), py::arg("chosen"), py::arg("scale") = py::none(), kAttendChosen);
}

}  // namespace kvtrie::binding
