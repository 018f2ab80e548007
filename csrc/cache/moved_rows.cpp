#include "cache/moved_rows.h"

namespace kvtrie {

std::map<std::int32_t, CellSpans> moved_rows(std::span<const CellSpan> spans, std::uint32_t kv_heads,
                                             RowLayout layout) {
  std::uint32_t count = layout.spare, token = 0;
  for (const CellSpan& span : spans) count += span.length;
  std::map<std::int32_t, CellSpans> rows;
  for (const CellSpan& span : spans) {
    const std::uint32_t first = token;
    token += span.length;
    if (span.moved == 0) continue;
    CellSpans& moved = rows[span.moved];
    if (layout.order == RowOrder::kTokensFirst) {
      moved.push_back({first * kv_heads, span.length * kv_heads, 0});
      continue;
    }
    for (std::uint32_t head = 0; head < kv_heads; ++head) moved.push_back({head * count + first, span.length, 0});
  }
  return rows;
}

}  // namespace kvtrie
