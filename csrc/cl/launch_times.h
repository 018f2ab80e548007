// The duration of each launch by the device's own clock, for benches (Device::Options::times_launches).
//
// Concept. Such a device has a queue that takes times, and every launch leaves its event here, in queue order, until
// `take` reads them all. That costs what the device otherwise saves: an event a launch, and a driver that keeps kernels
// apart. So sums of these times are of the kernels alone; how long a step takes is measured without them.
//
// Threads: every method may be called from any thread. `add` must be called in queue order: under the enqueue lock.
// Units: nanoseconds of the device's clock.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cl/device.h"
#include "cl/opencl.h"

namespace kvtrie::cl {

class LaunchTimes {
 public:
  // Strong: throws bad_alloc. An empty event has no times.
  void add(EventHandle event, std::shared_ptr<const Kernel::State> kernel, Range global, Range local);
  // REQUIRES: all that were added have ended, or count as having no times.
  std::vector<Device::LaunchTime> take();

 private:
  struct Launch {
    EventHandle event;
    std::shared_ptr<const Kernel::State> kernel;
    Range global, local;
  };
  Mutex mutex_;
  std::vector<Launch> launches_ KVTRIE_GUARDED_BY(mutex_);
};

}  // namespace kvtrie::cl
