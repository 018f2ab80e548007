// Weights for products, and what is done with them: kvtrie.ops.pack, matmul, embedding and the like.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "convert.h"
#include "operands.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "packed_class.h"

namespace kvtrie::binding {
namespace {

std::optional<ops::MatmulBackend> to_backend(const py::object& name) {
  if (name.is_none()) return std::nullopt;
  return ops::matmul_backend_from_name(std::string(to_text(name, "matmul", "backend")));
}

// Whether `value` is a tuple or list that begins with an Item.
template <class Item>
bool are_several(const py::object& value) {
  const bool several = py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value);
  return several && PySequence_Fast_GET_SIZE(value.ptr()) > 0 &&
         py::isinstance<Item>(PySequence_Fast_GET_ITEM(value.ptr(), 0));
}

// Outputs one after the other, of weights that are kept differently.
Tensor matmul_several(const py::object& x, const py::object& w, const py::object& add, const py::object& norm) {
  const std::vector<ops::PackedWeight> items = to_packed_weights(w, "matmul", "w");
  const Placement place{false, items.front().panels().device()};
  const Tensor a = to_tensor(x, place, "matmul", "x");
  const Tensor added = to_optional_tensor(add, place, "matmul", "add");
  const ops::InputNorm first = to_norm(norm, place, "matmul");
  return without_gil([&] { return ops::matmul(a, items, added, first); });
}

Tensor matmul(const Typed<"ArrayLike">& x, const Typed<"ArrayLike | ops.PackedWeight | Sequence[ops.PackedWeight]">& w,
              bool transpose_w, const Typed<"str | None">& backend, const Typed<"ArrayLike | None">& add,
              const Typed<"tuple[ArrayLike, float, float] | None">& norm) {
  const std::optional<ops::MatmulBackend> wanted = to_backend(backend);
  if (are_several<ops::PackedWeight>(w)) return matmul_several(x, w, add, norm);
  if (!py::isinstance<ops::PackedWeight>(w)) {
    const Placement place = placement_among({x, w, add});
    const Tensor a = to_tensor(x, place, "matmul", "x");
    const Tensor b = to_tensor(w, place, "matmul", "w");
    const Tensor added = to_optional_tensor(add, place, "matmul", "add");
    const ops::InputNorm first = to_norm(norm, place, "matmul");
    return without_gil([&] { return ops::matmul(a, b, transpose_w, wanted, added, first); });
  }
  const auto& packed = w.cast<ops::PackedWeight&>();
  require(transpose_w, "matmul",
          "transpose_w: got False with a packed weight, allowed True (it was packed as [out, in])");
  require(!wanted || *wanted == ops::MatmulBackend::kPacked, "matmul",
          "backend: got 'clblast' with a packed weight, allowed 'packed'");
  const Placement place{false, packed.panels().device()};
  const Tensor a = to_tensor(x, place, "matmul", "x");
  const Tensor added = to_optional_tensor(add, place, "matmul", "add");
  const ops::InputNorm first = to_norm(norm, place, "matmul");
  return without_gil([&] { return ops::matmul(a, packed, added, first); });
}

ops::PackedWeight pack(const Typed<"ArrayLike">& w, const Typed<"Any | None">& dtype, const Typed<"str">& precision) {
  const std::optional<ops::WeightDType> wanted = to_weight_dtype(dtype, "pack", "dtype");
  const ops::Precision chosen = to_precision(precision, "pack");
  const Tensor weight = to_tensor(w, placement_among({w}), "pack", "w");
  return without_gil([&] { return ops::pack(weight, true, wanted, chosen); });
}

using BlockBytes = py::array_t<std::uint8_t, py::array::c_style>;

// Blocks [out, bytes of a row] on the host.
BlockBytes to_blocks(const py::object& value, const char* where, const char* name) {
  require(py::isinstance<py::array_t<std::uint8_t>>(value), where, name, ": got ",
          std::string(py::str(py::type::of(value))), ", allowed a numpy array of uint8 [out, bytes]");
  BlockBytes blocks = BlockBytes::ensure(value);
  require(blocks && blocks.ndim() == 2, where, name, ": got ", to_string(shape_of(blocks)), ", allowed [out, bytes]");
  return blocks;
}

ops::BlockMatrix to_matrix(const BlockBytes& blocks, const Placement& place, ops::WeightDType dtype) {
  return {place.device,
          {reinterpret_cast<const std::byte*>(blocks.data()), static_cast<std::size_t>(blocks.nbytes())},
          dtype,
          static_cast<std::int64_t>(blocks.shape(0))};
}

Placement to_device(const py::object& device, const char* where) {
  Placement place = to_placement(device, where);
  require(!place.on_host, where, "device: got \"host\", allowed an OpenCL device");
  return place;
}

ops::PackedWeight pack_blocks(const Typed<"npt.NDArray[np.uint8]">& blocks, const std::string& dtype,
                              const Typed<"Place">& device, const Typed<"str">& precision) {
  const ops::Precision chosen = to_precision(precision, "pack_blocks");
  const BlockBytes bytes = to_blocks(blocks, "pack_blocks", "blocks");
  const ops::BlockMatrix matrix =
      to_matrix(bytes, to_device(device, "pack_blocks"), ops::weight_dtype_from_name(dtype, "pack_blocks", "dtype"));
  return without_gil([&] { return ops::pack_blocks(matrix, chosen); });
}

ops::PackedPair pack_pair_blocks(const Typed<"npt.NDArray[np.uint8]">& gate, const Typed<"npt.NDArray[np.uint8]">& up,
                                 const std::string& dtype, const Typed<"Place">& device,
                                 const Typed<"str">& precision) {
  constexpr const char* kWhere = "pack_pair_blocks";
  const ops::Precision chosen = to_precision(precision, kWhere);
  const Placement place = to_device(device, kWhere);
  const ops::WeightDType kept = ops::weight_dtype_from_name(dtype, kWhere, "dtype");
  const BlockBytes a = to_blocks(gate, kWhere, "gate"), b = to_blocks(up, kWhere, "up");
  const ops::BlockMatrix first = to_matrix(a, place, kept), second = to_matrix(b, place, kept);
  return without_gil([&] { return ops::pack_pair_blocks(first, second, chosen); });
}

ops::PackedPair pack_pair(const Typed<"ArrayLike">& gate, const Typed<"ArrayLike">& up,
                          const Typed<"Any | None">& dtype, const Typed<"str">& precision) {
  const ops::Precision chosen = to_precision(precision, "pack_pair");
  const std::optional<ops::WeightDType> wanted = to_weight_dtype(dtype, "pack_pair", "dtype");
  const Placement place = placement_among({gate, up});
  const Tensor a = to_tensor(gate, place, "pack_pair", "gate"), b = to_tensor(up, place, "pack_pair", "up");
  return without_gil([&] { return ops::pack_pair(a, b, wanted, chosen); });
}

Tensor matmul_gated(const Typed<"ArrayLike">& x, const Typed<"ops.PackedPair">& w, const Typed<"str">& activation,
                    const Typed<"tuple[ArrayLike, float, float] | None">& norm) {
  if (!py::isinstance<ops::PackedPair>(w)) refuse_type(w, "matmul_gated", "w", "a PackedPair");
  const auto& pair = w.cast<ops::PackedPair&>();
  const ops::Activation chosen =
      ops::activation_from_name(std::string(to_text(activation, "matmul_gated", "activation")));
  const Placement place{false, pair.panels().device()};
  const Tensor a = to_tensor(x, place, "matmul_gated", "x");
  const ops::InputNorm first = to_norm(norm, place, "matmul_gated");
  return without_gil([&] { return ops::matmul_gated(a, pair, chosen, first); });
}

// Rows of a table: `items`, tensors or packed weights, one after the other, of `limit` rows together.
template <class Item>
Tensor embedding_of(const std::vector<Item>& items, std::int64_t limit, const Placement& place, const py::object& ids) {
  const std::span<const Item> table(items);
  if (py::isinstance<Tensor>(ids)) {
    const auto& on_device = ids.cast<Tensor&>();
    return without_gil([&] { return ops::embedding(table, on_device); });
  }
  const IntegerArgument checked(ids, "embedding", "ids");
  for (std::size_t i = 0; i < checked.span().size(); ++i) {
    require(checked.span()[i] < limit, "embedding", "ids[", i, "]: got ", checked.span()[i], ", allowed 0 to ",
            limit - 1);
  }
  const auto count = static_cast<std::int64_t>(checked.span().size());
  return without_gil([&] {
    return ops::embedding(table, Tensor::from_host(place.device, DType::kInt32, {count}, checked.span().data()));
  });
}

Tensor embedding(const Typed<"ArrayLike | ops.PackedWeight | Sequence[Tensor] | Sequence[ops.PackedWeight]">& table,
                 const Typed<"Integers">& ids) {
  std::int64_t limit = 0;
  if (py::isinstance<ops::PackedWeight>(table) || are_several<ops::PackedWeight>(table)) {
    const std::vector<ops::PackedWeight> items = are_several<ops::PackedWeight>(table)
                                                     ? to_packed_weights(table, "embedding", "table")
                                                     : std::vector{table.cast<ops::PackedWeight&>()};
    for (const ops::PackedWeight& each : items) limit += each.out_features();
    return embedding_of(items, limit, {false, items.front().panels().device()}, ids);
  }
  const bool several = are_several<Tensor>(table);
  const Placement place = several ? placement_among({table[py::int_(0)], ids}) : placement_among({table, ids});
  std::vector<Tensor> items;
  if (several) {
    for (const py::object& each : to_items(table, "embedding", "table", "tensors"))
      items.push_back(to_tensor(each, place, "embedding", "table"));
  } else {
    items.push_back(to_tensor(table, place, "embedding", "table"));
  }
  for (const Tensor& each : items) limit += each.rank() > 0 ? each.dim(0) : 0;
  return embedding_of(items, limit, place, ids);
}

}  // namespace

void init_ops_weights(py::module_& core) {
  py::module_ m = core.attr("ops").cast<py::module_>();
  init_packed<ops::PackedWeight>(m, "PackedWeight",
                                 "A weight laid out for the packed matmul kernels; made by ``pack``.");
  init_packed<ops::PackedPair>(m, "PackedPair", "Two weights laid out for ``matmul_gated``; made by ``pack_pair``.");
  m.def("pack", &pack, py::arg("w"), py::arg("dtype") = py::none(), py::kw_only(), py::arg("precision") = "auto",
        R"(A weight laid out once for the packed backend of ``matmul``.

w [out, in], float32, float16 or bfloat16. ``dtype``: that of w (None), or "q8_0", GGML's format: 32 consecutive inputs of
an output share a float16 scale d = max |w| / 127, and each is an int8 q = round(w / d), so that a number takes 8.5 bits.
Raises ``ArgumentError`` when q8_0 cannot hold w: for a NaN, and for magnitudes above 127 * 65504; it waits for the device
to know. Sizes that are no multiples of 32 or 64 are filled up. ``precision``: how products of q8_0 and other blocks are
computed. "exact": they have the bits of the float32 weight d * q. "auto": the same, but on x86 processors with AVX-512
VNNI or AMX each 32 neighbours of a row of x (16 for q6_K) are rounded to 16 bits, to multiples of their largest magnitude
/ 32639, and multiplied as integers, which is faster. "fast": to 8 bits, of which 127 are the largest, which is faster
still and loses more. GPUs with matrix instructions multiply float16 and blocks by them, x as two halves with "auto",
and with "fast" as one, 2^-11 off; "exact" is in float32. On other devices "fast" is as "auto". A row's bits do not depend
on the rows beside it in any of them.)");
  m.def("pack_blocks", &pack_blocks, py::arg("blocks"), py::arg("dtype"), py::kw_only(), py::arg("device") = py::none(),
        py::arg("precision") = "auto",
        R"(GGML's blocks laid out for the packed backend of ``matmul``: the same numbers, in the kernels' order.

blocks: numpy, uint8 [out, bytes of a row], as a GGUF file holds them. ``dtype``: "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"
(blocks of 32 inputs), "q4_K", "q5_K", "q6_K" or "q2_K" (of 256). ``device``: None for the default one. ``precision``: as for
``pack``. Takes what the file does, up to 1.03 of it for q4_K and q5_K. Raises ``ArgumentError`` for bytes that are no rows
of whole blocks.)");
  m.def("matmul", &matmul, py::arg("x"), py::arg("w"), py::arg("transpose_w") = true, py::arg("backend") = py::none(),
        py::arg("add") = py::none(), py::arg("norm") = py::none(),
        R"(x [.., in] times w [out, in] -> float32 [.., out].

``w``: a tensor, an array, a ``PackedWeight``, or a tuple of those whose outputs come one after the other (weights that are
kept differently, or do not fit into one buffer; a launch for each). ``transpose_w=False``: w is [in, out]. ``backend``: "clblast" or
"packed"; None: clblast on GPUs, packed elsewhere and for every ``PackedWeight``. ``add``: float32 [.., out] (a residual) or [out] (a bias), added to
the product: inside its kernel for a ``PackedWeight``, by a second one otherwise. ``norm``: (weight float32 [in], eps,
offset); x is ``rms_norm(x, *norm)`` then, with the same bits: inside the product's kernel where matrix instructions
multiply up to 8 rows by a ``PackedWeight``, by one before it otherwise.)");
  m.def("pack_pair", &pack_pair, py::arg("gate"), py::arg("up"), py::arg("dtype") = py::none(), py::kw_only(),
        py::arg("precision") = "auto",
        R"(Two weights of a gated block laid out for ``matmul_gated``.

gate, up [out, in]: float32, float16 or bfloat16, of equal shape and dtype. ``dtype``: that of both (None), or "q8_0", and
``precision``, as for ``pack``.)");
  m.def("pack_pair_blocks", &pack_pair_blocks, py::arg("gate"), py::arg("up"), py::arg("dtype"), py::kw_only(),
        py::arg("device") = py::none(), py::arg("precision") = "auto",
        "Two weights of a gated block laid out for ``matmul_gated``: blocks of equal shape and dtype, as for "
        "``pack_blocks``.");
  m.def("matmul_gated", &matmul_gated, py::arg("x"), py::arg("w"), py::arg("activation") = "silu",
        py::arg("norm") = py::none(),
        R"(activation(x @ gate.T) * (x @ up.T) by one kernel: x float32 [.., in] -> float32 [.., out].

``w``: the two weights as ``pack_pair`` laid them out. ``activation``: "silu" or "gelu" (the tanh form). The bits are
those of ``silu_mul`` or ``gelu_mul`` over two products with packed weights. ``norm``: as for ``matmul``.)");
  m.def("embedding", &embedding, py::arg("table"), py::arg("ids"),
        R"(Rows of a table: table [vocab, dim], ids [tokens] -> float32 [tokens, dim].

``table``: a tensor, an array, a ``PackedWeight``, or a tuple of tensors or of packed weights whose rows come one after the
other (a table that does not fit into one buffer; a launch for each).
ids from the host are checked; a row whose id in a device tensor is outside the table is NaN.)");
}

}  // namespace kvtrie::binding
