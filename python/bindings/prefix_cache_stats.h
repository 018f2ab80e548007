// The results of `PrefixCache.stats` and `nodes`, as Python objects. They let go of the GIL while they ask.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/prefix_cache.h"

namespace kvtrie::binding {

namespace py = pybind11;

py::dict stats_to_python(const PrefixCache& self);
py::list node_tuples(const PrefixCache& self);

}  // namespace kvtrie::binding
