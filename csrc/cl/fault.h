// Faults on purpose: makes the Nth call of a named OpenCL function fail, so that tests can walk every error path.
//
// Concept. At most one fault is armed in the process. While none is, a call costs one relaxed load. The name is the
// OpenCL function ("clCreateBuffer") or "command status", which stands for a command that was accepted and then failed
// on the device.
//
// Threads: any thread; the calls of all threads are counted together.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace kvtrie::cl {

// Call number `nth` (from 1) of `name` from now on returns `code` (negative) without reaching OpenCL; with `lasting`
// so do all after it.
void arm_fault(const std::string& name, std::uint64_t nth, int code, bool lasting = false);
void disarm_fault();
std::uint64_t faults_taken();  // times the fault armed last was returned

namespace detail {
extern std::atomic<bool> fault_armed;
int take_armed_fault(const char* name) noexcept;
}  // namespace detail

// The code to return instead of calling `name`, or 0.
inline int take_fault(const char* name) noexcept {
  return detail::fault_armed.load(std::memory_order_relaxed) ? detail::take_armed_fault(name) : 0;
}

}  // namespace kvtrie::cl
