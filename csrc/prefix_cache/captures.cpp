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
  std::vector<HeldState> held(all_caches.size());
  for (const std::size_t i : windowed) {
    const SequenceId id = session.sequences_[i];
    const std::int32_t floor = caches[i]->visibility().floor(offset);
    if (floor >= offset) continue;
    if (floor < caches[i]->held_from(id)) return;
    held[i] = HeldState(caches[i]->share(id, floor, offset));
  }
  for (std::size_t i = 0; i < states.size(); ++i) held[caches.size() + i] = HeldState(std::move(states[i]));
  points.put(node_ending_at(session.node_, offset), kind, std::move(held));
  ++totals.captures;
}

std::vector<HeldState> PrefixCacheState::windows_at(Node* node) const {
  std::vector<HeldState> held(all_caches.size());
  for (const std::size_t i : windowed) {
    const std::int32_t floor = caches[i]->visibility().floor(node->end());
    if (floor >= node->end()) continue;
    std::vector<Node*> above;
    for (Node* each = node; !each->is_root() && each->end() > floor; each = each->parent()) above.push_back(each);
    const Coverage coverage(above, i, node->end(), /*device_only=*/true);
    const std::int32_t from = std::max(floor, coverage.covered_from(node->end()));
    for (const WindowSource& source : coverage.pick(from, node->end()))
      held[i].append(source.list->share(source.from, source.to));
  }
  return held;
}

// REQUIRES: the node can be restored at its end from the device.
void PrefixCacheState::keep_as_point(Node* node) {
  Node* const nodes[] = {node};
  share_live_state(nodes, node->end());
  if (!has_points() || state_of(node).point().exists()) return;
  points.put(node, PointKind::kEnd, windows_at(node));
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

// What a session stands on frees nothing yet.
bool PrefixCacheState::frees_some(const Node* node, std::size_t number) const {
  return node != in_use.point && all_caches[number]->freed_by(state_of(node).point().held[number]) > 0;
}

}  // namespace kvtrie
