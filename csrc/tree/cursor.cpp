#include "tree/cursor.h"

#include "base/error.h"

namespace kvtrie {

Tokens Cursor::recorded_keys() const {
  Tokens keys = path_tokens(node);
  const std::span<const Token> own = unpublished();
  keys.insert(keys.end(), own.begin(), own.end());
  return keys;
}

void Cursor::set_tail(std::span<const Token> keys, std::int32_t from) {
  tail.assign(keys.begin() + from, keys.end());
  tail_begin = 0;
}

// The vector is compacted when most of it is published.
void Cursor::consume(std::int32_t count) {
  tail_begin += static_cast<std::size_t>(count);
  if (tail_begin == tail.size()) {
    tail.clear();
    tail_begin = 0;
  } else if (tail_begin > 4096 && tail_begin > tail.size() / 2) {
    tail.erase(tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(tail_begin));
    tail_begin = 0;
  }
}

void require_open(const Cursor& cursor) {
  if (cursor.closed) fail(ErrorKind::kClosed, "session", "the session is closed");
}

void require_usable(const Cursor& cursor) {
  require_open(cursor);
  if (cursor.failed) fail(ErrorKind::kDevice, "session", "the state it stood on was lost to a device failure");
}

}  // namespace kvtrie
