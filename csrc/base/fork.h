// Whether this process was forked from the one that made an object.
//
// A forked process has a copy of all memory, and of all threads but the one that forked none: a lock that another
// thread held stays locked, and what a thread was to do is never done. An object with locks or threads of its own
// cannot be used there, nor be ended: it is left as it is, and its memory goes with the process.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace kvtrie {

// How many forks lie between the process that loaded this library and this one.
std::uint64_t fork_generation() noexcept;

// A member of objects that belong to the process that made them.
class HomeProcess {
 public:
  bool is_here() const noexcept { return generation_ == fork_generation(); }

 private:
  std::uint64_t generation_ = fork_generation();
};

// A descriptor that forked processes do not keep: in each of them it is closed as soon as it runs. For what a process
// is to hold alone, such as a lock on a file, which otherwise is held until the last of its forks has ended, too.
// Beyond `kMost` at once, nothing happens.
class ClosedInForks {
 public:
  static constexpr std::size_t kMost = 1024;
  explicit ClosedInForks(int descriptor) noexcept;
  ~ClosedInForks();  // before the descriptor is closed here
  ClosedInForks(const ClosedInForks&) = delete;
  ClosedInForks& operator=(const ClosedInForks&) = delete;

 private:
  std::size_t place_ = kMost;
};

// The destructor of `value` never runs. (It does if there is no memory left to prevent it.)
template <class T>
void leave_as_it_is(T& value) noexcept {
  static_cast<void>(new (std::nothrow) T(std::move(value)));
}

}  // namespace kvtrie
