#include "tensor/storage.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "tensor/storage_keeper.h"

namespace kvtrie {
namespace {

constexpr std::align_val_t kAlignment{64};

std::atomic<std::uint64_t> host_storages{0}, host_bytes{0};

// An empty tensor still has a place, so that its buffer can be an argument.
std::size_t at_least_one(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

}  // namespace

HostStorages host_storages_live() noexcept { return {host_storages, host_bytes}; }

std::shared_ptr<Storage> Storage::on_device(const cl::DevicePtr& device, std::size_t bytes) {
  require(device != nullptr, "Storage", "device: got none, allowed an open device");
  StorageKeeper* const keeper = StorageKeeper::current(device);
  if (keeper != nullptr) {
    if (std::shared_ptr<Storage> again = keeper->reuse(bytes)) return again;
  }
  std::shared_ptr<Storage> storage(new Storage(device, bytes));
  storage->pool_ = BufferPool::of(device);
  storage->buffer_ = storage->pool_->acquire(device, at_least_one(bytes));
  if (keeper != nullptr) keeper->keep(storage);
  return storage;
}

std::shared_ptr<Storage> Storage::copy_on_device(const cl::DevicePtr& device, const void* data, std::size_t bytes) {
  std::shared_ptr<Storage> storage(new Storage(device, bytes));
  storage->pool_ = BufferPool::of(device);
  if (!device->info().unified_memory) {
    storage->buffer_ = storage->pool_->acquire(device, bytes);
    device->upload(storage->buffer_, data, bytes);
    storage->recyclable_ = StorageKeeper::current(device) == nullptr;  // what is recorded knows it as an upload
    return storage;
  }
  storage->buffer_ = storage->pool_->acquire_copy(device, data, bytes);
  storage->recyclable_ = false;
  return storage;
}

std::shared_ptr<Storage> Storage::on_host(std::size_t bytes) {
  std::shared_ptr<Storage> storage(new Storage(nullptr, bytes));
  const std::size_t size = at_least_one(bytes);
  storage->data_ = static_cast<std::byte*>(::operator new(size, kAlignment));
  storage->owns_data_ = true;
  ++host_storages;
  host_bytes += bytes;
  std::memset(storage->data_, 0, size);
  return storage;
}

bool Storage::can_wrap(const cl::DevicePtr& device, const void* data) noexcept {
  if (data == nullptr) return false;
  if (device == nullptr) return true;
  return device->info().unified_memory &&
         reinterpret_cast<std::uintptr_t>(data) % static_cast<std::size_t>(kAlignment) == 0;
}

std::shared_ptr<Storage> Storage::wrap(const cl::DevicePtr& device, void* data, std::size_t bytes,
                                       std::shared_ptr<void> owner) {
  require(can_wrap(device, data), "Storage.wrap", "data: got ", data, ", allowed host memory the device can use");
  require(owner != nullptr, "Storage.wrap", "owner: got none, allowed what keeps the memory alive");
  std::shared_ptr<Storage> storage(new Storage(device, bytes));
  if (device != nullptr) storage->buffer_ = cl::Buffer::wrap_host(device, data, bytes);
  storage->data_ = static_cast<std::byte*>(data);
  storage->owner_ = std::move(owner);
  return storage;
}

std::shared_ptr<Storage> Storage::share(cl::Buffer buffer) {
  std::shared_ptr<Storage> storage(new Storage(buffer.device(), buffer.bytes()));
  storage->buffer_ = std::move(buffer);
  return storage;
}

// The device may still be reading wrapped memory, which its owner is about to free: the only case that waits.
Storage::~Storage() {
  if (owns_data_) {
    ::operator delete(data_, kAlignment);
    --host_storages;
    host_bytes -= bytes_;
  }
  if (!buffer_) return;
  if (pool_ != nullptr) {
    pool_->give_back(std::move(buffer_), recyclable_);
    return;
  }
  try {
    device_->mark().wait_quietly();
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, error.what());
    device_->finish_quietly();
  }
  buffer_ = {};
}

}  // namespace kvtrie
