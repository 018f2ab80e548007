// Why less was reused than known, for Python.
#pragma once

#include <pybind11/pybind11.h>

#include "gil.h"
#include "tree/reuse_plan.h"
#include "typed.h"

namespace kvtrie::binding {

Typed<"Reason"> reason_to_python(const Reason& reason);  // kvtrie._values.Reason

}  // namespace kvtrie::binding
