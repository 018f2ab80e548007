// Which rows of copied keys have moved, and by how much.
//
// Concept. Keys that have moved (base/cell_span.h) are stored rotated for where they were. A copy of them, as
// KvStore::rows makes it, is rotated to where they are now. Its rows, [n, kv_heads] or [kv_heads, n], are named as the
// cells of a pool of one head, so that what rotates stored keys rotates copies.
//
// Threads: may be called from any thread. Units: `cell` of the result counts rows of the copy.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "base/cell_span.h"

namespace kvtrie {

// By how much they have moved -> rows of the copy of `spans`. What has not moved is left out.
std::map<std::int32_t, CellSpans> moved_rows(std::span<const CellSpan> spans, std::uint32_t kv_heads, RowLayout layout);

}  // namespace kvtrie
