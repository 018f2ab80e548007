// Counters and the device's commands.
#include <algorithm>
#include <mutex>

#include "null_driver.h"
#include "null_objects.h"

namespace kvtrie::null_driver {
namespace {

struct NullState {
  std::mutex mutex;
  std::map<const char*, std::uint64_t> calls;  // by the literal's address: no text is compared
  Bytes bytes;
  std::uint64_t number = 0, done = 0;     // commands enqueued, and those that are over while `held`
  std::uint64_t clock = 1, takes = 1000;  // nanoseconds: when the device is done with all of them; a launch
  std::uint64_t host = 1;                 // the same clock where the host is: it takes no time but to wait
  std::uint64_t launches_to_failure = 0;  // 0: none fails
  int failing_code = CL_SUCCESS;          // of the launch to come
  int failed_code = CL_SUCCESS;           // of the one that failed
  bool held = false;
};

NullState& null_state() noexcept {
  static NullState state;
  return state;
}

}  // namespace

void count(const char* name) noexcept {
  const std::lock_guard lock(null_state().mutex);
  ++null_state().calls[name];
}

void count_bytes(Moves way, std::size_t bytes) noexcept {
  const std::lock_guard lock(null_state().mutex);
  if (way == Moves::kUp) null_state().bytes.up += bytes;
  if (way == Moves::kDown) null_state().bytes.down += bytes;
}

void enqueue(cl_command_queue queue, bool is_launch, cl_event* out) noexcept {
  NullState& state = null_state();
  const std::lock_guard lock(state.mutex);
  ++state.number;
  if (is_launch) {
    state.clock += state.takes;
    if (state.launches_to_failure != 0 && --state.launches_to_failure == 0) state.failed_code = state.failing_code;
  }
  if (out == nullptr) return;
  cl_event event = made(new _cl_event, nullptr);
  event->number = state.number;
  event->code = state.failed_code == CL_SUCCESS ? CL_COMPLETE : state.failed_code;
  event->queued = state.host;
  event->ended = state.clock;
  event->timed = (queue->properties & CL_QUEUE_PROFILING_ENABLE) != 0;
  *out = event;
}

int status_of(cl_event event) noexcept {
  const std::lock_guard lock(null_state().mutex);
  return null_state().held && event->number > null_state().done ? CL_SUBMITTED : event->code;
}

void let_end(std::uint64_t number) noexcept {
  const std::lock_guard lock(null_state().mutex);
  null_state().done = std::max(null_state().done, number);
  null_state().host = null_state().clock;
}

void let_all_end() noexcept {
  const std::lock_guard lock(null_state().mutex);
  null_state().done = null_state().number;
  null_state().host = null_state().clock;
}

std::map<std::string, std::uint64_t> calls() {
  const std::lock_guard lock(null_state().mutex);
  std::map<std::string, std::uint64_t> by_name;
  for (const auto& [name, times] : null_state().calls)
    if (times != 0) by_name[name] += times;
  return by_name;
}

Bytes bytes() {
  const std::lock_guard lock(null_state().mutex);
  return null_state().bytes;
}

// Names stay: a program that has made each call once makes no node of the map any more.
void reset() {
  const std::lock_guard lock(null_state().mutex);
  for (auto& [name, times] : null_state().calls) times = 0;
  null_state().bytes = {};
}

void launch_takes(std::uint64_t nanoseconds) {
  const std::lock_guard lock(null_state().mutex);
  null_state().takes = nanoseconds;
}

void hold(bool held) {
  const std::lock_guard lock(null_state().mutex);
  null_state().held = held;
  null_state().done = null_state().number;
}

void fail_launch(std::uint64_t nth, int code) {
  const std::lock_guard lock(null_state().mutex);
  null_state().launches_to_failure = nth;
  null_state().failing_code = code;
}

void clear_failure() {
  const std::lock_guard lock(null_state().mutex);
  null_state().launches_to_failure = 0;
  null_state().failed_code = CL_SUCCESS;
}

}  // namespace kvtrie::null_driver
