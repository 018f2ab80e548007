// Private to ops/: launches of kernels/matmul.cl, kernels/matmul_rows.cl and CLBlast, each proved before its first use.
// REQUIRES of all: checked arguments.
#pragma once

#include "ops/matmul.h"

namespace kvtrie::ops {

Tensor launch_pack(const Tensor& w, bool transpose_w);
void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& y);
void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);
bool clblast_works(const cl::DevicePtr& device, bool transpose_w);
void launch_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);

// Builds and proves every packed variant for weights of `stored`.
void warm_up_matmul(const cl::DevicePtr& device, DType stored);

}  // namespace kvtrie::ops
