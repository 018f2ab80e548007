// Private to ops/: launches of kernels/cells.cl and kernels/cells_edit.cl, each proved before its first use.
// REQUIRES of all: checked arguments. `kv_bytes` is what the launch counts as moved.
#pragma once

#include <vector>

#include "ops/cells.h"

namespace kvtrie::ops {

// Rows in linear memory: K from element `k_base` of `k` on, V likewise. They are kept as in the pool and copied bit by
// bit, or are plain numbers.
struct LinearRows {
  CellFormats formats;
  const Tensor& k;
  std::uint64_t k_base;
  const Tensor& v;
  std::uint64_t v_base;
};

void launch_load(const LinearRows& rows, const CellRuns& runs, const LayerCells& pool, std::uint64_t kv_bytes);
void launch_store(const LayerCells& pool, const CellRuns& runs, const LinearRows& rows, std::uint64_t kv_bytes);
void launch_rotate(const LayerCells& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved);
void launch_fill(const LayerCells& pool, Cell begin, std::uint32_t length, std::uint8_t byte);

}  // namespace kvtrie::ops
