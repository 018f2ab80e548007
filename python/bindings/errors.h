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

// The same for what Python calls, out of which nothing is thrown. Null.
PyObject* refuse(const Error& error);

// Sets a RuntimeError: this module works in the main interpreter alone. Null.
PyObject* refuse_subinterpreter() noexcept;

// After a conversion that Python refused, or in which code of the value's own raised: "[where] name: got <value>,
// allowed <allowed>: <what was raised>" as an ArgumentTypeError, with that as its cause. What is no Exception, such as
// a KeyboardInterrupt, passes. REQUIRES: a Python error is set.
[[noreturn]] void refuse_raised(py::handle value, std::string_view where, std::string_view name,
                                std::string_view allowed);

// The text as a str, whatever its bytes are.
py::str to_str(std::string_view text);

}  // namespace kvtrie::binding
