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

Needs ContextShift::copies_for(const Cursor& cursor, std::int32_t end) const {
  Needs needs = caches_.no_needs();
  for (std::size_t i = 0; i < caches_.attention.size(); ++i) {
    needs[i] = caches_.attention[i]->cells_to_copy(cursor.sequences[i], end);
  }
  return needs;
}

// The session holds the cells from `begin` on itself and stands on the node that ends there.
void ContextShift::stand_alone_from(Cursor& cursor, std::int32_t begin) {
  if (cursor.published() <= begin) return;
  const Tokens keys = cursor.recorded_keys();
  for (std::size_t i = 0; i < caches_.attention.size(); ++i) caches_.attention[i]->own_from(cursor.sequences[i], begin);
  cursors_.move_to(cursor, node_ending_at(trie_, cursor.node, begin));
  cursor.set_tail(keys, begin);
}

// From `node` upwards to below `above`, what nobody else needs on the device: to the host, else away.
void ContextShift::remove_own_path(Node* node, const Node* above) {
  while (node != above && !node->is_root() && node->locks() == 0) {
    for (Node* child = node->first_child(); child != nullptr; child = child->next_sibling()) {
      if (state_of(child).on_device()) return;
    }
    Node* parent = node->parent();
    const bool last = parent->is_root() && parent->child_count() == 1;
    if (eviction_.page_out(node) == 0) {
      removal_.remove_subtree(node, /*tidy=*/false);
      if (last) return;  // the root may have gone, too
    }
    node = parent;
  }
}

// Where there is no room for the copies what the tree has of this conversation goes: then the cells are the cursor's
// own and move in place.
void ContextShift::find_room(Cursor& cursor, std::int32_t begin, std::int32_t end) {
  Node* const before = cursor.node;
  try {
    return device_budget_.make_room(copies_for(cursor, end), cursor.node->group());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCacheFull || before->end() <= begin) throw;
  }
  trie_.lock(before);
  stand_alone_from(cursor, begin);
  trie_.unlock(before);
  remove_own_path(before, cursor.node);
  try {
    device_budget_.make_room(copies_for(cursor, end), cursor.node->group());
  } catch (...) {
    cursors_.publish(cursor);  // back to where it stood
    throw;
  }
}

void ContextShift::apply(Cursor& cursor, std::int32_t begin, std::int32_t end) {
  find_room(cursor, begin, end);
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
