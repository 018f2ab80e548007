#include "session/checkpointer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kvtrie {

std::vector<WantedPoint> Checkpointer::wanted_between(const Cursor& cursor, std::int32_t end) const {
  std::vector<WantedPoint> captures;
  if (!cursor.publish) return captures;
  const auto worth = [&](std::int32_t at, PointKind kind, double gap) {
    if (kind != PointKind::kSpaced) return std::numeric_limits<double>::infinity();
    return points_.worth_of_new(cursor.node, at, gap, cursor.recorded() - at);
  };
  const auto want = [&](std::int32_t at, PointKind kind, double gap = 0) {
    if (at <= cursor.computed || at > end || cursor.atomic.inside(at)) return;
    const auto before = [](const WantedPoint& each, std::int32_t offset) { return each.offset < offset; };
    const auto place = std::lower_bound(captures.begin(), captures.end(), at, before);
    if (place == captures.end() || place->offset != at) {
      captures.insert(place, {at, kind, gap, worth(at, kind, gap)});
    } else if (kind > place->kind) {
      *place = {at, kind, gap, worth(at, kind, gap)};
    }
  };
  for (const WantedPoint& wanted : cursor.wanted) want(wanted.offset, wanted.kind);
  if (caches_.states.empty()) return captures;
  for (std::size_t i = cursor.message_ends.first_behind(cursor.computed);
       i < cursor.message_ends.size() && cursor.message_ends[i] <= end; ++i)
    want(cursor.message_ends[i], PointKind::kSpaced, MessageEnds::gap(i));
  const std::int64_t every = every_;
  for (std::int64_t at = (cursor.computed / every + 1) * every; at <= end; at += every) {
    const auto offset = static_cast<std::int32_t>(at);
    if (!cursor.message_ends.any_near(offset, every_ / 2)) want(offset, PointKind::kSpaced);
  }
  return captures;
}

std::vector<HeldState> Checkpointer::states_of(const Cursor& cursor) const {
  std::vector<HeldState> held;
  held.reserve(caches_.states.size());
  for (std::size_t i = caches_.attention.size(); i < caches_.all.size(); ++i)
    held.push_back(caches_.all[i]->hold(cursor.sequences[i], caches_.all[i]->length(cursor.sequences[i])));
  return held;
}

HeldState Checkpointer::cut_from(const Node* kept, std::size_t state, std::int32_t length) const {
  ensure(kept != nullptr && state_of(kept).point().on_device, "prefix_cache", "no restore point serves at ", length);
  return caches_.states[state]->cut(caches_.states_among(state_of(kept).point().held)[state], length);
}

void Checkpointer::make_point(Cursor& cursor, const WantedPoint& wanted, std::vector<HeldState> states) {
  const std::int32_t offset = wanted.offset;
  if (!caches_.has_points() || !cursor.publish || offset <= 0 || offset > cursor.published()) return;
  if (cursor.atomic.inside(offset)) return;
  std::vector<HeldState> held(caches_.all.size());
  for (const std::size_t i : caches_.windowed) {
    if (!caches_.all[i]->can_resume(cursor.sequences[i], offset)) return;
    held[i] = caches_.all[i]->hold(cursor.sequences[i], offset);
  }
  std::move(states.begin(), states.end(), held.begin() + static_cast<std::ptrdiff_t>(caches_.attention.size()));
  points_.put(node_ending_at(trie_, cursor.node, offset), wanted.kind, std::move(held), wanted.gap,
              cursor.recorded() - offset);
  ++totals_.captures;
}

void Checkpointer::make_end_point(Cursor& cursor, PointKind kind, double gap) {
  make_point(cursor, {cursor.computed, kind, gap}, states_of(cursor));
}

void Checkpointer::share_live_state(std::span<Node* const> nodes, std::int32_t target) {
  Node* node = planner_.live_for(nodes, target);
  if (node == nullptr) return;
  const Node* kept = planner_.point_for(nodes, target);
  if (kept != nullptr && state_of(kept).point().on_device) return;
  make_end_point(*sessions_.standing_at(node), PointKind::kEnd);
}

void Checkpointer::keep_as_point(Node* node, Node* below) {
  const std::vector<Node*> nodes = planner_.path_to(below, node->end()).nodes;
  share_live_state(nodes, node->end());
  const RestorePoint& point = state_of(node).point();
  if (!caches_.has_points() || (point.exists() && point.on_device)) return;
  std::vector<HeldState> held = planner_.windows_at(node);
  const Node* const kept = planner_.point_for(nodes, node->end());
  for (std::size_t i = 0; i < caches_.states.size(); ++i)
    held[caches_.attention.size() + i] = cut_from(kept, i, node->end());
  if (point.exists()) return points_.come(node, std::move(held), /*keep_copies=*/true);
  points_.put(node, PointKind::kEnd, std::move(held));
  ++totals_.captures;
}

}  // namespace kvtrie
