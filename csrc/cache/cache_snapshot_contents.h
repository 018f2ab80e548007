// The members of CacheSnapshot, for the source that instantiates it for one cache:
//
//     template class CacheSnapshot<CausalCache, CausalContents>;
//
// Contents of a cache have `owner` (a weak pointer to the cache's State), `start`, `end`, an atomic `consumed`, and
// `bytes(alone)`: of what the snapshot alone holds, or of what others hold too. For splits and merges they have
//
//     take(from) noexcept        everything that another one holds
//     split(at, lower, upper)    REQUIRES: start < at < end. Strong, but for what HybridCache says
//     join(first, second)        what two adjacent ones hold; the same
//
// and the cache's State makes contents that hold nothing yet with no_contents(self, start, end). Where `kWhole` is true
// they are never split: what is held belongs to the end, and to the half that ends there.
#pragma once

#include <algorithm>
#include <cstdint>
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

// The contents of a snapshot, or null; kClosed and kArgument as require_usable.
template <class SnapshotPtr, class State>
auto usable_contents(const SnapshotPtr& snapshot, const std::shared_ptr<State>& state, const char* where) {
  if (!snapshot) return static_cast<decltype(&snapshot->contents())>(nullptr);
  require_usable(snapshot->contents(), state, where);
  return &snapshot->contents();
}

// A new snapshot from `start` on with everything that `from` held, which is consumed.
template <class Snapshot, class State>
std::shared_ptr<Snapshot> take_over(const std::shared_ptr<State>& state, typename Snapshot::Contents& from,
                                    std::int32_t start) {
  auto taken = std::make_shared<Snapshot>(State::no_contents(state, start, from.end));
  taken->contents().take(from);
  from.consumed = true;
  return taken;
}

// [start, at) and [at, end); null where that is empty.
template <class Snapshot, class State>
std::pair<std::shared_ptr<Snapshot>, std::shared_ptr<Snapshot>> split_contents(const std::shared_ptr<State>& state,
                                                                               typename Snapshot::Contents& whole,
                                                                               std::int32_t at) {
  if (at >= whole.end) return {take_over<Snapshot>(state, whole, whole.start), nullptr};
  if constexpr (State::kWhole) {
    return {nullptr, take_over<Snapshot>(state, whole, std::max(at, whole.start))};
  } else {
    if (at <= whole.start) return {nullptr, take_over<Snapshot>(state, whole, whole.start)};
    auto lower = std::make_shared<Snapshot>(State::no_contents(state, whole.start, at));
    auto upper = std::make_shared<Snapshot>(State::no_contents(state, at, whole.end));
    whole.split(at, lower->contents(), upper->contents());
    whole.consumed = true;
    return {std::move(lower), std::move(upper)};
  }
}

// Null is empty. Throws kArgument unless they are adjacent.
template <class Snapshot, class State>
std::shared_ptr<Snapshot> merge_contents(const std::shared_ptr<State>& state, typename Snapshot::Contents* first,
                                         typename Snapshot::Contents* second, const char* where) {
  if (first == nullptr) std::swap(first, second);
  if (first == nullptr) return nullptr;
  if (second == nullptr) return take_over<Snapshot>(state, *first, first->start);
  require(first != second && first->end == second->start, where, "b: got a snapshot from ", second->start,
          ", allowed one from ", first->end);
  auto merged = std::make_shared<Snapshot>(State::no_contents(state, first->start, second->end));
  merged->contents().join(*first, *second);
  first->consumed = second->consumed = true;
  return merged;
}

}  // namespace kvtrie
