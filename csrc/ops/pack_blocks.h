// Private to ops/: blocks of GGML laid out for the packed products by kernels/pack_blocks.cl, proved before its first
// use.
#pragma once

#include <cstddef>
#include <span>

#include "ops/weight_dtype.h"

namespace kvtrie::ops {

// Fills every `step`-th panel of 16 outputs from `first` on with those of `raw`, [out][in / block] blocks of `dtype`.
// REQUIRES: `in` a multiple of the block's numbers, raw of just that many bytes, panels made by empty_blocks.
void pack_blocks(std::span<const std::byte> raw, WeightDType dtype, std::int64_t out, std::int64_t in,
                 const Tensor& panels, std::int32_t step, std::int32_t first);

}  // namespace kvtrie::ops
