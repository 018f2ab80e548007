#include "cache_class.h"

#include <numeric>

#include "arrays.h"
#include "cache/host_kv_store.h"
#include "cache/null_kv_store.h"
#include "cache/opencl_kv_store.h"

namespace kvtrie::binding {

std::vector<std::int32_t> to_layers(py::handle layers, std::string_view where) {
  std::vector<std::int32_t> numbers;
  if (is_integer(layers)) {
    constexpr std::int32_t kMost = 1 << 16;
    const std::int32_t count = to_int32(layers, where, "layers", 1);
    require(count <= kMost, where, "layers: got ", count, ", allowed 1 to ", kMost);
    numbers.resize(static_cast<std::size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  numbers = IntegerArgument(layers, where, "layers").vector();
  require(!numbers.empty(), where, "layers: got none, allowed at least 1");
  return numbers;
}

namespace {

bool is_dtype(const std::string& name) {
  try {
    return dtype_from_name(name), true;
  } catch (const Error&) {
    return false;
  }
}

CellFormats to_one_or_two(py::handle dtype, std::string_view where) {
  if (PyUnicode_Check(dtype.ptr())) {
    const std::string asked(to_text(dtype, where, "dtype"));
    if (const auto named = find_cell_formats(asked)) return *named;
    if (!is_dtype(asked)) fail(ErrorKind::kType, where, "dtype: got ", asked, ", allowed ", cell_formats_names());
  }
  const char* name = name_of(to_dtype(dtype, where));  // numpy dtypes, and names that are none
  const CellFormat* format = find_cell_format(name);
  require(format != nullptr, where, "dtype: got ", name, ", allowed ", cell_formats_names());
  return format;
}

}  // namespace

CellFormats to_cell_formats(py::handle dtype, std::string_view where) {
  if (!PyTuple_Check(dtype.ptr()) && !PyList_Check(dtype.ptr())) return to_one_or_two(dtype, where);
  const std::vector<py::object> pair =
      binding::to_items(py::reinterpret_borrow<py::object>(dtype), where, "dtype", "two formats, of K and of V");
  require(pair.size() == 2, where, "dtype: got ", pair.size(), " formats, allowed one, or two for K and V");
  const CellFormats k = to_one_or_two(pair[0], where), v = to_one_or_two(pair[1], where);
  require(k.alike() && v.alike(), where, "dtype: got a pair of ", k.name(), " and ", v.name(),
          ", allowed one format for K and one for V");
  return {k.k, v.v};
}

std::unique_ptr<KvStore> make_kv_store(const KvShape& shape, py::handle device, std::string_view where) {
  if (PyUnicode_Check(device.ptr()) && to_text(device, where, "device") == "null") {
    return std::make_unique<NullKvStore>(shape);
  }
  const Placement place = to_placement(device, where);
  return without_gil([&]() -> std::unique_ptr<KvStore> {
    if (place.on_host) return std::make_unique<HostKvStore>(shape);
    return std::make_unique<OpenClKvStore>(place.device, shape);
  });
}

Placement placement_of(KvStore& store) {
  const cl::DevicePtr device = store.device();
  return {device == nullptr, device};
}

Typed<"Device | str"> store_place_to_python(KvStore& store) {
  if (dynamic_cast<NullKvStore*>(&store) != nullptr) return py::str("null");
  return placement_to_python(placement_of(store).device);
}

SequenceId to_sequence(py::handle value, std::string_view where, std::string_view name) {
  return static_cast<SequenceId>(to_int32(value, where, name));
}

std::vector<EncoderItem> to_items(py::handle items, std::string_view where) {
  std::vector<EncoderItem> found;
  if (items.is_none()) return found;
  const char* allowed = "a sequence of (sequence, position, cells)";
  for (const py::object& each : binding::to_items(items, where, "items", allowed)) {
    const std::vector<py::object> triple = binding::to_items(each, where, "items", allowed);
    if (triple.size() != 3) refuse_type(each, where, "items", allowed);
    const SequenceId id = to_sequence(triple[0], where, "items: sequence");
    const std::int32_t position = to_int32(triple[1], where, "items: position");
    found.push_back({id, position, static_cast<std::uint32_t>(to_int32(triple[2], where, "items: cells"))});
  }
  return found;
}

}  // namespace kvtrie::binding
