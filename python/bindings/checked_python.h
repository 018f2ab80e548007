// Python's makers of objects, as pybind11 and we call them: what cannot be made raises.
//
// Concept. Each of these functions returns a null pointer, with MemoryError set, where there is no memory. pybind11
// takes some of them to succeed (it compares names of arguments with the null pointer), and makes other errors of the
// rest: "could not allocate", "unable to convert". Here they throw that MemoryError. This comes before pybind11 in
// everything that is compiled into the module (cmake/python_module.cmake), so that it means what its code calls.
//
// Threads: the GIL is held, as for the functions themselves.
#pragma once

#include <Python.h>

namespace kvtrie::binding {

[[noreturn]] void throw_python_error();  // py::error_already_set, of the error that is set

inline PyObject* made(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return object;
}

}  // namespace kvtrie::binding

// NOLINTBEGIN(cppcoreguidelines-macro-usage): there is no other way into code that is included.
#define PyBytes_FromStringAndSize(...) ::kvtrie::binding::made(PyBytes_FromStringAndSize(__VA_ARGS__))
#define PyDict_New(...) ::kvtrie::binding::made(PyDict_New(__VA_ARGS__))
#define PyFloat_FromDouble(...) ::kvtrie::binding::made(PyFloat_FromDouble(__VA_ARGS__))
#define PyList_New(...) ::kvtrie::binding::made(PyList_New(__VA_ARGS__))
#define PyLong_FromLong(...) ::kvtrie::binding::made(PyLong_FromLong(__VA_ARGS__))
#define PyLong_FromLongLong(...) ::kvtrie::binding::made(PyLong_FromLongLong(__VA_ARGS__))
#define PyLong_FromSize_t(...) ::kvtrie::binding::made(PyLong_FromSize_t(__VA_ARGS__))
#define PyLong_FromSsize_t(...) ::kvtrie::binding::made(PyLong_FromSsize_t(__VA_ARGS__))
#define PyLong_FromUnsignedLong(...) ::kvtrie::binding::made(PyLong_FromUnsignedLong(__VA_ARGS__))
#define PyLong_FromUnsignedLongLong(...) ::kvtrie::binding::made(PyLong_FromUnsignedLongLong(__VA_ARGS__))
#define PyTuple_New(...) ::kvtrie::binding::made(PyTuple_New(__VA_ARGS__))
#define PyUnicode_FromString(...) ::kvtrie::binding::made(PyUnicode_FromString(__VA_ARGS__))
#define PyUnicode_FromStringAndSize(...) ::kvtrie::binding::made(PyUnicode_FromStringAndSize(__VA_ARGS__))
#define PyUnicode_InternFromString(...) ::kvtrie::binding::made(PyUnicode_InternFromString(__VA_ARGS__))
// NOLINTEND(cppcoreguidelines-macro-usage)
