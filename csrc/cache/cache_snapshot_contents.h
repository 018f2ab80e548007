// The members of CacheSnapshot, for the source that instantiates it for one cache:
//
//     template class CacheSnapshot<CausalCache, CausalContents>;
//
// Contents of a cache have `owner` (a weak pointer to the cache's State), `start`, `end`, an atomic `consumed`, and
// `bytes(alone)`: of what the snapshot alone holds, or of what others hold too.
#pragma once

#include <memory>
#include <utility>

#include "base/error.h"
#include "cache/cache_snapshot.h"

namespace kvtrie {

template <class Cache, class Contents>
CacheSnapshot<Cache, Contents>::CacheSnapshot(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}

template <class Cache, class Contents>
CacheSnapshot<Cache, Contents>::~CacheSnapshot() = default;

template <class Cache, class Contents>
std::int32_t CacheSnapshot<Cache, Contents>::start() const noexcept {
  return contents_->start;
}

template <class Cache, class Contents>
std::int32_t CacheSnapshot<Cache, Contents>::end() const noexcept {
  return contents_->end;
}

template <class Cache, class Contents>
std::uint64_t CacheSnapshot<Cache, Contents>::nbytes() const {
  return contents_->bytes(/*alone=*/true);
}

template <class Cache, class Contents>
std::uint64_t CacheSnapshot<Cache, Contents>::shared_nbytes() const {
  return contents_->bytes(/*alone=*/false);
}

template <class Cache, class Contents>
bool CacheSnapshot<Cache, Contents>::consumed() const noexcept {
  return contents_->consumed;
}

// kClosed for contents that were consumed, kArgument for those of another cache.
template <class Contents, class State>
void require_usable(const Contents& contents, const std::shared_ptr<State>& state, const char* where) {
  if (contents.consumed) fail(ErrorKind::kClosed, where, "the snapshot was consumed by split or merge");
  require(contents.owner.lock() == state, where, "snapshot: got one of another cache");
}

}  // namespace kvtrie
