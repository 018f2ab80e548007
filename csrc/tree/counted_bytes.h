// Bytes of memories or files, each counted once however many nodes have it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "store/blob.h"
#include "store/disk_tier.h"

namespace kvtrie {

class CountedBytes {
 public:
  void add_memory(const Blob& blob) {
    if (const HostMemoryPtr memory = blob.memory()) bytes_[memory.get()] = memory->bytes();
  }
  void add_file(const Blob& blob) {
    const auto file = std::dynamic_pointer_cast<DiskFile>(blob.source());
    if (file != nullptr) bytes_[file.get()] = file->bytes();
  }
  std::uint64_t sum() const {
    std::uint64_t bytes = 0;
    for (const auto& [object, size] : bytes_) bytes += size;
    return bytes;
  }

 private:
  std::map<const void*, std::uint64_t> bytes_;
};

}  // namespace kvtrie
