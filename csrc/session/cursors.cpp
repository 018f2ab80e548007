#include "session/cursors.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "session/cursor_undo.h"

namespace kvtrie {

void Cursors::open(Cursor& cursor, std::string_view name_space, Owner owner) {
  cursor.owner = owner;
  cursor.name_space = std::string(name_space);
  cursor.sequences.reserve(of_.caches.all.size());
  for (LayerCache* cache : of_.caches.all) cursor.sequences.push_back(cache->open_sequence(owner));
  of_.sessions.add(&cursor);
  try {
    cursor.node = of_.trie.root(name_space);
  } catch (...) {
    of_.sessions.remove(&cursor);
    throw;
  }
  of_.trie.lock(cursor.node);
  of_.points.session_begins(cursor.node->group());
}

// Copies the place, not the history: node, tail and the list of spans. Cells of what neither of them publishes never
// come to nodes.
void Cursors::branch(Cursor& from, Cursor& twin) {
  move_to(twin, from.node);
  for (std::size_t i = 0; i < from.sequences.size(); ++i)
    of_.caches.all[i]->fork(from.sequences[i], twin.sequences[i], from.computed);
  twin.set_tail(from.unpublished(), 0);
  twin.computed = from.computed;
  twin.wanted = from.wanted;
  twin.message_ends = from.message_ends;
  twin.atomic = from.atomic;
  twin.use = from.use;
  twin.publish = from.publish;
  if (from.publish && from.computed > from.published()) from.tail_shared_to = from.computed;
  twin.tail_shared_to = from.tail_shared_to;
}

void Cursors::close(Cursor& cursor) noexcept {
  for (std::size_t i = 0; i < cursor.sequences.size(); ++i) of_.caches.all[i]->close_sequence(cursor.sequences[i]);
  of_.sessions.remove(&cursor);
  if (cursor.node == nullptr) return;
  Node* node = std::exchange(cursor.node, nullptr);
  Node* above = node->is_root() ? node : node->parent();
  if (!node->is_root()) state_of(node).last_used_seconds = of_.now;
  of_.trie.unlock(node);
  of_.removal.try_join(node);
  if (of_.demand.holds_back() && above != node) join_up_from(above);
  cursor.tail = {};
}

// Tokens that were asked for more often than the tokens behind them are a node of their own, which may be joined once
// both were asked for as often.
void Cursors::join_up_from(Node* node) noexcept {
  while (!node->is_root()) {
    Node* above = node->parent();
    of_.removal.try_join(node);
    node = above;
  }
}

void Cursors::lose(Cursor& cursor) {
  cursor.failed = true;
  cursor.publish = false;
  cursor.tail_shared_to = 0;
  cursor.set_tail(cursor.recorded_keys(), 0);
  for (std::size_t i = 0; i < of_.caches.all.size(); ++i) of_.caches.all[i]->truncate(cursor.sequences[i], 0);
  Node* node = std::exchange(cursor.node, of_.trie.root(cursor.name_space));
  of_.trie.lock(cursor.node);
  of_.trie.unlock(node);
}

void Cursors::move_to(Cursor& cursor, Node* node) noexcept {
  if (node == cursor.node) return;
  Node* before = std::exchange(cursor.node, node);
  of_.trie.lock(node);
  if (!before->is_root()) state_of(before).last_used_seconds = of_.now;
  of_.trie.unlock(before);
  of_.removal.try_join(before);
}

// Where the node holds cells the cursor re-points to them and its own go back; where it holds none it takes the
// cursor's.
void Cursors::lend_or_borrow(Cursor& cursor, std::size_t cache, NodeState& node) {
  CausalCache& owner = *of_.caches.attention[cache];
  const SequenceId id = cursor.sequences[cache];
  Held& held = node.held[cache];
  for (std::int32_t at = std::max(owner.borrowed_length(id), node.start()); at < node.end();) {
    std::int32_t gap_end = node.end();
    const SpanList* known = nullptr;
    for (const SpanList& list : held.cells) {
      if (list.end_position() <= at) continue;
      (list.begin_position() <= at ? known = &list, gap_end : gap_end = list.begin_position());
      break;
    }
    if (known != nullptr) {
      const std::int32_t to = known->end_position();
      owner.borrow(id, *known, at, to);
      at = to;
      continue;
    }
    held.add(owner.lend(id, at, gap_end));
    at = gap_end;
  }
  if (of_.lower.disk() == nullptr && held.device_tokens() == node.length()) held.slices.clear();
}

// All of it, or what came to a node that is not on the device leaves it again.
void Cursors::share_cells(Cursor& cursor, Node* node) {
  NodeState& state = state_of(node);
  of_.places.make_room(node);
  try {
    for (std::size_t i = 0; i < of_.caches.attention.size(); ++i) lend_or_borrow(cursor, i, state);
  } catch (...) {
    if (!state.on_device()) {
      for (Held& held : state.held) held.cells.clear();
    }
    of_.places.settle_more_cells(node);
    throw;
  }
  state.on_device() ? of_.places.settle_more_cells(node) : of_.places.come(node);
}

// The cursor's cells come to nodes that have none, and it lets go of those that nodes have.
void Cursors::take_known(Cursor& cursor, const Path& path) {
  for (Node* node : path.nodes) {
    if (node->start() >= path.matched) break;
    if (node->end() > path.matched) node = of_.trie.split(node, path.matched);
    share_cells(cursor, node);
    move_to(cursor, node);
  }
}

// Nobody else stands there or asked for it, and nothing is to be restored at its end.
bool Cursors::grows_last(const Cursor& cursor) const {
  const Node* node = cursor.node;
  return !node->is_root() && node->is_leaf() && node->locks() == 1 && state_of(node).on_device() &&
         !state_of(node).point().exists() && Demand::is_new(node) && of_.trie.in_first_use(kDeviceOrder, node);
}

namespace {

// Cells that a cursor lends to a node: they are its own again unless the node took them.
class Lent {
 public:
  Lent(const CacheTable& caches, const Cursor& cursor) : caches_(caches), cursor_(cursor), from_(cursor.published()) {
    lists_.reserve(caches.attention.size());
    try {
      for (std::size_t i = 0; i < caches.attention.size(); ++i)
        lists_.push_back(caches.attention[i]->lend(cursor.sequences[i], from_, cursor.computed));
    } catch (...) {
      take_back();
      throw;
    }
  }
  ~Lent() { take_back(); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  std::vector<SpanList>& lists() noexcept { return lists_; }
  std::vector<SpanList> give() noexcept { return std::exchange(lists_, {}); }

 private:
  void take_back() noexcept {
    for (std::size_t i = 0; i < lists_.size(); ++i)
      caches_.attention[i]->unlend(cursor_.sequences[i], std::move(lists_[i]), from_);
  }

  const CacheTable& caches_;
  const Cursor& cursor_;
  const std::int32_t from_;
  std::vector<SpanList> lists_;
};

void make_room_for(NodeState& state, std::vector<SpanList>& lists) {
  for (std::size_t i = 0; i < lists.size(); ++i) state.held[i].make_room_for(lists[i]);
}

}  // namespace

// Both of these change nothing when they throw: what may comes before what changes.
void Cursors::grow_last(Cursor& cursor, std::span<const Token> edge) {
  NodeState& state = state_of(cursor.node);
  Lent cells(of_.caches, cursor);
  make_room_for(state, cells.lists());
  of_.places.make_room(cursor.node);
  of_.trie.extend(cursor.node, edge);
  state.extend(cursor.computed, cells.give());
  of_.places.extend(cursor.node, edge.size());
}

void Cursors::add_node(Cursor& cursor, std::span<const Token> edge) {
  auto state =
      std::make_unique<NodeState>(cursor.published(), cursor.computed, of_.caches.attention.size(), &of_.costs);
  Lent cells(of_.caches, cursor);
  make_room_for(*state, cells.lists());
  of_.places.make_room(cursor.node);
  Node* node = of_.trie.add_child(cursor.node, edge, std::move(state));
  std::vector<SpanList> given = cells.give();
  for (std::size_t i = 0; i < given.size(); ++i) state_of(node).held[i].add(std::move(given[i]));
  of_.places.add(node, NodePlaces::Place::kDevice);
  move_to(cursor, node);
}

void Cursors::add_fresh(Cursor& cursor, std::span<const Token> edge) {
  grows_last(cursor) ? grow_last(cursor, edge) : add_node(cursor, edge);
  state_of(cursor.node).last_used_seconds = of_.now;
  try {
    of_.trie.recall(kDeviceOrder, cursor.node, edge.size());
  } catch (const std::bad_alloc&) {  // it counts as used once
  }
}

void Cursors::publish(Cursor& cursor) {
  if (!cursor.publish || cursor.published() >= cursor.computed || of_.caches.all.empty()) return;
  const std::int32_t begin = cursor.published(), end = cursor.computed;
  const std::span<const Token> fresh = cursor.unpublished().first(static_cast<std::size_t>(end - begin));
  const Path path = of_.planner.find_path(cursor.node, fresh);
  if (!cursor.use && !path.nodes.empty()) {
    cursor.publish = false;  // it wants its own cells, and these tokens have some already
    return;
  }
  std::optional<CursorUndo> undo;  // a node of its own is made wholly or not at all
  if (!path.nodes.empty()) undo.emplace(of_, cursor);
  take_known(cursor, path);
  of_.demand.ask(cursor.node, begin);  // before it may grow
  const std::int32_t known = cursor.published();
  if (known < end) add_fresh(cursor, fresh.subspan(static_cast<std::size_t>(known - begin)));
  if (undo) undo->forget();
  cursor.consume(end - begin);
}

}  // namespace kvtrie
