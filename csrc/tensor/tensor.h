// Tensors: dtype, shape and a place in a storage. No arithmetic lives here.
//
// Concept. A `Tensor` is a cheap handle on a row-major, contiguous range of a shared `Storage`. Storage is either
// device memory (an OpenCL buffer) or host memory; the host kind exists so that everything above can run and be tested
// without OpenCL. `slice` and `reshape` share the storage; nothing here copies unless its name says so.
//
// Threads: a Tensor is a value; distinct Tensors may be used from distinct threads. Device commands keep queue order.
// Units: shapes in elements, `nbytes` in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/convert.h"
#include "base/dtype.h"
#include "cl/device.h"

namespace kvtrie {

using Shape = std::vector<std::int64_t>;
std::string to_string(const Shape& shape);      // "[2, 3]"
std::size_t element_count(const Shape& shape);  // checked product; throws kArgument on overflow or negatives

class Storage;  // host or device memory; see storage.h

class Tensor {
 public:
  Tensor() = default;  // no storage; `defined()` is false

  // Device memory, contents undefined; zeroed host memory when `device` is null.
  static Tensor empty(const cl::DevicePtr& device, DType dtype, Shape shape);
  static Tensor zeros(const cl::DevicePtr& device, DType dtype, Shape shape);
  static Tensor host(DType dtype, Shape shape);  // 64-byte aligned host memory, zeroed
  // Copies `bytes` from `data` (host) to the device, or to host memory when `device` is null.
  static Tensor from_host(const cl::DevicePtr& device, DType dtype, Shape shape, const void* data);
  // Uses the host memory at `data` without a copy; `owner` keeps it alive. `device` may be null. On a device that does
  // not share the host's memory, or for an address that is not a multiple of 64, copies instead.
  static Tensor wrap_host(const cl::DevicePtr& device, DType dtype, Shape shape, void* data,
                          std::shared_ptr<void> owner);

  // A part of a buffer that others use, too (cl::Buffer::share), from `offset` elements on.
  static Tensor share(cl::Buffer buffer, DType dtype, Shape shape, std::uint64_t offset);
  const cl::Buffer& give_away() const;  // the buffer, for others to use; its memory does not become another tensor's

  bool defined() const noexcept { return storage_ != nullptr; }
  bool on_host() const noexcept;             // host storage (no device)
  const cl::DevicePtr& device() const;       // null for host storage
  bool shares_host_memory() const noexcept;  // made by wrap_host without a copy
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  std::int64_t dim(int axis) const;  // negative counts from the end
  int rank() const noexcept { return static_cast<int>(shape_.size()); }
  std::size_t size() const;  // elements; 0 without storage
  std::size_t nbytes() const;
  std::vector<std::int64_t> strides() const;  // row-major, in elements

  // Device storage: the buffer and where this tensor starts in it, in *elements* of its dtype.
  const cl::Buffer& buffer() const;
  std::uint64_t offset() const noexcept { return offset_; }

  // Host storage: its bytes.
  std::byte* host_data() const;
  template <class T>
  std::span<T> host_span() const {
    return {reinterpret_cast<T*>(host_data()), size()};
  }

  Tensor slice(std::int64_t begin, std::int64_t end) const;  // along the first axis; shares storage
  Tensor reshape(Shape shape) const;                         // one -1 allowed; shares storage

  void copy_to_host(void* to) const;            // nbytes() bytes; waits
  void copy_from_host(const void* from) const;  // nbytes() bytes; waits

 private:
  Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, std::uint64_t offset);

  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  std::uint64_t offset_ = 0;
};

}  // namespace kvtrie
