#include "tree/live_sessions.h"

#include <algorithm>

namespace kvtrie {

Cursor* LiveSessions::standing_at(const Node* node) const {
  if (node->locks() == 0) return nullptr;  // the common case
  const auto stands = [&](const Cursor* cursor) {
    return cursor->node == node && cursor->computed == node->end() && cursor->publish && !cursor->failed &&
           cursor->open_step == nullptr;
  };
  const auto found = std::find_if(sessions_.begin(), sessions_.end(), stands);
  return found == sessions_.end() ? nullptr : *found;
}

bool LiveSessions::tails_are_shared() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const Cursor* cursor) { return cursor->shares_tail(); });
}

bool LiveSessions::any_failed() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const Cursor* cursor) { return cursor->failed; });
}

}  // namespace kvtrie
