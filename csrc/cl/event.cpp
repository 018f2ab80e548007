#include "cl/device_state.h"

namespace kvtrie::cl {

Event::State::State(DevicePtr on, EventHandle owned, CommandLog::Ticket place, EventHandle times)
    : device(std::move(on)),
      handle(std::move(owned)),
      own_times(std::move(times)),
      ticket(std::move(place)),
      live(device->state().meter->events) {}

void wait_for(cl_event event, Device::State& state, const CommandLog::Ticket& ticket, const char* where) {
  int code = CL_SUCCESS;
  try {
    state.submit();
    code = result_of("clWaitForEvents", [&] { return clWaitForEvents(1, &event); });
    if (code != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) check(code, "clWaitForEvents");
  } catch (const Error&) {
    state.let_end(event);
    throw;
  }
  // The code says "one of the events failed" at most; the log knows which command did and why.
  state.log.check(ticket, where);
  check(code, "clWaitForEvents");
}

bool Event::done() const {
  if (state_ == nullptr || state_->waited_for) return true;
  const int status = command_status(state_->timed());
  if (status > CL_RUNNING) state_->device->state().submit_quietly();  // or a caller that polls would poll for ever
  return status <= CL_COMPLETE;
}

void Event::wait() const {
  if (state_ == nullptr) return;
  try {
    wait_for(state_->handle.get(), state_->device->state(), state_->ticket, "Event.wait");
  } catch (...) {
    state_->waited_for = true;
    throw;
  }
  // It has ended, so its time is on the way; one that fails to come is none.
  if (const cl_event times = state_->own_times.get(); times != nullptr)
    static_cast<void>(result_of("clWaitForEvents", [&times] { return clWaitForEvents(1, &times); }));
  state_->waited_for = true;
}

std::optional<double> Event::ended_at() const noexcept {
  if (state_ == nullptr || command_status(state_->timed()) != CL_COMPLETE) return {};
  cl_ulong nanoseconds = 0;
  const int code = result_of("clGetEventProfilingInfo", [&] {
    return clGetEventProfilingInfo(state_->timed(), CL_PROFILING_COMMAND_END, sizeof nanoseconds, &nanoseconds,
                                   nullptr);
  });
  return code == CL_SUCCESS ? std::optional(static_cast<double>(nanoseconds) * 1e-9) : std::nullopt;
}

void Event::wait_quietly() const noexcept {
  if (state_ == nullptr) return;
  state_->device->state().submit_quietly();
  state_->device->state().let_end(state_->handle.get());
  state_->waited_for = true;
}

const std::string& Kernel::name() const noexcept {
  static const std::string none;
  return state_ == nullptr ? none : state_->name;
}

}  // namespace kvtrie::cl
