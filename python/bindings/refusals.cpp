// Refusals that pybind11 would make by itself, in the words of the library.
//
// Arguments of the wrong number, names or C++ class: pybind11 raises a TypeError that repeats their values, prompts
// included. Every function of the module passes through `call` below, which makes an ArgumentTypeError of that, with
// the types only. A call that succeeds pays for one jump.
//
// Calls in a subinterpreter, where an object of the main one can only be by mistake: pybind11 would wait for ever for
// the GIL that the thread has.
//
// Calls in a forked process with an object of its parent's, as `self`, as another argument or in a list of them: a lock
// that another thread held at the fork is held there for ever. Only what ends an object does nothing instead.
//
// Objects whose __init__ did not run, or failed: pybind11 gives them memory of no contents when they are used. And
// those for which it runs a second time, or in two threads at once: pybind11 would do nothing, or keep one of two.
#include "refusals.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base_class.h"
#include "convert.h"
#include "errors.h"
#include "instances.h"
#include "signatures.h"

namespace kvtrie::binding {
namespace {

using Dispatcher = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);
Dispatcher dispatch = nullptr;  // pybind11's; set once, while the module is made

constexpr std::string_view kRefused[] = {"(): incompatible function arguments",
                                         "(): incompatible constructor arguments"};

constexpr std::string_view kNoHolder = "Unable to cast from non-held";

constexpr std::string_view kPackage = "kvtrie._core.";

PyMethodDef* method_of(py::handle function) { return reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml; }

Dispatcher entry_of(const PyMethodDef* method) {
  return reinterpret_cast<Dispatcher>(reinterpret_cast<void (*)()>(method->ml_meth));
}

// The text of the error that is set, which is taken, if it is exactly of `kind` and `ours` says so of its first line.
// Else it stays, and this is empty.
template <class Ours>
std::string taken(PyObject* kind, Ours&& ours) {
  if (PyErr_Occurred() != kind) return {};
  py::error_already_set error;
  std::string text = plain_text(py::str(error.value()));
  if (ours(std::string_view(text).substr(0, text.find('\n')))) return text;
  error.restore();
  return {};
}

std::string taken_refusal() {
  return taken(PyExc_TypeError, [](std::string_view head) {  // exactly: ours are derived from it
    return std::any_of(std::begin(kRefused), std::end(kRefused),
                       [&](std::string_view wanted) { return head.find(wanted) != std::string_view::npos; });
  });
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

constexpr const char* kUnmade = "self: got an object whose __init__ did not run, or failed, allowed a whole one";

// Throws the refusals of pybind11 in our words; any other error stays.
void speak_of_error(PyObject* const* arguments, std::size_t count, PyObject* names) {
  if (PyErr_Occurred() == PyExc_RuntimeError) {  // where it wants a holder, it finds that there is none
    const auto of_holders = [](std::string_view head) { return head.starts_with(kNoHolder); };
    if (!taken(PyExc_RuntimeError, of_holders).empty()) fail(ErrorKind::kType, "kvtrie", kUnmade);
  }
  const std::string text = taken_refusal();
  if (text.empty()) return;
  const Signature wanted = signature_in(text);
  const std::string where = wanted.name.empty() ? text.substr(0, text.find('(')) : wanted.name;
  const bool method = !wanted.name.empty() || text.find("1. (self: ") != std::string::npos;
  const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(count));
  fail(ErrorKind::kType, where,
       cat("arguments: got (", types_of(arguments, given, names, method), "), allowed ", wanted.allowed));
}

// The answer of pybind11's dispatcher.
PyObject* answer(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  PyObject* const result = dispatch(self, arguments, count, names);
  if (result == nullptr) speak_of_error(arguments, count, names);
  return result;
}

// ---- in a forked process -------------------------------------------------------------------------------------------

constexpr int kDepth = 2;  // lists in lists have no classes of ours

// The first of the arguments, or of the items of those that are lists, that only the parent may use; null for none.
PyObject* of_the_parent(PyObject* const* arguments, std::size_t count, int depth) {
  for (PyObject* value : std::span(arguments, count)) {
    if (belongs_elsewhere(value)) return value;
    if (depth == 0 || (PyList_CheckExact(value) == 0 && PyTuple_CheckExact(value) == 0)) continue;
    const auto items = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(value));
    if (PyObject* const item = of_the_parent(PySequence_Fast_ITEMS(value), items, depth - 1)) return item;
  }
  return nullptr;
}

PyObject* of_the_parent(PyObject* const* arguments, std::size_t count, PyObject* names) {
  if (fork_generation() == 0) return nullptr;
  const std::size_t named = names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
  return of_the_parent(arguments, static_cast<std::size_t>(PyVectorcall_NARGS(count)) + named, kDepth);
}

void require_own_process(PyObject* const* arguments, std::size_t count, PyObject* names) {
  if (PyObject* const copy = of_the_parent(arguments, count, names)) {
    fail(ErrorKind::kNotSupported, short_name(Py_TYPE(copy)),
         "this process was forked from the one that made the object, and has neither its threads nor its locks: make "
         "one here");
  }
}

// ---- what stands in for the dispatcher -----------------------------------------------------------------------------

// Of most functions.
PyObject* call(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  require_own_process(arguments, count, names);
  return answer(self, arguments, count, names);
}

// Of __repr__, which debuggers and logs call, and which names what cannot be used.
PyObject* represent(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  PyObject* const copy = of_the_parent(arguments, count, names);
  if (copy == nullptr) return answer(self, arguments, count, names);
  return py::str(cat("<kvtrie.", short_name(Py_TYPE(copy)), " of the process that this one was forked from>"))
      .release()
      .ptr();
}

// Objects whose __init__ is under way, which may let go of the GIL. Guarded by the GIL.
std::vector<PyObject*>& under_construction() {
  static auto* const objects = new std::vector<PyObject*>;
  return *objects;
}

class Construction {
 public:
  explicit Construction(PyObject* object) : object_(object) { under_construction().push_back(object); }
  ~Construction() { std::erase(under_construction(), object_); }
  Construction(const Construction&) = delete;
  Construction& operator=(const Construction&) = delete;

 private:
  PyObject* object_;
};

// Of __init__. An object is made once: others may use it already, or keep what it gave them.
PyObject* construct(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  require_own_process(arguments, count, names);
  if (PyVectorcall_NARGS(count) == 0 || !is_ours(arguments[0])) return answer(self, arguments, count, names);
  PyObject* const object = arguments[0];
  const auto& others = under_construction();
  if (has_contents(object) || std::find(others.begin(), others.end(), object) != others.end()) {
    fail(ErrorKind::kType, cat(short_name(Py_TYPE(object)), ".__init__"),
         "self: got an object whose __init__ ran already or is under way, allowed a new one");
  }
  const Construction under_way(object);
  return answer(self, arguments, count, names);
}

// Called by Python.
template <Dispatcher kStandIn>
PyObject* entry(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
  return for_python([&] { return kStandIn(self, arguments, count, names); });
}

// Methods that end an object, or say that it has ended, may be called anywhere.
Dispatcher stand_in_for(std::string_view name) {
  if (name == "__init__") return &entry<&construct>;
  if (name == "__repr__") return &entry<&represent>;
  if (name == "close" || name == "closed" || name == "__enter__" || name == "__exit__") return &entry<&answer>;
  return &entry<&call>;
}

void* refuse_uninitialised(std::size_t) { fail(ErrorKind::kType, "kvtrie", kUnmade); }

void speak_for(std::string_view name, py::handle value) {
  const py::handle function = py::detail::get_function(value);
  if (!function || PyCFunction_CheckExact(function.ptr()) == 0) return;
  PyMethodDef* const method = method_of(function);
  if (entry_of(method) != dispatch) return;
  method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(stand_in_for(name)));
  give_signature(*method);
}

void speak_for_all(py::handle scope);

void speak_for_class(py::handle value) {
  auto* const type = reinterpret_cast<PyTypeObject*>(value.ptr());
  auto* const info = py::detail::get_type_info(type);
  if (info == nullptr) return;
  finish_class(type);
  guard_instances(*info);
  info->operator_new = &refuse_uninitialised;
  speak_for_all(value);
}

void speak_for_all(py::handle scope) {
  for (const auto& [name, value] : py::dict(scope.attr("__dict__"))) {
    if (PyModule_Check(value.ptr()) != 0) {
      speak_for_all(value);
    } else if (PyType_Check(value.ptr()) != 0) {
      speak_for_class(value);
    } else if (PyObject_TypeCheck(value.ptr(), &PyProperty_Type) != 0) {
      if (const py::object getter = value.attr("fget"); !getter.is_none()) speak_for(plain_text(name), getter);
    } else if (PyObject_TypeCheck(value.ptr(), &PyStaticMethod_Type) != 0) {
      speak_for(plain_text(name), value.attr("__func__"));
    } else {
      speak_for(plain_text(name), value);
    }
  }
}

}  // namespace

void speak_for_pybind11(const py::module_& m) {
  const py::cpp_function any([] {});
  dispatch = entry_of(method_of(py::detail::get_function(any)));
  speak_for_all(m);
  speak_for_all(base_class());
}

}  // namespace kvtrie::binding
