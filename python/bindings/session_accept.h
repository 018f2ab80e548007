// Tokens that were chosen, recorded in the session and noted by the caller in one call; and drafts of such tokens.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/session.h"
#include "prefix_cache/step.h"

namespace kvtrie::binding {

void add_accept(pybind11::class_<Session, SessionPtr>& c);
void add_step_accept(pybind11::class_<Step, StepPtr>& c);  // the same of drafts

}  // namespace kvtrie::binding
