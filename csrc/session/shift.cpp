#include "session/shift.h"

#include <algorithm>

#include "base/error.h"

namespace kvtrie {

std::int32_t shift_discard(std::int32_t limit, std::int32_t keep, std::int32_t length, const AtomicSpans& atomic) {
  require(keep >= 0 && keep < limit, "shift", "keep: got ", keep, ", allowed 0 to ", limit - 1);
  const std::int64_t wanted = std::max((limit - keep) / 2, 1);
  const std::int64_t discard = std::max<std::int64_t>(0, wanted - (std::int64_t{limit} - length));
  const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(keep + discard, length));
  return discard == 0 ? 0 : atomic.end_of(end) - keep;
}

bool ContextShift::can(const Cursor& cursor, std::int32_t begin, std::int32_t end) const {
  for (std::size_t i = 0; i < caches_.attention.size(); ++i) {
    if (!caches_.attention[i]->can_remove(cursor.sequences[i], begin, end)) return false;
  }
  return true;
}

void ContextShift::apply(Cursor& cursor, std::int32_t begin, std::int32_t end) {
  for (std::size_t i = 0; i < caches_.attention.size(); ++i) {
    try {
      caches_.attention[i]->remove(cursor.sequences[i], begin, end);
    } catch (...) {
      cursor.failed = cursor.failed || i > 0;
      throw;
    }
  }
  cursor.publish = cursor.use = false;
  cursor.computed -= end - begin;
  cursor.wanted.clear();
  cursor.message_ends = {};
  cursors_.move_to(cursor, node_ending_at(trie_, cursor.node, begin));
}

}  // namespace kvtrie
