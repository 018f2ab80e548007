#include "store/open_files.h"

#include <utility>

namespace kvtrie {

std::shared_ptr<File> OpenFiles::find(std::uint64_t id) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found->second);
  return found->second->file;
}

std::shared_ptr<File> OpenFiles::add(std::uint64_t id, std::shared_ptr<File> file) {
  std::list<Entry> entry, closed;
  entry.push_back({id, std::move(file)});
  const MutexLock lock(mutex_);
  const auto [at, added] = entries_.try_emplace(id, entry.begin());
  if (!added) return at->second->file;
  by_use_.splice(by_use_.begin(), entry);
  std::shared_ptr<File> kept = by_use_.front().file;
  if (by_use_.size() > most_) {
    entries_.erase(by_use_.back().id);
    closed.splice(closed.end(), by_use_, std::prev(by_use_.end()));
  }
  return kept;
}

void OpenFiles::forget(std::uint64_t id) noexcept {
  std::list<Entry> closed;
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  closed.splice(closed.end(), by_use_, found->second);
  entries_.erase(found);
}

void OpenFiles::forget_all() noexcept {
  std::list<Entry> closed;
  const MutexLock lock(mutex_);
  closed.swap(by_use_);
  entries_.clear();
}

std::size_t OpenFiles::size() const {
  const MutexLock lock(mutex_);
  return by_use_.size();
}

}  // namespace kvtrie
