// A Python callable as the clock of a prefix cache.
//
// It is called without a lock of the library, from threads without the GIL. Its exceptions are logged and dropped: ages
// are for people. An interrupt that happened to arrive there is raised again where Python code runs next.
//
// Threads: any, with or without the GIL. Units: seconds.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>

#include "ending.h"
#include "gil.h"

namespace kvtrie::binding {

class PythonClock {
 public:
  explicit PythonClock(py::object callable) : callable_(shared_reference(std::move(callable))) {}
  double operator()() const;  // throws kArgument where the callable fails, kClosed where it was collected
  PyObject* callable() const noexcept { return static_cast<PyObject*>(callable_.get()); }
  const KeptEnding& end() const noexcept { return end_; }

 private:
  std::shared_ptr<void> callable_;
  KeptEnding end_;
};

// None: the system's steady clock. Throws kType for what cannot be called. REQUIRES: the GIL is held.
std::function<double()> to_clock(const py::object& clock);

}  // namespace kvtrie::binding
