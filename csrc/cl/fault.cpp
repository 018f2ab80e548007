#include "cl/fault.h"

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
};

Mutex fault_mutex;
Fault fault KVTRIE_GUARDED_BY(fault_mutex);

}  // namespace

namespace detail {

std::atomic<bool> fault_armed{false};

int take_armed_fault(const char* name) noexcept {
  const MutexLock lock(fault_mutex);
  if (!fault_armed || fault.name != name) return 0;
  if (fault.calls_left > 1) {
    --fault.calls_left;
    return 0;
  }
  ++fault.taken;
  if (!fault.lasting) fault_armed = false;
  return fault.code;
}

}  // namespace detail

void arm_fault(const std::string& name, std::uint64_t nth, int code, bool lasting) {
  require(nth >= 1, "arm_fault", "nth: got 0, allowed 1 or more");
  require(code < 0, "arm_fault", "code: got ", code, ", allowed a negative one");
  const MutexLock lock(fault_mutex);
  fault = {name, nth, code, lasting, 0};
  detail::fault_armed = true;
}

void disarm_fault() {
  const MutexLock lock(fault_mutex);
  detail::fault_armed = false;
}

std::uint64_t faults_taken() {
  const MutexLock lock(fault_mutex);
  return fault.taken;
}

}  // namespace kvtrie::cl
