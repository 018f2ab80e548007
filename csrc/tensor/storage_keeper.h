// Keeps the device memory that a thread's operations take, so that addresses in it stay good after they are done.
//
// While a keeper is in force, storage made by its thread is held by it, and handed out again within the recording once
// nobody else holds it: the operations then use as little memory as they would without it, and memory that they share
// in turn is shared in the same turn whenever they are repeated in order.
//
// Threads: in force on the thread that `begin` was called on, until `stop`, which any thread may call.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "cl/device.h"

namespace kvtrie {

class Storage;

class StorageKeeper {
 public:
  static std::shared_ptr<StorageKeeper> begin(const cl::DevicePtr& device);
  void stop() noexcept { active_ = false; }

  // Lets go of what `wanted` does not name.
  void keep_only(const std::vector<_cl_mem*>& wanted);
  std::size_t bytes() const noexcept;  // held now

  // For Storage: the calling thread's keeper for this device; null where there is none.
  static StorageKeeper* current(const cl::DevicePtr& device) noexcept;
  std::shared_ptr<Storage> reuse(std::size_t bytes) const noexcept;  // null: nothing of that size is free
  void keep(const std::shared_ptr<Storage>& storage) { kept_.push_back(storage); }

 private:
  explicit StorageKeeper(cl::DevicePtr device) : device_(std::move(device)) {}

  const cl::DevicePtr device_;
  std::atomic<bool> active_ = true;
  std::vector<std::shared_ptr<Storage>> kept_;
};

}  // namespace kvtrie
