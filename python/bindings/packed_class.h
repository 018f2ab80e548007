// The Python classes of packed weights.
#pragma once

#include <string>
#include <utility>

#include "arrays.h"
#include "base/error.h"
#include "base_class.h"
#include "cache_class.h"
#include "convert.h"
#include "ops/matmul.h"

namespace kvtrie::binding {

// The common part of a packed weight, a pair and a set of them: shape, dtype, nbytes, device.
template <class Packed>
py::class_<Packed> init_packed(py::module_& m, const char* name, const char* doc) {
  py::class_<Packed> c(m, name, doc);
  c.def_property_readonly(
      "shape", [](const Packed& self) { return std::pair(self.out_features(), self.in_features()); },
      "(out, in) of a weight in it.");
  c.def_property_readonly(
      "dtype", [](const Packed& self) { return ops::name_of(self.dtype()); }, "How its numbers are kept.");
  c.def_property_readonly(
      "precision", [](const Packed& self) { return ops::name_of(self.precision()); },
      "How its products are computed: \"auto\" or \"exact\", as for ``pack``.");
  c.def_property_readonly("nbytes", &Packed::nbytes, "Bytes of device memory, padding included.");
  c.def_property_readonly(
      "device", [](const Packed& self) { return placement_to_python(self.panels().device()); }, "The device it is on.");
  c.def("__repr__", [name = std::string(name)](const Packed& self) {
    return cat("<kvtrie.ops.", name, " ", ops::name_of(self.dtype()), "[", self.out_features(), ", ",
               self.in_features(), "]>");
  });
  refuse_pickling(c, "pickling what it was packed from");
  allow_in_forks(c);
  return c;
}

}  // namespace kvtrie::binding
