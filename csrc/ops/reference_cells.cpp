#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

std::size_t row_bytes(const HostPool& pool) { return pool.dim * size_of(pool.dtype); }

std::byte* row_of(const HostPool& pool, std::uint32_t head, std::uint64_t cell) {
  return pool.data + (head * pool.cells + cell) * row_bytes(pool);
}

}  // namespace

void put_rows(Numbers rows, std::span<const RowTarget> targets, const HostPool& pool) {
  if (pool.dim == 0) return;  // no bytes, and no memory that they could lie in
  for (const RowTarget& target : targets) {
    for (std::uint32_t i = 0; i < target.length; ++i) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head) {
        std::byte* to = row_of(pool, head, std::uint64_t{target.cell} + i);
        const std::size_t from = ((std::size_t{target.row} + i) * pool.kv_heads + head) * pool.dim;
        if (rows.dtype == pool.dtype) {
          std::memcpy(to, static_cast<const std::byte*>(rows.data) + from * size_of(rows.dtype), row_bytes(pool));
        } else {
          for (std::uint32_t d = 0; d < pool.dim; ++d) store_number(to, pool.dtype, d, rows[from + d]);
        }
      }
    }
  }
}

void gather_rows(const HostPool& pool, std::span<const CellSpan> spans, std::byte* rows) {
  if (pool.dim == 0) return;
  for (const CellSpan& span : spans) {
    for (std::uint32_t i = 0; i < span.length; ++i) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head, rows += row_bytes(pool))
        std::memcpy(rows, row_of(pool, head, std::uint64_t{span.cell} + i), row_bytes(pool));
    }
  }
}

void copy_cells(const HostPool& pool, std::span<const CellCopy> copies) {
  if (pool.dim == 0) return;
  for (const CellCopy& copy : copies) {
    for (std::uint32_t head = 0; head < pool.kv_heads; ++head)
      std::memmove(row_of(pool, head, copy.to), row_of(pool, head, copy.from), copy.length * row_bytes(pool));
  }
}

void rotate_cells(const HostPool& pool, std::span<const CellSpan> spans, std::int32_t delta, const RopeParams& rope) {
  require(rope.can_shift(), "reference.rotate_cells",
          "rope: got a scaling that depends on the length, allowed fixed ones");
  const RopeTable table = rope_table(rope, static_cast<std::int32_t>(pool.dim));
  const std::size_t half = table.inverse_frequencies.size();
  for (const CellSpan& span : spans) {
    for (std::uint32_t cell = span.cell; cell < span.end_cell(); ++cell) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head) {
        std::byte* row = row_of(pool, head, cell);
        const Numbers old{row, pool.dtype};
        for (std::size_t i = 0; i < half; ++i) {
          const std::size_t a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? 2 * i + 1 : i + half;
          const double angle = static_cast<double>(delta) * table.inverse_frequencies[i];
          const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
          const float x = old[a], y = old[b];
          store_number(row, pool.dtype, a, std::fma(x, c, -(y * s)));
          store_number(row, pool.dtype, b, std::fma(y, c, x * s));
        }
      }
    }
  }
}

void fill_cells(const HostPool& pool, Cell begin, std::uint32_t length, std::uint8_t byte) {
  for (std::uint32_t head = 0; head < pool.kv_heads; ++head)
    std::memset(row_of(pool, head, begin), byte, length * row_bytes(pool));
}

}  // namespace kvtrie::ops::reference
