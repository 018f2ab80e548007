// Private to ops/: quantising weights to q8_0 by kernels/pack_q8.cl, proved before its first use. REQUIRES of all:
// checked arguments.
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace kvtrie::ops {

// Fills every `step`-th panel of 16 outputs from `first` on with those of w, [out, in] when `transposed`, else [in,
// out]. Waits. Throws kArgument as `[where] name: got ...` when q8_0 cannot hold w; the panels are then undefined.
void quantise(std::string_view where, std::string_view name, const Tensor& w, bool transposed, const Tensor& panels,
              std::int32_t step, std::int32_t first);

}  // namespace kvtrie::ops
