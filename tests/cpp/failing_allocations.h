// Allocations that fail, so that a test sees what a call leaves behind when memory is short. Test programs that include
// this have operator new replaced (failing_allocations.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtrie::testing {

std::uint64_t& allocations_until_failure() noexcept;  // of this thread; 0: none fails
std::size_t& largest_allocation() noexcept;           // that this thread asked for so far; bytes

}  // namespace kvtrie::testing
