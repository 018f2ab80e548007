// Arithmetic on sizes that fails instead of wrapping.
//
// Every size that comes from outside (shapes, files, budgets) goes through these before anything is allocated. `where`
// names the caller in the message, `what` the quantity.
//
// Threads: pure.
#pragma once

#include <concepts>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace kvtrie {

template <std::integral T>
T checked_add(T a, T b, std::string_view where, std::string_view what) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorKind::kArgument, where, what, ": got ", +a, " + ", +b, ", allowed ", +std::numeric_limits<T>::max());
  }
  return sum;
}

template <std::integral T>
T checked_mul(T a, T b, std::string_view where, std::string_view what) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::kArgument, where, what, ": got ", +a, " * ", +b, ", allowed ", +std::numeric_limits<T>::max());
  }
  return product;
}

// `value` as a To, unchanged.
template <std::integral To, std::integral From>
To narrow(From value, std::string_view where, std::string_view what) {
  if (!std::in_range<To>(value)) {
    fail(ErrorKind::kArgument, where, what, ": got ", +value, ", allowed ", +std::numeric_limits<To>::min(), " to ",
         +std::numeric_limits<To>::max());
  }
  return static_cast<To>(value);
}

// `value` rounded up to a multiple of `alignment` (not zero).
template <std::unsigned_integral T>
T align_up(T value, T alignment, std::string_view where, std::string_view what) {
  const T rest = value % alignment;
  return rest == 0 ? value : checked_add<T>(value, alignment - rest, where, what);
}

}  // namespace kvtrie
