// Restore points made from what sessions and nodes have, and evicted: to the host where there is room, else away.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::vector<HeldState> PrefixCacheState::states_of(const Session& session) const {
  std::vector<HeldState> held;
  held.reserve(caches.states.size());
  for (std::size_t i = 0; i < caches.states.size(); ++i)
    held.push_back(caches.states[i]->held(state_sequence(session, i)));
  return held;
}

HeldState PrefixCacheState::cut_from(const Node* kept, std::size_t state, std::int32_t length) const {
  ensure(kept != nullptr && state_of(kept).point().on_device, "prefix_cache", "no restore point serves at ", length);
  return caches.states[state]->cut(state_in_point(state_of(kept).point(), state), length);
}

void PrefixCacheState::make_point(Session& session, std::int32_t offset, PointKind kind,
                                  std::vector<HeldState> held_states) {
  if (!caches.has_points() || !session.publish_ || offset <= 0 || offset > published(session)) return;
  if (session.atomic_.inside(offset)) return;
  std::vector<HeldState> held(caches.all.size());
  for (const std::size_t i : caches.windowed) {
    const SequenceId id = session.sequences_[i];
    const std::int32_t floor = caches.attention[i]->visibility().floor(offset);
    if (floor >= offset) continue;
    if (floor < caches.attention[i]->held_from(id)) return;
    held[i] = HeldState(caches.attention[i]->share(id, floor, offset));
  }
  std::move(held_states.begin(), held_states.end(),
            held.begin() + static_cast<std::ptrdiff_t>(caches.attention.size()));
  points.put(node_ending_at(session.node_, offset), kind, std::move(held));
  ++totals.captures;
}

void PrefixCacheState::keep_as_point(Node* node, Node* below) {
  const std::vector<Node*> nodes = planner.path_to(below, node->end()).nodes;
  share_live_state(nodes, node->end());
  const RestorePoint& point = state_of(node).point();
  if (!caches.has_points() || (point.exists() && point.on_device)) return;
  std::vector<HeldState> held = planner.windows_at(node);
  const Node* const kept = planner.point_for(nodes, node->end());
  for (std::size_t i = 0; i < caches.states.size(); ++i)
    held[caches.attention.size() + i] = cut_from(kept, i, node->end());
  if (point.exists()) return points.come(node, std::move(held), /*keep_copies=*/true);
  points.put(node, PointKind::kEnd, std::move(held));
  ++totals.captures;
}

}  // namespace kvtrie
