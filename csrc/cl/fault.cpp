#include "cl/fault.h"

#include <utility>

#include "base/error.h"
#include "base/mutex.h"

namespace kvtrie::cl {
namespace {

struct Fault {
  std::string name;
  std::uint64_t calls_left = 0;  // calls that still succeed, plus one
  int code = 0;
  bool lasting = false;
  std::uint64_t taken = 0;
  std::string taken_in{};
};

Mutex fault_mutex;
Fault fault KVTRIE_GUARDED_BY(fault_mutex);
std::map<std::string, std::uint64_t> counted KVTRIE_GUARDED_BY(fault_mutex);
thread_local int faults_off = 0;

}  // namespace

namespace detail {

std::atomic<bool> fault_armed{false};

int take_armed_fault(const char* name) noexcept {
  if (faults_off > 0) return 0;
  const MutexLock lock(fault_mutex);
  if (!fault_armed) return 0;
  ++counted[name];
  if (fault.name != name && fault.name != kAnyCall) return 0;
  if (fault.calls_left > 1) {
    --fault.calls_left;
    return 0;
  }
  ++fault.taken;
  fault.taken_in = name;
  if (!fault.lasting) fault_armed = false;
  return fault.code;
}

}  // namespace detail

void arm_fault(const std::string& name, std::uint64_t nth, int code, bool lasting) {
  require(nth >= 1, "arm_fault", "nth: got 0, allowed 1 or more");
  require(code < 0, "arm_fault", "code: got ", code, ", allowed a negative one");
  const MutexLock lock(fault_mutex);
  fault = {name, nth, code, lasting, 0, {}};
  detail::fault_armed = true;
}

std::uint64_t disarm_fault() {
  const MutexLock lock(fault_mutex);
  return detail::fault_armed.exchange(false) && fault.taken == 0 ? fault.calls_left : 0;
}

std::uint64_t faults_taken() {
  const MutexLock lock(fault_mutex);
  return fault.taken;
}

std::string fault_taken_in() {
  const MutexLock lock(fault_mutex);
  return fault.taken_in;
}

std::map<std::string, std::uint64_t> calls_counted() {
  const MutexLock lock(fault_mutex);
  return std::exchange(counted, {});
}

FaultsOff::FaultsOff() noexcept { ++faults_off; }
FaultsOff::~FaultsOff() { --faults_off; }

}  // namespace kvtrie::cl
