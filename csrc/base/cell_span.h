// Cells and spans: how a history is addressed.
//
// A *cell* is storage for one token's K and V in every layer of one cache, named by its number in the cache's pool.
// A *span* is a run of consecutive cells that hold consecutive positions; a history is a list of spans in position
// order.
//
//     positions   0 1 2 3 4 5 6 7 8
//     cells       7 8 9 | 2 3 | 20 21 22 23      three spans: {7,3,0} {2,2,3} {20,4,5}
//
// A removal in the middle moves what follows down, and leaves the cells as they are: their K stay rotated for the
// positions they were computed at. Each span says by how much it has `moved`; a query at position m reads it with the
// angle of m + moved, since only differences of angles count (Su et al. 2021, arXiv 2104.09864, equation 16).
//
//     positions   0 1 2 3 4 5 6 7                 [2, 4) removed:   0 1 | 2 3 4 5
//     K rotated   0 1 2 3 4 5 6 7                                   0 1 | 4 5 6 7     {0,2,0,0} {4,4,2,2}
#pragma once

#include <cstdint>
#include <vector>

namespace kvtrie {

using Cell = std::uint32_t;

struct CellSpan {
  Cell cell = 0;              // first cell
  std::uint32_t length = 0;   // cells, and positions
  std::int32_t position = 0;  // position of the first cell
  std::int32_t moved = 0;     // positions that the cells have moved down since their K were rotated, 0 or more

  std::int32_t end_position() const noexcept { return position + static_cast<std::int32_t>(length); }
  Cell end_cell() const noexcept { return cell + length; }
  // Whether `next` goes on where this one ends, so that both are one span.
  bool meets(const CellSpan& next) const noexcept {
    return end_cell() == next.cell && end_position() == next.position && moved == next.moved;
  }
  bool operator==(const CellSpan&) const = default;
};

using CellSpans = std::vector<CellSpan>;

// Appends `span`, joined to the last one where that goes on in it. REQUIRES: not before it in position.
inline void append_span(CellSpans& spans, const CellSpan& span) {
  if (!spans.empty() && spans.back().meets(span)) {
    spans.back().length += span.length;
  } else {
    spans.push_back(span);
  }
}

// How rows of several tokens and KV heads lie outside the pool: [tokens, kv_heads, dim] or [kv_heads, tokens, dim].
enum class RowOrder : std::uint8_t { kTokensFirst, kHeadsFirst };

// The same of rows that are copied out, with memory for `spare` more tokens behind them, unset, to append to.
struct RowLayout {
  RowOrder order = RowOrder::kTokensFirst;
  std::uint32_t spare = 0;
  RowLayout(RowOrder given = RowOrder::kTokensFirst, std::uint32_t more = 0) : order(given), spare(more) {}  // NOLINT
};

}  // namespace kvtrie
