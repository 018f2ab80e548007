// The result of `PrefixCache.explain`, as Python objects. It lets go of the GIL while it asks.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/prefix_cache.h"
#include "typed.h"

namespace kvtrie::binding {

namespace py = pybind11;

Typed<"ExplanationFields"> explain_to_python(const PrefixCache& self, const Typed<"Integers">& tokens,
                                             const Typed<"str">& name_space, const Typed<"Spans | None">& atomic);

}  // namespace kvtrie::binding
