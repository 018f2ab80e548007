// Private to ops/: launches of kernels/cells.cl and kernels/cells_edit.cl, each proved before its first use.
// REQUIRES of all: checked arguments. `kv_bytes` is what the launch counts as moved.
#pragma once

#include <vector>

#include "ops/cells.h"

namespace kvtrie::ops {

void launch_load(const Tensor& k, std::uint64_t k_base, const Tensor& v, std::uint64_t v_base, const CellRuns& runs,
                 const LayerCells& pool, std::uint64_t kv_bytes);
void launch_store(const LayerCells& pool, const CellRuns& runs, const Tensor& k, std::uint64_t k_base, const Tensor& v,
                  std::uint64_t v_base, std::uint64_t kv_bytes);
void launch_rotate(const Tensor& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved);
void launch_fill(const Tensor& pool, Cell begin, std::uint32_t length, std::uint8_t byte);

}  // namespace kvtrie::ops
