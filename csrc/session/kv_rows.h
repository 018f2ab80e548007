// Copies of K and V of a conversation, for callers.
//
// Threads: copies are enqueued with the prefix cache's mutex held, so that they see one state of the session; the
// owner of the tensors waits for the device. Later changes of the cells come later in the queue. Units: positions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/causal_cache.h"
#include "tree/cache_table.h"
#include "tree/cursor.h"

namespace kvtrie {

struct KvRows {
  // [n, kv_heads, dim] or [kv_heads, n, dim], where n is stop - start and the spare rows; undefined where nothing is
  // kept.
  Tensor k, v;
  std::int32_t start = 0, stop = 0;
};

// Of computed positions [start, stop) of each layer. Throws kArgument for positions that a layer does not hold, and for
// layers without K and V.
std::vector<KvRows> copy_rows_of(const CacheTable& caches, const Cursor& cursor, std::span<const std::int32_t> layers,
                                 std::optional<std::int32_t> start, std::optional<std::int32_t> stop, RowLayout layout);

}  // namespace kvtrie
