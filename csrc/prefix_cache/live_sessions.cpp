#include "prefix_cache/live_sessions.h"

#include <algorithm>

namespace kvtrie {

void LiveSessions::remove(Session* session) noexcept {
  sessions_.erase(session);
  if (sessions_.empty()) tails_are_shared_ = false;
}

Session* LiveSessions::standing_at(const Node* node) const {
  if (node->locks() == 0) return nullptr;  // the common case
  for (Session* session : sessions_) {
    const bool stands = session->node_ == node && session->computed_ == node->end() && session->publish_;
    if (stands && !session->failed_ && session->open_step_ == nullptr) return session;
  }
  return nullptr;
}

bool LiveSessions::any_failed() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const Session* session) { return session->failed_; });
}

}  // namespace kvtrie
