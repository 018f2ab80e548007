// Private to ops/: launches of the small kernels (rows, elementwise, rope, copy, sample), each proved before its first
// use. REQUIRES of all: checked arguments; float32 where nothing else is said; `y` is what they write.
#pragma once

#include <string>

#include "ops/ops.h"
#include "ops/rope.h"
#include "ops/support.h"

namespace kvtrie::ops {

void launch_rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset, const Tensor& y);
void launch_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y);
void launch_l2_norm(const Tensor& x, float eps, const Tensor& y);
void launch_softmax(const Tensor& x, const Tensor& y);
void launch_argmax(const Tensor& x, const Tensor& y);

// `op` names a kernel of kernels/elementwise.cl.
void launch_unary(const std::string& op, const Tensor& a, const Tensor& y);
void launch_clamp(const Tensor& a, const Clamp& bounds, const Tensor& y);
void launch_binary(const std::string& op, const Tensor& a, const Tensor& b, const Tensor& y);

void launch_rope(const Tensor& x, const Tensor& positions, const DeviceRope& table, const Tensor& y);

void launch_cast(const Tensor& x, const Tensor& y);
void launch_embedding(const Tensor& table, const TableRows& range, const Tensor& ids, const Tensor& y);
// `rows` rows of `words` 16-bit words, from word r * from_stride to word r * to_stride of tensors that start there.
struct RowCopy {
  std::uint64_t rows = 0, words = 0, from = 0, from_stride = 0, to = 0, to_stride = 0;
};
void launch_copy_rows(const Tensor& x, const Tensor& y, const RowCopy& copy);
void launch_take_rows(const Tensor& x, const Tensor& rows, const Tensor& y);

// `words` int32: as kernels/sample.cl reads them (sample_words).
void launch_sample(const Tensor& logits, const Tensor& words, const Tensor& scratch, const Tensor& y);

}  // namespace kvtrie::ops
