// Private to ops/: small cases of the products, compared with the reference. Callers ask before the first launch.
#pragma once

#include "ops/matmul_group.h"
#include "ops/matmul_matrix.h"
#include "ops/matmul_tensor.h"
#include "ops/matmul_variant.h"

namespace kvtrie::ops {

bool variant_agrees(const cl::DevicePtr& device, const PackedVariant& variant);  // plain or gated, as it is
bool group_agrees(const cl::DevicePtr& device, const GroupVariant& variant);
bool tensor_agrees(const cl::DevicePtr& device, const TensorVariant& variant);
// Both forms, and a row alone, to the bit.
bool matrix_agrees(const cl::DevicePtr& device, MatrixVariant variant);
bool normed_agrees(const cl::DevicePtr& device, const TensorVariant& variant);  // with rms_norm before it, to the bit
bool stored_agrees(const cl::DevicePtr& device, const TensorVariant& variant);  // with put_qkv behind it, to the bit
bool embed_agrees(const cl::DevicePtr& device, WeightDType stored);
bool unpack_agrees(const cl::DevicePtr& device, const PackedVariant& variant);
bool rows_agree(const cl::DevicePtr& device, WeightDType stored, bool transpose_w);  // of an unpacked weight

}  // namespace kvtrie::ops
