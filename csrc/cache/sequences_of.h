// The members of Sequences, for the source that instantiates it for one cache:
//
//     template class Sequences<CausalCache, CausalContents>;
//
// The cache's State is a CacheBase with `kName`, the cache's name in messages, and says what its kind does. Throwing
// has changed nothing, `noexcept` stands where it may not throw:
//
//     require_resumable(sequence, length, where)   kNotRestorable unless the sequence can be cut there
//     cut(sequence, length) noexcept               REQUIRES: resumable, idle
//     prefix(sequence, length)                     another hold on [0, length), which the next one takes:
//     become(sequence, length, prefix) noexcept    the idle sequence is that from now on
//     remove_middle(sequence, begin, end, where)   makes it idle itself
//     busy(sequence)                               in a forward that make_idle(sequence, where) refuses to end
//
//     contents_of(self, sequence, start, length)   what a snapshot of [start, length) holds
//     plan_restore(id, contents, target)           an optional plan; none: it is impossible. Without contents: a cut
//     restore(id, plan, contents, target, where)   makes it idle itself
//
// and what cache_snapshot_contents.h asks of it and of Contents.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/cache_base.h"
#include "cache/cache_snapshot_contents.h"
#include "cache/scheduled_captures.h"
#include "cache/sequences.h"

namespace kvtrie {

// "causal_cache.remove" of a cache's name and a method's, made by the compiler.
template <std::size_t CacheSize, std::size_t MethodSize>
struct Where {
  char text[CacheSize + MethodSize] = {};

  constexpr Where(const char (&cache)[CacheSize], const char (&method)[MethodSize]) {
    std::copy(cache, cache + CacheSize - 1, text);
    text[CacheSize - 1] = '.';
    std::copy(method, method + MethodSize, text + CacheSize);
  }
};

// ---- copies and removals ------------------------------------------------------------------------------------------

template <class Cache, class Contents>
void Sequences<Cache, Contents>::copy_prefix(SequenceId from, SequenceId to, std::int32_t length) {
  auto& state = *this->state();
  static constexpr Where where(Cache::State::kName, "copy_prefix");
  const MutexLock lock(state.mutex);
  auto& source = state.known(from, where.text);
  const std::int32_t whole = state.length_of(from);
  require(length >= 0 && length <= whole, where.text, "length: got ", length, ", allowed 0 to ", whole);
  state.require_resumable(source, length, where.text);
  if (from == to) {
    state.make_idle(source, where.text);
    state.cut(source, length);
    return state.forget_if_empty(from);
  }
  auto prefix = state.prefix(source, length);
  auto& target = state.open(to);  // keeps `source` where it is
  state.make_idle(target, where.text);
  state.become(target, length, std::move(prefix));
  target.schedule = {};
  state.forget_if_empty(to);
}

template <class Cache, class Contents>
void Sequences<Cache, Contents>::remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) {
  auto& state = *this->state();
  static constexpr Where where(Cache::State::kName, "remove");
  const MutexLock lock(state.mutex);
  const std::int32_t length = state.length_of(id), stop = end_of_removal(begin, end, length, where.text);
  if (begin == stop) return;
  auto& sequence = *state.find(id);
  if (stop < length) return state.remove_middle(sequence, begin, stop, where.text);
  state.require_resumable(sequence, begin, where.text);
  state.make_idle(sequence, where.text);
  state.cut(sequence, begin);
  state.forget_if_empty(id);
}

template <class Cache, class Contents>
bool Sequences<Cache, Contents>::busy(SequenceId id) const {
  auto& state = *this->state();
  const MutexLock lock(state.mutex);
  const auto* sequence = state.find(id);
  return sequence != nullptr && state.busy(*sequence);
}

// ---- snapshots ----------------------------------------------------------------------------------------------------

template <class Cache, class Contents>
auto Sequences<Cache, Contents>::snapshot(SequenceId id, std::int32_t start) -> SnapshotPtr {
  static constexpr Where where(Cache::State::kName, "snapshot");
  require(start >= 0, where.text, "start: got ", start, ", allowed 0 or more");
  auto& state = *this->state();
  const MutexLock lock(state.mutex);
  const std::int32_t length = state.length_of(id);
  if (start >= length) return nullptr;
  return std::make_shared<Snapshot>(state.contents_of(this->state(), *state.find(id), start, length));
}

template <class Cache, class Contents>
bool Sequences<Cache, Contents>::can_restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) const {
  auto& state = *this->state();
  static constexpr Where where(Cache::State::kName, "can_restore");
  const MutexLock lock(state.mutex);
  const Contents* contents = usable_contents(snapshot, this->state(), where.text);
  return state.plan_restore(id, contents, target).has_value();
}

template <class Cache, class Contents>
bool Sequences<Cache, Contents>::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  auto& state = *this->state();
  static constexpr Where where(Cache::State::kName, "restore");
  const MutexLock lock(state.mutex);
  const Contents* contents = usable_contents(snapshot, this->state(), where.text);
  const auto plan = state.plan_restore(id, contents, target);
  if (!plan) return false;
  state.restore(id, *plan, contents, target, where.text);
  return true;
}

template <class Cache, class Contents>
auto Sequences<Cache, Contents>::split(const SnapshotPtr& snapshot, std::int32_t at)
    -> std::pair<SnapshotPtr, SnapshotPtr> {
  if (!snapshot) return {};
  static constexpr Where where(Cache::State::kName, "split");
  const MutexLock lock(this->state()->mutex);
  Contents& whole = *usable_contents(snapshot, this->state(), where.text);
  return split_contents<Snapshot>(this->state(), whole, at);
}

template <class Cache, class Contents>
auto Sequences<Cache, Contents>::merge(const SnapshotPtr& a, const SnapshotPtr& b) -> SnapshotPtr {
  static constexpr Where where(Cache::State::kName, "merge");
  const MutexLock lock(this->state()->mutex);
  Contents* first = usable_contents(a, this->state(), where.text);
  Contents* second = usable_contents(b, this->state(), where.text);
  return merge_contents<Snapshot>(this->state(), first, second, where.text);
}

// ---- scheduled captures -------------------------------------------------------------------------------------------

template <class Cache, class Contents>
void Sequences<Cache, Contents>::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  auto& state = *this->state();
  static constexpr Where where(Cache::State::kName, "prepare_snapshots");
  const MutexLock lock(state.mutex);
  const auto* existing = state.find(id);
  CaptureSchedule<SnapshotPtr> schedule(existing == nullptr ? nullptr : &existing->schedule, std::move(offsets),
                                        state.length_of(id), where.text);
  if (schedule.offsets.empty()) return;
  auto& sequence = state.open(id);
  state.begin_schedule(this->state(), sequence, schedule, where.text);
  sequence.schedule = std::move(schedule);
}

template <class Cache, class Contents>
auto Sequences<Cache, Contents>::take_snapshots(SequenceId id) -> std::vector<SnapshotPtr> {
  auto& state = *this->state();
  const MutexLock lock(state.mutex);
  if (const auto* sequence = state.find(id)) state.end_rows(*sequence);
  return take_captured(state, id);
}

}  // namespace kvtrie
