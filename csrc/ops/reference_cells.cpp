#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// Rows of `dim` numbers from one format to another.
class Converter {
 public:
  Converter(const CellFormat& from, const CellFormat& to, std::uint32_t dim) : from_(from), to_(to), numbers_(dim) {}
  void operator()(const std::byte* from, std::byte* to) {
    if (&from_ == &to_) {
      std::memcpy(to, from, to_.row_bytes(numbers_.size()));
      return;
    }
    from_.load(from, numbers_.size(), numbers_.data());
    to_.store(numbers_.data(), numbers_.size(), to);
  }

 private:
  const CellFormat &from_, &to_;
  std::vector<float> numbers_;
};

}  // namespace

void put_rows(HostRows rows, std::span<const RowTarget> targets, const HostPool& pool, RowOrder order,
              std::size_t count) {
  if (pool.dim == 0) return;  // no bytes, and no memory that they could lie in
  Converter convert(*rows.format, *pool.format, pool.dim);
  const std::size_t bytes = rows.format->row_bytes(pool.dim);
  for (const RowTarget& target : targets) {
    for (std::uint32_t i = 0; i < target.length; ++i) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head) {
        const std::size_t token = std::size_t{target.row} + i;
        const std::size_t row = order == RowOrder::kTokensFirst ? token * pool.kv_heads + head : head * count + token;
        convert(static_cast<const std::byte*>(rows.data) + row * bytes, pool.row(head, std::uint64_t{target.cell} + i));
      }
    }
  }
}

void gather_rows(const HostPool& pool, std::span<const CellSpan> spans, const CellFormat& kept, std::byte* rows,
                 RowLayout layout) {
  if (pool.dim == 0) return;
  Converter convert(*pool.format, kept, pool.dim);
  const bool tokens_first = layout.order == RowOrder::kTokensFirst;
  std::size_t count = layout.spare, token = 0;
  for (const CellSpan& span : spans) count += span.length;
  for (const CellSpan& span : spans) {
    for (std::uint32_t i = 0; i < span.length; ++i, ++token) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head) {
        const std::size_t row = tokens_first ? token * pool.kv_heads + head : head * count + token;
        convert(pool.row(head, std::uint64_t{span.cell} + i), rows + row * kept.row_bytes(pool.dim));
      }
    }
  }
}

void copy_cells(const HostPool& pool, std::span<const CellCopy> copies) {
  if (pool.dim == 0) return;
  for (const CellCopy& copy : copies) {
    for (std::uint32_t head = 0; head < pool.kv_heads; ++head)
      std::memmove(pool.row(head, copy.to), pool.row(head, copy.from), copy.length * pool.row_bytes());
  }
}

void rotate_row(float* row, const RopeTable& table, bool interleaved, std::int32_t delta) {
  const std::size_t half = table.inverse_frequencies.size();
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const double angle = static_cast<double>(delta) * table.inverse_frequencies[i];
    const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
    const float x = row[a], y = row[b];
    row[a] = std::fma(x, c, -(y * s));
    row[b] = std::fma(y, c, x * s);
  }
}

void rotate_cells(const HostPool& pool, std::span<const CellSpan> spans, std::int32_t delta, const RopeParams& rope) {
  require(rope.can_shift(), "reference.rotate_cells",
          "rope: got a scaling that depends on the length, allowed fixed ones");
  const RopeTable table = rope_table(rope, static_cast<std::int32_t>(pool.dim));
  // Whole blocks; what is not turned keeps its bytes where blocks allow it.
  const std::size_t block = pool.format->block_numbers;
  std::vector<float> row((2 * table.inverse_frequencies.size() + block - 1) / block * block);
  for (const CellSpan& span : spans) {
    for (std::uint32_t cell = span.cell; cell < span.end_cell(); ++cell) {
      for (std::uint32_t head = 0; head < pool.kv_heads; ++head) {
        pool.format->load(pool.row(head, cell), row.size(), row.data());
        rotate_row(row.data(), table, rope.interleaved, delta);
        pool.format->store(row.data(), row.size(), pool.row(head, cell));
      }
    }
  }
}

void fill_cells(const HostPool& pool, Cell begin, std::uint32_t length, std::uint8_t byte) {
  if (pool.dim == 0) return;
  for (std::uint32_t head = 0; head < pool.kv_heads; ++head)
    std::memset(pool.row(head, begin), byte, length * pool.row_bytes());
}

}  // namespace kvtrie::ops::reference
