// Which family of kernels a device gets, chosen by capability and never by name, and what is known of each kernel
// there.
//
//   serial      one work-item does a whole unit of work (a tile and KV head, a row) with wide vectors and no barriers
//   work-group  a work-group shares the unit through local memory; barriers are uniform
//
// On a CPU device the second is 11 to 38 times slower; on a GPU the first leaves most lanes idle.
//
// Both use vectors as wide as the processor's registers (kernels/vector.clh): 4 floats (SSE, NEON), 8 (AVX) or 16
// (AVX-512). A driver's preferred width says little: some prefer 1 everywhere. On a CPU the compiler is asked what it
// aims at, once for each driver; where it does not tell, and on other devices, the width that the driver calls native
// decides.
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

// Floats of the vectors that kernels use: 4, 8 or 16. The first call on a device may compile a small program.
std::int32_t vector_width(cl::Device& device);
// Overrides it for this device (4, 8 or 16); nullopt restores it. For tests of narrower forms than the machine's own.
void set_vector_width(cl::Device& device, std::optional<std::int32_t> width);

}  // namespace kvtrie::ops
