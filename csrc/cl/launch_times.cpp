#include "cl/launch_times.h"

#include <cstdint>
#include <utility>

#include "cl/program_cache.h"

namespace kvtrie::cl {
namespace {

std::uint64_t time_of(const EventHandle& event, cl_profiling_info what) noexcept {
  cl_ulong time = 0;
  if (!event) return 0;
  const int code = result_of("clGetEventProfilingInfo",
                             [&] { return clGetEventProfilingInfo(event.get(), what, sizeof time, &time, nullptr); });
  return code == CL_SUCCESS ? time : 0;
}

}  // namespace

void LaunchTimes::add(EventHandle event, std::shared_ptr<const Kernel::State> kernel, Range global, Range local) {
  const MutexLock lock(mutex_);
  launches_.push_back({std::move(event), std::move(kernel), global, local});
}

std::vector<Device::LaunchTime> LaunchTimes::take() {
  std::vector<Launch> launches;
  {
    const MutexLock lock(mutex_);
    launches.swap(launches_);
  }
  std::vector<Device::LaunchTime> times;
  times.reserve(launches.size());
  for (const Launch& each : launches) {
    times.push_back({each.kernel->name, each.kernel->options, each.global, each.local,
                     time_of(each.event, CL_PROFILING_COMMAND_START), time_of(each.event, CL_PROFILING_COMMAND_END)});
  }
  return times;
}

}  // namespace kvtrie::cl
