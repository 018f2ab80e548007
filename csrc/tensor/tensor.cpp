#include "tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/storage.h"

namespace kvtrie {
namespace {

// Up to here from_host copies at creation instead of through the queue: a blocking write waits for every command before
// it (35 us on PoCL even when there is none), a creation with a copy costs about 1 us and the memcpy.
constexpr std::size_t kQueuelessBytes = 256 * 1024;

std::size_t bytes_of(DType dtype, const Shape& shape) {
  return checked_mul(element_count(shape), size_of(dtype), "Tensor", "bytes of shape");
}

// `shape` with its -1, if any, replaced so that it has `count` elements.
Shape resolve(Shape shape, std::size_t count) {
  const auto open = std::find(shape.begin(), shape.end(), -1);
  if (open == shape.end()) return shape;
  *open = 1;
  require(std::find(shape.begin(), shape.end(), -1) == shape.end(), "Tensor.reshape",
          "shape: got more than one -1, allowed one");
  const std::size_t rest = element_count(shape);
  *open = -1;
  require(rest != 0 && count % rest == 0, "Tensor.reshape", "shape: got ", to_string(shape), ", allowed one that ",
          count, " elements fill");
  *open = static_cast<std::int64_t>(count / rest);
  return shape;
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

std::size_t element_count(const Shape& shape) {
  std::size_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0)  // the text of a shape costs more than all else here
      fail(ErrorKind::kArgument, "Tensor", "shape: got ", to_string(shape), ", allowed extents of 0 or more");
    empty = empty || extent == 0;
    if (extent != 0) count = checked_mul(count, static_cast<std::size_t>(extent), "Tensor", "elements of shape");
  }
  return empty ? 0 : count;
}

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, std::uint64_t offset)
    : storage_(std::move(storage)), dtype_(dtype), shape_(std::move(shape)), offset_(offset) {}

Tensor Tensor::empty(const cl::DevicePtr& device, DType dtype, Shape shape) {
  if (device == nullptr) return host(dtype, std::move(shape));
  const std::size_t bytes = bytes_of(dtype, shape);
  return {Storage::on_device(device, bytes), dtype, std::move(shape), 0};
}

Tensor Tensor::zeros(const cl::DevicePtr& device, DType dtype, Shape shape) {
  Tensor tensor = empty(device, dtype, std::move(shape));
  if (device != nullptr) device->fill(tensor.buffer(), 0, tensor.nbytes(), 0);
  return tensor;
}

Tensor Tensor::host(DType dtype, Shape shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  return {Storage::on_host(bytes), dtype, std::move(shape), 0};
}

Tensor Tensor::from_host(const cl::DevicePtr& device, DType dtype, Shape shape, const void* data) {
  const std::size_t bytes = bytes_of(dtype, shape);
  if (device != nullptr && data != nullptr && bytes > 0 && bytes <= kQueuelessBytes) {
    return {Storage::copy_on_device(device, data, bytes), dtype, std::move(shape), 0};
  }
  Tensor tensor = empty(device, dtype, std::move(shape));
  tensor.copy_from_host(data);
  return tensor;
}

Tensor Tensor::wrap_host(const cl::DevicePtr& device, DType dtype, Shape shape, void* data,
                         std::shared_ptr<void> owner) {
  const std::size_t bytes = bytes_of(dtype, shape);
  if (bytes == 0 || !Storage::can_wrap(device, data)) return from_host(device, dtype, std::move(shape), data);
  return {Storage::wrap(device, data, bytes, std::move(owner)), dtype, std::move(shape), 0};
}

Tensor Tensor::share(cl::Buffer buffer, DType dtype, Shape shape, std::uint64_t offset) {
  constexpr const char* where = "Tensor.share";
  const std::size_t room = buffer.bytes() / size_of(dtype), count = element_count(shape);
  require(offset <= room && count <= room - offset, where, "shape: got ", to_string(shape), " from element ", offset,
          " on, allowed what fits into a buffer of ", room, " elements");
  return {Storage::share(std::move(buffer)), dtype, std::move(shape), offset};
}

const cl::Buffer& Tensor::give_away() const {
  const cl::Buffer& shared = buffer();
  storage_->give_away();
  return shared;
}

bool Tensor::on_host() const noexcept { return storage_ != nullptr && storage_->device() == nullptr; }
bool Tensor::shares_host_memory() const noexcept { return storage_ != nullptr && storage_->shares_host_memory(); }

const cl::DevicePtr& Tensor::device() const {
  static const cl::DevicePtr none;
  return storage_ == nullptr ? none : storage_->device();
}

std::int64_t Tensor::dim(int axis) const {
  const int index = axis < 0 ? axis + rank() : axis;
  require(index >= 0 && index < rank(), "Tensor.dim", "axis: got ", axis, ", allowed -", rank(), " to ", rank() - 1);
  return shape_[static_cast<std::size_t>(index)];
}

// Shapes were checked when the tensor was made, so plain products are enough from here on.
std::size_t Tensor::size() const {
  if (!defined()) return 0;
  return std::accumulate(shape_.begin(), shape_.end(), std::size_t{1}, [](std::size_t product, std::int64_t extent) {
    return product * static_cast<std::size_t>(extent);
  });
}

std::size_t Tensor::nbytes() const { return size() * size_of(dtype_); }

std::vector<std::int64_t> Tensor::strides() const {
  std::vector<std::int64_t> strides(shape_.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape_[axis];
  }
  return strides;
}

const cl::Buffer& Tensor::buffer() const {
  require(storage_ != nullptr && storage_->device() != nullptr, "Tensor.buffer", "place: got ",
          storage_ == nullptr ? "no storage" : "host memory", ", allowed device memory");
  return storage_->buffer();
}

std::byte* Tensor::host_data() const {
  require(on_host(), "Tensor.host_data", "place: got ", storage_ == nullptr ? "no storage" : "device memory",
          ", allowed host memory");
  return storage_->host_data() + offset_ * size_of(dtype_);
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  require(rank() > 0, "Tensor.slice", "rank: got 0, allowed 1 or more");
  require(begin >= 0 && begin <= end && end <= shape_[0], "Tensor.slice", "range: got ", begin, " to ", end,
          ", allowed within 0 to ", shape_[0]);
  const std::uint64_t row = shape_[0] == 0 ? 0 : size() / static_cast<std::size_t>(shape_[0]);
  Shape shape = shape_;
  shape[0] = end - begin;
  return {storage_, dtype_, std::move(shape), offset_ + static_cast<std::uint64_t>(begin) * row};
}

Tensor Tensor::reshape(Shape shape) const {
  shape = resolve(std::move(shape), size());
  require(element_count(shape) == size(), "Tensor.reshape", "shape: got ", to_string(shape), ", allowed one with ",
          size(), " elements like ", to_string(shape_));
  return {storage_, dtype_, std::move(shape), offset_};
}

void Tensor::copy_to_host(void* to) const {
  require(defined(), "Tensor.copy_to_host", "tensor: got one without storage");
  const std::size_t bytes = nbytes();
  if (bytes == 0) return;
  require(to != nullptr, "Tensor.copy_to_host", "to: got a null pointer");
  if (const cl::DevicePtr& from = device()) {
    from->read(buffer(), offset_ * size_of(dtype_), to, bytes);
  } else {
    std::memcpy(to, host_data(), bytes);
  }
}

void Tensor::copy_from_host(const void* from) const {
  require(defined(), "Tensor.copy_from_host", "tensor: got one without storage");
  const std::size_t bytes = nbytes();
  if (bytes == 0) return;
  require(from != nullptr, "Tensor.copy_from_host", "from: got a null pointer");
  if (const cl::DevicePtr& to = device()) {
    to->write(buffer(), offset_ * size_of(dtype_), from, bytes);
  } else {
    std::memcpy(host_data(), from, bytes);
  }
}

}  // namespace kvtrie
