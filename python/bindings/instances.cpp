#include "instances.h"

#include "checked_python.h"
#include "errors.h"

#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtrie::binding {
namespace {

namespace py = pybind11;

using py::detail::instance;
using py::detail::type_info;

struct Originals {
  newfunc make = nullptr;                                                         // of all classes
  allocfunc allocate = nullptr;                                                   // the same
  std::unordered_map<const type_info*, decltype(type_info::init_instance)> fill;  // the class's own
};

Originals& originals() {
  static auto* const instance = new Originals;  // never destroyed: objects may be made while the process ends
  return *instance;
}

PyObject* allocate(PyTypeObject* type, Py_ssize_t items) {
  PyObject* const made = originals().allocate(type, items);
  if (made == nullptr) {
    PyErr_Clear();
    throw std::bad_alloc();
  }
  return made;
}

// As Python calls it: what `allocate` throws ends here. A class of Python that is derived from ours has Python's own
// allocation until then.
PyObject* make_object(PyTypeObject* type, PyObject* arguments, PyObject* names) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) return refuse_subinterpreter();
  try {
    type->tp_alloc = &allocate;
    py::detail::all_type_info(type);  // pybind11 notes a class when it first sees it, and would do so half-way
    return originals().make(type, arguments, names);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// The value that has no holder yet.
py::detail::value_and_holder unheld(instance* object) {
  for (const py::detail::value_and_holder& each : py::detail::values_and_holders(object)) {
    if (each && !each.holder_constructed()) return each;
  }
  return *py::detail::values_and_holders(object).begin();
}

// The holder first. It has taken the value over even where it cannot be made, as std::shared_ptr does.
void fill(instance* object, const void* holder) {
  py::detail::value_and_holder value = unheld(object);
  if (value.instance_registered()) return originals().fill.at(value.type)(object, holder);
  value.set_instance_registered(true);
  try {
    originals().fill.at(value.type)(object, holder);
  } catch (...) {
    value.set_instance_registered(false);
    value.value_ptr() = nullptr;
    throw;
  }
  value.set_instance_registered(false);
  py::detail::register_instance(object, value.value_ptr(), value.type);
  value.set_instance_registered(true);
}

}  // namespace

void throw_python_error() { throw py::error_already_set(); }

void guard_instances(type_info& type) {
  Originals& ours = originals();
  if (type.init_instance == &fill) return;
  ours.fill.emplace(&type, std::exchange(type.init_instance, &fill));
  py::detail::all_type_info(type.type);
  PyTypeObject* const base = type.type->tp_base;
  if (ours.make == nullptr) {
    ours.make = base->tp_new;
    ours.allocate = type.type->tp_alloc;
  }
  base->tp_new = type.type->tp_new = &make_object;
  type.type->tp_alloc = &allocate;
}

void keep_alive(py::handle nurse, py::handle patient) {
  std::vector<PyObject*> kept{patient.ptr()};
  py::detail::with_internals([&](py::detail::internals& internals) { internals.patients[nurse.ptr()].swap(kept); });
  reinterpret_cast<instance*>(nurse.ptr())->has_patients = true;
  patient.inc_ref();
}

}  // namespace kvtrie::binding
