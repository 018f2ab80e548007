#include "session/step_times.h"

#include <exception>
#include <optional>
#include <utility>

namespace kvtrie {
namespace {

CompletionPtr mark(const CacheTable& caches) noexcept {
  try {
    if (!caches.all.empty()) return caches.all.front()->mark();
  } catch (const std::exception&) {
  }
  return nullptr;
}

}  // namespace

StepTiming StepTimes::begin(const CacheTable& caches, double now, bool by_device) noexcept {
  return {now, by_device ? mark(caches) : nullptr, nullptr};
}

void StepTimes::measure(StepTiming& step, std::span<const std::int32_t> positions, double now) {
  if (positions.empty() || step.made_at < 0) return;
  const auto rows = static_cast<std::uint32_t>(positions.size());
  const CompletionPtr ended = step.begun == nullptr ? nullptr : mark(caches_);
  const bool at_once = ended == nullptr || (ended->done() && !ended->ended_at());
  if (at_once) {
    costs_.computed(rows, positions.front(), now - step.made_at);
    node_costs_.growth = costs_.growth();
    return;
  }
  step.marks = std::make_shared<StepMarks>(StepMarks{rows, positions.front(), std::move(step.begun), ended});
  if (unfinished_.size() == kMost) unfinished_.pop_front();
  unfinished_.push_back(step.marks);
}

void StepTimes::measure_again(const StepTiming& step, std::uint32_t rows, double now) {
  if (step.made_at < 0) return;
  if (step.marks == nullptr) {
    costs_.prolong(rows, now - step.made_at);
  } else if (const CompletionPtr ended = mark(caches_)) {
    step.marks->ended = ended;
  }
}

void StepTimes::settle() {
  if (unfinished_.empty()) return;
  while (!unfinished_.empty() && unfinished_.front()->ended->done()) {
    const StepMarks& step = *unfinished_.front();
    const std::optional<double> from = step.begun->ended_at(), to = step.ended->ended_at();
    if (from && to) costs_.computed(step.rows, step.position, *to - *from);
    unfinished_.pop_front();
  }
  node_costs_.growth = costs_.growth();
}

}  // namespace kvtrie
