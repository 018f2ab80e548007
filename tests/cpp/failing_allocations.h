// Allocations that fail, so that a test sees what a call leaves behind when memory is short. Test programs that include
// this have operator new replaced (failing_allocations.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvtrie::testing {

std::uint64_t& allocations_until_failure() noexcept;  // of this thread; 0: none fails
std::size_t& largest_allocation() noexcept;           // that this thread asked for so far; bytes

// Whether `call`, whose n-th allocation fails (from 1), threw for it. Tests ask with 1, 2, ... until it does not.
template <class Call>
bool runs_out_of_memory(std::uint64_t n, Call&& call) {
  bool failed = false;
  allocations_until_failure() = n;
  try {
    call();
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  allocations_until_failure() = 0;
  return failed;
}

}  // namespace kvtrie::testing
