// Objects of the module's classes when memory is short: an object comes into being whole, or MemoryError is raised.
//
// Concept. pybind11 makes an object in three steps: Python's memory for it, the pointer to the C++ value, and the entry
// in its table of instances together with the holder. It takes none of them to fail. Without memory for the first it
// writes through a null pointer; where the entry fails, the object is released while it owns the value and has no
// holder yet, so that a value which a shared_ptr still owns is freed twice. The first raises (base_class.cpp), and here
// the holder comes before the entry: whatever fails, the object's own end gives back what it has.
//
// Threads: the GIL is held in all of these.
#pragma once

#include <pybind11/pybind11.h>

namespace kvtrie::binding {

// Of a class that the module has made; once for each class.
void guard_instances(pybind11::detail::type_info& type);

// `patient` lives as long as `nurse`. Throws std::bad_alloc with nothing changed. REQUIRES: `nurse` keeps nothing yet.
void keep_alive(pybind11::handle nurse, pybind11::handle patient);

}  // namespace kvtrie::binding
