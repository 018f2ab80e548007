// Faults on purpose: makes the Nth call of a named OpenCL function fail, so that tests can walk every error path.
//
// Concept. At most one fault is armed in the process. While none is, a call costs one relaxed load. The name is the
// OpenCL function ("clCreateBuffer"), "command status", which stands for a command that was accepted and then failed on
// the device, or kAnyCall. While a fault is armed, calls are also counted by name.
//
// Threads: any thread; the calls of all threads are counted together, but for those of a thread that has a FaultsOff.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace kvtrie::cl {

inline constexpr const char* kAnyCall = "any call";

// Call number `nth` (from 1) of `name` from now on returns `code` (negative) without reaching OpenCL; with `lasting`
// so do all after it.
void arm_fault(const std::string& name, std::uint64_t nth, int code, bool lasting = false);
std::uint64_t disarm_fault();  // the `nth` that would go on with what was armed; 0: it was met, or none was armed
std::uint64_t faults_taken();  // times the fault armed last was returned
std::string fault_taken_in();  // the function that it was returned for last; empty: none
std::map<std::string, std::uint64_t> calls_counted();  // by name, while faults were armed; begins anew after this

// While it lives, calls of this thread neither fail nor count: for commands of a test itself.
class FaultsOff {
 public:
  FaultsOff() noexcept;
  ~FaultsOff();
  FaultsOff(const FaultsOff&) = delete;
  FaultsOff& operator=(const FaultsOff&) = delete;
};

namespace detail {
extern std::atomic<bool> fault_armed;
int take_armed_fault(const char* name) noexcept;
}  // namespace detail

// The code to return instead of calling `name`, or 0.
inline int take_fault(const char* name) noexcept {
  return detail::fault_armed.load(std::memory_order_relaxed) ? detail::take_armed_fault(name) : 0;
}

}  // namespace kvtrie::cl
