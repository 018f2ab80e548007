// Restore points: made where a session will want to come back, given up when their caches are short.
//
// Which goes first: spaced points, thinned so that their distance grows with the distance from the end of their
// conversation; then ends and branches, the one whose last restore is longest ago first; user points last. Pinned ones
// never. A point goes as one: to the host where there is room, else away.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::vector<SlotRef> PrefixCacheState::states_of(const Session& session) const {
  std::vector<SlotRef> states;
  for (std::size_t i = 0; i < recurrents.size(); ++i) states.push_back(recurrents[i]->slot(session.states_[i]));
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
  set_point(node_ending_at(session.node_, offset), kind, std::move(windows), std::move(states));
}

// In place of the one that is there, whose kind stays when it is wanted more.
void PrefixCacheState::set_point(Node* node, PointKind kind, std::vector<SpanList> windows,
                                 std::vector<SlotRef> states) {
  RestorePoint& point = state_of(node).point;
  const PointKind most = std::max(kind, point.kind);
  point = {};
  point.kind = most;
  point.windows = std::move(windows);
  point.states = std::move(states);
  point.used = ++uses;
  points.insert(node);
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
      SpanList piece = source.list->share(source.from, source.to);
      if (windows[i].empty()) {
        windows[i] = std::move(piece);
      } else {
        windows[i].append(std::move(piece));
      }
    }
  }
  return windows;
}

// REQUIRES: the node can be restored at its end from the device.
void PrefixCacheState::keep_as_point(Node* node) {
  Node* const nodes[] = {node};
  share_live_state(nodes, node->end());
  if (has_points() && !state_of(node).point.exists()) set_point(node, PointKind::kEnd, windows_at(node), {});
}

void PrefixCacheState::take_off_user(Node* node) {
  if (!state_of(node).user) return;
  std::erase(user_points, node);
  state_of(node).user = false;
  trie.unlock(node);
}

void PrefixCacheState::drop_point(Node* node, bool tidy) {
  points.erase(node);
  state_of(node).point = {};
  ++totals.dropped_points;
  take_off_user(node);
  if (tidy && !prune(node)) try_join(node);
}

void PrefixCacheState::give_up_point(Node* node) {
  if (!page_out_point(node)) drop_point(node);
}

// The gap it would leave, relative to its distance from the end of the conversation it lies in.
double PrefixCacheState::thinning_score(const Node* node) const {
  const Node* above = node->parent();
  while (!above->is_root() && !state_of(above).point.exists()) above = above->parent();
  const Node* end = node;
  while (end->first_child() != nullptr) end = end->first_child();
  return static_cast<double>(node->end() - above->end()) / (1.0 + end->end() - node->end());
}

bool PrefixCacheState::frees_slot(const Node* node, std::size_t cache) const {
  const RestorePoint& point = state_of(node).point;
  return point.on_device && recurrents[cache]->pool().holders(point.states[cache].slot()) == 1;
}

// Windows of several points may overlap, so giving up one alone may free nothing yet.
bool PrefixCacheState::frees_cells(const Node* node, std::size_t cache) const {
  const RestorePoint& point = state_of(node).point;
  return point.on_device && !point.windows[cache].empty();
}

Node* PrefixCacheState::point_victim(PointKind most, const std::function<bool(const Node*)>& frees) const {
  // Spaced points come before ends and branches, which are one class, and those before user points.
  const auto rank = [](PointKind kind) { return kind == PointKind::kSpaced ? 0 : kind == PointKind::kUser ? 2 : 1; };
  Node* victim = nullptr;
  std::pair<int, double> least;
  for (Node* node : points) {
    const NodeState& state = state_of(node);
    if (state.pins > 0 || node == in_use.point || !frees(node)) continue;
    const PointKind kind = state.user ? PointKind::kUser : state.point.kind;
    if (kind > most) continue;
    const bool spaced = kind == PointKind::kSpaced;
    const std::pair worth(rank(kind), spaced ? thinning_score(node) : static_cast<double>(state.point.used));
    if (victim != nullptr && worth >= least) continue;
    victim = node;
    least = worth;
  }
  return victim;
}

}  // namespace kvtrie
