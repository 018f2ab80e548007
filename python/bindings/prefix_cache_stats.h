// The results of `PrefixCache.stats` and `nodes`, as Python objects. They let go of the GIL while they ask.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/prefix_cache.h"
#include "typed.h"

namespace kvtrie::binding {

namespace py = pybind11;

Typed<"dict[str, Any]"> stats_to_python(const PrefixCache& self);
Typed<"list[tuple[Any, ...]]"> node_tuples(const PrefixCache& self);

}  // namespace kvtrie::binding
