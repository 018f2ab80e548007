// Recycles device buffers, so that a decode loop does not pay for creating and first touching one per operation.
//
// Concept. A buffer that a tensor gives back is kept and handed to the next request that it fits with at most a quarter
// of it wasted. One in-order queue makes that safe at once: commands of the new owner run after those of the old. Kept
// buffers are bounded in bytes, the least recently returned going first, and in number. Contents are undefined: they
// are old bytes.
//
//     live bytes     in tensors now: returns to its start when they end
//     pooled bytes   kept for the next request: counted by the device as buffers, freed by trim()
//
// The pool belongs to its device and dies with it. Threads: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "cl/device.h"

namespace kvtrie {

struct TensorMemory {
  std::uint64_t live_buffers = 0, live_bytes = 0;
  std::uint64_t pooled_buffers = 0, pooled_bytes = 0, pool_limit_bytes = 0;
};

class BufferPool {
 public:
  static constexpr std::uint64_t kDefaultLimitBytes = std::uint64_t{64} << 20;
  static std::shared_ptr<BufferPool> of(const cl::DevicePtr& device);

  explicit BufferPool(cl::Device& device) : device_(device) {}
  ~BufferPool() { trim(0); }
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of at least `bytes`. When the device has no room, the pool is emptied and the request tried once more.
  cl::Buffer acquire(const cl::DevicePtr& device, std::size_t bytes);
  // A new buffer that begins as a copy of `data`, made without waiting for the queue (cl::Buffer::copy_of).
  cl::Buffer acquire_copy(const cl::DevicePtr& device, const void* data, std::size_t bytes);
  // Ends the life of a buffer in a tensor. Only `recyclable` ones are kept: copies are always new, so keeping theirs
  // would fill the pool with what nobody asks for.
  void give_back(cl::Buffer buffer, bool recyclable) noexcept;
  // Frees kept buffers until at most `keep_bytes` are kept; bytes freed.
  std::uint64_t trim(std::uint64_t keep_bytes) noexcept;
  void set_limit(std::uint64_t bytes) noexcept;
  TensorMemory memory() const;

 private:
  struct Kept {
    _cl_mem* handle;
    std::size_t bytes;
  };
  using KeptList = std::list<Kept>;  // least recently returned first
  cl::Buffer take(const cl::DevicePtr& device, std::size_t bytes);
  // `make()`, and once more with an empty pool when the device has no room.
  template <class Make>
  cl::Buffer made(Make&& make);
  cl::Buffer counted(cl::Buffer buffer);
  bool keep(cl::Buffer& buffer, bool recyclable);
  void forget(std::multimap<std::size_t, KeptList::iterator>::iterator at) noexcept KVTRIE_REQUIRES(mutex_);

  cl::Device& device_;
  mutable Mutex mutex_;
  KeptList kept_ KVTRIE_GUARDED_BY(mutex_);
  std::multimap<std::size_t, KeptList::iterator> by_size_ KVTRIE_GUARDED_BY(mutex_);  // one entry for each of kept_
  TensorMemory memory_ KVTRIE_GUARDED_BY(mutex_){.pool_limit_bytes = kDefaultLimitBytes};
};

// The bytes that tensors hold on the device now, and the bytes kept for them.
TensorMemory tensor_memory(const cl::DevicePtr& device);
// Frees everything kept for later (recycled buffers, CLBlast's workspace); bytes freed.
std::uint64_t trim_device_memory(const cl::DevicePtr& device);

}  // namespace kvtrie
