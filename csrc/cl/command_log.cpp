#include "cl/command_log.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace kvtrie::cl {
namespace {

// One of the times of a command, in nanoseconds; nothing where the device does not say.
std::optional<std::uint64_t> time_of(cl_event event, cl_profiling_info what) noexcept {
  cl_ulong time = 0;
  const int code = result_of("clGetEventProfilingInfo",
                             [&] { return clGetEventProfilingInfo(event, what, sizeof time, &time, nullptr); });
  return code == CL_SUCCESS ? std::optional<std::uint64_t>(time) : std::nullopt;
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

bool CommandLog::join(Pace::Kind kind, const char* name) noexcept {
  const MutexLock lock(mutex_);
  if (open_.launches++ == 0) open_.first = name;
  open_.last = name;
  open_.kind = Pace::joined(open_.kind, kind);
  ++next_number_;
  return open_.launches >= kGroup;
}

bool CommandLog::has_open_group() const noexcept {
  const MutexLock lock(mutex_);
  return open_.launches != 0;
}

bool CommandLog::watches() noexcept {
  const MutexLock lock(mutex_);
  if (watched_ == 0) return false;
  --watched_;
  return true;
}

CommandLog::Ticket CommandLog::add(Command command) {
  // More than one a call, so that the list shrinks when the device has caught up.
  constexpr std::size_t kSettledPerCommand = 4;
  const MutexLock lock(mutex_);
  Ticket ticket{next_number_, epoch_};
  if (open_.launches != 0) command.kind = open_.kind;
  const double expected = command.timed || command.has_times ? pace_.expected(command.kind) : 0;
  pending_.push_back({next_number_, std::move(command), open_, epoch_, expected});
  ++next_number_;
  behind_events_ += std::exchange(open_, Group()).launches;
  ahead_ += expected;
  settle(0, kSettledPerCommand);
  return ticket;
}

// Of a group: from where the last one ended, or from when it was handed over, whichever was later.
void CommandLog::learn(const Pending& pending) noexcept {
  const bool is_own = !pending.command.timed;
  if (is_own && !pending.command.has_times) return;
  const cl_event event = is_own ? pending.command.event.get() : pending.command.timed.get();
  const auto begun = time_of(event, is_own ? CL_PROFILING_COMMAND_START : CL_PROFILING_COMMAND_QUEUED);
  const auto ended = time_of(event, CL_PROFILING_COMMAND_END);
  if (!begun || !ended) return;
  const std::uint64_t from = is_own ? *begun : std::max(*begun, last_ended_);
  last_ended_ = *ended;
  if (*ended >= from) pace_.ended(pending.command.kind, static_cast<double>(*ended - from) * 1e-9);
}

std::string CommandLog::name_of(const Pending& pending) {
  const char* own = pending.command.name;
  if (pending.group.launches == 0) return own == nullptr ? "" : cat(" in ", own);
  return cat(" in one of ", pending.group.launches, " launches, ", pending.group.first, " to ",
             own == nullptr ? pending.group.last : own);
}

void CommandLog::settle(std::uint64_t ended, std::size_t at_most) {
  while (!pending_.empty() && at_most-- > 0) {
    const Pending& front = pending_.front();
    const bool has_ended = front.number <= ended;
    cl_int status = CL_QUEUED;
    const int answer = ask_status(front.command.event.get(), status);
    if (answer != CL_SUCCESS) status = has_ended ? answer : CL_QUEUED;  // who has ended and does not say how has failed
    if (status > CL_COMPLETE && !has_ended) return;
    if (status == CL_COMPLETE) learn(front);
    if (const int fault = take_fault("command status")) status = fault;
    if (status < 0) note_failed(front, status);
    ahead_ -= front.expected;
    behind_events_ -= front.group.launches;
    pending_.pop_front();
  }
  if (pending_.empty()) ahead_ = 0;  // without what rounding left
}

void CommandLog::note_failed(const Pending& failed, int status) noexcept {
  const std::uint64_t first = failed.number - failed.group.launches;
  if (failed.group.launches != 0) watched_ = kWatched;
  if (first >= failed.epoch->first_failed) return;
  try {
    failed.epoch->named = name_of(failed);
  } catch (const std::bad_alloc&) {  // then without it
  }
  failed.epoch->code = status;
  failed.epoch->first_failed = first;
}

void CommandLog::check(const Ticket& ticket, const char* where) {
  int code = 0;
  std::string named;
  {
    const MutexLock lock(mutex_);
    settle(ticket.number, std::numeric_limits<std::size_t>::max());
    if (ticket.epoch->first_failed > ticket.number) return;
    code = ticket.epoch->code;
    named = ticket.epoch->named;
    if (ticket.epoch == epoch_) epoch_ = std::make_shared<Epoch>();
  }
  fail(ErrorKind::kDevice, where, "a command failed on the device", named, ": got ", error_name(code), " (", code,
       "), allowed CL_COMPLETE");
}

std::uint64_t CommandLog::pending() const {
  const MutexLock lock(mutex_);
  return pending_.size() + behind_events_ + open_.launches;
}

EventHandle CommandLog::overdue(double seconds) noexcept {
  const MutexLock lock(mutex_);
  const auto too_much = [&]() KVTRIE_REQUIRES(mutex_) {
    return pending_.size() + behind_events_ + open_.launches >= kMaxPending || ahead_ > seconds;
  };
  if (!too_much()) return {};
  settle(0, std::numeric_limits<std::size_t>::max());
  if (!too_much() || pending_.empty()) return {};
  std::size_t at = pending_.size() - 1;
  for (double left = pending_[at].expected; at > 0 && left <= seconds / 2 && number_behind(at) < kMaxPending / 2;)
    left += pending_[--at].expected;
  const cl_event event = pending_[at].command.event.get();
  const int code = result_of("clRetainEvent", [event] { return clRetainEvent(event); });
  return code == CL_SUCCESS ? EventHandle(event) : EventHandle();
}

}  // namespace kvtrie::cl
