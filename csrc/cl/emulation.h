// Emulated devices: a device describes itself as another one, and is held to that. Faults show that would otherwise
// only show on somebody else's machine.
//
// Concept. A list of words, separated by spaces or commas, describes the other device; in Python, the environment
// variable KVTRIE_EMULATED_DEVICE. The words replace the driver's answers, in list_devices() and everywhere else, and
// cl/ refuses everything that such a device would refuse:
//
//     gpu, accelerator         that kind of device, with memory of its own; gpu: native vectors of 1 float
//     small                    32 work-items a group, 16 KiB of local memory, 128 MiB in one buffer
//     no_fp16                  no half arithmetic
//     late                     commands start when somebody flushes or waits, not when they are enqueued
//     max_work_group=N, local_bytes=N, max_alloc_bytes=N
//     compute_capability=N     of NVIDIA, 10 times major plus minor, whatever the device takes in truth
//     wmma, mfma, dpas         such a matrix unit (MatrixUnit), whose instructions plain OpenCL C computes
//     kernel_lanes=N           no kernel takes more work-items a group, as if it had too many registers
//
// The device's name ends with "(as gpu small)", so programs and verdicts of self-tests are kept apart. For tests: a CPU
// that emulates a GPU runs a GPU's kernels, and is no faster for it.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cl/device.h"

namespace kvtrie::cl {

struct Emulation {
  std::string words;  // as they were given, separated by spaces; empty: none
  std::optional<DeviceKind> kind;
  std::optional<std::uint32_t> max_work_group, kernel_lanes, compute_capability;
  std::optional<std::uint64_t> local_bytes, max_alloc_bytes;
  std::optional<MatrixUnit> matrix_unit;
  bool no_fp16 = false, late = false;
};

Emulation parse_emulation(std::string_view words);  // throws kArgument

// Rewrites what a driver said.
void emulate(const Emulation& emulation, DeviceInfo& info);

}  // namespace kvtrie::cl
