#include "cl/command_log.h"

#include <utility>

namespace kvtrie::cl {

int command_status(cl_event event) noexcept {
  cl_int status = CL_QUEUED;
  const int code = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  return code == CL_SUCCESS ? status : code;
}

CommandLog::Ticket CommandLog::add(EventHandle event) {
  // More than one a call, so that the list shrinks when the device has caught up.
  constexpr std::size_t kSettledPerCommand = 4;
  const std::lock_guard lock(mutex_);
  Ticket ticket{next_number_, epoch_};
  pending_.push_back({next_number_++, std::move(event), epoch_});
  settle(0, kSettledPerCommand);
  return ticket;
}

void CommandLog::settle(std::uint64_t ended, std::size_t at_most) {
  while (!pending_.empty() && at_most-- > 0) {
    const Pending& front = pending_.front();
    int status = command_status(front.event.get());
    if (status > CL_COMPLETE && front.number > ended) return;
    if (const int fault = take_fault("command status")) status = fault;
    if (status < 0 && front.number < front.epoch->first_failed) {
      front.epoch->code = status;
      front.epoch->first_failed = front.number;
    }
    pending_.pop_front();
  }
}

void CommandLog::check(const Ticket& ticket, const char* where) {
  int code = 0;
  {
    const std::lock_guard lock(mutex_);
    settle(ticket.number, std::numeric_limits<std::size_t>::max());
    if (ticket.epoch->first_failed > ticket.number) return;
    code = ticket.epoch->code;
    if (ticket.epoch == epoch_) epoch_ = std::make_shared<Epoch>();
  }
  fail(ErrorKind::kDevice, where, "a command failed on the device: got ", error_name(code), " (", code,
       "), allowed CL_COMPLETE");
}

std::uint64_t CommandLog::pending() const {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

EventHandle CommandLog::overdue() const {
  const std::lock_guard lock(mutex_);
  if (pending_.size() <= kMaxPending) return {};
  const cl_event event = pending_[pending_.size() - kMaxPending / 2].event.get();
  return clRetainEvent(event) == CL_SUCCESS ? EventHandle(event) : EventHandle();
}

}  // namespace kvtrie::cl
