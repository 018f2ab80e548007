// Snapshots that were asked for beforehand, of lengths that later forwards pass: prepare_snapshots makes a schedule,
// forwards fill it as they complete, take_snapshots takes what is there.
//
//     length 100, offsets 120 and 200      [100, 120) -> captured[0]      [120, 200) -> captured[1]
//
// Threads: guarded by the mutex of the cache whose sequence has it. Units: tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/layer_cache.h"

namespace kvtrie {

template <class SnapshotPtr>
struct CaptureSchedule {
  std::vector<std::int32_t> offsets;  // ascending; none: there is no schedule
  std::vector<SnapshotPtr> captured;  // of each offset; null until the sequence came by, and where nothing is held
  std::size_t fired = 0;              // of kinds that capture in order: how many are done
  std::int32_t begin = 0;             // the length when it was made

  CaptureSchedule() = default;
  // Throws kArgument unless the offsets ascend, from the present length on, and `before` is no schedule.
  CaptureSchedule(const CaptureSchedule* before, std::vector<std::int32_t> wanted, std::int32_t length,
                  std::string_view where)
      : offsets(std::move(wanted)), captured(offsets.size()), begin(length) {
    require(before == nullptr || before->offsets.empty(), where,
            "the schedule before was not taken: call take_snapshots first");
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const std::int32_t lowest = i == 0 ? length : offsets[i - 1] + 1;
      require(offsets[i] >= lowest, where, "offsets: got ", offsets[i], " at index ", i, ", allowed ", lowest,
              " or more");
    }
    if (!offsets.empty() && offsets.front() == length) fired = 1;  // of no width: stays null
  }

  std::int32_t start(std::size_t index) const noexcept { return index == 0 ? begin : offsets[index - 1]; }
  bool torn() const noexcept { return captured.size() != offsets.size() || fired > offsets.size(); }

  // The snapshots that are due when the sequence reaches `length`, made by make(start, offset).
  template <class Make>
  std::vector<SnapshotPtr> due(std::int32_t length, Make make) const {
    std::vector<SnapshotPtr> snapshots;
    for (std::size_t i = fired; i < offsets.size() && offsets[i] <= length; ++i)
      snapshots.push_back(make(start(i), offsets[i]));
    return snapshots;
  }
  void fire(std::vector<SnapshotPtr>& due) noexcept {
    for (SnapshotPtr& snapshot : due) captured[fired++] = std::move(snapshot);
  }
};

// Ends the schedule of a sequence; nothing where there is none.
template <class State>
auto take_captured(State& state, SequenceId id) KVTRIE_REQUIRES(state.mutex) {
  auto* const sequence = state.find(id);
  decltype(sequence->schedule.captured) captured;
  if (sequence == nullptr) return captured;
  captured.swap(sequence->schedule.captured);
  sequence->schedule = {};
  state.forget_if_empty(id);
  return captured;
}

}  // namespace kvtrie
