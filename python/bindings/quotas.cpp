#include "quotas.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

namespace py = pybind11;

using Amounts = std::vector<std::optional<std::uint32_t>>;

// None: as where nothing is named; an int for all caches, or a sequence with one for each.
Amounts to_amounts(const py::dict& given, const char* name, std::size_t count) {
  const py::object value = given.contains(name) ? py::object(given[name]) : py::none();
  const auto one = [&](const py::handle each) -> std::optional<std::uint32_t> {
    if (each.is_none()) return std::nullopt;
    return static_cast<std::uint32_t>(to_int32(each, "set_quota", name));
  };
  if (value.is_none()) return {};
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) return Amounts(count, one(value));
  Amounts amounts;
  for (const py::handle each : value) amounts.push_back(one(each));
  return amounts;
}

Limits to_quota(const PrefixCache& cache, const Typed<"Amounts">& amounts, const char* name) {
  if (!py::isinstance<py::dict>(amounts)) refuse_type(amounts, "set_quota", name, "a dict of amounts");
  const auto given = py::reinterpret_borrow<py::dict>(amounts);
  Limits limits;
  limits.held_cells = to_amounts(given, "cells", cache.caches().size());
  limits.held_slots = to_amounts(given, "slots", cache.states().size());
  const auto bytes = [&](const char* name) -> std::optional<std::uint64_t> {
    if (!given.contains(name) || given[name].is_none()) return std::nullopt;
    return to_bytes(given[name], "set_quota", name);
  };
  limits.host_bytes = bytes("host_bytes");
  limits.disk_bytes = bytes("disk_bytes");
  return limits;
}

template <class Number>
py::dict share(Number used, std::optional<Number> most, Number least) {
  py::dict result;
  result["used"] = used;
  const bool limited = most && *most < std::numeric_limits<Number>::max();
  result["most"] = limited ? py::object(py::int_(*most)) : py::none();
  result["least"] = least;
  return result;
}

Typed<"NamespaceUsage"> usage_to_python(const NamespaceUsage& usage, std::size_t attention) {
  py::list cells, slots;
  for (std::size_t i = 0; i < usage.units.size(); ++i) {
    std::optional<std::uint32_t> most;
    if (usage.has_quota) most = usage.most_units[i];
    const std::uint32_t least = usage.has_quota ? usage.least_units[i] : 0;
    (i < attention ? cells : slots).append(share(usage.units[i], most, least));
  }
  std::optional<std::uint64_t> most_host, most_disk;
  if (usage.has_quota) most_host = usage.most_host_bytes, most_disk = usage.most_disk_bytes;
  py::dict result;
  result["cells"] = cells;
  result["slots"] = slots;
  result["host_bytes"] = share(usage.host_bytes, most_host, usage.least_host_bytes);
  result["disk_bytes"] = share(usage.disk_bytes, most_disk, usage.least_disk_bytes);
  return result;
}

}  // namespace

void add_quotas(py::class_<PrefixCache, PrefixCachePtr>& c) {
  c.def(
      "_set_quota",
      [](PrefixCache& self, const Typed<"str">& name_space, const Typed<"Amounts">& most,
         const Typed<"Amounts">& least) {
        const std::string_view name = to_text(name_space, "set_quota", "namespace");
        const Limits above = to_quota(self, most, "most"), floor = to_quota(self, least, "least");
        without_gil([&] { self.set_quota(name, above, floor); });
      },
      py::arg("namespace"), py::arg("most"), py::arg("least"));
  c.def(
      "remove_quota",
      [](PrefixCache& self, const Typed<"str">& name_space) {
        const std::string_view name = to_text(name_space, "remove_quota", "namespace");
        without_gil([&] { self.remove_quota(name); });
      },
      py::arg("namespace") = "default",
      R"(Takes a namespace's quota off; nothing when it has none. Nothing is evicted for it.

Raises ``NotSupportedError`` for a cache that was made without ``quotas``.)");
  c.def(
      "usage",
      [](PrefixCache& self, const Typed<"str">& name_space) {
        const std::string_view name = to_text(name_space, "usage", "namespace");
        const NamespaceUsage usage = without_gil([&] { return self.usage(name); });
        return usage_to_python(usage, self.caches().size());
      },
      py::arg("namespace") = "default",
      R"(What a namespace has, and its quota: a dict that says nothing of any other namespace.

``"cells"``: a list with a dict for each attention cache, ``"slots"``: for each recurrent cache, ``"host_bytes"``,
``"disk_bytes"``: each with ``"used"`` (live state included), ``"most"`` (None: no limit) and ``"least"``, the floor.
Raises ``NotSupportedError`` for a cache that was made without ``quotas``.)");
}

}  // namespace kvtrie::binding
