// What pybind11 would refuse by itself, in the words of the library.
//
// Arguments of the wrong number, names or C++ class: pybind11 raises a TypeError that repeats their values, prompts
// included. Every function of the module passes through `call` below, which makes an ArgumentTypeError of that, with
// the types only. A call that succeeds pays for one jump.
//
// Calls in a subinterpreter, where an object of the main one can only be by mistake: pybind11 would wait for ever for
// the GIL that the thread has.
//
// Objects whose __init__ did not run, or failed: pybind11 gives them memory of no contents when they are used.
#include "refusals.h"

#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "convert.h"
#include "errors.h"
#include "instances.h"

namespace kvtrie::binding {
namespace {

using Dispatcher = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);
Dispatcher dispatch = nullptr;  // pybind11's; set once, while the module is made

constexpr std::string_view kRefused[] = {"(): incompatible function arguments",
                                         "(): incompatible constructor arguments"};

constexpr std::string_view kPackage = "kvtrie._core.";

PyMethodDef* method_of(py::handle function) { return reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml; }

Dispatcher entry_of(const PyMethodDef* method) {
  return reinterpret_cast<Dispatcher>(reinterpret_cast<void (*)()>(method->ml_meth));
}

// The text of pybind11's refusal, which is taken; empty for any other error, which stays.
std::string taken_refusal() {
  if (PyErr_Occurred() != PyExc_TypeError) return {};  // exactly: ours are derived from it
  py::error_already_set error;
  std::string text = plain_text(py::str(error.value()));
  const std::string_view head = std::string_view(text).substr(0, text.find('\n'));
  for (const std::string_view wanted : kRefused) {
    if (head.find(wanted) != std::string_view::npos) return text;
  }
  error.restore();
  return {};
}

// Of the lines "    1. (self: kvtrie._core.Cache, tokens: object) -> Session" and "    1. kvtrie._core.Cache(size:
// object)".
struct Signature {
  std::string name;     // of the class, for a constructor; else empty
  std::string allowed;  // "(tokens: object)"
};

Signature signature_in(std::string_view text) {
  std::string line(text.substr(text.find("1. ") + 3));
  line = line.substr(0, line.find('\n'));
  line = line.substr(0, line.rfind(" -> "));
  for (std::size_t at = line.find(kPackage); at != std::string::npos; at = line.find(kPackage)) {
    line.erase(at, kPackage.size());
  }
  const std::size_t open = line.find('(');
  std::string allowed = line.substr(open);
  if (allowed.starts_with("(self: ")) allowed.erase(1, std::min(allowed.find(", ") + 1, allowed.size() - 2));
  return {line.substr(0, open), std::move(allowed)};
}

// "int, str, limit=float", without the object itself.
std::string types_of(PyObject* const* arguments, std::size_t count, PyObject* names, bool method) {
  const std::size_t named = names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
  std::string text;
  for (std::size_t i = method && count > 0 ? 1 : 0; i < count + named; ++i) {
    if (!text.empty()) text += ", ";
    if (i >= count) text += plain_text(PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i - count))) + "=";
    text += short_name(Py_TYPE(arguments[i]));
  }
  return text;
}

// Of the refusal that is set, if pybind11 made it.
void refuse_in_our_words(PyObject* const* arguments, std::size_t count, PyObject* names) {
  const std::string text = taken_refusal();
  if (text.empty()) return;
  const Signature wanted = signature_in(text);
  const std::string where = wanted.name.empty() ? text.substr(0, text.find('(')) : wanted.name;
  const bool method = !wanted.name.empty() || text.find("1. (self: ") != std::string::npos;
  const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(count));
  set_python_error(Error(
      ErrorKind::kType,
      cat("[", where, "] arguments: got (", types_of(arguments, given, names, method), "), allowed ", wanted.allowed)));
}

PyObject* call(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  if (PyInterpreterState_Get() !=
      PyInterpreterState_Main()) {  // which has no class of ours, nor a GIL state of its own
    PyErr_SetString(PyExc_RuntimeError,
                    "[kvtrie] interpreter: got a call in a subinterpreter, allowed the main interpreter of a process");
    return nullptr;
  }
  try {
    PyObject* const result = dispatch(self, arguments, count, names);
    if (result != nullptr || PyErr_Occurred() != PyExc_TypeError) return result;
    refuse_in_our_words(arguments, count, names);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {  // pybind11 lets it pass where it makes what a call has returned
    PyErr_NoMemory();
  }
  return nullptr;
}

void* refuse_uninitialised(std::size_t) {
  fail(ErrorKind::kType, "kvtrie", "self: got an object whose __init__ did not run, or failed, allowed a whole one");
}

void speak_for(py::handle value) {
  const py::handle function = py::detail::get_function(value);
  if (!function || PyCFunction_CheckExact(function.ptr()) == 0) return;
  PyMethodDef* const method = method_of(function);
  if (entry_of(method) != dispatch) return;
  method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call));
}

void speak_for_all(py::handle scope) {
  for (const auto& [name, value] : py::dict(scope.attr("__dict__"))) {
    if (PyModule_Check(value.ptr()) != 0) {
      speak_for_all(value);
    } else if (PyType_Check(value.ptr()) != 0) {
      auto* const info = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
      if (info == nullptr) continue;
      info->operator_new = &refuse_uninitialised;
      guard_instances(*info);
      speak_for_all(value);
    } else if (PyObject_TypeCheck(value.ptr(), &PyProperty_Type) != 0) {
      if (const py::object getter = value.attr("fget"); !getter.is_none()) speak_for(getter);
    } else {
      speak_for(value);
    }
  }
}

}  // namespace

void speak_for_pybind11(const py::module_& m) {
  const py::cpp_function any([] {});
  dispatch = entry_of(method_of(py::detail::get_function(any)));
  speak_for_all(m);
}

}  // namespace kvtrie::binding
