// How long steps take.
//
// Concept. A device works behind the calls, so the clock of the host tells how long enqueueing takes. The time of
// a step is that between two marks on the device's own clock, one before the step and one behind it:
//
//     calls     |made|-- layers --|complete|            |made|-- layers --|complete|
//     device    [mark]   ...step's commands...   [mark]  [mark]   ...
//                     |<-------- seconds -------->|
//
// The first mark is done when all earlier work is, so a step does not pay for what was queued before it. Nobody waits
// for the marks: they are looked at when the next step is made. In a loop of prefill steps the second mark is set once
// more when the loop comes back, behind what the model did after its last layer.
//
// Where no device computes, marks are done at once and the cache's clock is used; so it is where that clock does not
// count real seconds, since the time of steps is compared with that of loading.
//
// This class is the only one that tells the cost model what computing takes. Of steps that the device has not finished
// it keeps the latest 64. Errors: a mark that cannot be set, as on a device that is lost, costs a measurement; the
// failure is others' to report. Cost: O(1) for each step. Threads: guarded by the prefix cache's mutex, but for
// `begin`. Units: seconds, rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "cache/kv_store.h"
#include "tree/cache_table.h"
#include "tree/cost_model.h"

namespace kvtrie {

// Of a complete step, as it was enqueued.
struct StepMarks {
  std::uint32_t rows = 0;
  std::int32_t position = 0;   // of the first row
  CompletionPtr begun, ended;  // before it and behind it
};

// The start and the marks by which a step is measured.
struct StepTiming {
  double made_at = -1;               // of the cache's clock; below 0: not measured, or not yet
  CompletionPtr begun;               // null: by the clock alone
  std::shared_ptr<StepMarks> marks;  // null: not complete, or not measured on a device
};

class StepTimes {
 public:
  // All outlive this.
  StepTimes(const CacheTable& caches, CostModel& costs, NodeCosts& node_costs)
      : caches_(caches), costs_(costs), node_costs_(node_costs) {}
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  // Of a step whose making is over. Any thread may call, with the mutex free.
  static StepTiming begin(const CacheTable& caches, double now, bool by_device) noexcept;
  // The step of these rows is complete.
  void measure(StepTiming& step, std::span<const std::int32_t> positions, double now);
  // The loop that drives a prefill has come back: until now the model had the step. REQUIRES: it was the latest.
  void measure_again(const StepTiming& step, std::uint32_t rows, double now);
  void settle();  // of the steps that the device has finished
  void clear() noexcept { unfinished_.clear(); }

 private:
  static constexpr std::size_t kMost = 64;

  const CacheTable& caches_;
  CostModel& costs_;
  NodeCosts& node_costs_;
  std::deque<std::shared_ptr<StepMarks>> unfinished_;
};

}  // namespace kvtrie
