// Errors of the library, and of Python code that a call ran into, as the exceptions of kvtrie.errors.
//
// Threads: the GIL is held in all of these.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace kvtrie {
class Error;
}

namespace kvtrie::binding {

namespace py = pybind11;

// Sets the exception of python/kvtrie/errors.py for `error`. Throws error_already_set where that cannot be made.
void set_python_error(const Error& error);

// Sets the Python error for what is being handled, and returns null; what is no std::exception, such as the end of a
// thread (gil.h), passes. REQUIRES: in a handler.
PyObject* refuse_thrown();

// Sets a RuntimeError, and returns null: this module works in the main interpreter alone. In another one pybind11 would
// wait for ever for the GIL that the thread has.
PyObject* refuse_subinterpreter() noexcept;

// Called by Python: the object that `call` makes, or null with the error set.
template <class Call>
PyObject* for_python(Call&& call) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) return refuse_subinterpreter();
  try {
    return call();
  } catch (...) {
    return refuse_thrown();
  }
}

// After a conversion that Python refused, or in which code of the value's own raised: "[where] name: got <value>,
// allowed <allowed>: <what was raised>" as an ArgumentTypeError, with that as its cause. An exception that is no
// Exception, such as a KeyboardInterrupt, passes. REQUIRES: a Python error is set.
[[noreturn]] void refuse_raised(py::handle value, std::string_view where, std::string_view name,
                                std::string_view allowed);

// The text as a str, whatever its bytes are.
py::str to_str(std::string_view text);

}  // namespace kvtrie::binding
