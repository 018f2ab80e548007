#include "arrays.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

py::dtype numpy_dtype(DType dtype) { return py::dtype(dtype == DType::kBFloat16 ? "uint16" : name_of(dtype)); }

std::vector<py::ssize_t> numpy_shape(const Shape& shape) { return {shape.begin(), shape.end()}; }

}  // namespace

Shape shape_of(const py::array& array) {
  Shape shape;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) shape.push_back(array.shape(axis));
  return shape;
}

DType to_dtype(py::handle name, std::string_view where) {
  if (PyUnicode_Check(name.ptr())) return dtype_from_name(std::string(to_text(name, where, "dtype")));
  try {  // numpy dtypes and scalar types
    return dtype_from_name(
        py::dtype::from_args(py::reinterpret_borrow<py::object>(name)).attr("name").cast<std::string>());
  } catch (const py::error_already_set&) {
    refuse_type(name, where, "dtype", "float32, float16, bfloat16, int32 or uint32");
  }
}

HostArray to_host_array(py::handle value, std::optional<DType> wanted, std::string_view where, std::string_view name) {
  if (!wanted || *wanted == DType::kFloat32) {  // the common case, without a detour
    using InPlace = py::array_t<float, py::array::c_style>;
    if (py::isinstance<InPlace>(value)) return {py::reinterpret_borrow<py::array>(value), DType::kFloat32};
  }
  const py::object wanted_name = wanted ? py::object(py::str(name_of(*wanted))) : py::none();
  const py::tuple made =
      py::module_::import("kvtrie._arrays").attr("prepare")(value, wanted_name, std::string(where), std::string(name));
  return {made[0].cast<py::array>(), dtype_from_name(made[1].cast<std::string>())};
}

Tensor to_tensor(py::handle value, const Placement& placement, std::string_view where, std::string_view name,
                 std::optional<DType> wanted) {
  if (py::isinstance<Tensor>(value)) return value.cast<Tensor&>();
  const HostArray source = to_host_array(value, wanted, where, name);
  const void* data = source.array.data();
  Shape shape = shape_of(source.array);
  return without_gil([&] { return Tensor::from_host(placement.device, source.dtype, std::move(shape), data); });
}

Tensor to_optional_tensor(py::handle value, const Placement& placement, std::string_view where, std::string_view name,
                          std::optional<DType> wanted) {
  return value.is_none() ? Tensor{} : to_tensor(value, placement, where, name, wanted);
}

Tensor to_values(py::handle value, const Tensor& keys, const Placement& placement, std::string_view where) {
  if (!value.is_none()) return to_tensor(value, placement, where, "v");
  Shape shape = keys.shape();
  if (!shape.empty()) shape.back() = 0;
  return Tensor::empty(keys.device(), keys.dtype(), std::move(shape));
}

Placement placement_among(std::initializer_list<py::handle> values) {
  for (const py::handle value : values) {
    if (!py::isinstance<Tensor>(value)) continue;
    const auto& tensor = value.cast<Tensor&>();
    if (tensor.defined()) return {tensor.on_host(), tensor.device()};
  }
  return {false, default_device()->open()};
}

py::array to_numpy(const Tensor& tensor) {
  py::array array(numpy_dtype(tensor.dtype()), numpy_shape(tensor.shape()));
  void* data = array.mutable_data();
  without_gil([&] { tensor.copy_to_host(data); });
  return array;
}

bool host_visible(const Tensor& tensor) { return tensor.on_host() || tensor.device()->info().unified_memory; }

KeptMapping::~KeptMapping() {
  if (!home_.is_here()) leave_as_it_is(mapped_);
}

py::array to_numpy_in_place(Tensor tensor) {
  if (tensor.size() == 0 || !host_visible(tensor)) return to_numpy(tensor);
  auto mapping =
      without_gil([&] { return std::make_unique<KeptMapping>(std::move(tensor), MappedTensor::Access::kReadWrite); });
  const py::capsule owner(mapping.get(), [](void* kept) { delete static_cast<KeptMapping*>(kept); });
  const MappedTensor& mapped = **mapping.release();  // the capsule's
  return numpy_view(mapped.tensor(), mapped.data(), owner);
}

py::array numpy_view(const Tensor& tensor, void* data, py::handle owner) {
  return py::array(numpy_dtype(tensor.dtype()), numpy_shape(tensor.shape()), data, owner);
}

py::object optional_to_python(Tensor tensor) {
  return tensor.defined() ? py::cast(std::move(tensor)) : py::object(py::none());
}

}  // namespace kvtrie::binding
