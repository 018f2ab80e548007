// Refusals that pybind11 would make by itself, in the words of the library (refusals.cpp).
#pragma once

#include <pybind11/pybind11.h>

namespace kvtrie::binding {

// Once, when every function and class of the module is there. REQUIRES: the GIL is held.
void speak_for_pybind11(const pybind11::module_& m);

}  // namespace kvtrie::binding
