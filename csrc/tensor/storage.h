// The memory behind tensors: one device buffer, or host memory, shared by every tensor that is a view of it.
//
// Threads: a Storage does not change after it was made; its writers agree among themselves who may touch its bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cl/device.h"
#include "tensor/buffer_pool.h"

namespace kvtrie {

class Storage {
 public:
  static std::shared_ptr<Storage> on_device(const cl::DevicePtr& device, std::size_t bytes);  // contents undefined
  // A copy of `data`, taken without waiting for the queue; for the small tables a step needs. REQUIRES: bytes > 0.
  static std::shared_ptr<Storage> copy_on_device(const cl::DevicePtr& device, const void* data, std::size_t bytes);
  static std::shared_ptr<Storage> on_host(std::size_t bytes);  // 64-byte aligned, zeroed
  // Host memory of `owner`, in place. With a device, its memory must be unified and `data` 64-byte aligned.
  static std::shared_ptr<Storage> wrap(const cl::DevicePtr& device, void* data, std::size_t bytes,
                                       std::shared_ptr<void> owner);
  // A buffer that others use, too (cl::Buffer::share): never one for other tensors.
  static std::shared_ptr<Storage> share(cl::Buffer buffer);
  // From now on others hold the buffer, too: its memory does not become another tensor's.
  void give_away() noexcept { recyclable_ = false; }
  // Whether `wrap` works for this device and address.
  static bool can_wrap(const cl::DevicePtr& device, const void* data) noexcept;

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const cl::DevicePtr& device() const noexcept { return device_; }  // null for host storage
  const cl::Buffer& buffer() const noexcept { return buffer_; }     // empty for host storage
  std::byte* host_data() const noexcept { return data_; }           // null unless the host can address it in place
  bool shares_host_memory() const noexcept { return owner_ != nullptr; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Storage(cl::DevicePtr device, std::size_t bytes) : device_(std::move(device)), bytes_(bytes) {}

  const cl::DevicePtr device_;
  const std::size_t bytes_;
  std::shared_ptr<BufferPool> pool_;     // where buffer_ goes back to; null when it was wrapped
  std::atomic<bool> recyclable_ = true;  // whether the pool may keep buffer_ for others
  std::shared_ptr<void> owner_;          // keeps wrapped memory alive
  std::byte* data_ = nullptr;
  bool owns_data_ = false;
  cl::Buffer buffer_;
};

// Host storages that own their memory, now.
struct HostStorages {
  std::uint64_t storages = 0, bytes = 0;
};
HostStorages host_storages_live() noexcept;

}  // namespace kvtrie
