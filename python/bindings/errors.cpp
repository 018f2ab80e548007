// The one place where kvtrie::Error becomes a Python exception (python/kvtrie/errors.py has the classes).
#include "errors.h"

#include <string>

#include "base/error.h"
#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

const char* class_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kArgument:
      return "ArgumentError";
    case ErrorKind::kType:
      return "ArgumentTypeError";
    case ErrorKind::kCacheFull:
      return "CacheFullError";
    case ErrorKind::kNotRestorable:
      return "NotRestorableError";
    case ErrorKind::kNotSupported:
      return "NotSupportedError";
    case ErrorKind::kDevice:
      return "DeviceError";
    case ErrorKind::kFormat:
      return "FormatError";
    case ErrorKind::kClosed:
      return "ClosedError";
    case ErrorKind::kBusy:
      return "BusyError";
    case ErrorKind::kInternal:
      break;
  }
  return "InternalError";
}

// "ValueError: the text", of the error that is set, which it takes.
std::pair<py::object, std::string> taken() {
  const py::error_already_set raised;
  py::object exception = raised.value();
  std::string text = Py_TYPE(exception.ptr())->tp_name;
  if (const auto said = py::reinterpret_steal<py::object>(PyObject_Str(exception.ptr()))) {
    text += ": " + plain_text(said);
  } else {
    PyErr_Clear();
  }
  return {std::move(exception), std::move(text)};
}

}  // namespace

py::str to_str(std::string_view text) {
  PyObject* const made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

void set_python_error(const Error& error) {
  const py::object type = py::module_::import("kvtrie.errors").attr(class_of(error.kind()));
  py::object exception = type(to_str(error.what()));
  if (error.kind() == ErrorKind::kCacheFull) {
    const CacheFullCounts& counts = error.cache_full();
    exception.attr("needed") = counts.needed;
    exception.attr("free") = counts.free;
    exception.attr("freeable") = counts.freeable;
    exception.attr("held_live") = counts.held_live;
  }
  if (error.kind() == ErrorKind::kNotRestorable) exception.attr("nearest") = error.nearest();
  PyErr_SetObject(type.ptr(), exception.ptr());
}

void refuse_raised(py::handle value, std::string_view where, std::string_view name, std::string_view allowed) {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
  const auto [cause, text] = taken();
  const py::object type = py::module_::import("kvtrie.errors").attr("ArgumentTypeError");
  const py::object refusal =
      type(to_str(cat("[", where, "] ", name, ": got ", describe(value), ", allowed ", allowed, ": ", text)));
  PyException_SetCause(refusal.ptr(), py::object(cause).release().ptr());
  PyErr_SetObject(type.ptr(), refusal.ptr());
  throw py::error_already_set();
}

PyObject* refuse_thrown() {
  try {
    try {
      throw;
    } catch (const Error& error) {
      set_python_error(error);
    }
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

PyObject* refuse_subinterpreter() noexcept {
  PyErr_SetString(PyExc_RuntimeError,
                  "[kvtrie] interpreter: got a call in a subinterpreter, allowed the main interpreter of a process");
  return nullptr;
}

void init_errors(py::module_&) {
  // pybind11 takes a function of a value.  NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Error& error) {
      try {
        set_python_error(error);
      } catch (py::error_already_set& nested) {
        nested.restore();
      }
    }
  });
}

}  // namespace kvtrie::binding
