// Python values to C++ values and back: numbers, texts, sizes in bytes, tokens. No logic, no state.
//
// Every conversion takes `where` (the public call) and `name` (its argument) and throws kType or kArgument with both,
// the value and the limit. The GIL is held in all of them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gil.h"
#include "trie/edge.h"
#include "typed.h"

namespace kvtrie::binding {

inline constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// "1.5 (float)" for messages: the value's repr, cut to one short line, and its type.
std::string describe(py::handle value);
// "Place" of the class "package.Place".
std::string_view short_name(const PyTypeObject* type) noexcept;
// A str as UTF-8, whatever is in it: lone surrogates as they are written in Python.
std::string plain_text(py::handle text);
[[noreturn]] void refuse_type(py::handle value, std::string_view where, std::string_view name,
                              std::string_view allowed);

// Whether `value` is a whole number: int or a numpy integer; no bool, float or array.
bool is_integer(py::handle value);
std::int64_t to_integer(py::handle value, std::string_view where, std::string_view name, std::int64_t least,
                        std::int64_t most);
std::int32_t to_int32(py::handle value, std::string_view where, std::string_view name, std::int32_t least = 0);
bool to_flag(py::handle value, std::string_view where, std::string_view name);      // True or False, numpy's too
double to_number(py::handle value, std::string_view where, std::string_view name);  // finite
inline float to_float(py::handle value, std::string_view where, std::string_view name) {
  return static_cast<float>(to_number(value, where, name));
}

// The UTF-8 of a str; valid as long as the object.
std::string_view to_text(py::handle value, std::string_view where, std::string_view name);
// The name of a folder: not empty, and nothing in it that a file system would read as its end.
std::string to_folder(py::handle value, std::string_view where, std::string_view name);
// A number of bytes from an int or a text such as "512MiB".
std::uint64_t to_bytes(py::handle value, std::string_view where, std::string_view name);

// The items of a list, a tuple or anything else that has a length and gives items by their number (no text, no dict);
// throws kType for what is none, and for one whose own methods raise or give fewer than it says. Without the others'
// items in memory it may have 2^26 at most: kArgument.
std::vector<py::object> to_items(py::handle value, std::string_view where, std::string_view name,
                                 std::string_view allowed);

// Integers from any sequence or array of them, each in least .. 2^31 - 1. contiguous int32 arrays are read in place,
// so that they cost nothing; they have to stay unchanged during the call. Lives and dies with the GIL held.
class IntegerArgument {
 public:
  IntegerArgument(py::handle value, std::string_view where, std::string_view name, std::int32_t least = 0);
  std::span<const std::int32_t> span() const noexcept { return span_; }
  std::vector<std::int32_t> vector() const { return {span_.begin(), span_.end()}; }

 private:
  void read_array(const py::array& array);
  void read_sequence(py::handle value);
  template <class Wide>
  void copy_checked(const py::array& array);
  void append_checked(std::int64_t value, bool fits);

  std::string_view where_, name_;
  std::int32_t least_;
  py::object keep_;
  std::vector<std::int32_t> copied_;
  std::span<const std::int32_t> span_;
};

// Tokens, and for `append` also one token alone. Negative ones stand for media items (the core knows which there are),
// where `media` allows them.
class TokenArgument {
 public:
  TokenArgument(py::handle value, std::string_view where, bool or_one = false, bool media = true);
  std::span<const Token> span() const noexcept { return tokens_.span(); }

 private:
  py::object value_;
  IntegerArgument tokens_;
};

void make_read_only(py::array& array) noexcept;
// A read-only int32 array over memory that `owner` keeps.
Int32Array int32_view(std::span<const std::int32_t> values, py::handle owner);
// Arrays that own their values.
Int32Array int32_array(std::vector<std::int32_t> values);
UInt64Array uint64_array(std::vector<std::uint64_t> values);

// Pickling and deep copies, which all classes refuse (base_class.h), say what to do instead.
[[noreturn]] void refuse_reduction(py::handle self, std::string_view instead);

template <class Class>
void refuse_pickling(Class& c, const char* instead) {
  const std::string text = instead;
  c.def("__reduce_ex__", [text](py::handle self, const py::object&) { refuse_reduction(self, text); });
  c.def("__reduce__", [text](py::handle self) { refuse_reduction(self, text); });
}

}  // namespace kvtrie::binding
