// A tensor's bytes in the host's address space for as long as this object lives.
//
// Where host and device share memory nothing is copied; elsewhere the driver copies in and, when writing, back out.
// Making one waits for every command enqueued before. Commands that use the tensor must not be enqueued while it lives.
//
// Threads: one owner at a time.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/tensor.h"

namespace kvtrie {

class MappedTensor {
 public:
  enum class Access { kRead, kReadWrite };

  MappedTensor(Tensor tensor, Access access);
  ~MappedTensor();
  MappedTensor(MappedTensor&& other) noexcept;
  MappedTensor& operator=(MappedTensor&&) = delete;

  const Tensor& tensor() const noexcept { return tensor_; }
  std::byte* data() const noexcept { return data_; }
  template <class T>
  std::span<T> span() const {
    return {reinterpret_cast<T*>(data_), tensor_.size()};
  }

 private:
  Tensor tensor_;
  std::byte* data_ = nullptr;
  bool mapped_ = false;  // through OpenCL; host storage needs no mapping
};

}  // namespace kvtrie
