// Private to ops/: quantising weights to q8_0 by kernels/pack_q8.cl, proved before its first use. REQUIRES of all:
// checked arguments.
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace kvtrie::ops {

inline constexpr std::int64_t kQ8Block = 32;                            // numbers that share a scale
inline constexpr std::int64_t kQ8Words = (64 * 2 + 64 * kQ8Block) / 4;  // of 4 bytes, in one block of 64 outputs

// Memory for `groups` groups of 64 outputs, uint32 [groups][ceil(in / 32)][kQ8Words]; contents undefined.
Tensor empty_q8(const cl::DevicePtr& device, std::int64_t groups, std::int64_t in);

// Fills every `step`-th panel of 16 outputs from `first` on with those of w, [out, in] when `transposed`, else [in,
// out]. Waits. Throws kArgument as `[where] name: got ...` when q8_0 cannot hold w; the panels are then undefined.
void quantise(std::string_view where, std::string_view name, const Tensor& w, bool transposed, const Tensor& panels,
              std::int32_t step, std::int32_t first);

}  // namespace kvtrie::ops
