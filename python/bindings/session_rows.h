// Reading K and V of a session.
#pragma once

#include <pybind11/pybind11.h>

#include "cache/causal_cache.h"
#include "prefix_cache/session.h"

namespace kvtrie::binding {

RowOrder to_row_order(pybind11::handle heads_first, const char* where);

void add_rows(pybind11::class_<Session, SessionPtr>& c);

}  // namespace kvtrie::binding
