#include "tensor/mapped_tensor.h"

#include <utility>

#include "base/error.h"

namespace kvtrie {

MappedTensor::MappedTensor(Tensor tensor, Access access) : tensor_(std::move(tensor)) {
  require(tensor_.defined(), "MappedTensor", "tensor: got one without storage");
  if (tensor_.on_host()) {
    data_ = tensor_.host_data();
  } else if (tensor_.nbytes() != 0) {
    const std::size_t offset = tensor_.offset() * size_of(tensor_.dtype());
    data_ = static_cast<std::byte*>(
        tensor_.device()->map(tensor_.buffer(), offset, tensor_.nbytes(), access == Access::kReadWrite));
    mapped_ = true;
  }
}

MappedTensor::MappedTensor(MappedTensor&& other) noexcept
    : tensor_(std::move(other.tensor_)),
      data_(std::exchange(other.data_, nullptr)),
      mapped_(std::exchange(other.mapped_, false)) {}

MappedTensor::~MappedTensor() {
  if (mapped_) tensor_.device()->unmap(tensor_.buffer(), data_);
}

}  // namespace kvtrie
