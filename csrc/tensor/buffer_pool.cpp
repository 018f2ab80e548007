#include "tensor/buffer_pool.h"

#include <utility>

#include "base/error.h"
#include "cl/clblast.h"

namespace kvtrie {
namespace {

constexpr std::size_t kWasteDivisor = 4;  // a recycled buffer may be larger than asked for by this part of the request
constexpr std::uint64_t kLimitShare = 4;  // one kept buffer may take this part of the pool's limit
constexpr std::uint64_t kMaxKept = 1024;  // buffers: with tens of thousands alive, drivers search long lists

}  // namespace

std::shared_ptr<BufferPool> BufferPool::of(const cl::DevicePtr& device) {
  return device->extension<BufferPool>([&] { return std::make_shared<BufferPool>(*device); });
}

void BufferPool::forget(std::multimap<std::size_t, KeptList::iterator>::iterator at) noexcept {
  memory_.pooled_bytes -= at->first;
  --memory_.pooled_buffers;
  kept_.erase(at->second);
  by_size_.erase(at);
}

cl::Buffer BufferPool::take(const cl::DevicePtr& device, std::size_t bytes) {
  const MutexLock lock(mutex_);
  const auto at = by_size_.lower_bound(bytes);
  if (at == by_size_.end() || at->first - bytes > bytes / kWasteDivisor) return {};
  cl::Buffer buffer = cl::Buffer::adopt(device, at->second->handle, at->first);
  forget(at);
  return buffer;
}

template <class Make>
cl::Buffer BufferPool::made(Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDevice || trim(0) == 0) throw;
    return make();
  }
}

cl::Buffer BufferPool::counted(cl::Buffer buffer) {
  const MutexLock lock(mutex_);
  ++memory_.live_buffers;
  memory_.live_bytes += buffer.bytes();
  return buffer;
}

cl::Buffer BufferPool::acquire(const cl::DevicePtr& device, std::size_t bytes) {
  cl::Buffer kept = take(device, bytes);
  return counted(kept ? std::move(kept) : made([&] { return cl::Buffer(device, bytes); }));
}

cl::Buffer BufferPool::acquire_copy(const cl::DevicePtr& device, const void* data, std::size_t bytes) {
  return counted(made([&] { return cl::Buffer::copy_of(device, data, bytes); }));
}

bool BufferPool::keep(cl::Buffer& buffer, bool recyclable) {
  const MutexLock lock(mutex_);
  const std::size_t bytes = buffer.bytes();
  --memory_.live_buffers;
  memory_.live_bytes -= bytes;
  const bool full = memory_.pooled_buffers >= kMaxKept;
  if (!recyclable || full || bytes > memory_.pool_limit_bytes / kLimitShare) return false;
  try {
    kept_.push_back({buffer.handle(), bytes});
    try {
      by_size_.emplace(bytes, std::prev(kept_.end()));
    } catch (...) {
      kept_.pop_back();
      throw;
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  buffer.detach();
  ++memory_.pooled_buffers;
  memory_.pooled_bytes += bytes;
  return true;
}

void BufferPool::give_back(cl::Buffer buffer, bool recyclable) noexcept {
  if (!keep(buffer, recyclable)) return;  // the buffer ends here
  std::uint64_t limit = 0;
  {
    const MutexLock lock(mutex_);
    if (memory_.pooled_bytes <= memory_.pool_limit_bytes) return;
    limit = memory_.pool_limit_bytes;
  }
  trim(limit);
}

std::uint64_t BufferPool::trim(std::uint64_t keep_bytes) noexcept {
  const MutexLock lock(mutex_);
  std::uint64_t freed = 0;
  while (memory_.pooled_bytes > keep_bytes) {
    const KeptList::iterator oldest = kept_.begin();
    auto at = by_size_.lower_bound(oldest->bytes);
    while (at->second != oldest) ++at;
    device_.release_detached(oldest->handle, oldest->bytes);
    freed += oldest->bytes;
    forget(at);
  }
  return freed;
}

void BufferPool::set_limit(std::uint64_t bytes) noexcept {
  {
    const MutexLock lock(mutex_);
    memory_.pool_limit_bytes = bytes;
  }
  trim(bytes);
}

TensorMemory BufferPool::memory() const {
  const MutexLock lock(mutex_);
  return memory_;
}

TensorMemory tensor_memory(const cl::DevicePtr& device) { return BufferPool::of(device)->memory(); }

std::uint64_t trim_device_memory(const cl::DevicePtr& device) {
  return BufferPool::of(device)->trim(0) + cl::release_blas_workspace(*device);
}

}  // namespace kvtrie
