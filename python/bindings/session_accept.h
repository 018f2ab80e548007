// A token that was chosen: recorded in the session and noted by the caller in one call.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/session.h"

namespace kvtrie::binding {

void add_accept(pybind11::class_<Session, SessionPtr>& c);

}  // namespace kvtrie::binding
