// The causal cache by itself. PrefixCache (prefix_cache.cpp) drives the same object.
#include "caches.h"

#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/host_kv_store.h"
#include "cache/null_kv_store.h"
#include "cache/opencl_kv_store.h"
#include "convert.h"
#include "operands.h"

namespace kvtrie::binding {
namespace {

using CachePtr = std::shared_ptr<CausalCache>;
using Snapshot = CausalCache::Snapshot;
using SnapshotPtr = CausalCache::SnapshotPtr;

constexpr std::uint32_t kGrowth = 256;  // cells reserved ahead of a growing sequence

std::uint32_t to_count(const py::object& value, const char* name) {
  return static_cast<std::uint32_t>(to_int32(value, "CausalCache", name, 1));
}

// A number of layers (0 to n - 1), or the layers themselves.
std::vector<std::int32_t> to_layers(const py::object& layers) {
  std::vector<std::int32_t> numbers;
  if (is_integer(layers)) {
    for (std::int32_t i = 0; i < to_int32(layers, "CausalCache", "layers", 1); ++i) numbers.push_back(i);
    return numbers;
  }
  numbers = IntegerArgument(layers, "CausalCache", "layers").vector();
  require(!numbers.empty(), "CausalCache", "layers: got none, allowed at least 1");
  return numbers;
}

// 0 for None.
std::int32_t to_limit(const py::object& value, const char* name) {
  return value.is_none() ? 0 : to_int32(value, "CausalCache", name, 1);
}

py::object limit_to_python(std::int32_t limit) { return limit == 0 ? py::object(py::none()) : py::int_(limit); }

DType to_kv_dtype(const py::object& dtype) {
  const DType stored = to_dtype(dtype, "CausalCache");
  require(stored == DType::kFloat16 || stored == DType::kFloat32, "CausalCache", "dtype: got '", name_of(stored),
          "', allowed 'float16' or 'float32'");
  return stored;
}

std::unique_ptr<KvStore> make_store(const KvShape& shape, const py::object& device) {
  if (PyUnicode_Check(device.ptr()) && to_text(device, "CausalCache", "device") == "null") {
    return std::make_unique<NullKvStore>(shape);
  }
  const Placement place = to_placement(device, "CausalCache");
  return without_gil([&]() -> std::unique_ptr<KvStore> {
    if (place.on_host) return std::make_unique<HostKvStore>(shape);
    return std::make_unique<OpenClKvStore>(place.device, shape);
  });
}

CachePtr make_cache(const py::object& layers, const py::object& kv_heads, const py::object& head_dim,
                    const py::object& capacity, const py::object& v_head_dim, const py::object& dtype,
                    const py::object& window, const py::object& memory, const py::object& chunk, const py::object& rope,
                    const py::object& device) {
  CausalCache::Options options;
  options.visibility = {to_limit(window, "window"), to_limit(chunk, "chunk")};
  options.memory = to_limit(memory, "memory");
  options.layers = to_layers(layers);
  options.rope = to_ropes(rope, "CausalCache");
  options.growth = kGrowth;
  KvShape shape;
  shape.layers = static_cast<std::uint32_t>(options.layers.size());
  shape.kv_heads = to_count(kv_heads, "kv_heads");
  shape.k_dim = to_count(head_dim, "head_dim");
  shape.v_dim = v_head_dim.is_none() ? shape.k_dim
                                     : static_cast<std::uint32_t>(to_int32(v_head_dim, "CausalCache", "v_head_dim", 0));
  shape.cells = to_count(capacity, "capacity");
  shape.dtype = to_kv_dtype(dtype);
  std::unique_ptr<KvStore> store = make_store(shape, device);
  return CausalCache::create(std::move(store), std::move(options));
}

SequenceId to_sequence(const py::object& value, const char* where, const char* name = "seq") {
  return static_cast<SequenceId>(to_int32(value, where, name));
}

void put(CausalCache& self, const py::object& layer, const py::object& k, const py::object& v) {
  const std::int32_t number = to_int32(layer, "put", "layer");
  const Placement place = placement_of(self);
  const Tensor keys = to_tensor(k, place, "put", "k"), values = to_tensor(v, place, "put", "v");
  without_gil([&] { self.put(*self.current_forward(), number, keys, values); });
}

Tensor attend(CausalCache& self, const py::object& layer, const py::object& q, const py::object& scale,
              const py::object& softcap, const py::object& sinks) {
  const std::int32_t number = to_int32(layer, "attend", "layer");
  const Placement place = placement_of(self);
  const Tensor query = to_tensor(q, place, "attend", "q", DType::kFloat32);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, place, "attend");
  return without_gil([&] { return self.attend(*self.current_forward(), number, query, options); });
}

py::tuple get(CausalCache& self, const py::object& layer) {
  const std::int32_t number = to_int32(layer, "get", "layer");
  CausalCache::History history = without_gil([&] { return self.get(*self.current_forward(), number); });
  return py::make_tuple(std::move(history.k), std::move(history.v), std::move(history.mask));
}

void start_forward(CausalCache& self, const py::object& positions, const py::object& sequences, bool reserve) {
  const IntegerArgument at(positions, "start_forward", "positions");
  const IntegerArgument of(sequences, "start_forward", "sequences");
  without_gil([&] { self.start_forward(at.span(), of.span(), reserve); });
}

void set_causal(CausalCache& self, const py::object& except) {
  const std::vector<std::int32_t> rows = IntegerArgument(except, "set_causal", "except_").vector();
  without_gil([&] {
    const std::vector<std::uint32_t> indices(rows.begin(), rows.end());
    self.set_causal(*self.current_forward(), indices);
  });
}

SnapshotPtr to_snapshot(const py::object& value, const char* where, const char* name) {
  if (!value.is_none() && !py::isinstance<Snapshot>(value)) refuse_type(value, where, name, "a Snapshot or None");
  return value.is_none() ? nullptr : value.cast<SnapshotPtr>();
}

std::string representation(const CausalCache& self) {
  const KvShape& shape = self.shape();
  return cat("<kvtrie.CausalCache ", shape.layers, " layers, ", shape.kv_heads, " x ", shape.k_dim, ", ",
             name_of(shape.dtype), ", ", self.free_cells(), " of ", self.capacity(), " cells free>");
}

void init_snapshot(py::module_& m) {
  py::class_<Snapshot, SnapshotPtr> c(m, "Snapshot",
                                      R"(State of one cache for the positions [start, end), detached from any sequence.

It holds its cells until it goes; several holders share cells without a copy.)");
  c.def_property_readonly("start", &Snapshot::start, "First position.");
  c.def_property_readonly("end", &Snapshot::end, "One past the last position.");
  c.def_property_readonly("nbytes", &Snapshot::nbytes, "Bytes that it alone holds.");
  c.def_property_readonly("shared_nbytes", &Snapshot::shared_nbytes, "Bytes of it that others hold, too.");
  c.def_property_readonly("tier", &Snapshot::tier, "\"device\".");
  c.def_property_readonly("consumed", &Snapshot::consumed, "Whether split or merge has taken it over.");
  c.def("__repr__", [](const Snapshot& self) {
    return cat("<kvtrie.Snapshot [", self.start(), ", ", self.end(), ")", self.consumed() ? " consumed>" : ">");
  });
  refuse_pickling(c, "keeping it in the process: it names cells of a live cache");
}

using Class = py::class_<CausalCache, CachePtr>;

void add_properties(Class& c) {
  c.def_property_readonly("layers", &CausalCache::layers, "The model's layer numbers, as a list.");
  c.def_property_readonly(
      "kv_heads", [](const CausalCache& self) { return self.shape().kv_heads; }, "K/V heads.");
  c.def_property_readonly(
      "head_dim", [](const CausalCache& self) { return self.shape().k_dim; }, "Numbers per head of K.");
  c.def_property_readonly(
      "v_head_dim", [](const CausalCache& self) { return self.shape().v_dim; }, "Numbers per head of V.");
  c.def_property_readonly(
      "dtype", [](const CausalCache& self) { return name_of(self.shape().dtype); }, "dtype of stored K and V.");
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
      "device",
      [](CausalCache& self) -> py::object {
        if (dynamic_cast<NullKvStore*>(&self.store()) != nullptr) return py::str("null");
        return placement_to_python(placement_of(self).device);
      },
      "The ``Device`` it is on; \"host\" or \"null\" for the reference stores.");
}

void add_steps(Class& c) {
  c.def("start_forward", &start_forward, py::arg("positions"), py::arg("sequences"), py::arg("reserve") = false,
        R"(Begins a step: row i has ``positions[i]`` and belongs to sequence ``sequences[i]``, a number of the caller's
choice.

Rows of one sequence continue it one by one; rows of several may alternate. Claims cells for all rows; then every layer
is ``put`` once. A step before that was not completed is dropped. ``reserve=True`` only checks that such a step would
fit. Raises ``CacheFull`` when there are not enough free cells; nothing has changed then.)");
  c.def("set_causal", &set_causal, py::arg("except_"),
        R"(Lets the rows ``except_`` of this step see all rows of their sequence in it, later ones too.

So the patches of an image see each other. What the window or chunk hides below stays hidden. Each call replaces the one
before, and a new step begins without; once a layer was attended, other rows raise ``ArgumentError``.)");
  c.def("put", &put, py::arg("layer"), py::arg("k"), py::arg("v"),
        "Stores this step's K [tokens, kv_heads, head_dim] and V [tokens, kv_heads, v_head_dim] of one layer, once.");
  c.def("get", &get, py::arg("layer"), R"(This step's history as (k, v, mask), for models that do their own attention.

k and v are copies [n, kv_heads, dim] in the cache's dtype, of what at least one row sees; mask float32 [tokens, n] is 0
where a row sees a key, else -inf.)");
  c.def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("scale") = py::none(),
        py::arg("softcap") = py::none(), py::arg("sinks") = py::none(),
        R"(Causal attention of this step's rows to their sequences, after ``put`` of that layer.

q float32 [tokens, heads, head_dim] -> float32 [tokens, heads, v_head_dim]; heads is a multiple of kv_heads. ``scale``,
``softcap`` and ``sinks`` as in ``ops.attention``.)");
}

void add_editing(Class& c) {
  c.def(
      "copy_prefix",
      [](CausalCache& self, const py::object& src, const py::object& dst, const py::object& length) {
        const SequenceId from = to_sequence(src, "copy_prefix", "src"), to = to_sequence(dst, "copy_prefix", "dst");
        const std::int32_t count = to_int32(length, "copy_prefix", "length");
        without_gil([&] { self.copy_prefix(from, to, count); });
      },
      py::arg("src"), py::arg("dst"), py::arg("length"),
      R"(Makes ``dst`` the first ``length`` tokens of ``src``. No K/V moves.

Raises ``NotRestorable`` (with ``nearest``) where ``can_resume(src, length)`` is false.)");
  c.def(
      "remove",
      [](CausalCache& self, const py::object& seq, const py::object& begin, const py::object& end) {
        const SequenceId id = to_sequence(seq, "remove");
        const std::int32_t from = to_int32(begin, "remove", "begin");
        const auto to = end.is_none() ? std::nullopt : std::optional(to_int32(end, "remove", "end"));
        without_gil([&] { self.remove(id, from, to); });
      },
      py::arg("seq"), py::arg("begin"), py::arg("end") = py::none(),
      R"(Removes the tokens [begin, end) of a sequence, to its end by default.

What follows a removal in the middle moves down, its K rotated to the new positions; that needs ``rope`` and a window that
is still complete afterwards, and has no meaning with chunks (else ``NotSupported``); and it needs cells for the part that
other holders share (else ``CacheFull``). Removing to the end raises ``NotRestorable`` where ``can_resume(seq, begin)`` is
false.)");
  c.def(
      "can_resume",
      [](CausalCache& self, const py::object& seq, const py::object& position) {
        const SequenceId id = to_sequence(seq, "can_resume");
        const std::int32_t at = to_int32(position, "can_resume", "position");
        return without_gil([&] { return self.can_resume(id, at); });
      },
      py::arg("seq"), py::arg("position"),
      "Whether the sequence could go on from ``position`` tokens: it still holds all that the query there sees.");
  c.def(
      "length",
      [](CausalCache& self, const py::object& seq) {
        const SequenceId id = to_sequence(seq, "length");
        return without_gil([&] { return self.length(id); });
      },
      py::arg("seq"), "Tokens of a sequence; 0 for an unknown one.");
  c.def(
      "held_from",
      [](CausalCache& self, const py::object& seq) {
        const SequenceId id = to_sequence(seq, "held_from");
        return without_gil([&] { return self.held_from(id); });
      },
      py::arg("seq"), "The first position whose K and V a sequence holds; its length when it holds none.");
  c.def(
      "defrag", [](CausalCache& self) { without_gil([&] { self.defrag(); }); },
      "Slides all held cells together. Raises ``BusyError`` while a step is open.");
  c.def(
      "check", [](CausalCache& self) { return without_gil([&] { return self.check(); }); },
      "Every invariant of the cache that does not hold, as sentences; an empty list is good.");
}

void add_snapshots(Class& c) {
  c.def(
      "snapshot",
      [](CausalCache& self, const py::object& seq, const py::object& start) {
        const SequenceId id = to_sequence(seq, "snapshot");
        const std::int32_t from = to_int32(start, "snapshot", "start");
        return without_gil([&] { return self.snapshot(id, from); });
      },
      py::arg("seq"), py::arg("start") = 0,
      "Holds the tokens from ``start`` to the end of a sequence, as far as it holds them; None when there are none.");
  c.def(
      "restore",
      [](CausalCache& self, const py::object& seq, const py::object& snapshot, const py::object& target) {
        const SequenceId id = to_sequence(seq, "restore");
        const SnapshotPtr source = to_snapshot(snapshot, "restore", "snapshot");
        const std::int32_t length =
            static_cast<std::int32_t>(to_integer(target, "restore", "target", -kMaxInt32 - 1, kMaxInt32));
        return without_gil([&] { return self.restore(id, source, length); });
      },
      py::arg("seq"), py::arg("snapshot"), py::arg("target"),
      R"(Makes the sequence exactly ``target`` tokens long, from a snapshot or (None) by cutting it.

False, with nothing changed, where that is impossible: ``target`` beyond the snapshot's end, or the query there would see
what neither the snapshot nor, below its start, the sequence holds.)");
  c.def(
      "split",
      [](CausalCache& self, const py::object& snapshot, const py::object& at) {
        const SnapshotPtr whole = to_snapshot(snapshot, "split", "snapshot");
        const std::int32_t position = to_int32(at, "split", "at");
        return without_gil([&] { return self.split(whole, position); });
      },
      py::arg("snapshot"), py::arg("at"),
      "Two snapshots, [start, at) and [at, end); consumes its argument. An empty part is None.");
  c.def(
      "merge",
      [](CausalCache& self, const py::object& a, const py::object& b) {
        const SnapshotPtr first = to_snapshot(a, "merge", "a"), second = to_snapshot(b, "merge", "b");
        return without_gil([&] { return self.merge(first, second); });
      },
      py::arg("a"), py::arg("b"), "One snapshot of two that follow each other; consumes both. None is an empty one.");
  c.def(
      "prepare_snapshots",
      [](CausalCache& self, const py::object& seq, const py::object& offsets) {
        const SequenceId id = to_sequence(seq, "prepare_snapshots");
        std::vector<std::int32_t> wanted = IntegerArgument(offsets, "prepare_snapshots", "offsets").vector();
        without_gil([&] { self.prepare_snapshots(id, std::move(wanted)); });
      },
      py::arg("seq"), py::arg("offsets"),
      "Schedules captures at ascending offsets of later steps; see ``take_snapshots``.");
  c.def(
      "take_snapshots",
      [](CausalCache& self, const py::object& seq) {
        const SequenceId id = to_sequence(seq, "take_snapshots");
        return without_gil([&] { return self.take_snapshots(id); });
      },
      py::arg("seq"),
      R"(What ``prepare_snapshots`` scheduled, one entry for each offset: the tokens since the offset before.

None where there were none, or where the offset was not reached.)");
}

}  // namespace

Placement placement_of(CausalCache& cache) {
  const auto* opencl = dynamic_cast<OpenClKvStore*>(&cache.store());
  return opencl == nullptr ? Placement{true, nullptr} : Placement{false, opencl->device()};
}

void init_caches(py::module_& m) {
  init_snapshot(m);
  Class c(m, "CausalCache", R"(K and V of a group of causal attention layers: a pool of cells, one for each token.

``layers``: how many (0 to n - 1), or the model's own layer numbers. ``kv_heads``, ``head_dim``, ``v_head_dim``
(default: head_dim): the shape of K and V. ``capacity``: cells, that is tokens. ``dtype``: how K and V are stored,
"float16" or "float32". ``rope``: None, a dict (base, dims, scaling, interleaved; as in ``ops.rope``) or a list with one
for each layer; needed only to remove tokens from the middle. ``window``: queries see that many keys, their own included.
``chunk``: queries see the tokens of their own chunk only. With either, a sequence lets go of what none of its later
queries sees; ``memory`` (with a window) is how many keys it keeps instead, its next one included, so that it can be cut and
go on from there. ``device``: a ``Device``, part of a name, or None for the
best one; "host" is a plain reference in host memory and "null" stores nothing, both for tests.

Sequences have numbers of the caller's choice. A cache that was given to a ``PrefixCache`` is driven by that one. Any
thread may call.)");
  c.def(py::init(&make_cache), py::arg("layers"), py::arg("kv_heads"), py::arg("head_dim"), py::arg("capacity"),
        py::kw_only(), py::arg("v_head_dim") = py::none(), py::arg("dtype") = "float16", py::arg("window") = py::none(),
        py::arg("memory") = py::none(), py::arg("chunk") = py::none(), py::arg("rope") = py::none(),
        py::arg("device") = py::none());
  add_properties(c);
  add_steps(c);
  add_editing(c);
  add_snapshots(c);
  c.def("__repr__", &representation);
  refuse_pickling(c, "making it again from its arguments: the K/V stay on the device");
}

}  // namespace kvtrie::binding
