// The one place where kvtrie::Error becomes a Python exception (python/kvtrie/errors.py has the classes).
#include <pybind11/pybind11.h>

#include "base/error.h"
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
      return "CacheFull";
    case ErrorKind::kNotRestorable:
      return "NotRestorable";
    case ErrorKind::kNotSupported:
      return "NotSupported";
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

void raise(const Error& error) {
  const py::object type = py::module_::import("kvtrie.errors").attr(class_of(error.kind()));
  py::object exception = type(error.what());
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

}  // namespace

void init_errors(py::module_&) {
  // pybind11 takes a function of a value.  NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const Error& error) {
      try {
        raise(error);
      } catch (py::error_already_set& nested) {
        nested.restore();
      }
    }
  });
}

}  // namespace kvtrie::binding
