#include "instances.h"

#include "checked_python.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtrie::binding {
namespace {

namespace py = pybind11;

using py::detail::instance;
using py::detail::type_info;

using Fill = decltype(type_info::init_instance);

// Pybind11's own, of each class. Never destroyed: objects may be made while the process ends.
std::unordered_map<const type_info*, Fill>& originals() {
  static auto* const all = new std::unordered_map<const type_info*, Fill>;
  return *all;
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
  if (value.instance_registered()) return originals().at(value.type)(object, holder);
  value.set_instance_registered(true);
  try {
    originals().at(value.type)(object, holder);
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
  if (type.init_instance == &fill) return;
  originals().emplace(&type, std::exchange(type.init_instance, &fill));
  py::detail::all_type_info(type.type);  // pybind11 notes a class when it first sees it, and would do so half-way
}

void keep_alive(py::handle nurse, py::handle patient) {
  std::vector<PyObject*> kept{patient.ptr()};
  py::detail::with_internals([&](py::detail::internals& internals) { internals.patients[nurse.ptr()].swap(kept); });
  reinterpret_cast<instance*>(nurse.ptr())->has_patients = true;
  patient.inc_ref();
}

}  // namespace kvtrie::binding
