#include "clock.h"

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double PythonClock::operator()() const {
  const HeldGil held;
  if (end_.ending->over()) throw Error(ErrorKind::kClosed, "[PrefixCache] clock: it was collected");
  const auto kept = py::reinterpret_borrow<py::object>(callable());  // the collector sees that it is in use
  try {
    return call_python(kept, py::tuple()).cast<double>();
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, cat("[PrefixCache] clock: ", error.what()));
    const auto* raised = dynamic_cast<const py::error_already_set*>(&error);
    if (raised != nullptr && raised->matches(PyExc_KeyboardInterrupt))
      PyErr_SetInterrupt();  // last, so that nothing above sees it
    throw Error(ErrorKind::kArgument, "[PrefixCache] clock: it failed");
  }
}

std::function<double()> to_clock(const py::object& clock) {
  if (clock.is_none()) return &steady_seconds;
  if (PyCallable_Check(clock.ptr()) == 0)
    refuse_type(clock, "PrefixCache", "clock", "a callable that returns seconds, or None");
  return PythonClock(clock);
}

}  // namespace kvtrie::binding
