// The encoder cache: K and V of one media item for each sequence.
#include "encoder.h"

#include "arrays.h"
#include "cache_class.h"
#include "operands.h"

namespace kvtrie::binding {
namespace {

constexpr const char* kClass = "EncoderCache";

using Class = CacheClass<EncoderCache>;

std::shared_ptr<EncoderCache> make_cache(const Typed<"int | Integers">& layers, const Typed<"int">& kv_heads,
                                         const Typed<"int">& head_dim, const Typed<"int">& capacity,
                                         const Typed<"str | tuple[str, str]">& dtype, const Typed<"Place">& device) {
  std::vector<std::int32_t> numbers = to_layers(layers, kClass);
  KvShape shape;
  shape.layers = static_cast<std::uint32_t>(numbers.size());
  shape.kv_heads = static_cast<std::uint32_t>(to_int32(kv_heads, kClass, "kv_heads", 1));
  shape.k_dim = shape.v_dim = static_cast<std::uint32_t>(to_int32(head_dim, kClass, "head_dim", 1));
  shape.cells = static_cast<Cell>(to_int32(capacity, kClass, "capacity", 1));
  shape.formats = to_cell_formats(dtype, kClass);
  std::unique_ptr<KvStore> store = make_kv_store(shape, device, kClass);
  return EncoderCache::create(std::move(store), std::move(numbers));
}

// ---- steps --------------------------------------------------------------------------------------------------------

void start_forward(EncoderCache& self, const Typed<"Integers">& positions, const Typed<"Integers">& sequences,
                   bool reserve, const Typed<"Sequence[tuple[int, int, int]] | None">& items) {
  const IntegerArgument at(positions, "start_forward", "positions");
  const IntegerArgument of(sequences, "start_forward", "sequences");
  const std::vector<EncoderItem> with = to_items(items, "start_forward");
  without_gil([&] { self.start_forward(at.span(), of.span(), reserve, with); });
}

void put(EncoderCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& k, const Typed<"ArrayLike">& v) {
  const std::int32_t number = to_int32(layer, "put", "layer");
  const Placement place = placement_of(self);
  const Tensor keys = to_tensor(k, place, "put", "k"), values = to_tensor(v, place, "put", "v");
  without_gil([&] { self.put(*self.current_forward(), number, keys, values); });
}

Typed<"tuple[Tensor, Tensor, Tensor]"> get(EncoderCache& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "get", "layer");
  CausalCache::History history = without_gil([&] { return self.get(*self.current_forward(), number); });
  return py::make_tuple(std::move(history.k), std::move(history.v), std::move(history.mask));
}

Tensor attend(EncoderCache& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q,
              const Typed<"float | None">& scale, const Typed<"float | None">& softcap,
              const Typed<"ArrayLike | None">& sinks, const Typed<"str">& precision) {
  const std::int32_t number = to_int32(layer, "attend", "layer");
  const Placement place = placement_of(self);
  const Tensor query = to_tensor(q, place, "attend", "q", DType::kFloat32);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, "attend");
  return without_gil([&] { return self.attend(*self.current_forward(), number, query, options); });
}

Typed<"tuple[int, int] | None"> item(EncoderCache& self, const Typed<"int">& seq) {
  const SequenceId id = to_sequence(seq, "item");
  const auto found = without_gil([&] { return self.item(id); });
  if (!found) return py::none();
  return py::make_tuple(found->position, found->cells.back().end_position());
}

// ---- the class ----------------------------------------------------------------------------------------------------

void add_properties(Class& c) {
  c.def_property_readonly("layers", &EncoderCache::layers, "The model's layer numbers, as a list.");
  c.def_property_readonly(
      "kv_heads", [](const EncoderCache& self) { return self.shape().kv_heads; }, "K/V heads.");
  c.def_property_readonly(
      "head_dim", [](const EncoderCache& self) { return self.shape().k_dim; }, "Numbers per head of K and of V.");
  c.def_property_readonly(
      "dtype", [](const EncoderCache& self) { return self.shape().formats.name(); }, "How K and V are kept.");
  c.def_property_readonly("capacity", &EncoderCache::capacity, "Cells in all; an item takes one for each of its rows.");
  c.def_property_readonly("free_cells", &EncoderCache::free_cells, "Cells that can be claimed now.");
  c.def_property_readonly("nbytes", &EncoderCache::nbytes, "Bytes of K and V of all cells.");
  c.def_property_readonly(
      "device", [](EncoderCache& self) { return store_place_to_python(self.store()); },
      "The ``Device`` it is on; \"host\" or \"null\" for the reference stores.");
}

void add_steps(Class& c) {
  c.def("start_forward", &start_forward, py::arg("positions"), py::arg("sequences"), py::arg("reserve") = false,
        py::arg("items") = py::none(),
        R"(Begins a step: row i is the query at ``positions[i]`` of sequence ``sequences[i]``, a number of the caller's
choice.

Rows of one sequence follow each other, the first at its length or below; those of several may alternate. ``items``: what
the step brings, as (sequence, position, cells) with a position among the sequence's rows here; ``put`` takes their rows in
that order. A step of one sequence may leave them out: its first ``put`` then brings an item at the first row's position. A
step that brings none stores nothing, and its rows count at once. Raises ``CacheFullError`` when the items do not fit: one that
replaces another needs room for both. ``reserve=True`` only checks that such a step would fit.)");
  c.def("put", &put, py::arg("layer"), py::arg("k"), py::arg("v"),
        R"(Stores K and V [cells of the step's items, kv_heads, head_dim] of one layer, once.

When every layer was put, the items are those of their sequences, and the cells of the ones before go back.)");
  c.def("get", &get, py::arg("layer"),
        R"(What this step's rows see as (k, v, mask), for models that do their own attention.

k and v are copies [n, kv_heads, head_dim] of the items of the step's sequences, each once; mask float32 [tokens, n] is 0 in
the row's own item, else -inf.)");
  c.def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("scale") = py::none(),
        py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(), py::arg("precision") = "auto",
        R"(Attention of this step's rows to all of their sequence's item; 0 for a sequence without one.

q float32 [tokens, heads, head_dim] -> float32 [tokens, heads, head_dim]; heads is a multiple of kv_heads. In a step that
brings items after ``put`` of that layer. ``scale``, ``softcap``, ``sinks`` and
``precision`` as in ``ops.attention``.)");
  c.def("item", &item, py::arg("seq"), "The sequence's item as (position, cells); None without one.");
}

const CacheDocs kDocs{
    "Makes ``dst`` the first ``length`` tokens of ``src``, with its item when that stands below. No K/V moves.",
    R"(Removes the tokens [begin, end) of a sequence, to its end by default.

An item that stands there goes; one at ``end`` or later moves down with its token.)",
    "Whether the sequence could be resumed at ``position``: anywhere up to its length.",
    "Holds the tokens from ``start`` to the end of a sequence, with an item that stands there; None when there are "
    "none.",
    R"(Makes the sequence exactly ``target`` tokens long, from a snapshot or (None) by cutting it.

It then has the snapshot's item, if that stands below ``target``, else its own, if that stands below the snapshot. False,
with nothing changed, where ``target`` is beyond the snapshot's end, or the sequence ends before a snapshot that does not
have the item.)",
    "Two snapshots, [start, at) and [at, end); consumes its argument. The item goes with its position.",
    "One snapshot of two that follow each other, with the later item; consumes both. None is an empty one.",
};

}  // namespace

Placement placement_of(EncoderCache& cache) { return placement_of(cache.store()); }

void init_encoder(py::module_& m) {
  init_snapshot_class<EncoderCache::Snapshot>(
      m, "EncoderSnapshot", R"(The tokens [start, end) of one sequence of an encoder cache, detached from it.

It holds the cells of the item that stands there, if any, until it goes; several holders share cells without a copy.)");
  Class c(m, kClass, R"(K and V of cross-attention layers: for each sequence those of one media item.

``layers``: how many (0 to n - 1), or the model's own layer numbers. ``kv_heads``, ``head_dim``: the shape of K and V.
``capacity``: cells, one for each row that an encoder puts out, of all items that live at once. ``dtype``: how K and V are
stored, "float16", "float32", "q8_0" or "q4h" (head sizes that are multiples of 32), or a pair. ``device``: a ``Device``, part of a name, or None for the best one; "host" is a plain
reference in host memory and "null" stores nothing, both for tests.

An item stands at a position of its sequence's text and lives and goes with the token there; every query of the sequence
sees all of it. A sequence has its latest item only. Any thread may call.)");
  c.def(py::init(&make_cache), py::arg("layers"), py::arg("kv_heads"), py::arg("head_dim"), py::arg("capacity"),
        py::kw_only(), py::arg("dtype") = "float16", py::arg("device") = py::none());
  add_properties(c);
  add_steps(c);
  add_cache_editing(c, kDocs);
  add_cache_snapshots(c, kDocs);
  c.def("__repr__", [](const EncoderCache& self) {
    const KvShape& shape = self.shape();
    return cat("<kvtrie.EncoderCache ", shape.layers, " layers, ", shape.kv_heads, " x ", shape.k_dim, ", ",
               shape.formats.name(), ", ", self.free_cells(), " of ", self.capacity(), " cells free>");
  });
  refuse_pickling(c, "making it again from its arguments: the K/V stay on the device");
}

}  // namespace kvtrie::binding
