// The common part of the classes of caches: arguments of their constructors, and the methods that every kind has.
//
// Threads: the GIL is held in all of these; the methods release it around the library's work.
#pragma once

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "convert.h"
#include "device.h"
#include "standalone/encoder_cache.h"

namespace kvtrie::binding {

// A number of layers (0 to n - 1), or the layers themselves.
std::vector<std::int32_t> to_layers(py::handle layers, std::string_view where);
// How K and V are kept: a name or a numpy dtype, "K/V", or a pair of the former.
CellFormats to_cell_formats(py::handle dtype, std::string_view where);
// `device`: as to_placement, or "null" for a store that keeps nothing.
std::unique_ptr<KvStore> make_kv_store(const KvShape& shape, py::handle device, std::string_view where);
Placement placement_of(KvStore& store);                       // where it takes its tensors
Typed<"Device | str"> store_place_to_python(KvStore& store);  // a Device, "host" or "null"
SequenceId to_sequence(py::handle value, std::string_view where, std::string_view name = "seq");
// None, or a sequence of (sequence, position, cells).
std::vector<EncoderItem> to_items(py::handle items, std::string_view where);

// The class of a cache's snapshots.
template <class Snapshot>
void init_snapshot_class(py::module_& m, const char* name, const char* doc,
                         const char* pickling_hint = "keeping it in the process: it names cells of a live cache") {
  py::class_<Snapshot, std::shared_ptr<Snapshot>> c(m, name, doc);
  c.def_property_readonly("start", &Snapshot::start, "First position.");
  c.def_property_readonly("end", &Snapshot::end, "One past the last position.");
  c.def_property_readonly(
      "nbytes", [](const Snapshot& self) { return without_gil([&] { return self.nbytes(); }); },
      "Bytes that it alone holds.");
  c.def_property_readonly(
      "shared_nbytes", [](const Snapshot& self) { return without_gil([&] { return self.shared_nbytes(); }); },
      "Bytes of it that others hold, too.");
  c.def_property_readonly("tier", &Snapshot::tier, "\"device\".");
  c.def_property_readonly("consumed", &Snapshot::consumed, "Whether split or merge has taken it over.");
  const std::string text = name;
  c.def("__repr__", [text](const Snapshot& self) {
    return cat("<kvtrie.", text, " [", self.start(), ", ", self.end(), ")", self.consumed() ? " consumed>" : ">");
  });
  refuse_pickling(c, pickling_hint);
}

// The particular words of the docstrings, and of the refusal of another kind of snapshot. Of static storage: the
// methods refer to it.
struct CacheDocs {
  const char *copy_prefix, *remove, *can_resume, *snapshot, *restore, *split, *merge;
  const char* prepare_snapshots =
      "Schedules captures at ascending offsets of later steps, the present length at the least; see "
      "``take_snapshots``.";
  const char* take_snapshots =
      R"(What ``prepare_snapshots`` scheduled, one entry for each offset: the tokens since the offset before.

None where there were none, or where the offset was not reached.)";
  const char* snapshot_kind = "a snapshot of this kind of cache, or None";
};

template <class Cache>
std::shared_ptr<typename Cache::Snapshot> to_snapshot(py::handle value, const char* where, const char* name,
                                                      const CacheDocs& docs) {
  using Snapshot = typename Cache::Snapshot;
  if (!value.is_none() && !py::isinstance<Snapshot>(value)) {
    refuse_type(value, where, name, docs.snapshot_kind);
  }
  return value.is_none() ? nullptr : value.cast<std::shared_ptr<Snapshot>>();
}

template <class Cache>
using CacheClass = py::class_<Cache, std::shared_ptr<Cache>>;

template <class Cache>
void add_cache_editing(CacheClass<Cache>& c, const CacheDocs& docs) {
  c.def(
      "copy_prefix",
      [](Cache& self, const Typed<"int">& src, const Typed<"int">& dst, const Typed<"int">& length) {
        const SequenceId from = to_sequence(src, "copy_prefix", "src"), to = to_sequence(dst, "copy_prefix", "dst");
        const std::int32_t count = to_int32(length, "copy_prefix", "length");
        without_gil([&] { self.copy_prefix(from, to, count); });
      },
      py::arg("src"), py::arg("dst"), py::arg("length"), docs.copy_prefix);
  c.def(
      "remove",
      [](Cache& self, const Typed<"int">& seq, const Typed<"int">& begin, const Typed<"int | None">& end) {
        const SequenceId id = to_sequence(seq, "remove");
        const std::int32_t from = to_int32(begin, "remove", "begin");
        const auto to = end.is_none() ? std::nullopt : std::optional(to_int32(end, "remove", "end"));
        without_gil([&] { self.remove(id, from, to); });
      },
      py::arg("seq"), py::arg("begin"), py::arg("end") = py::none(), docs.remove);
  c.def(
      "can_resume",
      [](Cache& self, const Typed<"int">& seq, const Typed<"int">& position) {
        const SequenceId id = to_sequence(seq, "can_resume");
        const std::int32_t at = to_int32(position, "can_resume", "position");
        return without_gil([&] { return self.can_resume(id, at); });
      },
      py::arg("seq"), py::arg("position"), docs.can_resume);
  c.def(
      "length",
      [](Cache& self, const Typed<"int">& seq) {
        const SequenceId id = to_sequence(seq, "length");
        return without_gil([&] { return self.length(id); });
      },
      py::arg("seq"), "Tokens of a sequence; 0 for an unknown one.");
  if constexpr (requires(Cache & cache) { cache.defrag(); }) {
    c.def(
        "defrag", [](Cache& self) { without_gil([&] { self.defrag(); }); },
        "Slides all held cells together. Raises ``BusyError`` while a step is open.");
  }
  c.def(
      "check", [](Cache& self) { return without_gil([&] { return self.check(); }); },
      "Every invariant of the cache that does not hold, as sentences; an empty list is good.");
}

template <class Cache>
void add_cache_snapshots(CacheClass<Cache>& c, const CacheDocs& docs) {
  c.def(
      "snapshot",
      [](Cache& self, const Typed<"int">& seq, const Typed<"int">& start) {
        const SequenceId id = to_sequence(seq, "snapshot");
        const std::int32_t from = to_int32(start, "snapshot", "start");
        return optional_of(without_gil([&] { return self.snapshot(id, from); }));
      },
      py::arg("seq"), py::arg("start") = 0, docs.snapshot);
  c.def(
      "restore",
      [&docs](Cache& self, const Typed<"int">& seq, const OptionalOf<typename Cache::Snapshot>& snapshot,
              const Typed<"int">& target) {
        const SequenceId id = to_sequence(seq, "restore");
        const auto source = to_snapshot<Cache>(snapshot, "restore", "snapshot", docs);
        const auto length =
            static_cast<std::int32_t>(to_integer(target, "restore", "target", -kMaxInt32 - 1, kMaxInt32));
        return without_gil([&] { return self.restore(id, source, length); });
      },
      py::arg("seq"), py::arg("snapshot"), py::arg("target"), docs.restore);
  c.def(
      "split",
      [&docs](Cache& self, const OptionalOf<typename Cache::Snapshot>& snapshot, const Typed<"int">& at) {
        const auto whole = to_snapshot<Cache>(snapshot, "split", "snapshot", docs);
        const std::int32_t position = to_int32(at, "split", "at");
        const auto parts = without_gil([&] { return self.split(whole, position); });
        return std::pair(optional_of(parts.first), optional_of(parts.second));
      },
      py::arg("snapshot"), py::arg("at"), docs.split);
  c.def(
      "merge",
      [&docs](Cache& self, const OptionalOf<typename Cache::Snapshot>& a,
              const OptionalOf<typename Cache::Snapshot>& b) {
        const auto first = to_snapshot<Cache>(a, "merge", "a", docs),
                   second = to_snapshot<Cache>(b, "merge", "b", docs);
        return optional_of(without_gil([&] { return self.merge(first, second); }));
      },
      py::arg("a"), py::arg("b"), docs.merge);
  c.def(
      "prepare_snapshots",
      [](Cache& self, const Typed<"int">& seq, const Typed<"Integers">& offsets) {
        const SequenceId id = to_sequence(seq, "prepare_snapshots");
        std::vector<std::int32_t> wanted = IntegerArgument(offsets, "prepare_snapshots", "offsets").vector();
        without_gil([&] { self.prepare_snapshots(id, std::move(wanted)); });
      },
      py::arg("seq"), py::arg("offsets"), docs.prepare_snapshots);
  c.def(
      "take_snapshots",
      [](Cache& self, const Typed<"int">& seq) {
        const SequenceId id = to_sequence(seq, "take_snapshots");
        std::vector<OptionalOf<typename Cache::Snapshot>> taken;
        for (const auto& each : without_gil([&] { return self.take_snapshots(id); }))
          taken.push_back(optional_of(each));
        return taken;
      },
      py::arg("seq"), docs.take_snapshots);
}

}  // namespace kvtrie::binding
