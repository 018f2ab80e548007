// The files that are open for reading: at most so many, the least recently used one is closed first.
//
// Threads: any. A file that was found stays open while somebody holds it, also when it is forgotten meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "store/file_system.h"

namespace kvtrie {

class OpenFiles {
 public:
  explicit OpenFiles(std::size_t most) : most_(most) {}

  std::shared_ptr<File> find(std::uint64_t id);  // null: not open
  // Keeps `file` under `id` and returns it; when another thread was first, returns what that one kept.
  std::shared_ptr<File> add(std::uint64_t id, std::shared_ptr<File> file);
  void forget(std::uint64_t id) noexcept;
  void forget_all() noexcept;
  std::size_t size() const;

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::shared_ptr<File> file;
  };
  const std::size_t most_;
  mutable Mutex mutex_;                                // not held while a file is closed
  std::list<Entry> by_use_ KVTRIE_GUARDED_BY(mutex_);  // most recent first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> entries_ KVTRIE_GUARDED_BY(mutex_);
};

}  // namespace kvtrie
