// Working without the GIL, and work that has to wait for it.
//
// The GIL is released around every call that may wait, copy or take a lock of the library. So a thread that holds a
// lock of the library never needs the GIL to let go of it: what arises for Python down there (a log message, the last
// reference to an array) is queued and delivered by the main thread.
//
// How threads end. When the interpreter ends, its daemon threads are still inside calls. Up to Python 3.13 the next one
// that asks for the GIL is ended by unwinding its stack, through frames of C++ that nothing may unwind, and the process
// aborts. So here such a thread is put to sleep, as Python 3.14 does itself.
//
// Threads: every function may be called from any thread, with or without the GIL unless it says so.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace kvtrie::binding {

namespace py = pybind11;

// Throws kNotSupported in a process that was forked after a device was opened: OpenCL does not survive a fork.
void refuse_after_fork();
void note_device_opened() noexcept;
// The same for OpenCL itself, in a process that was forked after somebody asked for devices: drivers start threads
// then, which no fork has, and a child would wait for them for ever. Notes that somebody asks.
void ask_opencl();

// Takes the GIL back in the thread that `PyEval_SaveThread` gave `thread`. Where the interpreter has ended meanwhile
// this does not return: the thread sleeps until the process has ended.
void take_gil(PyThreadState* thread);

// Runs `work` with the GIL released, in a forked process, too: for what does nothing there. REQUIRES: the GIL is held;
// `work` touches no Python object.
template <class Work>
std::invoke_result_t<Work&> without_gil_even_forked(Work&& work) {
  PyThreadState* const thread = PyEval_SaveThread();
  const auto and_back = [&] {
    try {
      return work();
    } catch (...) {
      take_gil(thread);
      throw;
    }
  };
  if constexpr (std::is_void_v<std::invoke_result_t<Work&>>) {
    and_back();
    take_gil(thread);
  } else {
    auto result = and_back();
    take_gil(thread);
    return result;
  }
}

// The same, refused in a forked process.
template <class Work>
std::invoke_result_t<Work&> without_gil(Work&& work) {
  refuse_after_fork();
  return without_gil_even_forked(std::forward<Work>(work));
}

// The GIL in a thread of the library, which may have none of Python's. Throws std::runtime_error where the interpreter
// is ending; where it ends while this waits, the thread sleeps.
class HeldGil {
 public:
  HeldGil();
  ~HeldGil();
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// function(*arguments), from a thread of the library. Throws error_already_set. REQUIRES: the GIL is held.
py::object call_python(py::handle function, const py::tuple& arguments);

// A reference that any thread may drop: given back at once with the GIL held, else by the main thread soon after.
std::shared_ptr<void> shared_reference(py::object object);

}  // namespace kvtrie::binding
