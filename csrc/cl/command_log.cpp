#include "cl/command_log.h"

#include <optional>
#include <utility>

namespace kvtrie::cl {
namespace {

// Seconds that the device worked on a command; nothing where it does not say.
std::optional<double> seconds_of(cl_event event) noexcept {
  cl_ulong begun = 0, ended = 0;
  const auto ask = [event](cl_profiling_info what, cl_ulong& into) {
    return result_of("clGetEventProfilingInfo",
                     [&] { return clGetEventProfilingInfo(event, what, sizeof into, &into, nullptr); }) == CL_SUCCESS;
  };
  if (!ask(CL_PROFILING_COMMAND_START, begun) || !ask(CL_PROFILING_COMMAND_END, ended) || ended < begun) return {};
  return static_cast<double>(ended - begun) * 1e-9;
}

}  // namespace

int ask_status(cl_event event, cl_int& status) noexcept {
  return result_of("clGetEventInfo", [&] {
    return clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  });
}

int command_status(cl_event event) noexcept {
  cl_int status = CL_QUEUED;
  return ask_status(event, status) == CL_SUCCESS ? status : CL_QUEUED;
}

CommandLog::Ticket CommandLog::add(EventHandle event, Pace::Kind kind) {
  // More than one a call, so that the list shrinks when the device has caught up.
  constexpr std::size_t kSettledPerCommand = 4;
  const MutexLock lock(mutex_);
  Ticket ticket{next_number_, epoch_};
  const double expected = pace_.expected(kind);
  pending_.push_back({next_number_++, std::move(event), epoch_, kind, expected});
  ahead_ += expected;
  settle(0, kSettledPerCommand);
  return ticket;
}

void CommandLog::settle(std::uint64_t ended, std::size_t at_most) {
  while (!pending_.empty() && at_most-- > 0) {
    const Pending& front = pending_.front();
    const bool has_ended = front.number <= ended;
    cl_int status = CL_QUEUED;
    const int answer = ask_status(front.event.get(), status);
    if (answer != CL_SUCCESS) status = has_ended ? answer : CL_QUEUED;  // who has ended and does not say how has failed
    if (status > CL_COMPLETE && !has_ended) return;
    if (status == CL_COMPLETE) {
      if (const std::optional<double> seconds = seconds_of(front.event.get())) pace_.ended(front.kind, *seconds);
    }
    if (const int fault = take_fault("command status")) status = fault;
    if (status < 0 && front.number < front.epoch->first_failed) {
      front.epoch->code = status;
      front.epoch->first_failed = front.number;
    }
    ahead_ -= front.expected;
    pending_.pop_front();
  }
  if (pending_.empty()) ahead_ = 0;  // without what rounding left
}

void CommandLog::check(const Ticket& ticket, const char* where) {
  int code = 0;
  {
    const MutexLock lock(mutex_);
    settle(ticket.number, std::numeric_limits<std::size_t>::max());
    if (ticket.epoch->first_failed > ticket.number) return;
    code = ticket.epoch->code;
    if (ticket.epoch == epoch_) epoch_ = std::make_shared<Epoch>();
  }
  fail(ErrorKind::kDevice, where, "a command failed on the device: got ", error_name(code), " (", code,
       "), allowed CL_COMPLETE");
}

std::uint64_t CommandLog::pending() const {
  const MutexLock lock(mutex_);
  return pending_.size();
}

EventHandle CommandLog::overdue(double seconds) noexcept {
  const MutexLock lock(mutex_);
  const auto too_much = [&]() KVTRIE_REQUIRES(mutex_) { return pending_.size() > kMaxPending || ahead_ > seconds; };
  if (!too_much()) return {};
  settle(0, std::numeric_limits<std::size_t>::max());
  if (!too_much()) return {};
  std::size_t at = pending_.size() - 1;
  for (double left = pending_[at].expected; at > 0 && left <= seconds / 2 && pending_.size() - at < kMaxPending / 2;)
    left += pending_[--at].expected;
  const cl_event event = pending_[at].event.get();
  const int code = result_of("clRetainEvent", [event] { return clRetainEvent(event); });
  return code == CL_SUCCESS ? EventHandle(event) : EventHandle();
}

}  // namespace kvtrie::cl
