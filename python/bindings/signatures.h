// The signatures that inspect.signature reads of functions that pybind11 made.
//
// Concept. Python finds the signature of a native function at the beginning of its documentation: `name(a, b=1)`, then
// a line of two hyphens. pybind11 writes there `name(a: int, b: int = 1) -> None`, which Python takes for prose. So a
// line of the first kind is put before the one of the second kind; `__doc__` does not show it. The arguments are
// pybind11's own, without their types, of which tests/lint/stub.py makes python/kvtrie/_core.pyi.
//
// Threads: the GIL is held.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace kvtrie::binding {

// "f(self: A, b: list[int, int] = [1, 2], *, c: str = 'x') -> None" becomes "f(self, b=[1, 2], *, c='x')"; "" for a
// text that does not begin in this way.
std::string without_types(std::string_view documented);

// Once for each function of pybind11's, whose documentation it replaces.
void give_signature(PyMethodDef& method);

}  // namespace kvtrie::binding
