// Counters and the posed device's commands.
#include <algorithm>
#include <mutex>

#include "null_driver.h"
#include "null_objects.h"

namespace kvtrie::null_driver {
namespace {

struct Posed {
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

Posed& posed() noexcept {
  static Posed state;
  return state;
}

}  // namespace

void count(const char* name) noexcept {
  const std::lock_guard lock(posed().mutex);
  ++posed().calls[name];
}

void count_bytes(Moves way, std::size_t bytes) noexcept {
  const std::lock_guard lock(posed().mutex);
  if (way == Moves::kUp) posed().bytes.up += bytes;
  if (way == Moves::kDown) posed().bytes.down += bytes;
}

void enqueue(cl_command_queue queue, bool is_launch, cl_event* out) noexcept {
  Posed& state = posed();
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
  const std::lock_guard lock(posed().mutex);
  return posed().held && event->number > posed().done ? CL_SUBMITTED : event->code;
}

void let_end(std::uint64_t number) noexcept {
  const std::lock_guard lock(posed().mutex);
  posed().done = std::max(posed().done, number);
  posed().host = posed().clock;
}

void let_all_end() noexcept {
  const std::lock_guard lock(posed().mutex);
  posed().done = posed().number;
  posed().host = posed().clock;
}

std::map<std::string, std::uint64_t> calls() {
  const std::lock_guard lock(posed().mutex);
  std::map<std::string, std::uint64_t> by_name;
  for (const auto& [name, times] : posed().calls)
    if (times != 0) by_name[name] += times;
  return by_name;
}

Bytes bytes() {
  const std::lock_guard lock(posed().mutex);
  return posed().bytes;
}

// Names stay: a program that has made each call once makes no node of the map any more.
void reset() {
  const std::lock_guard lock(posed().mutex);
  for (auto& [name, times] : posed().calls) times = 0;
  posed().bytes = {};
}

void launch_takes(std::uint64_t nanoseconds) {
  const std::lock_guard lock(posed().mutex);
  posed().takes = nanoseconds;
}

void hold(bool held) {
  const std::lock_guard lock(posed().mutex);
  posed().held = held;
  posed().done = posed().number;
}

void fail_launch(std::uint64_t nth, int code) {
  const std::lock_guard lock(posed().mutex);
  posed().launches_to_failure = nth;
  posed().failing_code = code;
}

void clear_failure() {
  const std::lock_guard lock(posed().mutex);
  posed().launches_to_failure = 0;
  posed().failed_code = CL_SUCCESS;
}

}  // namespace kvtrie::null_driver
