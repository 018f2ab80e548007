// A session takes its place on a path: forwards when a prompt is known, backwards when it rewinds.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/negotiation.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

ReusePlan PrefixCacheState::advance(Session& session, std::int32_t limit, Entry& entry) {
  drop_ahead(session);
  Negotiation negotiation(
      *this, {session.node_, unpublished(session), session.computed_, session.atomic_, session.always_load_}, limit);
  std::uint64_t bytes_moved = 0;
  Tier lowest = Tier::kDevice;
  while (negotiation.look()) {
    const Tier from = tier_of(negotiation.fetch());
    const PageIn result = page_in(negotiation.path(), session.computed_, negotiation.target(), bytes_moved, entry);
    require_usable(session);  // it may have been closed meanwhile
    if (result == PageIn::kDone) lowest = std::max(lowest, from);
    if (result == PageIn::kNoRoom) negotiation.stay_on_device(ReasonCode::kNoRoom);
    if (result == PageIn::kChecksum) {
      drop_damaged(planner.find_path(session.node_, unpublished(session)));
      negotiation.stay_on_device(ReasonCode::kChecksum);  // a damaged node that somebody holds stays until then
    }
    if (result == PageIn::kHostBusy) {
      wait_for_host(entry);
      require_usable(session);
    }
  }
  adopt(session, negotiation.path(), negotiation.target());
  ReusePlan report = negotiation.report();
  report.bytes_moved = bytes_moved;
  if (report.reusable > 0) report.tier = lowest;
  return report;
}

std::vector<Node*> PrefixCacheState::cut_at(const Path& path, std::int32_t target) {
  std::vector<Node*> nodes;
  for (Node* node : path.nodes) {
    if (node->start() < target && node->end() > target) nodes.push_back(trie.split(node, target));
    nodes.push_back(node);
  }
  return nodes;
}

// What the query at `target` sees becomes the sequence's; where the session's own cells are among it they stay.
void PrefixCacheState::stand_on_window(Session& session, std::size_t cache, std::span<Node* const> nodes,
                                       std::int32_t target) {
  CausalCache& owner = *caches.attention[cache];
  const SequenceId id = session.sequences_[cache];
  const std::int32_t floor = owner.visibility().floor(target);
  const std::int32_t length = owner.length(id);
  if (floor >= length || floor < owner.held_from(id)) owner.start_at(id, floor);
  const std::int32_t from = owner.length(id);
  if (from >= target) return;
  for (const WindowSource& source : Coverage(nodes, cache, target, /*device_only=*/true).pick(from, target)) {
    owner.borrow(id, *source.list, source.from, source.to);
  }
}

// Where what another live session has serves at the target, and no restore point on the device does, it becomes one.
void PrefixCacheState::share_live_state(std::span<Node* const> nodes, std::int32_t target) {
  Node* node = planner.live_for(nodes, target);
  if (node == nullptr) return;
  const Node* kept = planner.point_for(nodes, target);
  if (kept != nullptr && state_of(kept).point().on_device) return;
  Session& other = *sessions.standing_at(node);
  make_point(other, node->end(), PointKind::kEnd, states_of(other));
}

void PrefixCacheState::adopt(Session& session, const Path& path, std::int32_t target) {
  const std::int32_t start = session.node_->end();
  std::vector<Node*> nodes = path.nodes;
  if (target > session.computed_) {
    nodes = cut_at(path, target);
    share_live_state(nodes, target);
    for (const std::size_t i : caches.windowed) stand_on_window(session, i, nodes, target);
    Node* last = nullptr;
    for (Node* node : nodes) {
      if (node->start() >= target) break;
      last = node;
      for (const std::size_t i : caches.full) {
        const SpanList& cells = state_of(node).held[i].cells.front();
        const std::int32_t from = std::max(node->start(), caches.attention[i]->borrowed_length(session.sequences_[i]));
        caches.attention[i]->borrow(session.sequences_[i], cells, from, node->end());
      }
    }
    ensure(last != nullptr, "prefix_cache.adopt", "nothing on the path lies before ", target);
    Node* const kept = caches.states.empty() ? last : planner.point_for(nodes, target);
    if (kept != nullptr) points.go_back_to(kept);
    for (std::size_t i = 0; i < caches.states.size(); ++i)
      caches.states[i]->resume(state_sequence(session, i), target, cut_from(kept, i, target));
    move_to(session, last);
    session.tail_begin_ += static_cast<std::size_t>(target - start);
    session.computed_ = target;
  }
  if (caches.has_points() && session.publish_ && path.matched > session.computed_)
    borrow_ahead(session, {std::move(nodes), path.matched});
}

// Where the session restarts below what attention caches still hold, they keep it: rows in between are computed again,
// for the other caches, but stored once. Only for a session that publishes, and so comes to stand on those nodes.
void PrefixCacheState::borrow_ahead(Session& session, const Path& path) {
  std::int32_t end = session.computed_;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const SequenceId id = session.sequences_[i];
    const Coverage coverage(path.nodes, i, path.matched, /*device_only=*/true);
    const std::int32_t from = caches.attention[i]->length(id), to = coverage.covered_to(from);
    if (to <= from) continue;
    for (const WindowSource& source : coverage.pick(from, to)) {
      caches.attention[i]->borrow(id, *source.list, source.from, source.to);
    }
    end = std::max(end, to);
  }
  if (end == session.computed_) return;
  for (Node* node : path.nodes) {
    if (node->start() >= end || node->end() < end) continue;
    session.ahead_ = node->end() > end ? trie.split(node, end) : node;
    trie.lock(session.ahead_);
    return;
  }
}

void PrefixCacheState::drop_ahead(Session& session) noexcept {
  if (session.ahead_ == nullptr) return;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const SequenceId id = session.sequences_[i];
    if (caches.attention[i]->length(id) > session.computed_) caches.attention[i]->truncate(id, session.computed_);
  }
  Node* node = std::exchange(session.ahead_, nullptr);
  trie.unlock(node);
  eviction.try_join(node);
}

std::int32_t PrefixCacheState::reachable_back(const Session& session, std::int32_t length) const {
  if (length >= session.computed_) return length;
  const bool whole = session.atomic_.begin_of(length) == length;
  const auto own = [&](std::size_t i) { return caches.attention[i]->can_resume(session.sequences_[i], length); };
  const bool cut = caches.states.empty() || caches.cut_to(session.computed_, length) == length;
  if (cut && whole && std::all_of(caches.windowed.begin(), caches.windowed.end(), own)) return length;
  const std::int32_t highest = std::min(length, session.node_->end());
  return planner.reach(planner.path_to(session.node_, highest), 0, highest, session.atomic_, /*device_only=*/true)
      .target;
}

void PrefixCacheState::go_back(Session& session, std::int32_t length) {
  drop_ahead(session);
  Path path = caches.has_points() ? planner.path_to(session.node_, std::min(length, session.node_->end())) : Path{};
  Node* node = node_ending_at(session.node_, length);
  const bool split_off = std::find(path.nodes.begin(), path.nodes.end(), node) == path.nodes.end();
  if (caches.has_points() && split_off && !node->is_root()) path.nodes.push_back(node);
  share_live_state(path.nodes, length);
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const SequenceId id = session.sequences_[i];
    if (caches.attention[i]->can_resume(id, length)) {
      caches.attention[i]->truncate(id, length);
    } else {
      caches.attention[i]->start_at(id, caches.attention[i]->visibility().floor(length));
      stand_on_window(session, i, path.nodes, length);
    }
  }
  Node* const kept = planner.point_for(path.nodes, length);
  if (kept != nullptr) points.go_back_to(kept);
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    const SequenceId id = state_sequence(session, i);
    if (length == 0) {
      caches.states[i]->resume(id, length, {});
    } else if (caches.states[i]->cut_to(session.computed_, length) == length) {
      caches.states[i]->resume(id, length, caches.states[i]->cut(caches.states[i]->held(id), length));
    } else {
      caches.states[i]->resume(id, length, cut_from(kept, i, length));
    }
  }
  session.computed_ = length;
  if (length < published(session)) move_to(session, node);
}

}  // namespace kvtrie
