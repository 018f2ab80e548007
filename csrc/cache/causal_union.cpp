#include "cache/causal_union.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace kvtrie {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The columns of the positions [position, position + length) in one row of the mask: 0 where the row sees them.
void show(float* columns, std::int32_t position, std::uint32_t length, const ops::RowBounds& bounds) {
  const std::int32_t begin = std::max(position, bounds.first);
  const std::int32_t end = std::min(position + static_cast<std::int32_t>(length), bounds.end);
  if (begin < end) std::fill(columns + (begin - position), columns + (end - position), 0.0f);
}

// Columns of a sequence's history in position order.
std::vector<std::int32_t> path_of(const CellSpans& history, const Columns& columns) {
  std::vector<std::int32_t> path;
  for (const CellSpan& span : history) {
    columns.visit(span, [&](std::uint64_t column, std::uint32_t length, std::int32_t) {
      for (std::uint32_t i = 0; i < length; ++i) path.push_back(static_cast<std::int32_t>(column + i));
    });
  }
  return path;
}

// Rows of one block of a forward, and how many keys each of them sees.
std::vector<std::pair<std::uint32_t, std::int32_t>> rows_of(const CausalCache::State& state,
                                                            const Forward::State& forward, std::size_t sequence) {
  std::vector<std::pair<std::uint32_t, std::int32_t>> rows;
  for (const ForwardBlock& block : forward.blocks) {
    for (std::uint32_t i = 0; block.sequence == sequence && i < block.count; ++i)
      rows.emplace_back(block.row + i, bounds_of(state, forward, block, i).end);
  }
  return rows;
}

void add_blocks(ops::ChoiceTables& tables, const std::vector<std::int32_t>& path, std::int32_t complete) {
  const std::int32_t ratio = tables.ratio;
  tables.tokens.insert(tables.tokens.end(), path.begin(), path.begin() + std::ptrdiff_t{complete} * ratio);
  for (std::int32_t block = 0; block < complete; ++block) tables.starts.push_back(block * ratio);
  tables.count += complete;
}

}  // namespace

SeenCells::SeenCells(const CausalCache::State& state, const Forward::State& forward) {
  for (const ForwardSequence& in_forward : forward.sequences) {
    histories.push_back(history_of(state, in_forward));
    for (const CellSpan& span : histories.back()) columns.add(span);
  }
}

void SeenCells::write_mask(std::span<float> mask, const CausalCache::State& state,
                           const Forward::State& forward) const {
  std::fill(mask.begin(), mask.end(), kHidden);
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

std::vector<std::int32_t> SeenCells::cells() const {
  std::vector<std::int32_t> cells;
  cells.reserve(columns.count());
  for (const CellSpan& span : columns.spans()) {
    for (Cell cell = span.cell; cell < span.end_cell(); ++cell) cells.push_back(static_cast<std::int32_t>(cell));
  }
  return cells;
}

ops::ChoiceTables SeenCells::keys(const CausalCache::State& state, const Forward::State& forward, bool masked) const {
  ops::ChoiceTables tables;
  tables.count = static_cast<std::int32_t>(columns.count());
  tables.cells = cells();
  if (!masked) return tables;
  tables.mask.resize(std::size_t{forward.rows} * columns.count());
  write_mask(tables.mask, state, forward);
  return tables;
}

ops::ChoiceTables SeenCells::blocks(const CausalCache::State& state, const Forward::State& forward,
                                    std::int32_t ratio) const {
  ops::ChoiceTables tables;
  tables.ratio = ratio;
  tables.tails.assign(std::size_t{forward.rows} * (ratio - 1), -1);
  struct Own {
    std::uint32_t row;
    std::int32_t first, complete;
  };
  std::vector<Own> rows;
  for (std::size_t sequence = 0; sequence < histories.size(); ++sequence) {
    const std::vector<std::int32_t> path = path_of(histories[sequence], columns);
    const std::int32_t first = tables.count;
    std::int32_t most = 0;
    for (const auto& [row, seen] : rows_of(state, forward, sequence)) {
      const std::int32_t complete = seen / ratio;
      rows.push_back({row, first, complete});
      most = std::max(most, complete);
      std::copy(path.begin() + std::ptrdiff_t{complete} * ratio, path.begin() + seen,
                tables.tails.begin() + std::ptrdiff_t{row} * (ratio - 1));
    }
    add_blocks(tables, path, most);
  }
  if (tables.count == 0) {
    tables.tokens.assign(ratio, 0);
    tables.starts.push_back(0);
    tables.count = 1;
  }
  tables.mask.assign(std::size_t{forward.rows} * tables.count, kHidden);
  for (const Own& own : rows)
    std::fill_n(tables.mask.begin() + std::ptrdiff_t{own.row} * tables.count + own.first, own.complete, 0.0f);
  return tables;
}

bool SeenCells::any_moved() const {
  return std::ranges::any_of(columns.spans(), [](const CellSpan& span) { return span.moved != 0; });
}

}  // namespace kvtrie
