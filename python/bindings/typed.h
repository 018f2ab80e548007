// Arguments and results that any Python object may be, with the type that their signature names.
//
// Concept. The conversions of convert.h and arrays.h take any object, so that every refusal has our own words; to
// pybind11 that is `object`, which says nothing to a reader or a type checker. `Typed<"Integers">` is a py::object in
// all that it does, and "Integers" in the signature that pybind11 writes into the documentation. From those signatures
// tests/lint/stub.py makes python/kvtrie/_core.pyi, where the names of types are declared:
//
//     Typed<"int | None"> in a binding  ->  "f(x: int | None) -> ..." in __doc__  ->  def f(x: int | None) -> ...
//
// Threads: the GIL is held.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace kvtrie::binding {

// An object that takes every value, as pybind11 wants its subclasses.
class AnyObject : public pybind11::object {
 public:
  AnyObject() = default;
  AnyObject(pybind11::handle value, borrowed_t) : object(value, borrowed_t{}) {}
  AnyObject(pybind11::handle value, stolen_t) : object(value, stolen_t{}) {}
  AnyObject(pybind11::object value) : object(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  static bool check_(pybind11::handle value) { return value.ptr() != nullptr; }
};

// A type as Python writes it, in the words of _core.pyi.
template <std::size_t kLength>
struct TypeText {
  consteval TypeText(const char (&from)[kLength]) { std::copy_n(from, kLength, text); }  // NOLINT: written as a literal
  char text[kLength];
};

template <TypeText kType>
class Typed : public AnyObject {
  using AnyObject::AnyObject;
};

// An object of the bound class, or None. REQUIRES: the class is bound before the signature that names it.
template <class Class>
class OptionalOf : public AnyObject {
  using AnyObject::AnyObject;
};

template <class Class>
OptionalOf<Class> optional_of(const std::shared_ptr<Class>& object) {
  return OptionalOf<Class>(pybind11::cast(object));
}

using Int32Array = Typed<"Int32Array">;
using UInt64Array = Typed<"UInt64Array">;

}  // namespace kvtrie::binding

template <kvtrie::binding::TypeText kType>
struct pybind11::detail::handle_type_name<kvtrie::binding::Typed<kType>> {
  static constexpr auto name = const_name(kType.text);
};

template <class Class>
struct pybind11::detail::handle_type_name<kvtrie::binding::OptionalOf<Class>> {
  static constexpr auto name = make_caster<Class>::name + const_name(" | None");
};
