#include "failing_allocations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace kvtrie::testing {
namespace {

thread_local std::uint64_t until_failure = 0;
thread_local std::size_t largest = 0;

// Not inlined: the compiler would take the pair below for a mismatch.
[[gnu::noinline]] void* allocate(std::size_t bytes, std::size_t alignment) {
  largest = std::max(largest, bytes);
  if (until_failure > 0 && --until_failure == 0) throw std::bad_alloc();
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (rounded >= bytes) {
    if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  }
  throw std::bad_alloc();
}

[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

std::uint64_t& allocations_until_failure() noexcept { return until_failure; }
std::size_t& largest_allocation() noexcept { return largest; }

}  // namespace kvtrie::testing

using kvtrie::testing::allocate;
using kvtrie::testing::release;

void* operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
// LLVM inside PoCL allocates this way; under ASan it would otherwise not pair with the delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
