// The threads of a CPU device's driver, each on a processor of its own.
//
// Why. A driver has as many threads as there are processors, and the system may put two of them on one: it wakes a
// thread beside the one that woke it, and moves it away when it looks again, milliseconds later. A decode step takes
// one or two. So a step of the same model took 1.6 ms at one time and 3 at another, on an idle machine
// (bench/bench_threads.py).
//
// The driver's threads are its own, so a kernel does it (kernels/driver_threads.cl), by system calls of Linux, in the
// process that runs kernels. It binds all of them or none:
//
//   - as many threads as processors that they may use, all on the driver's own threads: a process that is to use fewer
//     (POCL_MAX_PTHREAD_COUNT, a control group's quota) stays where the system puts it, and so stay several of them
//   - all come within about 50 ms; where others keep them from it, nothing is bound
//
// They stay bound as long as the process lives. Whoever moves them later (`taskset -ap`, a cpuset) has the last word.
#pragma once

#include <cstdint>

#include "cl/device.h"

namespace kvtrie::ops {

// How many threads it bound: all or 0, which it is on other devices and where each is bound already. Waits for the
// device. Throws kDevice.
std::uint32_t bind_driver_threads(cl::Device& device);

}  // namespace kvtrie::ops
