// The result of `PrefixCache.explain`, as Python objects. It lets go of the GIL while it asks.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/prefix_cache.h"

namespace kvtrie::binding {

namespace py = pybind11;

py::dict explain_to_python(const PrefixCache& self, const py::object& tokens, const py::object& name_space,
                           const py::object& atomic);

}  // namespace kvtrie::binding
