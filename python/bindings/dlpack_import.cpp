// Memory of others that they show by DLPack, as numpy arrays that keep it: numpy's own `from_dlpack` knows no bfloat16.
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "convert.h"
#include "dlpack.h"

namespace kvtrie::binding {
namespace {

// Whose memory it is: for messages.
struct Asked {
  std::string where, name;
};

constexpr std::int32_t kMostAxes = 32;  // of arrays of every version of numpy

// An array that was taken over from a capsule; gives it back when the last array over it goes.
class Taken {
 public:
  Taken() = default;  // of nothing: made before a capsule is taken over, as there may be no memory for it
  ~Taken() {
    if (plain_ != nullptr && plain_->deleter != nullptr) plain_->deleter(plain_);
    if (versioned_ != nullptr && versioned_->deleter != nullptr) versioned_->deleter(versioned_);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  void own(dlpack::ManagedArray* plain) noexcept { plain_ = plain; }
  void own(dlpack::VersionedArray* versioned) noexcept { versioned_ = versioned; }
  const dlpack::Array& array() const noexcept { return plain_ != nullptr ? plain_->array : versioned_->array; }
  // An array that does not say that it may be written to is only read.
  bool writeable() const noexcept { return versioned_ != nullptr && (versioned_->flags & dlpack::kReadOnly) == 0; }

 private:
  dlpack::ManagedArray* plain_ = nullptr;
  dlpack::VersionedArray* versioned_ = nullptr;
};

template <class Managed>
Managed* taken_over(const py::object& capsule, const char* name, const char* used) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr || PyCapsule_SetName(capsule.ptr(), used) != 0) throw py::error_already_set();
  return managed;
}

std::unique_ptr<Taken> take(const py::object& capsule, const Asked& asked) {
  auto taken = std::make_unique<Taken>();
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsule) != 0) {
    taken->own(taken_over<dlpack::ManagedArray>(capsule, dlpack::kCapsule, dlpack::kUsedCapsule));
    return taken;
  }
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedCapsule) == 0)
    refuse_type(capsule, asked.where, asked.name, "a DLPack capsule that nobody has taken over");
  auto* versioned =
      taken_over<dlpack::VersionedArray>(capsule, dlpack::kVersionedCapsule, dlpack::kUsedVersionedCapsule);
  taken->own(versioned);
  require(versioned->major == dlpack::kMajor, asked.where, asked.name, ": got version ", versioned->major, " of DLPack",
          ", allowed ", dlpack::kMajor, " or 0");
  return taken;
}

// Asks for a versioned capsule first; who does not know of versions takes no such argument.
py::object capsule_of(const py::object& value) {
  const py::object method = value.attr("__dlpack__");
  try {
    return method(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method();
}

[[noreturn]] void refuse_dtype(const dlpack::DataType& dtype, const Asked& asked) {
  fail(ErrorKind::kType, asked.where, asked.name, ": got an array of type code ", static_cast<int>(dtype.code),
       " of DLPack, ", int{dtype.bits}, " bits in ", dtype.lanes, dtype.lanes == 1 ? " lane" : " lanes",
       ", allowed integers, floats and bfloat16 in one lane");
}

py::dtype numpy_type(const dlpack::DataType& dtype, const Asked& asked) {
  using dlpack::TypeCode;
  const int bits = dtype.bits;
  const bool whole = bits == 8 || bits == 16 || bits == 32 || bits == 64;
  if (dtype.lanes != 1) refuse_dtype(dtype, asked);
  if (dtype.code == TypeCode::kInt && whole) return py::dtype("i" + std::to_string(bits / 8));
  if (dtype.code == TypeCode::kUInt && whole) return py::dtype("u" + std::to_string(bits / 8));
  if (dtype.code == TypeCode::kFloat && whole && bits != 8) return py::dtype("f" + std::to_string(bits / 8));
  if (dtype.code == TypeCode::kBFloat && bits == 16) return py::dtype("u2");
  if (dtype.code == TypeCode::kComplex && (bits == 64 || bits == 128)) return py::dtype("c" + std::to_string(bits / 8));
  if (dtype.code == TypeCode::kBool && bits == 8) return py::dtype("?");
  refuse_dtype(dtype, asked);
}

struct Layout {
  std::vector<py::ssize_t> shape, strides;  // strides in bytes
};

Layout layout_of(const dlpack::Array& array, py::ssize_t item_bytes, const Asked& asked) {
  require(array.rank >= 0 && array.rank <= kMostAxes && (array.rank == 0 || array.shape != nullptr), asked.where,
          asked.name, ": got an array of rank ", array.rank, ", allowed 0 to ", kMostAxes);
  Layout layout;
  layout.strides.resize(static_cast<std::size_t>(array.rank));
  py::ssize_t stride = item_bytes;
  bool empty = false;
  for (int axis = array.rank - 1; axis >= 0; --axis) {
    require(array.shape[axis] >= 0 && array.shape[axis] <= std::numeric_limits<std::int32_t>::max() * std::int64_t{64},
            asked.where, asked.name, ": got an axis of ", array.shape[axis],
            " elements, allowed what fits into memory");
    layout.strides[static_cast<std::size_t>(axis)] =
        array.strides == nullptr ? stride : static_cast<py::ssize_t>(array.strides[axis]) * item_bytes;
    stride *= static_cast<py::ssize_t>(std::max<std::int64_t>(array.shape[axis], 1));
    empty = empty || array.shape[axis] == 0;
  }
  layout.shape.assign(array.shape, array.shape + array.rank);
  require(empty || array.data != nullptr, asked.where, asked.name, ": got an array without memory");
  return layout;
}

// (array, whether it has the bits of bfloat16). Exceptions of its own methods pass through.
Typed<"tuple[npt.NDArray[np.generic], bool]"> from_dlpack(const Typed<"object">& value, std::string where,
                                                          std::string name) {
  const Asked asked{std::move(where), std::move(name)};
  std::unique_ptr<Taken> taken = take(capsule_of(value), asked);
  const dlpack::Array& source = taken->array();
  const std::int32_t place = source.device.type;
  require(place == dlpack::kCpu || place == dlpack::kCudaHost || place == dlpack::kRocmHost, asked.where, asked.name,
          ": got memory of DLPack device type ", place, ", allowed the host's");
  const py::dtype dtype = numpy_type(source.dtype, asked);
  Layout layout = layout_of(source, dtype.itemsize(), asked);
  void* const data = source.data == nullptr ? nullptr : static_cast<std::byte*>(source.data) + source.byte_offset;
  const bool bits = source.dtype.code == dlpack::TypeCode::kBFloat, writeable = taken->writeable();
  const py::capsule owner(taken.get(), [](void* kept) { delete static_cast<Taken*>(kept); });
  static_cast<void>(taken.release());  // the capsule's
  py::array array = data == nullptr ? py::array(dtype, std::move(layout.shape))
                                    : py::array(dtype, std::move(layout.shape), std::move(layout.strides), data, owner);
  if (!writeable) make_read_only(array);
  return py::make_tuple(std::move(array), bits);
}

}  // namespace

void init_dlpack_import(py::module_& m) {
  m.def("_from_dlpack", &from_dlpack, py::arg("value"), py::arg("where"), py::arg("name"),
        "For kvtrie._arrays: (numpy array over the value's memory, whether it has the bits of bfloat16).");
}

}  // namespace kvtrie::binding
