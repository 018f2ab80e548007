#include "cache/causal_union.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace kvtrie {
namespace {

// The columns of the positions [position, position + length) in one row of the mask: 0 where the row sees them.
void show(float* columns, std::int32_t position, std::uint32_t length, const ops::RowBounds& bounds) {
  const std::int32_t begin = std::max(position, bounds.first);
  const std::int32_t end = std::min(position + static_cast<std::int32_t>(length), bounds.end);
  if (begin < end) std::fill(columns + (begin - position), columns + (end - position), 0.0f);
}

// mask[row, column] = 0 where the row's own history has the cell at a position that it sees, else -inf.
void write_mask(std::span<float> mask, const CausalCache::State& state, const Forward::State& forward,
                const std::vector<CellSpans>& histories, const Columns& columns) {
  std::fill(mask.begin(), mask.end(), -std::numeric_limits<float>::infinity());
  for (const ForwardBlock& block : forward.blocks) {
    for (std::uint32_t i = 0; i < block.count; ++i) {
      const ops::RowBounds bounds = bounds_of(state, forward, block, i);
      float* row = mask.data() + (block.row + i) * columns.count();
      for (const CellSpan& span : histories[block.sequence]) {
        columns.visit(span, [&](std::uint64_t column, std::uint32_t length, std::int32_t position) {
          show(row + column, position, length, bounds);
        });
      }
    }
  }
}

}  // namespace

SeenCells::SeenCells(const CausalCache::State& state, const Forward::State& forward) {
  for (const ForwardSequence& in_forward : forward.sequences) {
    histories.push_back(history_of(state, in_forward));
    for (const CellSpan& span : histories.back()) columns.add(span);
  }
}

Tensor SeenCells::mask(const CausalCache::State& state, const Forward::State& forward,
                       const cl::DevicePtr& device) const {
  const Shape shape{forward.rows, static_cast<std::int64_t>(columns.count())};
  Tensor mask = Tensor::host(DType::kFloat32, shape);
  write_mask(mask.host_span<float>(), state, forward, histories, columns);
  return device == nullptr ? mask : Tensor::from_host(device, DType::kFloat32, shape, mask.host_data());
}

bool SeenCells::any_moved() const {
  return std::ranges::any_of(columns.spans(), [](const CellSpan& span) { return span.moved != 0; });
}

}  // namespace kvtrie
