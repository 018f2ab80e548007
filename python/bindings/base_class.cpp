#include "base_class.h"

#include <new>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/fork.h"
#include "convert.h"
#include "errors.h"

namespace kvtrie::binding {
namespace {

using Instance = py::detail::instance;
using Contents = py::detail::value_and_holder;

constexpr auto kStampAt = static_cast<Py_ssize_t>(sizeof(Instance));
constexpr Py_ssize_t kUnit = sizeof(std::uint64_t);
static_assert(kStampAt % kUnit == 0);

// Never destroyed: objects end after the module.
struct Classes {
  std::unordered_map<const py::detail::type_info*, void (*)(Contents&)> endings;  // pybind11's
  std::unordered_set<PyTypeObject*> allowed_in_forks;
};

Classes& classes() {
  static auto* const all = new Classes;
  return *all;
}

PyTypeObject* base() { return reinterpret_cast<PyTypeObject*>(py::detail::get_internals().instance_base); }

// ---- the stamp -----------------------------------------------------------------------------------------------------

// REQUIRES: an object of a finished class.
std::uint64_t& process_of(PyObject* object) {
  return *reinterpret_cast<std::uint64_t*>(reinterpret_cast<char*>(object) + kStampAt);
}

// pybind11 makes objects for results by this, and takes it not to fail. A class of Python that is derived from ours has
// Python's own allocation, so `make` calls this by name.
PyObject* allocate(PyTypeObject* type, Py_ssize_t items) {
  PyObject* const made = PyType_GenericAlloc(type, items);
  if (made == nullptr) {
    PyErr_Clear();
    throw std::bad_alloc();
  }
  if (type->tp_basicsize > kStampAt) process_of(made) = fork_generation();
  return made;
}

bool is_copy(PyObject* object) {
  return Py_TYPE(object)->tp_basicsize > kStampAt && process_of(object) != fork_generation();
}

// Its locks may be held for ever: what it holds is never ended, and goes with the process.
void end_contents(Contents& contents) {
  if (is_copy(reinterpret_cast<PyObject*>(contents.inst))) {
    contents.set_holder_constructed(false);
    contents.value_ptr() = nullptr;
  } else {
    classes().endings.at(contents.type)(contents);
  }
}

// ---- new objects ---------------------------------------------------------------------------------------------------

PyObject* made_of(PyTypeObject* type) {
  if (py::detail::all_type_info(type).empty()) {
    fail(ErrorKind::kType, "kvtrie",
         cat("class: got ", short_name(type), ", allowed a class of kvtrie, or one that is derived from such a class"));
  }
  PyObject* const made = allocate(type, 0);
  reinterpret_cast<Instance*>(made)->allocate_layout();
  return made;
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  return for_python([&] { return made_of(type); });
}

// ---- pickling ------------------------------------------------------------------------------------------------------

constexpr std::string_view kInstead = "values, such as arrays and what its properties give";

template <class Function>
void add_method(PyTypeObject* type, const char* name, Function&& function) {
  const py::handle scope(reinterpret_cast<PyObject*>(type));
  py::setattr(scope, name, py::cpp_function(std::forward<Function>(function), py::name(name), py::is_method(scope)));
}

}  // namespace

void prepare_base_class() {
  PyTypeObject* const type = base();
  type->tp_new = &make;
  type->tp_alloc = &allocate;
  add_method(type, "__reduce_ex__", [](py::handle self, const py::object&) { refuse_reduction(self, kInstead); });
  add_method(type, "__reduce__", [](py::handle self) { refuse_reduction(self, kInstead); });
}

void finish_class(PyTypeObject* type) {
  py::detail::type_info* const info = py::detail::get_type_info(type);
  if (!classes().endings.try_emplace(info, info->dealloc).second) return;
  info->dealloc = &end_contents;
  type->tp_basicsize = kStampAt + kUnit * static_cast<Py_ssize_t>(1 + classes().endings.size());
}

void allow_in_forks(py::handle type) { classes().allowed_in_forks.insert(reinterpret_cast<PyTypeObject*>(type.ptr())); }

py::handle base_class() { return py::detail::get_internals().instance_base; }

bool is_ours(PyObject* value) { return PyObject_TypeCheck(value, base()) != 0; }

bool has_contents(PyObject* object) {
  return reinterpret_cast<Instance*>(object)->get_value_and_holder().value_ptr() != nullptr;
}

bool belongs_elsewhere(PyObject* value) {
  if (!is_ours(value) || !is_copy(value)) return false;
  for (PyTypeObject* each : classes().allowed_in_forks) {
    if (PyObject_TypeCheck(value, each) != 0) return false;
  }
  return true;
}

}  // namespace kvtrie::binding
