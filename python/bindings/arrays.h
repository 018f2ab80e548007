// Arrays to tensors and back.
#pragma once

#include <pybind11/numpy.h>

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "device.h"
#include "gil.h"
#include "tensor/mapped_tensor.h"
#include "tensor/tensor.h"

namespace kvtrie::binding {

// A host array ready to become a tensor: contiguous, native byte order, of a dtype that tensors have.
struct HostArray {
  py::array array;  // bfloat16 lies in uint16
  DType dtype = DType::kFloat32;
};

Shape shape_of(const py::array& array);
DType to_dtype(py::handle name, std::string_view where);

// `value`: anything with the buffer protocol, __array__ or __dlpack__, or nested sequences. `wanted` none: the dtype it
// has, or the nearest that tensors have (float64 -> float32, int64 -> int32), refusing values that do not fit.
HostArray to_host_array(py::handle value, std::optional<DType> wanted, std::string_view where, std::string_view name);

// A tensor as it is; anything else copied to `placement`.
Tensor to_tensor(py::handle value, const Placement& placement, std::string_view where, std::string_view name,
                 std::optional<DType> wanted = {});
// None becomes an undefined tensor.
Tensor to_optional_tensor(py::handle value, const Placement& placement, std::string_view where, std::string_view name,
                          std::optional<DType> wanted = {});
// V beside these keys: None becomes rows without numbers, for caches that have no values.
Tensor to_values(py::handle value, const Tensor& keys, const Placement& placement, std::string_view where);
// Where the first tensor among `values` is; the default device when there is none.
Placement placement_among(std::initializer_list<py::handle> values);

py::array to_numpy(const Tensor& tensor);  // a copy; bfloat16 as its bits in uint16
// The tensor's own memory where the host sees it, mapped for as long as the array lives; a copy elsewhere. Waits for
// what computes it. REQUIRES: nobody else uses the tensor from then on.
py::array to_numpy_in_place(Tensor tensor);
bool host_visible(const Tensor& tensor);
// A tensor's memory mapped for the host, for something of Python's that may also end in a forked process, where it is
// left as it is.
class KeptMapping {
 public:
  KeptMapping(Tensor tensor, MappedTensor::Access access) : mapped_(std::move(tensor), access) {}
  ~KeptMapping();
  KeptMapping(const KeptMapping&) = delete;
  KeptMapping& operator=(const KeptMapping&) = delete;
  const MappedTensor& operator*() const noexcept { return mapped_; }
  const MappedTensor* operator->() const noexcept { return &mapped_; }

 private:
  HomeProcess home_;
  MappedTensor mapped_;
};
// An array over memory that `owner` keeps.
py::array numpy_view(const Tensor& tensor, void* data, py::handle owner);

py::object optional_to_python(Tensor tensor);  // None for an undefined one

}  // namespace kvtrie::binding
