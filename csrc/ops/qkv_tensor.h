// Private to ops/: products by matrix instructions of few rows that rotate and store q, k and v themselves
// (kernels/matmul_tensor_qkv.clh).
//
// Heads are not normed, cells keep numbers by themselves, and a group of 32 outputs has whole pairs: k_dim is a
// multiple of 32, pairs by halves are a multiple of 16, and a weight begins and ends between heads of q and k. Each
// form is compared with a launch of the product and one of put_qkv, to the bit, before its first use.
//
// Threads: every function may be called from any thread.
#pragma once

#include "ops/matmul_tensor.h"
#include "ops/qkv.h"

namespace kvtrie::ops {

// Whether all weights were multiplied so; false: nothing was launched. REQUIRES: checked arguments, no norms of heads.
bool launch_tensor_qkv(const QkvProduct& product, const QkvEnd& end);

}  // namespace kvtrie::ops
