// The causal cache by itself. PrefixCache (prefix_cache.cpp) drives the same object.
#include "caches.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache_class.h"
#include "chosen.h"
#include "convert.h"
#include "operands.h"

namespace kvtrie::binding {
namespace {

using CachePtr = std::shared_ptr<CausalCache>;

constexpr std::uint32_t kGrowth = 256;  // cells reserved ahead of a growing sequence

std::uint32_t to_count(const py::object& value, const char* name) {
  return static_cast<std::uint32_t>(to_int32(value, "CausalCache", name, 1));
}

// 0 for None.
std::int32_t to_limit(const py::object& value, const char* name) {
  return value.is_none() ? 0 : to_int32(value, "CausalCache", name, 1);
}

Typed<"int | None"> limit_to_python(std::int32_t limit) {
  return limit == 0 ? py::object(py::none()) : py::int_(limit);
}

CachePtr make_cache(const Typed<"int | Integers">& layers, const Typed<"int">& kv_heads, const Typed<"int">& head_dim,
                    const Typed<"int">& capacity, const Typed<"int | None">& v_head_dim,
                    const Typed<"int | None">& latent_dim, const Typed<"str | tuple[str, str]">& dtype,
                    const Typed<"int | None">& window, const Typed<"int | None">& memory,
                    const Typed<"int | None">& chunk, const Typed<"Rope">& rope, const Typed<"Place">& device) {
  CausalCache::Options options;
  options.visibility = {to_limit(window, "window"), to_limit(chunk, "chunk")};
  options.memory = to_limit(memory, "memory");
  options.layers = to_layers(layers, "CausalCache");
  options.rope = to_ropes(rope, "CausalCache");
  options.growth = kGrowth;
  KvShape shape;
  shape.layers = static_cast<std::uint32_t>(options.layers.size());
  shape.kv_heads = to_count(kv_heads, "kv_heads");
  shape.k_dim = to_count(head_dim, "head_dim");
  shape.latent_dim = latent_dim.is_none() ? 0 : to_count(latent_dim, "latent_dim");
  shape.v_dim = v_head_dim.is_none() ? (shape.latent_dim > 0 ? 0 : shape.k_dim)
                                     : static_cast<std::uint32_t>(to_int32(v_head_dim, "CausalCache", "v_head_dim", 0));
  shape.cells = to_count(capacity, "capacity");
  shape.formats = to_cell_formats(dtype, "CausalCache");
  std::unique_ptr<KvStore> store = make_kv_store(shape, device, "CausalCache");
  return CausalCache::create(std::move(store), std::move(options));
}

void put(CausalCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& k,
         const Typed<"ArrayLike | None">& v) {
  const std::int32_t number = to_int32(layer, "put", "layer");
  const Placement place = placement_of(self);
  const Tensor keys = to_tensor(k, place, "put", "k"), values = to_values(v, keys, place, "put");
  without_gil([&] { self.put(*self.current_forward(), number, keys, values); });
}

Tensor attend(CausalCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q,
              const Typed<"float | None">& scale, const Typed<"float | None">& softcap,
              const Typed<"ArrayLike | None">& sinks, const Typed<"str">& precision) {
  const std::int32_t number = to_int32(layer, "attend", "layer");
  const Placement place = placement_of(self);
  const Tensor query = to_tensor(q, place, "attend", "q", DType::kFloat32);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, "attend");
  return without_gil([&] { return self.attend(*self.current_forward(), number, query, options); });
}

Typed<"tuple[Tensor, Tensor, Tensor]"> get(CausalCache& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "get", "layer");
  CausalCache::History history = without_gil([&] { return self.get(*self.current_forward(), number); });
  return py::make_tuple(std::move(history.k), std::move(history.v), std::move(history.mask));
}

void start_forward(CausalCache& self, const Typed<"Integers">& positions, const Typed<"Integers">& sequences,
                   bool reserve) {
  const IntegerArgument at(positions, "start_forward", "positions");
  const IntegerArgument of(sequences, "start_forward", "sequences");
  without_gil([&] { self.start_forward(at.span(), of.span(), reserve); });
}

void set_causal(CausalCache& self, const Typed<"Integers">& except) {
  const std::vector<std::int32_t> rows = IntegerArgument(except, "set_causal", "except_").vector();
  without_gil([&] {
    const std::vector<std::uint32_t> indices(rows.begin(), rows.end());
    self.set_causal(*self.current_forward(), indices);
  });
}

std::string representation(const CausalCache& self) {
  const KvShape& shape = self.shape();
  return cat("<kvtrie.CausalCache ", shape.layers, " layers, ", shape.kv_heads, " x ", shape.k_dim, ", ",
             shape.formats.name(), ", ", self.free_cells(), " of ", self.capacity(), " cells free>");
}

using Class = CacheClass<CausalCache>;

void add_properties(Class& c) {
  c.def_property_readonly("layers", &CausalCache::layers, "The model's layer numbers, as a list.");
  c.def_property_readonly(
      "kv_heads", [](const CausalCache& self) { return self.shape().kv_heads; }, "K/V heads.");
  c.def_property_readonly(
      "head_dim", [](const CausalCache& self) { return self.shape().k_dim; }, "Numbers per head of K.");
  c.def_property_readonly(
      "v_head_dim", [](const CausalCache& self) { return self.shape().v_dim; }, "Numbers per head of V.");
  c.def_property_readonly(
      "latent_dim",
      [](const CausalCache& self) { return limit_to_python(static_cast<std::int32_t>(self.shape().latent_dim)); },
      "Numbers at the end of each key that are its value, too; None where values are rows of V.");
  c.def_property_readonly(
      "dtype", [](const CausalCache& self) { return self.shape().formats.name(); }, "How K and V are kept.");
  c.def_property_readonly(
      "window", [](const CausalCache& self) { return limit_to_python(self.visibility().window); },
      "Keys that a query sees, its own included; None without a window.");
  c.def_property_readonly(
      "memory", [](const CausalCache& self) { return limit_to_python(self.memory()); },
      "Keys that a sequence keeps, the next one included; None where nothing more than the window was asked for.");
  c.def_property_readonly(
      "chunk", [](const CausalCache& self) { return limit_to_python(self.visibility().chunk); },
      "Tokens of a chunk, the only ones that its queries see; None without chunks.");
  c.def_property_readonly("capacity", &CausalCache::capacity, "Cells (tokens) in all.");
  c.def_property_readonly("free_cells", &CausalCache::free_cells, "Cells that can be claimed now.");
  c.def_property_readonly("nbytes", &CausalCache::nbytes, "Bytes of K and V of all cells.");
  c.def_property_readonly(
      "device", [](CausalCache& self) { return store_place_to_python(self.store()); },
      "The ``Device`` it is on; \"host\" or \"null\" for the reference stores.");
}

void add_steps(Class& c) {
  c.def("start_forward", &start_forward, py::arg("positions"), py::arg("sequences"), py::arg("reserve") = false,
        R"(Begins a step: row i has ``positions[i]`` and belongs to sequence ``sequences[i]``, a number of the caller's
choice.

Rows of one sequence continue it one by one; rows of several may alternate. Claims cells for all rows; then every layer
is ``put`` once. A step before that was not completed is dropped. ``reserve=True`` only checks that such a step would
fit. Raises ``CacheFullError`` when there are not enough free cells; nothing has changed then.)");
  c.def("set_causal", &set_causal, py::arg("except_"),
        R"(Lets the rows ``except_`` of this step see all rows of their sequence in it, later ones too.

The patches of an image see each other like that. What the window or chunk hides below stays hidden. Each call replaces the one
before, and a new step begins without; once a layer was attended, other rows raise ``ArgumentError``.)");
  c.def("put", &put, py::arg("layer"), py::arg("k"), py::arg("v"),
        "Stores this step's K [tokens, kv_heads, head_dim] and V [tokens, kv_heads, v_head_dim] of one layer, once; v "
        "None "
        "where the cache has no values.");
  c.def("get", &get, py::arg("layer"), R"(This step's history as (k, v, mask), for models that do their own attention.

k and v are copies [n, kv_heads, dim] in the cache's dtypes (q8_0, q4h: float32), of what at least one row sees; mask float32
[tokens, n] is 0 where a row sees a key, else -inf.)");
  add_blocks(
      c, [](CausalCache& self, std::int32_t) { return placement_of(self); },
      [](CausalCache& self, auto&&... given) { return self.choose_blocks(*self.current_forward(), given...); });
  add_chosen(
      c, [](CausalCache& self, std::int32_t) { return placement_of(self); },
      [](CausalCache& self, auto&&... given) { return self.choose_keys(*self.current_forward(), given...); },
      [](CausalCache& self, auto&&... given) { return self.attend_chosen(*self.current_forward(), given...); });
  c.def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("scale") = py::none(),
        py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(), py::arg("precision") = "auto",
        R"(Causal attention of this step's rows to their sequences, after ``put`` of that layer.

q float32 [tokens, heads, head_dim] -> float32 [tokens, heads, v_head_dim], or latent_dim; heads is a multiple of kv_heads. ``scale``,
``softcap``, ``sinks`` and ``precision`` as in ``ops.attention``.)");
}

const CacheDocs kDocs{
    R"(Makes ``dst`` the first ``length`` tokens of ``src``. No K/V moves.

Raises ``NotRestorableError`` (with ``nearest``) where ``can_resume(src, length)`` is false.)",
    R"(Removes the tokens [begin, end) of a sequence, to its end by default.

What follows a removal in the middle moves down. Its K stay as they are, and attention turns queries by as much; that needs
``rope`` and a window that is still complete afterwards, and has no meaning with chunks (else ``NotSupportedError``). Removing to
the end raises ``NotRestorableError`` where ``can_resume(seq, begin)`` is
false.)",
    "Whether the sequence could be resumed at ``position``: it still holds all that the query there sees.",
    "Holds the tokens from ``start`` to the end of a sequence, as far as it holds them; None when there are none.",
    R"(Makes the sequence exactly ``target`` tokens long, from a snapshot or (None) by cutting it.

False, with nothing changed, where that is impossible: ``target`` beyond the snapshot's end, or the query there would see
what neither the snapshot nor, below its start, the sequence holds.)",
    "Two snapshots, [start, at) and [at, end); consumes its argument. An empty half is None.",
    "One snapshot of two that follow each other; consumes both. None is an empty one.",
    "Schedules captures at ascending offsets of later steps; see ``take_snapshots``.",
    R"(What ``prepare_snapshots`` scheduled, one entry for each offset: the tokens since the offset before.

None where there were none, or where the offset was not reached.)",
    "a Snapshot or None"};

void add_held_from(Class& c) {
  c.def(
      "held_from",
      [](CausalCache& self, const Typed<"int">& seq) {
        const SequenceId id = to_sequence(seq, "held_from");
        return without_gil([&] { return self.held_from(id); });
      },
      py::arg("seq"), "The first position whose K and V a sequence holds; its length when it holds none.");
}

}  // namespace

Placement placement_of(CausalCache& cache) { return placement_of(cache.store()); }

void init_caches(py::module_& m) {
  init_snapshot_class<CausalCache::Snapshot>(
      m, "Snapshot", R"(State of one cache for the positions [start, end), detached from any sequence.

It holds its cells until it goes; several holders share cells without a copy.)");
  Class c(m, "CausalCache", R"(K and V of a group of causal attention layers: a pool of cells, one for each token.

``layers``: how many (0 to n - 1), or the model's own layer numbers. ``kv_heads``, ``head_dim``, ``v_head_dim``
(default: head_dim): the shape of K and V. ``latent_dim``: no V is kept, and the last so many numbers of a key are its
value, too, as in multi-head latent attention; v is then put with 0 numbers. ``capacity``: cells, that is tokens. ``dtype``: how K and V are stored,
"float16", "float32", "q8_0" or "q4h" (8.5 and 4.5 bits a number, head sizes that are multiples of 32), or a pair, also as "K/V"; with ``latent_dim``, one for both. ``rope``: None, a dict (base, dims, scaling, interleaved; as in ``ops.rope``) or a list with one
for each layer; needed only to remove tokens from the middle. ``window``: queries see that many keys, their own included.
``chunk``: queries see the tokens of their own chunk only. With either, a sequence releases what none of its later
queries sees; ``memory`` (with a window) is how many keys it keeps instead, its next one included, so that it can be cut and
go on from there. ``device``: a ``Device``, part of a name, or None for the
best one; "host" is a plain reference in host memory and "null" stores nothing, both for tests.

Sequences have numbers of the caller's choice. A cache that was given to a ``PrefixCache`` is driven by that one. Any
thread may call.)");
  c.def(py::init(&make_cache), py::arg("layers"), py::arg("kv_heads"), py::arg("head_dim"), py::arg("capacity"),
        py::kw_only(), py::arg("v_head_dim") = py::none(), py::arg("latent_dim") = py::none(),
        py::arg("dtype") = "float16", py::arg("window") = py::none(), py::arg("memory") = py::none(),
        py::arg("chunk") = py::none(), py::arg("rope") = py::none(), py::arg("device") = py::none());
  add_properties(c);
  add_steps(c);
  add_cache_editing(c, kDocs);
  add_held_from(c);
  add_cache_snapshots(c, kDocs);
  c.def("__repr__", &representation);
  refuse_pickling(c, "making it again from its arguments: the K/V stay on the device");
}

}  // namespace kvtrie::binding
