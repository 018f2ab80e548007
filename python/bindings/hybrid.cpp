// Several caches as one.
#include "hybrid.h"

#include "arrays.h"
#include "cache_class.h"
#include "caches.h"
#include "encoder.h"
#include "operands.h"
#include "recurrent.h"

namespace kvtrie::binding {
namespace {

constexpr const char* kClass = "HybridCache";

using Class = CacheClass<HybridCache>;
using Components = std::vector<HybridCache::Component>;

// A cache as a component; the components of a hybrid.
void add_components(Components& components, py::handle cache) {
  if (py::isinstance<HybridCache>(cache)) {
    const Components& inner = cache.cast<HybridCache&>().caches();
    components.insert(components.end(), inner.begin(), inner.end());
  } else if (py::isinstance<CausalCache>(cache)) {
    components.emplace_back(cache.cast<std::shared_ptr<CausalCache>>());
  } else if (py::isinstance<RecurrentCache>(cache)) {
    components.emplace_back(cache.cast<std::shared_ptr<RecurrentCache>>());
  } else if (py::isinstance<EncoderCache>(cache)) {
    components.emplace_back(cache.cast<std::shared_ptr<EncoderCache>>());
  } else {
    refuse_type(cache, kClass, "caches", "a CausalCache, RecurrentCache, EncoderCache or HybridCache, or several");
  }
}

HybridCache::Ptr make_cache(const Typed<"AnyCache | Sequence[AnyCache]">& caches) {
  Components components;
  const bool several = !PyUnicode_Check(caches.ptr()) && PySequence_Check(caches.ptr());
  if (!several) add_components(components, caches);
  if (several) {
    for (const py::object& cache : to_items(caches, kClass, "caches", "several caches"))
      add_components(components, cache);
  }
  return HybridCache::create(std::move(components));
}

Placement placement_of(const HybridCache::Component& component) {
  return std::visit([](const auto& cache) { return binding::placement_of(*cache); }, component);
}

std::optional<std::int32_t> to_layer(const py::object& layer, const char* where) {
  return layer.is_none() ? std::nullopt : std::optional(to_int32(layer, where, "layer"));
}

// ---- steps --------------------------------------------------------------------------------------------------------

void start_forward(HybridCache& self, const Typed<"Integers">& positions, const Typed<"Integers">& sequences,
                   bool reserve, const Typed<"Sequence[tuple[int, int, int]] | None">& items) {
  const IntegerArgument at(positions, "start_forward", "positions");
  const IntegerArgument of(sequences, "start_forward", "sequences", -1);
  const std::vector<EncoderItem> with = to_items(items, "start_forward");
  without_gil([&] { self.start_forward(at.span(), of.span(), reserve, with); });
}

void put(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& v) {
  const std::int32_t number = to_int32(layer, "put", "layer");
  const Placement place = placement_of(self.attention_component(number, "put"));
  const Tensor keys = to_tensor(k, place, "put", "k"), values = to_tensor(v, place, "put", "v");
  without_gil([&] { self.put(number, keys, values); });
}

Typed<"tuple[Tensor, Tensor, Tensor]"> get(HybridCache& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "get", "layer");
  CausalCache::History history = without_gil([&] { return self.get(number); });
  return py::make_tuple(std::move(history.k), std::move(history.v), std::move(history.mask));
}

Tensor attend(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q,
              const Typed<"float | None">& scale, const Typed<"float | None">& softcap,
              const Typed<"ArrayLike | None">& sinks, const Typed<"str">& precision) {
  const std::int32_t number = to_int32(layer, "attend", "layer");
  const Placement place = placement_of(self.attention_component(number, "attend"));
  const Tensor query = to_tensor(q, place, "attend", "q", DType::kFloat32);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, "attend");
  return without_gil([&] { return self.attend(number, query, options); });
}

void set_causal(HybridCache& self, const Typed<"Integers">& except) {
  const std::vector<std::int32_t> rows = IntegerArgument(except, "set_causal", "except_").vector();
  without_gil([&] { self.set_causal(std::vector<std::uint32_t>(rows.begin(), rows.end())); });
}

Tensor conv(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x,
            const Typed<"ArrayLike">& weight) {
  const std::int32_t number = to_int32(layer, "conv", "layer");
  const Placement place = placement_of(self.recurrent_component(number, "conv"));
  const Tensor rows = to_tensor(x, place, "conv", "x", DType::kFloat32);
  const Tensor taps = to_tensor(weight, place, "conv", "weight", DType::kFloat32);
  return without_gil([&] { return self.conv(number, rows, taps); });
}

Tensor gated_delta(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q,
                   const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& v, const Typed<"ArrayLike">& g,
                   const Typed<"ArrayLike">& beta) {
  const std::int32_t number = to_int32(layer, "gated_delta", "layer");
  const Placement place = placement_of(self.recurrent_component(number, "gated_delta"));
  const auto operand = [&](const py::object& value, const char* name) {
    return to_tensor(value, place, "gated_delta", name, DType::kFloat32);
  };
  const Tensor queries = operand(q, "q"), keys = operand(k, "k"), values = operand(v, "v");
  const Tensor gates = operand(g, "g"), betas = operand(beta, "beta");
  return without_gil([&] { return self.gated_delta(number, queries, keys, values, gates, betas); });
}

Tensor ssd(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& dt,
           const Typed<"ArrayLike">& a, const Typed<"ArrayLike">& b, const Typed<"ArrayLike">& c,
           const Typed<"ArrayLike">& d, const Typed<"float">& dt_min, const Typed<"float | None">& dt_max) {
  const std::int32_t number = to_int32(layer, "ssd", "layer");
  const ops::SsdInputs in =
      to_ssd({x, dt, a, b, c, d}, dt_min, dt_max, placement_of(self.recurrent_component(number, "ssd")), "ssd");
  return without_gil([&] { return self.ssd(number, in); });
}

Typed<"tuple[Tensor | None, Tensor | None]"> states(HybridCache& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "states", "layer");
  RecurrentCache::States found = without_gil([&] { return self.states(number); });
  return py::make_tuple(optional_to_python(std::move(found.conv)), optional_to_python(std::move(found.delta)));
}

void put_states(HybridCache& self, const Typed<"int">& layer, const Typed<"ArrayLike | None">& conv,
                const Typed<"ArrayLike | None">& delta) {
  const std::int32_t number = to_int32(layer, "put_states", "layer");
  const Placement place = placement_of(self.recurrent_component(number, "put_states"));
  const Tensor tails = to_optional_tensor(conv, place, "put_states", "conv");
  const Tensor deltas = to_optional_tensor(delta, place, "put_states", "delta", DType::kFloat32);
  without_gil([&] { self.put_states(number, tails, deltas); });
}

// ---- the class ----------------------------------------------------------------------------------------------------

void add_properties(Class& c) {
  c.def_property_readonly(
      "caches", [](const HybridCache& self) -> Typed<"list[CausalCache | RecurrentCache | EncoderCache]"> {
        py::list caches;
        for (const HybridCache::Component& each : self.caches()) caches.append(component_to_python(each));
        return caches;
      },
      "Its caches; a hybrid that was given is replaced by its caches.");
  c.def_property_readonly("layers", &HybridCache::layers, "The layer numbers of all its caches, ascending.");
  c.def_property_readonly("free_cells", &HybridCache::free_cells,
                          "Free cells of the cache that has fewest; None when none of its caches has cells.");
  c.def_property_readonly("free_slots", &HybridCache::free_slots,
                          "Free slots of the recurrent cache that has fewest; None without one.");
  c.def_property_readonly("nbytes", &HybridCache::nbytes, "Bytes of all its caches.");
  c.def_property_readonly(
      "complete", [](const HybridCache& self) { return without_gil([&] { return self.complete(); }); },
      "Whether the present step is complete in all its caches; False before the first.");
}

void add_steps(Class& c) {
  c.def("start_forward", &start_forward, py::arg("positions"), py::arg("sequences"), py::arg("reserve") = false,
        py::arg("items") = py::none(),
        R"(Begins a step in every cache: row i has ``positions[i]`` and belongs to sequence ``sequences[i]``.

``items`` are for the encoder cache, as in ``EncoderCache.start_forward``. When one cache cannot, none begins, and what it
raises is raised. A step before that is not complete in all caches is taken back in all. ``reserve=True`` only checks that
such a step would fit.)");
  c.def("set_causal", &set_causal, py::arg("except_"),
        "``CausalCache.set_causal`` for every causal cache; ``NotSupportedError`` without one.");
  c.def("put", &put, py::arg("layer"), py::arg("k"), py::arg("v"), "``put`` of the cache that has the layer.");
  c.def("get", &get, py::arg("layer"), "``get`` of the cache that has the layer: (k, v, mask).");
  c.def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("scale") = py::none(),
        py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(), py::arg("precision") = "auto",
        "``attend`` of the cache that has the layer.");
}

void add_recurrent_steps(Class& c) {
  c.def("conv", &conv, py::arg("layer"), py::arg("x"), py::arg("weight"),
        "``RecurrentCache.conv`` of the cache that has the layer.");
  c.def("gated_delta", &gated_delta, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("g"),
        py::arg("beta"), "``RecurrentCache.gated_delta`` of the cache that has the layer.");
  c.def("ssd", &ssd, py::arg("layer"), py::arg("x"), py::arg("dt"), py::arg("a"), py::arg("b"), py::arg("c"),
        py::arg("d"), py::arg("dt_min") = 0.0, py::arg("dt_max") = py::none(),
        "``RecurrentCache.ssd`` of the cache that has the layer.");
  c.def("states", &states, py::arg("layer"),
        "``RecurrentCache.states`` of the cache that has the layer: (conv, delta).");
  c.def("put_states", &put_states, py::arg("layer"), py::arg("conv") = py::none(), py::arg("delta") = py::none(),
        "``RecurrentCache.put_states`` of the cache that has the layer.");
  c.def(
      "boundaries",
      [](HybridCache& self, const Typed<"int | None">& layer) {
        const auto number = to_layer(layer, "boundaries");
        return without_gil([&] { return self.boundaries(number); });
      },
      py::arg("layer") = py::none(),
      "``RecurrentCache.boundaries``; alike in all recurrent caches. ``NotSupportedError`` without one.");
  c.def(
      "row_starts",
      [](HybridCache& self, const Typed<"int | None">& layer) {
        const auto number = to_layer(layer, "row_starts");
        return without_gil([&] { return self.row_starts(number); });
      },
      py::arg("layer") = py::none(),
      "``RecurrentCache.row_starts``; alike in all recurrent caches. ``NotSupportedError`` without one.");
}

const CacheDocs kDocs{
    R"(Makes ``dst`` the first ``length`` tokens of ``src``, in every cache. No state moves.

Raises ``NotRestorableError`` (with ``nearest``) where ``can_resume(src, length)`` is false; nothing has changed then.)",
    R"(Removes the tokens [begin, end) of a sequence, to its end by default, from every cache or from none.

Raises what the first cache that cannot raises: ``NotRestorableError`` (to the end), ``NotSupportedError`` or ``CacheFullError`` (in the
middle).)",
    "Whether the sequence could be resumed at ``position`` in every cache.",
    "Holds the tokens from ``start`` to the end of a sequence, in every cache; None when there are none.",
    R"(Makes the sequence exactly ``target`` tokens long in every cache, from a snapshot or (None) by cutting it.

False, with nothing changed, where one of the caches cannot.)",
    R"(Two snapshots, [start, at) and [at, end); consumes its argument.

A recurrent state is in the one that ends where it exists; without it the other cannot be restored, only merged again.)",
    "One snapshot of two that follow each other; consumes both. None is an empty one.",
};

}  // namespace

py::object component_to_python(const HybridCache::Component& component) {
  return std::visit([](const auto& cache) { return py::cast(cache); }, component);
}

void init_hybrid(py::module_& m) {
  init_snapshot_class<HybridCache::Snapshot>(
      m, "HybridSnapshot", "The tokens [start, end) of one sequence in every cache of a hybrid, as one object.");
  Class c(m, kClass, R"(Several caches as one: a model whose layers keep states of several kinds.

``caches``: ``CausalCache``, ``RecurrentCache``, ``EncoderCache`` or ``HybridCache`` (then its caches), one or several; no
layer may be in two. What names a layer goes to the cache that has it; everything else to all of them, or to none when one
cannot. So a sequence has one length in all caches, and can be cut, copied or restored only where all can. They are driven
through the hybrid from then on. Any thread may call.)");
  c.def(py::init(&make_cache), py::arg("caches"));
  add_properties(c);
  add_steps(c);
  add_recurrent_steps(c);
  add_cache_editing(c, kDocs);
  add_cache_snapshots(c, kDocs);
  c.def("__repr__", [](const HybridCache& self) {
    return cat("<kvtrie.HybridCache of ", self.caches().size(), " caches, ", self.layers().size(), " layers>");
  });
  refuse_pickling(c, "making it again from its caches: their states stay on the device");
}

}  // namespace kvtrie::binding
