// The class that all classes of the module are derived from: pybind11's, made safe for what Python does to any object.
//
// Concept. Python offers every object and class operations that no method of ours sees: a call of its base class, the
// protocols of pickle and copy, another `__class__`, other `__bases__`, life in a forked process. pybind11 throws out
// of some of these through frames of C, which ends the process; in others it takes the contents of one class for those
// of another. So here
//
//     its base class, called or inherited from alone       TypeError
//     `__reduce__`, `__reduce_ex__` of every class         TypeError; a class may say what to do instead (convert.h)
//     another `__class__`, other `__bases__`               each class has a size of its own, which makes Python refuse:
//                                                          "object layout differs"; so two of them have no common heir
//     a forked process                                     objects have a stamp, the process that made them; what
//                                                          belongs to another one is refused (refusals.cpp), not ended
//
// pybind11 keeps its base class in what it calls internals, which modules with one ABI tag share. This module has a tag
// of its own (cmake/python_module.cmake), so that no other module's classes are changed: with a new `tp_new` in a base
// that is shared, `X.__new__(X)` fails for all classes X that were made before.
//
//     | pybind11's instance | process it was made in | room that nobody uses, of a length that only this class has |
//
// Threads: the GIL is held in all of these.
#pragma once

#include <pybind11/pybind11.h>

namespace kvtrie::binding {

// Before the first class is made.
void prepare_base_class();
// When all of a class is there, and before it has objects or heirs.
void finish_class(PyTypeObject* type);
// Of a class whose objects have no lock, no thread and no file: forked processes may use copies of them.
void allow_in_forks(pybind11::handle type);

pybind11::handle base_class();
bool is_ours(PyObject* value);        // an object of a class of this module
bool has_contents(PyObject* object);  // whose __init__ ran to its end. REQUIRES: is_ours
// Whether it is an object of a class of ours that this process has but as a copy, and may not use.
bool belongs_elsewhere(PyObject* value);

}  // namespace kvtrie::binding
