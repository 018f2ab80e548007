// The recurrent cache by itself. PrefixCache (prefix_cache.cpp) drives the same object.
#include "recurrent.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "cache/host_state_store.h"
#include "cache/null_state_store.h"
#include "cache/opencl_state_store.h"
#include "cache_class.h"
#include "convert.h"
#include "operands.h"

namespace kvtrie::binding {
namespace {

using CachePtr = std::shared_ptr<RecurrentCache>;

constexpr const char* kClass = "RecurrentCache";

std::uint32_t to_count(const py::object& value, const char* name, std::int32_t least) {
  return static_cast<std::uint32_t>(to_int32(value, kClass, name, least));
}

std::unique_ptr<StateStore> make_store(const StateShape& shape, const py::object& device) {
  if (PyUnicode_Check(device.ptr()) && to_text(device, kClass, "device") == "null") {
    return std::make_unique<NullStateStore>(shape);
  }
  const Placement place = to_placement(device, kClass);
  return without_gil([&]() -> std::unique_ptr<StateStore> {
    if (place.on_host) return std::make_unique<HostStateStore>(shape);
    return std::make_unique<OpenClStateStore>(place.device, shape);
  });
}

CachePtr make_cache(const Typed<"int | Integers">& layers, const Typed<"int">& conv_tail, const Typed<"int">& conv_dim,
                    const Typed<"int">& v_heads, const Typed<"int">& v_dim, const Typed<"int">& k_dim,
                    const Typed<"int">& capacity, const Typed<"str">& dtype, const Typed<"Place">& device) {
  std::vector<std::int32_t> numbers = to_layers(layers, kClass);
  StateShape shape;
  shape.layers = static_cast<std::uint32_t>(numbers.size());
  shape.conv_tail = to_count(conv_tail, "conv_tail", 0);
  shape.conv_dim = to_count(conv_dim, "conv_dim", 0);
  shape.v_heads = to_count(v_heads, "v_heads", 0);
  shape.v_dim = to_count(v_dim, "v_dim", 0);
  shape.k_dim = to_count(k_dim, "k_dim", 0);
  shape.slots = to_count(capacity, "capacity", 1);
  shape.dtype = to_dtype(dtype, kClass);
  std::unique_ptr<StateStore> store = make_store(shape, device);
  return RecurrentCache::create(std::move(store), std::move(numbers));
}

// ---- steps --------------------------------------------------------------------------------------------------------

void start_forward(RecurrentCache& self, const Typed<"Integers">& positions, const Typed<"Integers">& sequences,
                   bool reserve) {
  const IntegerArgument at(positions, "start_forward", "positions");
  const IntegerArgument of(sequences, "start_forward", "sequences", -1);
  without_gil([&] { self.start_forward(at.span(), of.span(), reserve); });
}

Tensor conv(RecurrentCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x,
            const Typed<"ArrayLike">& weight) {
  const std::int32_t number = to_int32(layer, "conv", "layer");
  const Placement place = placement_of(self);
  const Tensor rows = to_tensor(x, place, "conv", "x", DType::kFloat32);
  const Tensor taps = to_tensor(weight, place, "conv", "weight", DType::kFloat32);
  return without_gil([&] { return self.conv(*self.current_forward(), number, rows, taps); });
}

Tensor gated_delta(RecurrentCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q,
                   const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& v, const Typed<"ArrayLike">& g,
                   const Typed<"ArrayLike">& beta) {
  const std::int32_t number = to_int32(layer, "gated_delta", "layer");
  const Placement place = placement_of(self);
  const auto operand = [&](const py::object& value, const char* name) {
    return to_tensor(value, place, "gated_delta", name, DType::kFloat32);
  };
  const Tensor queries = operand(q, "q"), keys = operand(k, "k"), values = operand(v, "v");
  const Tensor gates = operand(g, "g"), betas = operand(beta, "beta");
  return without_gil(
      [&] { return self.gated_delta(*self.current_forward(), number, queries, keys, values, gates, betas); });
}

Tensor ssd(RecurrentCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& dt,
           const Typed<"ArrayLike">& a, const Typed<"ArrayLike">& b, const Typed<"ArrayLike">& c,
           const Typed<"ArrayLike">& d, const Typed<"float">& dt_min, const Typed<"float | None">& dt_max) {
  const std::int32_t number = to_int32(layer, "ssd", "layer");
  const ops::SsdInputs in = to_ssd({x, dt, a, b, c, d}, dt_min, dt_max, placement_of(self), "ssd");
  return without_gil([&] { return self.ssd(*self.current_forward(), number, in); });
}

Typed<"tuple[Tensor | None, Tensor | None]"> states(RecurrentCache& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "states", "layer");
  RecurrentCache::States found = without_gil([&] { return self.states(*self.current_forward(), number); });
  return py::make_tuple(optional_to_python(std::move(found.conv)), optional_to_python(std::move(found.delta)));
}

void put_states(RecurrentCache& self, const Typed<"int">& layer, const Typed<"ArrayLike | None">& conv,
                const Typed<"ArrayLike | None">& delta) {
  const std::int32_t number = to_int32(layer, "put_states", "layer");
  const Placement place = placement_of(self);
  const Tensor tails = to_optional_tensor(conv, place, "put_states", "conv");
  const Tensor deltas = to_optional_tensor(delta, place, "put_states", "delta", DType::kFloat32);
  without_gil([&] { self.put_states(*self.current_forward(), number, tails, deltas); });
}

// ---- the class ----------------------------------------------------------------------------------------------------

using Class = CacheClass<RecurrentCache>;

template <class Member>
void add_size(Class& c, const char* name, Member member, const char* doc) {
  c.def_property_readonly(
      name, [member](const RecurrentCache& self) { return self.shape().*member; }, doc);
}

void add_properties(Class& c) {
  c.def_property_readonly("layers", &RecurrentCache::layers, "The model's layer numbers, as a list.");
  add_size(c, "conv_tail", &StateShape::conv_tail, "Inputs that a convolution looks back on; 0: no conv states.");
  add_size(c, "conv_dim", &StateShape::conv_dim, "Channels of the convolution.");
  add_size(c, "v_heads", &StateShape::v_heads, "Value heads; 0: no delta states.");
  add_size(c, "v_dim", &StateShape::v_dim, "Rows of a head's delta state.");
  add_size(c, "k_dim", &StateShape::k_dim, "Columns of a head's delta state.");
  c.def_property_readonly(
      "dtype", [](const RecurrentCache& self) { return name_of(self.shape().dtype); },
      "dtype of stored conv states; delta states are float32.");
  c.def_property_readonly("capacity", &RecurrentCache::capacity, "Slots (whole states) in all.");
  c.def_property_readonly("free_slots", &RecurrentCache::free_slots, "Slots that can be claimed now.");
  c.def_property_readonly("nbytes", &RecurrentCache::nbytes, "Bytes of the states of all slots.");
  c.def_property_readonly(
      "device", [](RecurrentCache & self) -> Typed<"Device | str"> {
        if (dynamic_cast<NullStateStore*>(&self.store()) != nullptr) return py::str("null");
        return placement_to_python(placement_of(self).device);
      },
      "The ``Device`` it is on; \"host\" or \"null\" for the reference stores.");
}

void add_steps(Class& c) {
  c.def("start_forward", &start_forward, py::arg("positions"), py::arg("sequences"), py::arg("reserve") = false,
        R"(Begins a step: row i has ``positions[i]`` and belongs to sequence ``sequences[i]``, a number of the caller's
choice.

The rows of one sequence come together and continue it one by one. Rows at the end with sequence -1 are padding: they
give some output and change no state. Claims a slot for each sequence's end and each scheduled offset inside; then every
layer's states are written once. A step before that was not completed is dropped. ``reserve=True`` only checks that such
a step would fit. Raises ``CacheFullError`` when there are not enough free slots; nothing has changed then.)");
  c.def("conv", &conv, py::arg("layer"), py::arg("x"), py::arg("weight"),
        R"(The causal convolution of this step's rows, and with it the layer's conv states.

x float32 [rows, conv_dim], weight float32 [conv_dim, conv_tail + 1] -> float32 [rows, conv_dim], as in
``ops.causal_conv1d``.)");
  c.def("gated_delta", &gated_delta, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("g"),
        py::arg("beta"),
        R"(The gated delta rule over this step's rows, and with it the layer's delta states.

q, k float32 [rows, k_heads, k_dim], v [rows, v_heads, v_dim], g and beta [rows, v_heads], or g [rows, v_heads, k_dim] ->
float32 [rows, v_heads, v_dim], as in ``ops.gated_delta``.)");
  c.def("ssd", &ssd, py::arg("layer"), py::arg("x"), py::arg("dt"), py::arg("a"), py::arg("b"), py::arg("c"),
        py::arg("d"), py::arg("dt_min") = 0.0, py::arg("dt_max") = py::none(),
        R"(The scan of Mamba-2 over this step's rows, and with it the layer's states.

x float32 [rows, v_heads, v_dim], dt [rows, v_heads], a and d [v_heads], b and c [rows, groups, k_dim] -> float32 [rows,
v_heads, v_dim], as in ``ops.ssd``.)");
  c.def("states", &states, py::arg("layer"),
        R"(Copies of this step's states as (conv, delta), for models that compute by themselves.

They are those before the step's rows, one for each of its sequences in order: conv [sequences, conv_tail, conv_dim] in
the cache's dtype, delta float32 [sequences, v_heads, v_dim, k_dim]; zeros for a new sequence, None for a kind that the
cache does not have.)");
  c.def(
      "boundaries",
      [](RecurrentCache& self) { return without_gil([&] { return self.current_forward()->row_boundaries(); }); },
      "For each sequence of this step the offsets, in rows from its first, at which states are wanted.");
  c.def(
      "row_starts",
      [](RecurrentCache& self) { return without_gil([&] { return self.current_forward()->row_starts(); }); },
      "Where the rows of each sequence of this step begin, then where those of the last one end.");
  c.def("put_states", &put_states, py::arg("layer"), py::arg("conv") = py::none(), py::arg("delta") = py::none(),
        R"(Stores a layer's states that the model computed, instead of ``conv`` and ``gated_delta``.

Sequence by sequence, one entry for each of its ``boundaries()``, then one for its end: conv [n, conv_tail, conv_dim],
delta [n, v_heads, v_dim, k_dim]. One of the two may be None and come by another call.)");
}

const CacheDocs kDocs{
    R"(Makes ``dst`` the first ``length`` tokens of ``src``. No state moves.

Raises ``NotRestorableError`` unless that is 0 or all of them: a state exists at its own length only.)",
    R"(Removes the tokens [begin, end) of a sequence, to its end by default: all of them, or none.

Else raises ``NotRestorableError``, and ``NotSupportedError`` where tokens after ``end`` would stay.)",
    "Whether the sequence could be resumed at ``position``: 0, or its length.",
    "Holds a sequence's present state, for its tokens from ``start`` on; None when there are none.",
    R"(Makes the sequence exactly ``target`` tokens long, with the state of a snapshot that ends there.

False, with nothing changed, for any other ``target``; without a snapshot, for any but the present length.)",
    R"(Two snapshots, of the tokens before ``at`` and from it on; consumes its argument.

The state goes to the one that ends where it exists; the other is None.)",
    "One snapshot of two that follow each other, with the later state; consumes both. None is an empty one.",
    R"(Schedules captures at ascending offsets, the present length at the least; see ``take_snapshots``.

An open step that the sequence is in is dropped.)",
    R"(What ``prepare_snapshots`` scheduled, one entry for each offset: the state there.

None where no step reached it, and at offset 0.)",
    "a RecurrentSnapshot or None"};

}  // namespace

Placement placement_of(RecurrentCache& cache) {
  const auto* opencl = dynamic_cast<OpenClStateStore*>(&cache.store());
  return opencl == nullptr ? Placement{true, nullptr} : Placement{false, opencl->device()};
}

void init_recurrent(py::module_& m) {
  init_snapshot_class<RecurrentCache::Snapshot>(
      m, "RecurrentSnapshot",
      R"(The state of a recurrent cache at ``end``, for the tokens [start, end), detached from any sequence.

It holds one slot until it goes, however long the history; several holders share a slot without a copy.)",
      "keeping it in the process: it names a slot of a live cache");
  Class c(m, "RecurrentCache", R"(The states of a group of recurrent layers: a pool of slots, one for each whole state.

``layers``: how many (0 to n - 1), or the model's own layer numbers. ``conv_tail``, ``conv_dim``: inputs that a causal
convolution looks back on, and its channels; both 0 without. ``v_heads``, ``v_dim``, ``k_dim``: the shape of the gated
delta rule's state; all 0 without. ``capacity``: slots; a sequence takes one and another during a step, a snapshot one
that it may share. ``dtype``: how conv states are stored, "float32" or "float16"; delta states are float32. ``device``:
a ``Device``, part of a name, or None for the best one; "host" is a plain reference in host memory and "null" stores
nothing, both for tests.

A state exists at one length and cannot be cut: ``prepare_snapshots`` says before a step at which offsets inside it
states are wanted, and they come out of the same launch. Sequences have numbers of the caller's choice and begin from
zeros. A cache that was given to a ``PrefixCache`` is driven by that one. Any thread may call.)");
  c.def(py::init(&make_cache), py::arg("layers"), py::arg("conv_tail"), py::arg("conv_dim"), py::arg("v_heads"),
        py::arg("v_dim"), py::arg("k_dim"), py::arg("capacity"), py::kw_only(), py::arg("dtype") = "float32",
        py::arg("device") = py::none());
  add_properties(c);
  add_steps(c);
  add_cache_editing(c, kDocs);
  add_cache_snapshots(c, kDocs);
  c.def("__repr__", [](const RecurrentCache& self) {
    const StateShape& shape = self.shape();
    return cat("<kvtrie.RecurrentCache ", shape.layers, " layers, conv ", shape.conv_tail, " x ", shape.conv_dim,
               ", delta ", shape.v_heads, " x ", shape.v_dim, " x ", shape.k_dim, ", ", self.free_slots(), " of ",
               self.capacity(), " slots free>");
  });
  refuse_pickling(c, "making it again from its arguments: the states stay on the device");
}

}  // namespace kvtrie::binding
