// How long steps take.
//
// A device works behind the calls, so the clock of the host tells how long enqueueing takes. What counts is the
// device's own clock at two marks, one before the step and one behind it:
//
//     calls     |made|-- layers --|complete|            |made|-- layers --|complete|
//     device    [mark]   ...step's commands...   [mark]  [mark]   ...
//                     |<-------- seconds -------->|
//
// The first mark is done when all earlier work is, so a step does not pay for what was queued before it. Nobody waits
// for the marks: they are looked at when the next step is made. In a loop of prefill steps the second mark is set once
// more when the loop comes back, behind what the model did after its last layer.
//
// Where no device computes, marks are done at once and the cache's clock is used; so it is where that clock is not one
// of real seconds, since what steps take is compared with what loading takes.
#include <exception>
#include <optional>
#include <utility>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

constexpr std::size_t kMostTimings = 64;  // steps that the device has not finished

}  // namespace

// A mark that cannot be set, as on a device that is lost, costs a measurement; the failure is others' to report.
CompletionPtr PrefixCacheState::mark() noexcept {
  try {
    if (!caches.all.empty()) return caches.all.front()->mark();
  } catch (const std::exception&) {
  }
  return nullptr;
}

// REQUIRES: the mutex is not held.
void PrefixCacheState::begin_timing(Step& step) noexcept {
  if (!options.clock) return;
  step.made_at_ = read_clock(options);
  if (options.device_times) step.begun_ = mark();
}

void PrefixCacheState::measure(Step& step) {
  if (!options.clock || step.tokens_.empty() || step.made_at_ < 0) return;
  const auto rows = static_cast<std::uint32_t>(step.tokens_.size());
  const CompletionPtr ended = step.begun_ == nullptr ? nullptr : mark();
  const bool at_once = ended == nullptr || (ended->done() && !ended->ended_at());
  if (at_once) {
    costs.computed(rows, step.positions_.front(), now - step.made_at_);
    node_costs.growth = costs.growth();
    return;
  }
  step.timing_ = std::make_shared<StepTiming>(StepTiming{rows, step.positions_.front(), std::move(step.begun_), ended});
  if (timings.size() == kMostTimings) timings.pop_front();
  timings.push_back(step.timing_);
}

// The loop that drives a prefill has come back: until now the model had the step.
void PrefixCacheState::measure_again(Step& step) {
  if (!options.clock || step.made_at_ < 0) return;
  if (step.timing_ == nullptr) {
    costs.prolong(static_cast<std::uint32_t>(step.tokens_.size()), now - step.made_at_);
  } else if (const CompletionPtr ended = mark()) {
    step.timing_->ended = ended;
  }
}

void PrefixCacheState::settle_times() {
  if (timings.empty()) return;
  while (!timings.empty() && timings.front()->ended->done()) {
    const StepTiming& step = *timings.front();
    const std::optional<double> from = step.begun->ended_at(), to = step.ended->ended_at();
    if (from && to) costs.computed(step.rows, step.position, *to - *from);
    timings.pop_front();
  }
  node_costs.growth = costs.growth();
}

}  // namespace kvtrie
