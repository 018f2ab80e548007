// Operations on tensors: kvtrie.ops.
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "base_class.h"
#include "cache_class.h"
#include "convert.h"
#include "operands.h"
#include "ops/attention.h"
#include "ops/family.h"
#include "ops/integer_units.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "ops/rope.h"
#include "ops/self_test.h"

namespace kvtrie::binding {
namespace {

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

auto unary(const char* name, Unary operation) {
  return [name, operation](const Typed<"ArrayLike">& x) {
    const Tensor a = to_tensor(x, placement_among({x}), name, "x");
    return without_gil([&] { return operation(a); });
  };
}

// `first` and `second` are the names of the arguments.
auto binary(const char* name, const char* first, const char* second, Binary operation) {
  return [=](const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& y) {
    const Placement place = placement_among({x, y});
    const Tensor a = to_tensor(x, place, name, first);
    const Tensor b = to_tensor(y, place, name, second);
    return without_gil([&] { return operation(a, b); });
  };
}

Tensor rope(const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& positions, const Typed<"float">& base,
            const Typed<"int | None">& dims, const Typed<"Mapping[str, Any] | None">& scaling, bool interleaved,
            const Typed<"ops.RopeTable | None">& table) {
  const Placement place = placement_among({x, positions});
  const Tensor a = to_tensor(x, place, "rope", "x");
  const Tensor at = to_tensor(positions, place, "rope", "positions", DType::kInt32);
  if (!table.is_none()) {
    if (!py::isinstance<ops::DeviceRope>(table)) refuse_type(table, "rope", "table", "a RopeTable");
    const auto& made = table.cast<ops::DeviceRope&>();
    return without_gil([&] { return ops::rope(a, at, made); });
  }
  const ops::RopeParams params = to_rope(base, dims, scaling, interleaved, "rope");
  return without_gil([&] { return ops::rope(a, at, params); });
}

Tensor attention(const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& v,
                 const Typed<"ArrayLike | None">& mask, const Typed<"float | None">& scale,
                 const Typed<"float | None">& softcap, const Typed<"ArrayLike | None">& sinks,
                 const Typed<"str">& precision) {
  const Placement place = placement_among({q, k, v});
  const Tensor query = to_tensor(q, place, "attention", "q");
  const Tensor keys = to_tensor(k, place, "attention", "k");
  const Tensor values = to_tensor(v, place, "attention", "v");
  const Tensor added = to_optional_tensor(mask, place, "attention", "mask", DType::kFloat32);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, "attention");
  return without_gil([&] { return ops::attention(query, keys, values, added, options); });
}

int to_axis(const py::object& axis, const char* where) {
  return static_cast<int>(to_integer(axis, where, "axis", -16, 15));
}

Tensor concat(const Typed<"Sequence[ArrayLike]">& tensors, const Typed<"int">& axis) {
  if (!py::isinstance<py::list>(tensors) && !py::isinstance<py::tuple>(tensors)) {
    refuse_type(tensors, "concat", "tensors", "a list of tensors");
  }
  const std::vector<py::object> given = to_items(tensors, "concat", "tensors", "a list of tensors");
  Placement place;
  bool found = false;
  for (const py::object& each : given) {
    if (found || !py::isinstance<Tensor>(each)) continue;
    place = placement_among({each});
    found = true;
  }
  if (!found) place = placement_among({});
  std::vector<Tensor> operands;
  operands.reserve(given.size());
  for (const py::object& each : given) operands.push_back(to_tensor(each, place, "concat", "tensors"));
  const int along = to_axis(axis, "concat");
  return without_gil([&] { return ops::concat(operands, along); });
}

std::vector<Tensor> split(const Typed<"ArrayLike">& x, const Typed<"Integers">& sizes, const Typed<"int">& axis) {
  const Tensor a = to_tensor(x, placement_among({x}), "split", "x");
  const IntegerArgument checked(sizes, "split", "sizes");
  const std::vector<std::int64_t> wide(checked.span().begin(), checked.span().end());
  const int along = to_axis(axis, "split");
  return without_gil([&] { return ops::split(a, wide, along); });
}

void warm_up(const Typed<"int">& heads, const Typed<"int">& kv_heads, const Typed<"int">& head_dim,
             const Typed<"int | None">& v_head_dim, const Typed<"str | tuple[str, str]">& dtype,
             const Typed<"str">& weight_dtype, const Typed<"str | None">& activation, const Typed<"Place">& device,
             const Typed<"str">& precision, const Typed<"int | None">& latent_dim) {
  constexpr const char* kWhere = "warm_up";
  ops::WarmUp spec;
  spec.heads = to_int32(heads, kWhere, "heads", 1);
  spec.kv_heads = to_int32(kv_heads, kWhere, "kv_heads", 1);
  spec.k_dim = to_int32(head_dim, kWhere, "head_dim", 2);
  spec.latent_dim = latent_dim.is_none() ? 0 : to_int32(latent_dim, kWhere, "latent_dim", 1);
  const bool latent = spec.latent_dim > 0;
  spec.v_dim =
      v_head_dim.is_none() ? (latent ? 0 : spec.k_dim) : to_int32(v_head_dim, kWhere, "v_head_dim", latent ? 0 : 1);
  spec.kv_formats = to_cell_formats(dtype, kWhere);
  spec.weight_dtype = to_weight_dtype(weight_dtype, kWhere, "weight_dtype").value_or(spec.weight_dtype);
  if (!activation.is_none()) {
    spec.gated = ops::activation_from_name(std::string(to_text(activation, kWhere, "activation")));
  }
  spec.precision = to_precision(precision, kWhere);
  const Placement place = to_placement(device, kWhere);
  require(!place.on_host, kWhere, "device: got \"host\", allowed an OpenCL device");
  without_gil([&] { ops::warm_up(place.device, spec); });
}

void init_rope(py::module_& m) {
  py::class_<ops::DeviceRope> c(
      m, "RopeTable", R"(The frequencies of a rotary embedding on a device: made once, used by every call of ``rope``.

Arguments as in ``rope``; ``head_dim``: numbers per head; ``length``: tokens of the text, for scalings that depend on
it.)");
  c.def(py::init([](const Typed<"int">& head_dim, const Typed<"float">& base, const Typed<"int | None">& dims,
                    const Typed<"Mapping[str, Any] | None">& scaling, bool interleaved, const Typed<"int">& length,
                    const Typed<"Place">& device) {
          const ops::RopeParams params = to_rope(base, dims, scaling, interleaved, "RopeTable");
          const std::int32_t numbers = to_int32(head_dim, "RopeTable", "head_dim", 2);
          const std::int32_t tokens = to_int32(length, "RopeTable", "length");
          const Placement place = to_placement(device, "RopeTable");
          require(!place.on_host, "RopeTable", "device: got \"host\", allowed an OpenCL device");
          return without_gil([&] { return ops::DeviceRope(place.device, params, numbers, tokens); });
        }),
        py::arg("head_dim"), py::arg("base") = 10000.0, py::arg("dims") = py::none(), py::arg("scaling") = py::none(),
        py::arg("interleaved") = false, py::kw_only(), py::arg("length") = 0, py::arg("device") = py::none());
  c.def_property_readonly("head_dim", &ops::DeviceRope::head_dim, "Numbers per head.");
  c.def_property_readonly("dims", &ops::DeviceRope::dims, "Rotated numbers per head.");
  refuse_pickling(c, "making it again from its arguments");
  allow_in_forks(c);
  m.def(
      "rope", &rope, py::arg("x"), py::arg("positions"), py::arg("base") = 10000.0, py::arg("dims") = py::none(),
      py::arg("scaling") = py::none(), py::arg("interleaved") = false, py::arg("table") = py::none(),
      R"(Rotary position embedding (Su et al., 2021): x float32 [tokens, heads, dim], positions int32 [tokens] -> a new
tensor.

``dims``: how many numbers of each head are rotated (None: all). ``scaling``: None, or a dict in the form of Hugging
Face's ``rope_scaling`` (linear, dynamic, yarn, longrope, llama3). ``interleaved``: pairs (2i, 2i+1) instead of (i, i +
dims/2). ``table``: a ``RopeTable`` to use instead of the other arguments; saves an upload in each call.)");
}

Tensor clamp(const Typed<"ArrayLike">& x, const Typed<"float | None">& low, const Typed<"float | None">& high,
             const Typed<"float">& scale, const Typed<"float">& shift) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor a = to_tensor(x, placement_among({x}), "clamp", "x");
  ops::Clamp bounds;
  bounds.scale = to_float(scale, "clamp", "scale");
  bounds.low = low.is_none() ? -kInfinity : to_float(low, "clamp", "low");
  bounds.high = high.is_none() ? kInfinity : to_float(high, "clamp", "high");
  bounds.shift = to_float(shift, "clamp", "shift");
  return without_gil([&] { return ops::clamp(a, bounds); });
}

void init_elementwise(py::module_& m) {
  m.def("silu", unary("silu", &ops::silu), py::arg("x"), "x * sigmoid(x), float32.");
  m.def("sigmoid", unary("sigmoid", &ops::sigmoid), py::arg("x"), "1 / (1 + exp(-x)), float32.");
  m.def("softplus", unary("softplus", &ops::softplus), py::arg("x"), "log(1 + exp(x)), float32.");
  m.def("relu_squared", unary("relu_squared", &ops::relu_squared), py::arg("x"), "max(x, 0) squared, float32.");
  m.def("signed_root", unary("signed_root", &ops::signed_root), py::arg("x"),
        "sign(x) * sqrt(max(|x|, 1e-6)), float32; 0 of 0. Source: the gates of n-grams of Qwen4-Exp.");
  m.def("softmax", unary("softmax", &ops::softmax), py::arg("x"), "Over the last axis, float32.");
  m.def("silu_mul", binary("silu_mul", "gate", "up", &ops::silu_mul), py::arg("gate"), py::arg("up"),
        "silu(gate) * up.");
  m.def("gelu_mul",
        binary("gelu_mul", "gate", "up", [](const Tensor& gate, const Tensor& up) { return ops::gelu_mul(gate, up); }),
        py::arg("gate"), py::arg("up"), "gelu(gate) * up, with the tanh form of gelu.");
  m.def("clamp", &clamp, py::arg("x"), py::arg("low") = py::none(), py::arg("high") = py::none(),
        py::arg("scale") = 1.0, py::arg("shift") = 0.0,
        "scale * x, held between low and high (None: no bound), plus shift; float32. NaN stays NaN.");
  m.def("add", binary("add", "a", "b", &ops::add), py::arg("a"), py::arg("b"),
        "a + b; b has a's shape or a suffix of it (a bias).");
  m.def("mul", binary("mul", "a", "b", &ops::mul), py::arg("a"), py::arg("b"),
        "a * b; b has a's shape or a suffix of it.");
}

void init_norms(py::module_& m) {
  m.def(
      "rms_norm",
      [](const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& weight, const Typed<"float">& eps,
         const Typed<"float">& offset) {
        const Placement place = placement_among({x, weight});
        const Tensor a = to_tensor(x, place, "rms_norm", "x"), w = to_tensor(weight, place, "rms_norm", "weight");
        const float e = to_float(eps, "rms_norm", "eps"), o = to_float(offset, "rms_norm", "offset");
        return without_gil([&] { return ops::rms_norm(a, w, e, o); });
      },
      py::arg("x"), py::arg("weight"), py::arg("eps"), py::arg("offset") = 0.0,
      "x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis; weight [dim] (Zhang and Sennrich, 2019).");
  m.def(
      "layer_norm",
      [](const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& weight, const Typed<"ArrayLike | None">& bias,
         const Typed<"float">& eps) {
        const Placement place = placement_among({x, weight});
        const Tensor a = to_tensor(x, place, "layer_norm", "x"), w = to_tensor(weight, place, "layer_norm", "weight");
        const Tensor b = to_optional_tensor(bias, place, "layer_norm", "bias");
        const float e = to_float(eps, "layer_norm", "eps");
        return without_gil([&] { return ops::layer_norm(a, w, b, e); });
      },
      py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("eps"),
      "(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; weight, bias [dim]; bias may be None.");
  m.def(
      "l2_norm",
      [](const Typed<"ArrayLike">& x, const Typed<"float">& eps) {
        const Tensor a = to_tensor(x, placement_among({x}), "l2_norm", "x");
        const float e = to_float(eps, "l2_norm", "eps");
        return without_gil([&] { return ops::l2_norm(a, e); });
      },
      py::arg("x"), py::arg("eps"), "x / sqrt(sum(x^2) + eps) over the last axis.");
}

std::int32_t vector_width(const Typed<"Place">& device) {
  const Placement place = to_placement(device, "vector_width");
  if (place.on_host) fail(ErrorKind::kNotSupported, "vector_width", "device: got the host, allowed a device");
  return without_gil([&] { return ops::vector_width(*place.device); });
}

std::string integer_units(const Typed<"Place">& device) {
  const Placement place = to_placement(device, "integer_units");
  if (place.on_host) fail(ErrorKind::kNotSupported, "integer_units", "device: got the host, allowed a device");
  return without_gil([&] { return ops::name_of(ops::integer_units(*place.device)); });
}

}  // namespace

void init_ops(py::module_& core) {
  py::module_ m = core.def_submodule("ops", "Operations on tensors; see kvtrie.ops.");
  init_rope(m);
  init_elementwise(m);
  init_norms(m);
  m.def("attention", &attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask") = py::none(),
        py::arg("scale") = py::none(), py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(),
        py::arg("precision") = "auto",
        R"(Dense attention for models that bring their own K and V.

q float32 [tokens, heads, dim], k [n, kv_heads, dim], v [n, kv_heads, v_dim] -> float32 [tokens, heads, v_dim]. ``mask``
[tokens, n] is added to the scores; -inf hides a key. ``scale``: None for 1 / sqrt(dim). ``softcap``: scores become
softcap * tanh(score / softcap). ``sinks`` [heads]: a logit per head that only adds to the denominator. ``precision``:
"fast" rounds q and the weights of values to 11 bits where matrix instructions multiply halves of K and V (some GPUs); "auto" and
"exact" are alike.)");
  m.def("concat", &concat, py::arg("tensors"), py::arg("axis") = -1,
        "Tensors of equal dtype, one after the other along an axis.");
  m.def("split", &split, py::arg("x"), py::arg("sizes"), py::arg("axis") = -1,
        "Tensors of the given sizes, cut along an axis.");
  m.def("argmax", unary("argmax", &ops::argmax), py::arg("logits"),
        "logits [rows, vocab] -> int32 [rows]; the lowest index wins a tie.");
  m.def("vector_width", &vector_width, py::arg("device") = py::none(),
        "Floats of the vectors that kernels use on this device: 4, 8 or 16.");
  m.def(
      "integer_units", &integer_units, py::arg("device") = py::none(),
      R"("none", "vnni" or "amx": what multiplies blocks of weights as integers where ``precision`` is "auto" or "fast".

"vnni" is AVX-512's ``vpdpwssd``, "amx" are tiles of bytes as well; both give the same bits. The first call on a device
compiles a small program.)");
  m.def("warm_up", &warm_up, py::arg("heads"), py::arg("kv_heads"), py::arg("head_dim"),
        py::arg("v_head_dim") = py::none(), py::arg("dtype") = "float16", py::arg("weight_dtype") = "float32",
        py::arg("activation") = py::none(), py::arg("device") = py::none(), py::kw_only(),
        py::arg("precision") = "auto", py::arg("latent_dim") = py::none(),
        R"(Compiles, now and not in the middle of a conversation, the kernels that a model of this shape needs.

For models of your own; those of ``kvtrie.models`` see to it themselves. Covers all that a cache does with ``heads``
query heads over ``kv_heads`` KV heads of ``head_dim`` numbers (``v_head_dim``: of V, None for the same;
``latent_dim``: as of ``caches.CausalCache``) stored as
``dtype`` (attend, attend_qkv, put, moving, shifting, paging), ``matmul`` of any number of rows with packed weights of
``weight_dtype`` and ``precision`` (unpacked ones where CLBlast takes those), ``matmul_gated`` with ``activation`` if given, ``embedding``,
``rms_norm``, ``add``, ``rope``, ``argmax`` and ``sample``. Other operations compile when they are first called. Takes
seconds the first time, milliseconds once compiled programs lie on disk. Waits. Raises ``ArgumentError`` for sizes that
no cache has.)");
}

}  // namespace kvtrie::binding
