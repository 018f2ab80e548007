// Private to ops/: launches of kernels/matmul.cl, kernels/matmul_rows.cl and CLBlast, each proved before its first use.
// REQUIRES of all: checked arguments.
#pragma once

#include "ops/matmul.h"

namespace kvtrie::ops {

// Sizes of one step of the packed kernel: the register tile, and the rows of one work-item.
struct PackedTile {
  std::int32_t rows = 1, panels = 1, rows_block = 1;
};
// The tile for so many rows and vectors of `width` floats, 8 or 16.
PackedTile choose_tile(std::int32_t width, std::int32_t rows);
// Runs the tile on a small case and compares it with the reference.
bool tile_agrees(const cl::DevicePtr& device, const PackedTile& tile, DType stored);

Tensor launch_pack(const Tensor& w, bool transpose_w);
void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& y);
void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);
bool clblast_works(const cl::DevicePtr& device, bool transpose_w);
void launch_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y);

// Builds and proves every packed variant for weights of `stored`.
void warm_up_matmul(const cl::DevicePtr& device, DType stored);

}  // namespace kvtrie::ops
