#include "failing_allocations.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace kvtrie::testing {
namespace {

thread_local std::uint64_t until_failure = 0;
thread_local std::size_t largest = 0;
thread_local bool stays_short = false;  // with `until_failure`: what follows the one that fails does, too
thread_local int of_test = 0;           // scopes of AllocationsOfTest
thread_local bool arms_others = false;  // this thread's are not counted among the others'

// The other side, of all threads but the one that armed it.
std::atomic<std::uint64_t> others_left{0};  // 0: none fails; 1: the next one does
std::atomic<bool> others_stay_short{false};
std::atomic<std::uint64_t> refusals{0};

bool others_run_out() noexcept {
  std::uint64_t left = others_left.load();
  while (left > 1 && !others_left.compare_exchange_weak(left, left - 1)) {
  }
  if (left != 1) return false;
  return others_stay_short.load() || others_left.compare_exchange_strong(left, 0);
}

bool runs_out() noexcept {
  if (of_test > 0) return false;
  bool out = false;
  if (until_failure > 0 && --until_failure == 0) {
    out = true;
    until_failure = stays_short ? 1 : 0;
  }
  if (!out && others_left.load(std::memory_order_relaxed) > 0 && !arms_others) out = others_run_out();
  if (out) ++refusals;
  return out;
}

// Not inlined: the compiler would take the pair below for a mismatch.
[[gnu::noinline]] void* allocate(std::size_t bytes, std::size_t alignment) {
  largest = std::max(largest, bytes);
  if (runs_out()) throw std::bad_alloc();
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (rounded >= bytes) {
    if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  }
  throw std::bad_alloc();
}

[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

void arm_allocations(std::uint64_t nth, bool lasting, Allocating who) noexcept {
  refusals = 0;
  if (who == Allocating::kThisThread) {
    stays_short = lasting;
    until_failure = nth;
    return;
  }
  arms_others = true;
  others_stay_short = lasting;
  others_left = nth;
}

std::uint64_t disarm_allocations() noexcept {
  const std::uint64_t left = arms_others ? others_left.exchange(0) : std::exchange(until_failure, 0);
  stays_short = arms_others = false;
  return refusals > 0 ? 0 : left;
}

std::uint64_t allocations_refused() noexcept { return refusals; }

AllocationsOfTest::AllocationsOfTest() noexcept { ++of_test; }
AllocationsOfTest::~AllocationsOfTest() { --of_test; }

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
