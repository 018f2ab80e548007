#include "session_rows.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "convert.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/step.h"

namespace kvtrie::binding {
namespace {

using KeptRows = Typed<"dict[int, tuple[RowArray, RowArray]]">;

std::optional<std::int32_t> to_position(const py::object& value, const char* where, const char* name) {
  if (value.is_none()) return std::nullopt;
  return static_cast<std::int32_t>(to_integer(value, where, name, -kMaxInt32 - 1, kMaxInt32));
}

py::tuple to_pair(Session::Rows rows) {
  if (!rows.k.defined())
    fail(ErrorKind::kNotSupported, "session.kv", "the caches are on \"null\", which keeps no K and V");
  py::array k = to_numpy_in_place(std::move(rows.k));
  return py::make_tuple(std::move(k), to_numpy_in_place(std::move(rows.v)));
}

std::vector<Session::Rows> read(const Session& session, std::span<const std::int32_t> layers, const py::object& start,
                                const py::object& stop, RowLayout layout) {
  const auto from = to_position(start, "session.kv", "start"), to = to_position(stop, "session.kv", "stop");
  return without_gil([&] { return session.rows(layers, from, to, layout); });
}

py::dict read_pairs(const Session& session, const std::vector<std::int32_t>& layers, const py::object& start,
                    const py::object& stop, RowLayout layout) {
  std::vector<Session::Rows> all = read(session, layers, start, stop, layout);
  py::dict pairs;
  for (std::size_t i = 0; i < layers.size(); ++i) pairs[py::int_(layers[i])] = to_pair(std::move(all[i]));
  return pairs;
}

Typed<"tuple[RowArray, RowArray]"> kv(const Session& self, const Typed<"int">& layer, const Typed<"int | None">& start,
                                      const Typed<"int | None">& stop, const Typed<"bool">& heads_first) {
  const std::int32_t number = to_int32(layer, "session.kv", "layer");
  return to_pair(std::move(read(self, {&number, 1}, start, stop, to_row_order(heads_first, "session.kv")).front()));
}

KeptRows kv_all(const Session& self, const Typed<"int | None">& start, const Typed<"int | None">& stop,
                const Typed<"Integers | None">& layers, const Typed<"bool">& heads_first) {
  const std::vector<std::int32_t> wanted =
      layers.is_none() ? self.attention_layers() : IntegerArgument(layers, "session.kv", "layers").vector();
  return read_pairs(self, wanted, start, stop, to_row_order(heads_first, "session.kv"));
}

KeptRows kv_with_spare(const Session& self, const Typed<"int | None">& start, const Typed<"int | None">& stop,
                       const Typed<"Integers">& layers, const Typed<"int">& spare) {
  const auto more = static_cast<std::uint32_t>(to_int32(spare, "session.kv", "spare"));
  const std::vector<std::int32_t> wanted = IntegerArgument(layers, "session.kv", "layers").vector();
  return read_pairs(self, wanted, start, stop, {RowOrder::kHeadsFirst, more});
}

}  // namespace

RowOrder to_row_order(py::handle heads_first, const char* where) {
  return to_flag(heads_first, where, "heads_first") ? RowOrder::kHeadsFirst : RowOrder::kTokensFirst;
}

void add_rows(py::class_<Session, SessionPtr>& c) {
  c.def("kv", &kv, py::arg("layer"), py::arg("start") = py::none(), py::arg("stop") = py::none(), py::kw_only(),
        py::arg("heads_first") = false,
        R"(K and V of one attention layer at the computed positions [start, stop), as (k, v).

Copies as numpy arrays [stop - start, kv_heads, head_dim] and [.., v_head_dim] in the cache's dtype, float32 for q8_0;
[kv_heads, stop - start, dim] with ``heads_first``. ``start``: None for the first position that the layer still holds
(windows and chunks let go of rows); ``stop``: None for ``length``. K are as they were put: rotated, where a model
rotates. Needs no step, and disturbs none that is open; may be called while another thread is in a call on the session.

Raises ``ArgumentError`` for rows that the layer does not hold and for a layer without K and V, ``ClosedError`` once
closed, ``NotSupportedError`` where the caches keep nothing (``device="null"``).)");
  c.def("kv_all", &kv_all, py::arg("start") = py::none(), py::arg("stop") = py::none(), py::kw_only(),
        py::arg("layers") = py::none(), py::arg("heads_first") = false,
        R"(``kv`` of several attention layers at one moment: a dict of (k, v) by layer.

``layers``: their numbers; None for all attention layers, ascending. With ``start`` None each layer begins where it still
holds rows. The copies of all layers are enqueued before the first is waited for, so this is faster than ``kv`` layer by
layer. Raises like ``kv``.)");
  c.def(
      "_kv_with_spare", &kv_with_spare, py::arg("start"), py::arg("stop"), py::arg("layers"), py::arg("spare"),
      "``kv_all(start, stop, layers=layers, heads_first=True)`` with ``spare`` rows behind those of each head, unset.");
}

}  // namespace kvtrie::binding
