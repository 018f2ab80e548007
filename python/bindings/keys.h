// Keys that a caller gives from Python. No message shows one, nor what was given in its place.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

#include "store/key_ring.h"

namespace kvtrie::binding {

namespace py = pybind11;

// None (null), a key, or a dict of str to such; a key is 32 bytes, or a list of them: one to seal with, then older
// ones.
KeyRingPtr to_keys(py::handle value, std::string_view where);

}  // namespace kvtrie::binding
