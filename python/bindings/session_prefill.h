// The steps of a prompt as Python iterates over them: for step in session.prefill(), until nothing remains.
//
// Threads: one drives it. The session is kept until the iterator goes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "caches.h"
#include "collector.h"
#include "convert.h"
#include "gil.h"
#include "prefix_cache/session.h"
#include "prefix_cache/step.h"

namespace kvtrie::binding {

struct Prefill {
  SessionPtr session;
  std::uint32_t chunk;
  StepPtr previous;

  // After a failure the next call makes the step again.
  Typed<"Step"> next() {
    const StepPtr before = std::exchange(previous, nullptr);
    const StepPtr made = without_gil([&] { return session->next_prefill(chunk, before); });
    if (made == nullptr) throw py::stop_iteration();
    py::object step = keeping(made, session);
    previous = made;
    return step;
  }
};

inline void init_prefill(py::module_& m) {
  py::class_<Prefill> prefill(m, "Prefill", "The steps of ``Session.prefill``.",
                              shows_its_cache<Prefill, std::unique_ptr<Prefill>>());
  prefill.def("__iter__", [](const Typed<"Self">& self) { return self; });
  prefill.def("__next__", &Prefill::next);
  refuse_pickling(prefill, "calling session.prefill() again");
}

}  // namespace kvtrie::binding
