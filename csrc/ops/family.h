// Which family of kernels a device gets, chosen by capability and never by name, and what is known of each kernel
// there.
//
//   serial      one work-item does a whole unit of work (a tile and KV head, a row) with wide vectors and no barriers
//   work-group  a work-group shares the unit through local memory; barriers are uniform
//
// On a CPU device the second is 11 to 38 times slower; on a GPU the first leaves most lanes idle.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "cl/device.h"

namespace kvtrie::ops {

enum class KernelFamily : std::uint8_t { kSerial, kWorkGroup };
const char* name_of(KernelFamily family) noexcept;  // "serial", "work-group"

KernelFamily kernel_family(cl::Device& device);
// Overrides the choice for this device; nullopt restores it. For tests and experiments.
void set_kernel_family(cl::Device& device, std::optional<KernelFamily> family);

}  // namespace kvtrie::ops
