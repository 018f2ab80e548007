// Allocations that fail, so that a test sees what a call leaves behind when memory is short. Test programs that include
// this have operator new replaced (failing_allocations.cpp).
//
// Concept. What fails is the nth allocation from when a fault is *armed*, and with `lasting` every one after it, of one
// side: of the thread that armed it, or of all others (a cache's own threads; REQUIRES: no other thread of the process
// is alive). `disarm` says how many are still to succeed, so that a test can count those of the product alone:
//
//     test | product ........ | test | product ... | test           arm(n) at the first border, disarm at the second,
//          |1  2  3           |      |4  5  X      |                arm(what is left) at the third
//
// Threads: a fault is armed and disarmed by one thread at a time. Counting costs a relaxed load for each allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvtrie::testing {

enum class Allocating : std::uint8_t { kThisThread, kOtherThreads };

void arm_allocations(std::uint64_t nth, bool lasting, Allocating who) noexcept;  // nth: from 1
std::uint64_t disarm_allocations() noexcept;   // how many would still have succeeded, plus one; 0: one has failed
std::uint64_t allocations_refused() noexcept;  // since the last arm, of the armed side

std::uint64_t& allocations_until_failure() noexcept;  // of this thread; 0: none fails
std::size_t& largest_allocation() noexcept;           // that this thread asked for so far; bytes

// While it lives, nothing of this thread fails or counts: for code of a test that the product calls.
class AllocationsOfTest {
 public:
  AllocationsOfTest() noexcept;
  ~AllocationsOfTest();
  AllocationsOfTest(const AllocationsOfTest&) = delete;
  AllocationsOfTest& operator=(const AllocationsOfTest&) = delete;
};

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
