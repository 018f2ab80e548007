#include "tensor/storage_keeper.h"

#include <algorithm>
#include <utility>

#include "tensor/storage.h"

namespace kvtrie {
namespace {

thread_local std::weak_ptr<StorageKeeper> in_force;

}  // namespace

std::shared_ptr<StorageKeeper> StorageKeeper::begin(const cl::DevicePtr& device) {
  std::shared_ptr<StorageKeeper> keeper(new StorageKeeper(device));
  in_force = keeper;
  return keeper;
}

StorageKeeper* StorageKeeper::current(const cl::DevicePtr& device) noexcept {
  if (in_force.expired()) return nullptr;
  const std::shared_ptr<StorageKeeper> keeper = in_force.lock();
  return keeper != nullptr && keeper->active_ && keeper->device_ == device ? keeper.get() : nullptr;
}

std::shared_ptr<Storage> StorageKeeper::reuse(std::size_t bytes) const noexcept {
  const auto free = [bytes](const auto& storage) { return storage.use_count() == 1 && storage->bytes() == bytes; };
  const auto found = std::find_if(kept_.begin(), kept_.end(), free);
  return found == kept_.end() ? nullptr : *found;
}

void StorageKeeper::keep_only(const std::vector<_cl_mem*>& wanted) {
  std::erase_if(kept_, [&wanted](const auto& storage) {
    return std::find(wanted.begin(), wanted.end(), storage->buffer().handle()) == wanted.end();
  });
}

std::size_t StorageKeeper::bytes() const noexcept {
  std::size_t total = 0;
  for (const auto& storage : kept_) total += storage->bytes();
  return total;
}

}  // namespace kvtrie
