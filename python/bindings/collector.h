// How Python's cyclic collector sees a prefix cache, its sessions and steps.
//
// Concept. A cache keeps its clock and its store: Python objects that may lead back to it. The collector ends such a
// circle only when every reference in it is shown to it. One Python object stands for the cache, its *wrapper*. It
// shows the clock and the store as what it keeps itself. Every other Python object that keeps the C++ cache (a session,
// a step, a loop over steps) keeps the wrapper, too, and shows that. So the wrapper lives as long as anything of Python
// that keeps the cache.
//
//     yours --> wrapper  - - >  clock, store --> yours          - - > kept by the C++ cache, shown by the wrapper
//               ^     ^
//        session     step
//
// The collector's view depends on nothing that another thread changes without the GIL: a call that is under way has its
// object from its caller, which is no part of any circle. The threads that send and write keep the C++ state alone, and
// hold the objects that they call.
//
// How a circle ends. First the cache is closed, while all of it is whole, as `close()` does (so what is unsent is
// sent), and its callbacks are over (ending.h). Then the C++ objects are taken out of their wrappers, which raise from
// then on like those whose `__init__` failed. A store whose own thread is collecting is no exception: closing returns
// at once there. C++ objects count their references as always, so whatever is shown, nothing dangles.
//
// Threads: the GIL is held in all of these; it is released while C++ objects end.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <typeinfo>

#include "gil.h"

namespace kvtrie::binding {

// The keeping: `object` keeps what `like` keeps alive, or `cache`, unless it keeps something already. None is let pass.
void keep_same(py::handle object, py::handle like);
void keep_cache(py::handle object, py::handle cache);

// A new session, step or loop as an object of Python that keeps `owner`: the session, step or cache that it came from.
// (pybind11's own keep_alive of a result writes through a pointer of value 1 when arguments are refused.)
template <class Made, class Owner>
py::object keeping(Made made, const std::shared_ptr<Owner>& owner) {
  py::object object = py::cast(std::move(made));
  keep_cache(object, py::cast(owner));
  return object;
}

namespace collector {

int show_kept(PyObject* self, visitproc visit, void* argument) noexcept;  // its type, and what it keeps alive
void let_go(PyObject* self) noexcept;                                     // of what it keeps alive
// Null (`inst`) where there is none, and of an object that is being made.
py::detail::value_and_holder value_of(PyObject* self, const std::type_info& type);
void take_out(PyObject* self, py::detail::value_and_holder& value);  // its holder was moved away before

// tp_clear of a class with this holder.
template <class Value, class Holder>
int clear(PyObject* self) {
  py::detail::value_and_holder value = value_of(self, typeid(Value));
  if (value.inst != nullptr) {
    Holder last = std::move(value.holder<Holder>());
    take_out(self, value);
    without_gil_even_forked([&] { last = nullptr; });
  }
  let_go(self);
  return 0;
}

}  // namespace collector

// For py::class_<Value, Holder>: what keeps a cache alive, and shows that.
template <class Value, class Holder = std::shared_ptr<Value>>
py::custom_type_setup shows_its_cache() {
  return py::custom_type_setup([](PyHeapTypeObject* made) {
    made->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    made->ht_type.tp_traverse = &collector::show_kept;
    made->ht_type.tp_clear = &collector::clear<Value, Holder>;
  });
}

// For the class of prefix caches itself.
py::custom_type_setup shows_clock_and_store();

}  // namespace kvtrie::binding
