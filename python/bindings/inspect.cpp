// Looking into folders of snapshots; python/kvtrie/cli/inspect.py shows what is found.
#include <pybind11/pybind11.h>

#include <string>

#include "base/cell_format.h"
#include "convert.h"
#include "keys.h"
#include "store/disk_inspect.h"
#include "tree/node_state.h"

namespace kvtrie::binding {
namespace {

// Names that another program wrote need not be UTF-8.
py::object to_python(const std::string& text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

py::list images_of(const SnapshotHeader& header) {
  static constexpr const char* kRoles[] = {"", "cells", "window", "state"};
  py::list images;
  for (const SnapshotImage& image : header.images) {
    images.append(
        py::make_tuple(kRoles[static_cast<int>(image.role)], image.cache, image.first, image.cells, image.bytes()));
  }
  return images;
}

py::list caches_of(const SnapshotHeader& header) {
  py::list caches;
  for (const SnapshotCache& cache : header.caches) {
    py::list shape;
    for (const std::int64_t number : cache.shape) shape.append(number);
    const bool attention = cache.kind == SnapshotCache::Kind::kAttention;
    caches.append(py::make_tuple(attention ? "attention" : "recurrent", cell_formats_of(cache.dtype)->name(), shape));
  }
  return caches;
}

py::dict to_python(const InspectedFile& file) {
  py::dict result;
  result["name"] = file.name;
  result["bytes"] = file.bytes;
  result["modified"] = file.modified;
  result["key"] = file.key;
  result["fault"] = file.fault == SnapshotFault::kNone ? "" : name_of(file.fault);
  if (file.fault != SnapshotFault::kNone) return result;
  result["fingerprint"] = to_python(file.header.fingerprint);
  result["namespace"] = to_python(file.header.name_space);
  result["start"] = file.header.start;
  result["tokens"] = int32_array(file.header.tokens);
  result["point"] = name_of(static_cast<PointKind>(file.header.point));
  result["caches"] = caches_of(file.header);
  result["images"] = images_of(file.header);
  return result;
}

Typed<"dict[str, Any]"> inspect(const Typed<"str">& path, const Typed<"Keys">& given) {
  const std::string folder = to_folder(path, "inspect", "folder");
  const KeyRingPtr keys = to_keys(given, "inspect");
  const InspectedFolder found = without_gil([&] { return inspect_folder(folder, keys.get()); });
  py::list files;
  for (const InspectedFile& file : found.files) files.append(to_python(file));
  py::dict result;
  result["files"] = files;
  result["temporary"] = found.temporary;
  result["others"] = found.others;
  return result;
}

}  // namespace

void init_inspect(py::module_& m) {
  m.def("_inspect_folder", &inspect, py::arg("path"), py::arg("keys") = py::none(),
        "What the snapshots in a folder say of themselves; see ``kvtrie.cli.inspect``. Raises ``FormatError``.");
}

}  // namespace kvtrie::binding
