// Whether a CPU device multiplies integers faster than floats, as kernels/matmul_integer.clh asks for it.
//
//   vnni   AVX-512 VNNI: sums of two products of 16-bit integers in each of 16 lanes (vpdpwssd)
//   amx    and AMX: products of tiles of 8-bit integers (tdpbssd)
//
// A driver's compiler often aims at an older processor than it runs on, so the processor itself is asked, by a kernel
// in the process that runs kernels. Linux lets a process use AMX tiles once it has asked for them (arch_prctl, since
// 5.16): that kernel asks, once for each opened device. From then on the process's signal frames have room for tiles,
// so `sigaltstack` refuses stacks below AT_MINSIGSTKSZ (11 KB) from any thread, and the request itself is refused where
// a thread has a smaller one. Refused, or on another system: vnni.
//
// Both compute the same bits, so a later process that is refused what this one got reads its caches.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "cl/device.h"

namespace kvtrie::ops {

enum class IntegerUnits : std::uint8_t { kNone, kVnni, kAmx };  // each has what those before it have
const char* name_of(IntegerUnits units) noexcept;               // "none", "vnni", "amx"

// None but in the serial family with vectors of 16 floats. The first call on a device compiles a small program.
IntegerUnits integer_units(cl::Device& device);
// Overrides it for this device; nullopt restores it. For tests and experiments. Throws kNotSupported for units that the
// processor does not have.
void set_integer_units(cl::Device& device, std::optional<IntegerUnits> units);

}  // namespace kvtrie::ops
