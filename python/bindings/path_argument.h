// Arguments that name a path in the tree: tokens, and which of their spans go as one.
//
// Errors: the library's own, with `where` and the argument's name. Threads: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "convert.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie::binding {

namespace py = pybind11;

// Pairs of positions (begin, end); None: there are none.
std::vector<std::pair<std::int32_t, std::int32_t>> to_spans(const py::object& value, const char* where);

class PathArgument {
 public:
  PathArgument(const py::object& tokens, const py::object& atomic, const char* where);
  std::span<const Token> span() const noexcept { return keys_.empty() ? tokens_.span() : keys_; }

 private:
  TokenArgument tokens_;
  Tokens keys_;
};

}  // namespace kvtrie::binding
