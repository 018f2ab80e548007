// Tensors: making them from arrays and giving them back.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "base/error.h"
#include "base_class.h"
#include "convert.h"
#include "dlpack.h"
#include "errors.h"
#include "ops/ops.h"
#include "tensor/mapped_tensor.h"
#include "tensor/tensor.h"

namespace kvtrie::binding {
namespace {

constexpr std::uintptr_t kWrapAlignment = 64;  // bytes; what devices need to use host memory in place

[[noreturn]] void refuse_in_place(std::string_view why) {
  fail(ErrorKind::kNotSupported, "tensor", "copy=False: ", why, "; use copy=True");
}

// The array's own memory as a tensor, or an error: copy=False never copies.
Tensor wrap(py::handle value, std::optional<DType> wanted, const Placement& placement) {
  HostArray source = to_host_array(value, wanted, "tensor", "array");
  const py::object original = py::module_::import("kvtrie._arrays").attr("in_place")(value, "tensor", "array");
  const auto array = py::reinterpret_borrow<py::array>(original);
  if (source.array.data() != array.data()) refuse_in_place("the array's dtype or layout has to change");
  if (!array.writeable()) refuse_in_place("the array is read-only");
  const auto address = reinterpret_cast<std::uintptr_t>(array.data());
  if (!placement.on_host) {
    if (!placement.device->info().unified_memory) refuse_in_place("the device does not share memory with the host");
    if (address % kWrapAlignment != 0) {
      refuse_in_place(cat("the array lies at an address that is no multiple of ", kWrapAlignment));
    }
  }
  Shape shape = shape_of(source.array);
  void* data = source.array.mutable_data();
  std::shared_ptr<void> owner =
      shared_reference(py::make_tuple(py::reinterpret_borrow<py::object>(value), source.array));
  return without_gil(
      [&] { return Tensor::wrap_host(placement.device, source.dtype, std::move(shape), data, std::move(owner)); });
}

using AnyArray = Typed<"npt.NDArray[Any]">;

Tensor make(const Typed<"ArrayLike">& array, const Typed<"Any">& dtype, const Typed<"Place">& device, bool copy) {
  const std::optional<DType> wanted = dtype.is_none() ? std::nullopt : std::optional(to_dtype(dtype, "tensor"));
  const Placement placement = to_placement(device, "tensor");
  if (!copy) return wrap(array, wanted, placement);
  if (py::isinstance<Tensor>(array)) {
    const py::array values = to_numpy(array.cast<Tensor&>());
    const DType present = array.cast<Tensor&>().dtype();
    const bool bits = present == DType::kBFloat16;
    const py::object source =
        bits ? py::module_::import("kvtrie._arrays").attr("widen_bfloat16")(values) : py::object(values);
    return to_tensor(source, placement, "tensor", "array", wanted ? *wanted : present);
  }
  return to_tensor(array, placement, "tensor", "array", wanted);
}

const Tensor& defined(const Tensor& self) {
  if (!self.defined())
    fail(ErrorKind::kNotSupported, "tensor", "it has no storage (a null cache stores and computes nothing)");
  return self;
}

Typed<"tuple[int, ...]"> shape_tuple(const Tensor& self) {
  py::tuple shape(self.shape().size());
  for (std::size_t i = 0; i < self.shape().size(); ++i) shape[i] = self.shape()[i];
  return shape;
}

Tensor slice(const Tensor& self, const Typed<"slice">& key) {
  if (!py::isinstance<py::slice>(key)) refuse_type(key, "tensor", "index", "a slice a:b along the first axis");
  if (defined(self).rank() == 0)
    fail(ErrorKind::kType, "tensor", "index: got a slice of a tensor of rank 0, allowed rank 1 or more");
  py::ssize_t begin = 0, end = 0, step = 0, length = 0;
  if (!key.cast<py::slice>().compute(self.dim(0), &begin, &end, &step, &length))
    refuse_raised(key, "tensor", "index", "a slice a:b of integers");
  require(step == 1, "tensor", "slice step: got ", step, ", allowed 1");
  return self.slice(begin, begin + length);
}

Tensor reshape(const Tensor& self, const py::args& sizes) {
  const bool nested = sizes.size() == 1 && (py::isinstance<py::tuple>(sizes[0]) || py::isinstance<py::list>(sizes[0]));
  Shape shape;
  for (const py::handle size : nested ? py::tuple(sizes[0]) : py::tuple(sizes)) {
    shape.push_back(to_integer(size, "reshape", "shape", -1, std::numeric_limits<std::int64_t>::max()));
  }
  return defined(self).reshape(std::move(shape));
}

Tensor astype(const Tensor& self, const Typed<"Any">& dtype) {
  const DType wanted = to_dtype(dtype, "astype");
  if (defined(self).dtype() == wanted) return self;
  if (!self.on_host()) return without_gil([&] { return ops::cast(self, wanted); });
  const bool bits = self.dtype() == DType::kBFloat16;
  const py::array values = to_numpy(self);
  const py::object source =
      bits ? py::module_::import("kvtrie._arrays").attr("widen_bfloat16")(values) : py::object(values);
  return to_tensor(source, {true, nullptr}, "astype", "tensor", wanted);
}

AnyArray array_protocol(const Tensor& self, const Typed<"Any">& dtype, const Typed<"bool | None">& copy) {
  if (!copy.is_none() && !to_flag(copy, "__array__", "copy")) {
    fail(ErrorKind::kArgument, "tensor", "__array__ copy: got False, allowed True or None (use mapped() for a view)");
  }
  const py::array array = to_numpy(defined(self));
  return dtype.is_none() ? array : py::array(array.attr("astype")(dtype, py::arg("copy") = false));
}

// A host view for the length of a `with` block: the tensor's own memory where the host sees it, else a copy that is
// written back at the end.
class Mapping {
 public:
  Mapping(Tensor tensor, bool write) : tensor_(std::move(tensor)), write_(write) {}

  AnyArray enter() {
    if (entered_) fail(ErrorKind::kBusy, "mapped", "the mapping is already entered");
    if (!host_visible(tensor_)) {
      copy_ = to_numpy(tensor_);
      if (!write_) make_read_only(copy_);
    } else {
      const auto access = write_ ? MappedTensor::Access::kReadWrite : MappedTensor::Access::kRead;
      without_gil([&] { mapped_.emplace(tensor_, access); });
    }
    entered_ = true;
    return mapped_ ? view() : copy_;
  }

  void exit() {
    if (!std::exchange(entered_, false)) return;
    const py::array copy = std::exchange(copy_, py::array());
    if (!mapped_ && write_) {
      const void* data = copy.data();
      without_gil([&] { tensor_.copy_from_host(data); });
    }
    mapped_.reset();
  }

 private:
  // The view keeps the memory, so that one that is kept beyond the block is stale but never dangling.
  py::array view() {
    py::array array = numpy_view(tensor_, mapped_->data(), py::cast(tensor_));
    if (!write_) make_read_only(array);
    return array;
  }

  const Tensor tensor_;
  const bool write_;
  bool entered_ = false;
  std::optional<MappedTensor> mapped_;
  py::array copy_;
};

dlpack::DataType dlpack_type(DType dtype) {
  using dlpack::TypeCode;
  switch (dtype) {
    case DType::kFloat32:
      return {TypeCode::kFloat, 32, 1};
    case DType::kFloat16:
      return {TypeCode::kFloat, 16, 1};
    case DType::kBFloat16:
      return {TypeCode::kBFloat, 16, 1};
    case DType::kInt32:
      return {TypeCode::kInt, 32, 1};
    case DType::kUInt32:
      break;
  }
  return {TypeCode::kUInt, 32, 1};
}

// The object that a DLPack consumer holds: the tensor, mapped for as long as that.
struct Exported {
  explicit Exported(Tensor tensor)
      : shape(tensor.shape()), strides(tensor.strides()), mapped(std::move(tensor), MappedTensor::Access::kRead) {
    const DType dtype = mapped->tensor().dtype();
    managed.array = {mapped->data(),
                     {dlpack::kCpu, 0},
                     mapped->tensor().rank(),
                     dlpack_type(dtype),
                     shape.data(),
                     strides.data(),
                     0};
    managed.context = this;
    managed.deleter = [](dlpack::ManagedArray* self) { delete static_cast<Exported*>(self->context); };
  }

  dlpack::ManagedArray managed{};
  Shape shape;
  std::vector<std::int64_t> strides;
  KeptMapping mapped;
};

// Of a capsule that no consumer took over.
void release_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsule) == 0) return;
  auto* unused = static_cast<dlpack::ManagedArray*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  unused->deleter(unused);
}

// (1, 0), in whatever kind of integers.
bool is_host(const py::object& place) {
  if (!PyTuple_Check(place.ptr()) || PyTuple_GET_SIZE(place.ptr()) != 2) return false;
  const auto pair = py::reinterpret_borrow<py::tuple>(place);
  const auto at = [&](int index) { return to_int32(py::object(pair[index]), "__dlpack__", "dl_device"); };
  return at(0) == dlpack::kCpu && at(1) == 0;
}

Typed<"Any"> to_dlpack(const Tensor& self, const Typed<"Any">& stream, const Typed<"Any">&,
                       const Typed<"Any">& dl_device, const Typed<"bool | None">& copy) {
  if (!stream.is_none()) refuse_type(stream, "__dlpack__", "stream", "None: the memory is the host's");
  if (!dl_device.is_none() && !is_host(dl_device)) {
    throw py::buffer_error("[__dlpack__] dl_device: got " + describe(dl_device) + ", allowed (1, 0), the host");
  }
  if (!host_visible(defined(self))) {
    throw py::buffer_error("[__dlpack__] the tensor is in device memory that the host does not see: use numpy()");
  }
  const bool copies = !copy.is_none() && to_flag(copy, "__dlpack__", "copy");
  auto exported = without_gil([&] {
    Tensor source = self;
    if (copies) {
      source = Tensor::host(self.dtype(), self.shape());
      self.copy_to_host(source.host_data());
    }
    return std::make_unique<Exported>(std::move(source));
  });
  PyObject* capsule = PyCapsule_New(&exported->managed, dlpack::kCapsule, &release_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  static_cast<void>(exported.release());  // the capsule's, or its consumer's, from here on
  return py::reinterpret_steal<py::object>(capsule);
}

// Part of a buffer of somebody else's, not copied.
Tensor from_opencl(const Typed<"object">& buffer, const Typed<"object">& dtype, const Typed<"Sequence[int]">& shape,
                   const Typed<"Device">& device, const Typed<"int">& offset) {
  constexpr const char* where = "Tensor.from_opencl";
  auto* const memory = static_cast<_cl_mem*>(to_opencl(buffer, where, "buffer"));
  const DType type = to_dtype(dtype, where);
  const Placement placement = to_placement(device, where);
  require(!placement.on_host, where, "device: got \"host\", allowed the device of the buffer's context");
  Shape sizes;
  for (const py::object& size : to_items(shape, where, "shape", "a sequence of sizes"))
    sizes.push_back(to_integer(size, where, "shape", 0, std::numeric_limits<std::int64_t>::max()));
  const std::int64_t bytes = to_integer(offset, where, "offset", 0, std::numeric_limits<std::int64_t>::max());
  const auto item = static_cast<std::int64_t>(size_of(type));
  require(bytes % item == 0, where, "offset: got ", bytes, " bytes, allowed a multiple of ", item);
  return without_gil([&] {
    cl::Buffer shared = cl::Buffer::share(placement.device, memory);
    return Tensor::share(std::move(shared), type, std::move(sizes), static_cast<std::uint64_t>(bytes / item));
  });
}

std::string representation(const Tensor& self) {
  if (!self.defined()) return "<kvtrie.Tensor without storage>";
  const std::string place = self.on_host() ? "the host" : self.device()->info().name;
  return cat("<kvtrie.Tensor ", name_of(self.dtype()), to_string(self.shape()), " on ", place, ">");
}

}  // namespace

void init_tensor(py::module_& m) {
  py::class_<Mapping> mapped(m, "MappedTensor", "The `with` block of ``Tensor.mapped()``.");
  mapped.def("__enter__", &Mapping::enter);
  mapped.def("__exit__", [](Mapping& self, const py::args&) { self.exit(); });
  refuse_pickling(mapped, "copying the array of its `with` block");
  allow_in_forks(mapped);

  py::class_<Tensor> c(
      m, "Tensor",
      R"(A row-major array in device memory (or in host memory, with ``device="host"``). Made by ``tensor()`` and by
operations.

``x[a:b]`` and ``reshape`` share the storage; nothing copies unless its name says so. Commands keep order: a result may
be used at once, without waiting for it.)");
  c.def_property_readonly("shape", &shape_tuple, "Sizes of the axes, in elements.");
  c.def_property_readonly(
      "dtype", [](const Tensor& self) { return name_of(self.dtype()); },
      "\"float32\", \"float16\", \"bfloat16\", \"int32\" or \"uint32\".");
  c.def_property_readonly("ndim", &Tensor::rank, "The number of axes.");
  c.def_property_readonly(
      "size", [](const Tensor& self) { return self.size(); }, "The number of elements.");
  c.def_property_readonly(
      "nbytes", [](const Tensor& self) { return self.nbytes(); }, "Bytes of its elements.");
  c.def_property_readonly(
      "device", [](const Tensor& self) { return placement_to_python(defined(self).device()); },
      "Its ``Device``, or \"host\".");
  c.def(
      "numpy", [](const Tensor& self) -> AnyArray { return to_numpy(defined(self)); },
      "A copy as a numpy array; bfloat16 as its bits in uint16. Waits for what computes it.");
  c.def("__array__", &array_protocol, py::arg("dtype") = py::none(), py::arg("copy") = py::none());
  c.def("__dlpack__", &to_dlpack, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
        py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
        "A DLPack capsule of host-visible memory, to be read only. Raises ``BufferError`` where the host does not see "
        "it.");
  c.def("__dlpack_device__", [](const Tensor& self) {
    if (!host_visible(defined(self))) {
      throw py::buffer_error(
          "[__dlpack_device__] the tensor is in device memory that the host does not see: use numpy()");
    }
    return py::make_tuple(dlpack::kCpu, 0);
  });
  c.def_static("from_opencl", &from_opencl, py::arg("buffer"), py::arg("dtype"), py::arg("shape"), py::arg("device"),
               py::kw_only(), py::arg("offset") = 0,
               R"(Somebody else's buffer as a tensor, not copied: a ``Buffer`` of pyopencl.

``offset`` in bytes; what it names must lie in the buffer. ``device``: that of the buffer's context, see
``Device.from_opencl``. Both sides hold the buffer. Commands of one queue keep order; between two, ``finish()`` the one
before the other uses the buffer. Raises ``ArgumentError`` for a buffer of another context or that is too small.)");
  c.def_property_readonly(
      "cl_mem", [](const Tensor& self) { return reinterpret_cast<std::uintptr_t>(defined(self).give_away().handle()); },
      R"(Its buffer's cl_mem as an int, for ``pyopencl.Buffer.from_int_ptr``. The elements begin ``cl_offset`` bytes in.

Keep the tensor while others use its buffer. Raises ``ArgumentError`` for a tensor in host memory.)");
  c.def_property_readonly(
      "cl_offset", [](const Tensor& self) { return defined(self).offset() * size_of(self.dtype()); },
      "Where in the buffer ``cl_mem`` its elements begin, in bytes.");
  c.def("__getitem__", &slice, py::arg("index"), "``x[a:b]``: rows a to b of the first axis; shares the storage.");
  c.def("reshape", &reshape, "The same elements in another shape, one of its sizes may be -1; shares the storage.");
  c.def("astype", &astype, py::arg("dtype"),
        "Converted to another dtype, rounded to the nearest even; itself if it has that one.");
  c.def(
      "mapped", [](const Tensor& self, bool write) { return std::make_unique<Mapping>(defined(self), write); },
      py::kw_only(), py::arg("write") = true,
      R"(A context manager that gives a numpy view of the tensor.

Copies nothing where host and device share memory; elsewhere it copies, and writes back at the end of the block (unless
``write=False``). The view must not be used after the block, nor the tensor inside it.)");
  c.def("__len__", [](const Tensor& self) {
    if (self.rank() == 0) fail(ErrorKind::kType, "tensor", "len: got a tensor of rank 0, allowed rank 1 or more");
    return self.dim(0);
  });
  c.def("__repr__", &representation);
  c.attr("__iter__") = py::none();
  refuse_pickling(c, "pickling x.numpy()");
  allow_in_forks(c);

  m.def("tensor", &make, py::arg("array"), py::arg("dtype") = py::none(), py::arg("device") = py::none(),
        py::arg("copy") = true, R"(A tensor from an array.

``array``: anything with the buffer protocol, ``__array__`` or ``__dlpack__``, a ``Tensor``, or nested lists of numbers.
``dtype``: "float32", "float16", "bfloat16" (from uint16 bits, an ml_dtypes array, or floats), "int32" or "uint32";
None: the array's own, with float64 as float32 and int64 as int32. Numbers that do not fit are refused. ``device``: a
``Device``, part of a device's name, "host", or None for the best device. ``copy=False`` never copies: the tensor is the
array's memory and keeps the array. It needs an array of that very dtype, contiguous, writeable, at an address that is
a multiple of 64 bytes, and a device that shares memory with the host; ``NotSupportedError`` says what is missing.

Raises ``ArgumentTypeError`` or ``ArgumentError`` for what is no such array.)");
}

}  // namespace kvtrie::binding
