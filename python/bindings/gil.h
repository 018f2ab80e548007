// Working without the GIL, and work that has to wait for it.
//
// The GIL is released around every call that may wait, copy or take a lock of the library. So a thread that holds a
// lock of the library never needs the GIL to let go of it: what arises for Python down there (a log message, the last
// reference to an array) is queued and delivered by the main thread.
//
// Threads: every function may be called from any thread, with or without the GIL unless it says so.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace kvtrie::binding {

namespace py = pybind11;

// Throws kNotSupported in a process that was forked after a device was opened: OpenCL does not survive a fork.
void refuse_after_fork();
void note_device_opened() noexcept;

// Runs `work` with the GIL released. REQUIRES: the GIL is held; `work` touches no Python object.
template <class Work>
auto without_gil(Work&& work) {
  refuse_after_fork();
  const py::gil_scoped_release released;
  return work();
}

// A reference that any thread may drop: given back at once with the GIL held, else by the main thread soon after.
std::shared_ptr<void> shared_reference(py::object object);

}  // namespace kvtrie::binding
