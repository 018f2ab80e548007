// Context shift: the arithmetic, and what a session does with it.
#include "prefix_cache/shift.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/media.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::int32_t shift_discard(std::int32_t limit, std::int32_t keep, std::int32_t length, const AtomicSpans& atomic) {
  require(keep >= 0 && keep < limit, "shift", "keep: got ", keep, ", allowed 0 to ", limit - 1);
  const std::int64_t wanted = std::max((limit - keep) / 2, 1);
  const std::int64_t discard = std::max<std::int64_t>(0, wanted - (std::int64_t{limit} - length));
  const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(keep + discard, length));
  return discard == 0 ? 0 : atomic.end_of(end) - keep;
}

namespace {

Tokens without(Tokens tokens, std::int32_t begin, std::int32_t end) {
  tokens.erase(tokens.begin() + begin, tokens.begin() + end);
  return tokens;
}

}  // namespace

// All caches move, or none: what can be refused is asked of every cache first, and the only step after that which can
// fail for lack of room comes before any cache has changed; a failure further on ends the session.
std::optional<Tokens> Session::shift(std::int32_t keep, std::int32_t limit) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  state.require_usable(*this);
  const std::int32_t recorded = state.recorded(*this);
  require(limit >= 0, "session.shift", "limit: got ", limit, ", allowed 1 or more, or 0 for as many as are recorded");
  require(!atomic_.inside(keep), "session.shift", "keep: got ", keep, ", which is inside a span that goes as one");
  const std::int32_t discard = shift_discard(limit == 0 ? recorded : limit, keep, recorded, atomic_);
  if (discard == 0) return std::nullopt;
  const std::int32_t end = keep + discard;
  const Tokens keys = without(state.recorded_keys(*this), keep, end);
  state.drop_open_step(*this);
  state.drop_ahead(*this);
  if (!state.caches.states.empty() || end > computed_ || !state.can_shift(*this, keep, end)) return tokens_of(keys);
  state.shift(*this, keep, end);
  tail_.assign(keys.begin() + state.published(*this), keys.end());
  tail_begin_ = 0;
  atomic_.remove(keep, end);
  return std::nullopt;
}

bool PrefixCacheState::can_shift(const Session& session, std::int32_t begin, std::int32_t end) const {
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    if (!caches.attention[i]->can_remove(session.sequences_[i], begin, end)) return false;
  }
  return true;
}

Needs PrefixCacheState::copies_for_shift(const Session& session, std::int32_t end) const {
  Needs needs = caches.no_needs();
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    needs[i] = caches.attention[i]->cells_to_copy(session.sequences_[i], end);
  }
  return needs;
}

// The session holds the cells from `begin` on itself and stands on the node that ends there.
void PrefixCacheState::stand_alone_from(Session& session, std::int32_t begin) {
  if (published(session) <= begin) return;
  const Tokens keys = recorded_keys(session);
  for (std::size_t i = 0; i < caches.attention.size(); ++i) caches.attention[i]->own_from(session.sequences_[i], begin);
  move_to(session, node_ending_at(session.node_, begin));
  session.tail_.assign(keys.begin() + begin, keys.end());
  session.tail_begin_ = 0;
}

// From `node` upwards to below `above`, what nobody else needs on the device: to the host, else away.
void PrefixCacheState::remove_own_path(Node* node, const Node* above) {
  while (node != above && !node->is_root() && node->locks() == 0) {
    for (Node* child = node->first_child(); child != nullptr; child = child->next_sibling()) {
      if (state_of(child).on_device()) return;
    }
    Node* parent = node->parent();
    const bool last = parent->is_root() && parent->child_count() == 1;
    if (eviction.page_out(node) == 0) {
      eviction.remove_subtree(node, /*tidy=*/false);
      if (last) return;  // the root may have gone, too
    }
    node = parent;
  }
}

// Cells that others hold are copied before they are rotated: there has to be room for them in every cache first. Where
// there is none what the tree has of this conversation goes: then the cells are the session's own and move in place.
void PrefixCacheState::shift(Session& session, std::int32_t begin, std::int32_t end) {
  Node* const before = session.node_;
  try {
    room.make_room(copies_for_shift(session, end));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCacheFull || before->end() <= begin) throw;
    trie.lock(before);
    stand_alone_from(session, begin);
    trie.unlock(before);
    remove_own_path(before, session.node_);
    try {
      room.make_room(copies_for_shift(session, end));
    } catch (...) {
      publish(session);  // back to where it stood
      throw;
    }
  }
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    try {
      caches.attention[i]->remove(session.sequences_[i], begin, end);
    } catch (...) {
      session.failed_ = session.failed_ || i > 0;
      throw;
    }
  }
  session.publish_ = session.use_ = false;
  session.computed_ -= end - begin;
  session.wanted_.clear();
  move_to(session, node_ending_at(session.node_, begin));
}

}  // namespace kvtrie
