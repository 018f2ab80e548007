// One error type for the whole library.
//
// Every failure a caller can meet is an `Error`: a kind (what class of failure, mapped to one Python exception
// class at the binding's edge) and a message of the form `[where] what happened: got N, allowed M`.
// A call that throws has changed nothing. Destructors and cleanup never throw.
#pragma once

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>

namespace kvtrie {

enum class ErrorKind : std::uint8_t {
  kArgument,       // a value out of its range; names the argument, the value and the limit
  kType,           // a value of the wrong type, dtype or rank
  kCacheFull,      // a claim does not fit, even after everything that may go has gone
  kNotRestorable,  // no state at the wanted length; `nearest()` is the longest length that can be reached
  kNotSupported,   // this operation has no meaning for this cache, model or device
  kDevice,         // OpenCL or CLBlast reported a failure, or there is no device
  kFormat,         // bytes or files that are not what they say
  kClosed,         // the object was closed
  kBusy,           // a second concurrent call on an object that allows one
  kInternal,       // a bug in kvtrie: an invariant did not hold
};

// The figures of a `kCacheFull` error, in cells (or slots) of the cache that was short.
struct CacheFullCounts {
  std::uint64_t needed = 0;     // asked for by the refused call
  std::uint64_t free = 0;       // claimable at once
  std::uint64_t freeable = 0;   // would become free by evicting what nobody needs
  std::uint64_t held_live = 0;  // held by live sessions
};

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const noexcept { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // Meaningful for kNotRestorable: the longest length that can be reached instead; -1 when unknown.
  std::int64_t nearest() const noexcept { return nearest_; }
  // Meaningful for kCacheFull.
  const CacheFullCounts& cache_full() const noexcept { return cache_full_; }

  static Error not_restorable(std::string message, std::int64_t nearest) {
    Error error(ErrorKind::kNotRestorable, std::move(message));
    error.nearest_ = nearest;
    return error;
  }
  static Error cache_full(std::string message, CacheFullCounts counts) {
    Error error(ErrorKind::kCacheFull, std::move(message));
    error.cache_full_ = counts;
    return error;
  }

 private:
  ErrorKind kind_;
  std::string message_;
  std::int64_t nearest_ = -1;
  CacheFullCounts cache_full_;
};

// Builds a message from values: cat("got ", n, ", allowed ", m). Throws std::bad_alloc rather than end it early.
template <class... Values>
std::string cat(const Values&... values) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);
  (out << ... << values);
  return out.str();
}

// Throws Error(kind, "[where] values...").
template <class... Values>
[[noreturn]] void fail(ErrorKind kind, std::string_view where, const Values&... values) {
  throw Error(kind, cat("[", where, "] ", values...));
}

// Throws kArgument unless `ok`.
template <class... Values>
void require(bool ok, std::string_view where, const Values&... values) {
  if (!ok) fail(ErrorKind::kArgument, where, values...);
}

// Throws kInternal unless `ok`: an invariant of kvtrie itself, kept in release builds.
template <class... Values>
void ensure(bool ok, std::string_view where, const Values&... values) {
  if (!ok) fail(ErrorKind::kInternal, where, values...);
}

}  // namespace kvtrie
