// Private to ops/: the launch of kernels/qkv.cl, proved before its first use.
#pragma once

#include "ops/qkv.h"

namespace kvtrie::ops {

// REQUIRES: checked arguments; q is float32 [rows, heads, k_dim].
void launch_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options,
                const Tensor& q);

}  // namespace kvtrie::ops
