#include "collector.h"

#include "clock.h"
#include "instances.h"
#include "prefix_cache/prefix_cache.h"
#include "remote_store.h"

namespace kvtrie::binding {
namespace {

using Patients = std::vector<PyObject*>;

// pybind11's note on an object that keeps others alive; null for none.
const Patients* patients_of(PyObject* self) {
  if (!reinterpret_cast<py::detail::instance*>(self)->has_patients) return nullptr;
  const auto& all = py::detail::get_internals().patients;
  const auto found = all.find(self);
  return found == all.end() ? nullptr : &found->second;
}

const PrefixCache* cache_in(PyObject* self) {
  const py::detail::value_and_holder value = collector::value_of(self, typeid(PrefixCache));
  return value.inst == nullptr ? nullptr : value.value_ptr<PrefixCache>();
}

int show_clock_and_store(PyObject* self, visitproc visit, void* arg) noexcept {
  if (const int stop = collector::show_kept(self, visit, arg); stop != 0) return stop;
  const PrefixCache* const cache = cache_in(self);
  if (cache == nullptr) return 0;
  if (const auto* clock = cache->options().clock.target<PythonClock>()) {
    Py_VISIT(clock->callable());
    Py_VISIT(clock->end().object());
  }
  return show_store(cache->options().store.get(), visit, arg);
}

}  // namespace

void keep_cache(py::handle object, py::handle cache) {
  if (object.is_none() || patients_of(object.ptr()) != nullptr) return;
  keep_alive(object, cache);
}

void keep_same(py::handle object, py::handle like) {
  if (const Patients* kept = patients_of(like.ptr())) keep_cache(object, kept->front());
}

namespace collector {

int show_kept(PyObject* self, visitproc visit, void* arg) noexcept {  // `arg`: the macro's name for it
  Py_VISIT(Py_TYPE(self));
  if (const Patients* kept = patients_of(self)) {
    for (PyObject* each : *kept) Py_VISIT(each);
  }
  return 0;
}

void let_go(PyObject* self) noexcept {
  if (reinterpret_cast<py::detail::instance*>(self)->has_patients) py::detail::clear_patients(self);
}

py::detail::value_and_holder value_of(PyObject* self, const std::type_info& type) {
  auto* const object = reinterpret_cast<py::detail::instance*>(self);
  if (!object->owned) return {};  // set last: Python's collector may come while pybind11 makes room for the contents
  for (py::detail::value_and_holder& value : py::detail::values_and_holders(object)) {
    if (value && value.holder_constructed() && *value.type->cpptype == type) return value;
  }
  return {};
}

void take_out(PyObject* self, py::detail::value_and_holder& value) {
  auto* const object = reinterpret_cast<py::detail::instance*>(self);
  if (value.instance_registered()) {
    py::detail::deregister_instance(object, value.value_ptr(), value.type);
    value.set_instance_registered(false);
  }
  value.type->dealloc(value);
}

}  // namespace collector

py::custom_type_setup shows_clock_and_store() {
  return py::custom_type_setup([](PyHeapTypeObject* made) {
    made->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    made->ht_type.tp_traverse = &show_clock_and_store;
    made->ht_type.tp_clear = &collector::clear<PrefixCache, PrefixCachePtr>;
  });
}

}  // namespace kvtrie::binding
