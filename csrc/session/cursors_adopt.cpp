// A cursor takes its place on a path: forwards when a prompt is known, backwards when it rewinds.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "plan/coverage.h"
#include "session/cursor_undo.h"
#include "session/cursors.h"

namespace kvtrie {

// ---- forwards -----------------------------------------------------------------------------------------------------

std::vector<Node*> Cursors::cut_at(const Path& path, std::int32_t target) {
  std::vector<Node*> nodes;
  for (Node* node : path.nodes) {
    if (node->start() < target && node->end() > target) nodes.push_back(of_.trie.split(node, target));
    nodes.push_back(node);
  }
  return nodes;
}

// The cells that the query at `target` sees become the sequence's; the cursor's own among them stay.
void Cursors::stand_on_window(Cursor& cursor, std::size_t cache, std::span<Node* const> nodes, std::int32_t target) {
  CausalCache& owner = *of_.caches.attention[cache];
  const SequenceId id = cursor.sequences[cache];
  const std::int32_t floor = owner.visibility().floor(target);
  const std::int32_t length = owner.length(id);
  if (floor >= length || floor < owner.held_from(id)) owner.start_at(id, floor);
  const std::int32_t from = owner.length(id);
  if (from >= target) return;
  for (const WindowSource& source : Coverage(nodes, cache, target, /*device_only=*/true).pick(from, target)) {
    owner.borrow(id, *source.list, source.from, source.to);
  }
}

void Cursors::borrow_full(Cursor& cursor, const Node* node) {
  for (const std::size_t i : of_.caches.full) {
    CausalCache& owner = *of_.caches.attention[i];
    const SequenceId id = cursor.sequences[i];
    const std::int32_t from = std::max(node->start(), owner.borrowed_length(id));
    owner.borrow(id, state_of(node).held[i].cells.front(), from, node->end());
  }
}

// REQUIRES: a node ends at the target.
void Cursors::stand_at(Cursor& cursor, std::span<Node* const> nodes, std::int32_t target, std::int32_t matched) {
  of_.checkpointer.share_live_state(nodes, target);
  for (const std::size_t i : of_.caches.windowed) stand_on_window(cursor, i, nodes, target);
  Node* last = nullptr;
  for (Node* node : nodes) {
    if (node->start() >= target) break;
    last = node;
    borrow_full(cursor, node);
  }
  ensure(last != nullptr, "prefix_cache.adopt", "nothing on the path lies before ", target);
  Node* const kept = of_.caches.states.empty() ? last : of_.planner.point_for(nodes, target);
  if (kept != nullptr) of_.points.go_back_to(kept, matched);
  for (std::size_t i = 0; i < of_.caches.states.size(); ++i)
    of_.caches.states[i]->resume(state_sequence(cursor, i), target, of_.checkpointer.cut_from(kept, i, target));
  const std::int32_t start = cursor.published();
  move_to(cursor, last);
  cursor.tail_begin += static_cast<std::size_t>(target - start);
  cursor.computed = target;
}

bool Cursors::adopt(Cursor& cursor, const Path& path, std::int32_t target) {
  const bool moves = target > cursor.computed;
  std::vector<Node*> nodes = moves ? cut_at(path, target) : path.nodes;
  const bool ahead = of_.caches.has_points() && cursor.publish && path.matched > std::max(cursor.computed, target);
  if (!moves && !ahead) return false;
  const std::int32_t from = cursor.published();
  CursorUndo undo(of_, cursor);
  if (moves) stand_at(cursor, nodes, target, path.matched);
  if (ahead) borrow_ahead(cursor, {std::move(nodes), path.matched});
  undo.forget();
  return moves && of_.demand.ask(cursor.node, from);
}

// Where the cursor restarts below what attention caches still hold, they keep it: rows in between are computed again,
// for the other caches, but stored once. Only for one that publishes, and so comes to stand on those nodes.
void Cursors::borrow_ahead(Cursor& cursor, const Path& path) {
  std::int32_t end = cursor.computed;
  for (std::size_t i = 0; i < of_.caches.attention.size(); ++i) {
    const SequenceId id = cursor.sequences[i];
    const Coverage coverage(path.nodes, i, path.matched, /*device_only=*/true);
    const std::int32_t from = of_.caches.attention[i]->length(id), to = coverage.covered_to(from);
    if (to <= from) continue;
    for (const WindowSource& source : coverage.pick(from, to)) {
      of_.caches.attention[i]->borrow(id, *source.list, source.from, source.to);
    }
    end = std::max(end, to);
  }
  if (end == cursor.computed) return;
  for (Node* node : path.nodes) {
    if (node->start() >= end || node->end() < end) continue;
    cursor.ahead = node->end() > end ? of_.trie.split(node, end) : node;
    of_.trie.lock(cursor.ahead);
    return;
  }
}

void Cursors::settle_ahead(Cursor& cursor) {
  if (cursor.ahead == nullptr) return;
  for (std::size_t i = 0; i < of_.caches.attention.size(); ++i) {
    if (of_.caches.attention[i]->length(cursor.sequences[i]) > cursor.computed) return;
  }
  of_.trie.unlock(std::exchange(cursor.ahead, nullptr));
}

void Cursors::drop_ahead(Cursor& cursor) noexcept {
  if (cursor.ahead == nullptr) return;
  for (std::size_t i = 0; i < of_.caches.attention.size(); ++i) {
    const SequenceId id = cursor.sequences[i];
    if (of_.caches.attention[i]->length(id) > cursor.computed) of_.caches.attention[i]->truncate(id, cursor.computed);
  }
  Node* node = std::exchange(cursor.ahead, nullptr);
  of_.trie.unlock(node);
  of_.removal.try_join(node);
}

// ---- backwards ----------------------------------------------------------------------------------------------------

std::int32_t Cursors::reachable_back(const Cursor& cursor, std::int32_t length) const {
  if (length >= cursor.computed) return length;
  const bool whole = cursor.atomic.begin_of(length) == length;
  const auto own = [&](std::size_t i) { return of_.caches.attention[i]->can_resume(cursor.sequences[i], length); };
  const bool cut = of_.caches.states.empty() || of_.caches.cut_to(cursor.computed, length) == length;
  if (cut && whole && std::all_of(of_.caches.windowed.begin(), of_.caches.windowed.end(), own)) return length;
  const std::int32_t highest = std::min(length, cursor.node->end());
  return of_.planner.reach(of_.planner.path_to(cursor.node, highest), 0, highest, cursor.atomic, /*device_only=*/true)
      .target;
}

// Cells that the sequence holds itself stay its own; others come from the path, and states from `kept`.
void Cursors::take_back(Cursor& cursor, std::size_t cache, std::span<Node* const> nodes, const Node* kept,
                        std::int32_t length) {
  const SequenceId id = cursor.sequences[cache];
  if (of_.caches.all[cache]->can_resume(id, length)) return of_.caches.all[cache]->truncate(id, length);
  if (cache < of_.caches.attention.size()) {
    CausalCache& owner = *of_.caches.attention[cache];
    owner.start_at(id, owner.visibility().floor(length));
    return stand_on_window(cursor, cache, nodes, length);
  }
  const std::size_t state = cache - of_.caches.attention.size();
  of_.caches.states[state]->resume(id, length, of_.checkpointer.cut_from(kept, state, length));
}

void Cursors::go_back(Cursor& cursor, std::int32_t length) {
  drop_ahead(cursor);
  CursorUndo undo(of_, cursor);
  const bool points = of_.caches.has_points();
  Path path = points ? of_.planner.path_to(cursor.node, std::min(length, cursor.node->end())) : Path{};
  Node* node = node_ending_at(of_.trie, cursor.node, length);
  const bool split_off = std::find(path.nodes.begin(), path.nodes.end(), node) == path.nodes.end();
  if (points && split_off && !node->is_root()) path.nodes.push_back(node);
  of_.checkpointer.share_live_state(path.nodes, length);
  Node* const kept = of_.planner.point_for(path.nodes, length);
  if (kept != nullptr) of_.points.go_back_to(kept, length);
  for (std::size_t i = 0; i < of_.caches.all.size(); ++i) take_back(cursor, i, path.nodes, kept, length);
  cursor.computed = length;
  if (length < cursor.published()) move_to(cursor, node);
  undo.forget();
}

}  // namespace kvtrie
