// Private to ops/: the bare launches behind rows_variant.h, without proof. Same arguments.
#pragma once

#include "ops/rows_variant.h"

namespace kvtrie::ops::bare {

std::string lanes_option(cl::Device& device);

// Work-items for `count` numbers of each of `rows` rows, and their groups: long runs on a CPU, one vector on a GPU.
struct Chunks {
  std::int32_t chunk;
  cl::Range global, local;
  Chunks(cl::Device& device, std::size_t count, std::size_t rows);
};

void rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset, const Tensor& y);
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y);
void l2_norm(const Tensor& x, float eps, const Tensor& y);
void softmax(const Tensor& x, const Tensor& y);
// `lanes`: argmax_lanes, or fewer.
void argmax(const Tensor& x, const Tensor& y, std::int32_t lanes);
// Of a group of argmax: 1 in the serial family, else as many as the device and the kernel's registers allow, up to 512.
std::int32_t argmax_lanes(cl::Device& device);
void unary(const std::string& op, const Tensor& a, const Tensor& y);
void clamp(const Tensor& a, const Clamp& bounds, const Tensor& y);
void binary(const std::string& op, const Tensor& a, const Tensor& b, const Tensor& y);
void rope(const Tensor& x, const Tensor& positions, const DeviceRope& table, const Tensor& y);
void cast(const Tensor& x, const Tensor& y);
void embedding(const Tensor& table, const TableRows& range, const Tensor& ids, const Tensor& y);
void copy_rows(const Tensor& x, const Tensor& y, const RowCopy& copy);
void take_rows(const Tensor& x, const Tensor& rows, const Tensor& y);
void sample(const Tensor& logits, const Tensor& words, const Tensor& scratch, const Tensor& y);

}  // namespace kvtrie::ops::bare
