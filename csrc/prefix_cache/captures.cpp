// Restore points made from what sessions and nodes have, and evicted: to the host where there is room, else away.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::vector<SlotRef> PrefixCacheState::states_of(const Session& session) const {
  std::vector<SlotRef> states;
  for (std::size_t i = 0; i < recurrents.size(); ++i) states.push_back(recurrents[i]->slot(state_sequence(session, i)));
  return states;
}

void PrefixCacheState::make_point(Session& session, std::int32_t offset, PointKind kind, std::vector<SlotRef> states) {
  if (!has_points() || !session.publish_ || offset <= 0 || offset > published(session)) return;
  if (session.atomic_.inside(offset)) return;
  std::vector<SpanList> windows(caches.size());
  for (const std::size_t i : windowed) {
    const SequenceId id = session.sequences_[i];
    const std::int32_t floor = caches[i]->visibility().floor(offset);
    if (floor >= offset) continue;
    if (floor < caches[i]->held_from(id)) return;
    windows[i] = caches[i]->share(id, floor, offset);
  }
  points.put(node_ending_at(session.node_, offset), kind, std::move(windows), std::move(states));
  ++totals.captures;
}

std::vector<SpanList> PrefixCacheState::windows_at(Node* node) const {
  std::vector<SpanList> windows(caches.size());
  for (const std::size_t i : windowed) {
    const std::int32_t floor = caches[i]->visibility().floor(node->end());
    if (floor >= node->end()) continue;
    std::vector<Node*> above;
    for (Node* each = node; !each->is_root() && each->end() > floor; each = each->parent()) above.push_back(each);
    const Coverage coverage(above, i, node->end(), /*device_only=*/true);
    const std::int32_t from = std::max(floor, coverage.covered_from(node->end()));
    for (const WindowSource& source : coverage.pick(from, node->end())) {
      SpanList cells = source.list->share(source.from, source.to);
      if (windows[i].empty()) {
        windows[i] = std::move(cells);
      } else {
        windows[i].append(std::move(cells));
      }
    }
  }
  return windows;
}

// REQUIRES: the node can be restored at its end from the device.
void PrefixCacheState::keep_as_point(Node* node) {
  Node* const nodes[] = {node};
  share_live_state(nodes, node->end());
  if (!has_points() || state_of(node).point().exists()) return;
  points.put(node, PointKind::kEnd, windows_at(node), {});
  ++totals.captures;
}

void PrefixCacheState::drop_point(Node* node, bool tidy) {
  points.remove(node);
  ++totals.dropped_points;
  points.take_off_user(node);
  if (tidy && !prune(node)) try_join(node);
}

void PrefixCacheState::evict_point(Node* node) {
  if (!page_out_point(node)) drop_point(node);
}

// A state that a session stands on frees nothing yet.
bool PrefixCacheState::frees_slot(const Node* node, std::size_t cache) const {
  const Slot slot = state_of(node).point().states[cache].slot();
  return node != in_use.point && recurrents[cache]->pool().holders(slot) == 1;
}

}  // namespace kvtrie
