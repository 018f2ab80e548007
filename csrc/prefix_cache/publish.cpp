// Sessions move through the tree, and what they computed becomes nodes of it.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::int32_t PrefixCacheState::recorded(const Session& session) const {
  return published(session) + static_cast<std::int32_t>(session.tail_.size() - session.tail_begin_);
}

std::span<const Token> PrefixCacheState::unpublished(const Session& session) const {
  return std::span<const Token>(session.tail_).subspan(session.tail_begin_);
}

Tokens PrefixCacheState::recorded_keys(const Session& session) const {
  Tokens keys = path_tokens(session.node_);
  const std::span<const Token> own = unpublished(session);
  keys.insert(keys.end(), own.begin(), own.end());
  return keys;
}

Node* PrefixCacheState::node_ending_at(Node* node, std::int32_t offset) {
  while (!node->is_root() && node->start() >= offset) node = node->parent();
  return node->end() > offset ? trie.split(node, offset) : node;
}

void PrefixCacheState::open(Session& session, std::string_view name_space) {
  const Owner owner = tenant_of(name_space);
  for (StateCache* cache : caches.all) session.sequences_.push_back(cache->open_sequence(owner));
  session.name_space_ = std::string(name_space);
  session.node_ = trie.root(name_space);
  trie.lock(session.node_);
  sessions.add(&session);
}

// Where a session ends is a restore point: the next turn goes on from there.
void PrefixCacheState::detach(Session& session) noexcept {
  if (session.detached_) return;
  drop_open_step(session);
  drop_ahead(session);
  session.closed_ = session.detached_ = true;
  try {
    if (!session.failed_ && session.publish_ && session.node_ != nullptr)
      make_point(session, session.computed_, PointKind::kEnd, states_of(session));
    if (!session.failed_ && session.publish_ && session.node_ != nullptr) behind.save_path(session.node_);
    if (!session.failed_ && session.publish_ && session.node_ != nullptr && exchange != nullptr)
      exchange->offer(session.node_);
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, cat("prefix cache: the end of a session was not kept: ", error.what()));
  }
  for (std::size_t i = 0; i < session.sequences_.size(); ++i) caches.all[i]->close_sequence(session.sequences_[i]);
  sessions.remove(&session);
  if (session.node_ == nullptr) return;
  Node* node = std::exchange(session.node_, nullptr);
  if (!node->is_root()) state_of(node).last_used_seconds = now;
  trie.unlock(node);
  eviction.try_join(node);
  session.tail_ = {};
}

void PrefixCacheState::move_to(Session& session, Node* node) {
  if (node == session.node_) return;
  Node* before = std::exchange(session.node_, node);
  trie.lock(node);
  if (!before->is_root()) state_of(before).last_used_seconds = now;
  trie.unlock(before);
  eviction.try_join(before);
}

namespace {

// Forgets the first `count` tokens of the tail; compacts the vector when most of it is forgotten.
void consume(Tokens& tail, std::size_t& begin, std::int32_t count) {
  begin += static_cast<std::size_t>(count);
  if (begin == tail.size()) {
    tail.clear();
    begin = 0;
  } else if (begin > 4096 && begin > tail.size() / 2) {
    tail.erase(tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(begin));
    begin = 0;
  }
}

}  // namespace

// The session's cells of one cache and a node on its path become one: where the node holds cells the session re-points
// to them and its own go back; where it holds none it takes the session's.
void PrefixCacheState::lend_or_borrow(Session& session, std::size_t cache, NodeState& node) {
  CausalCache& owner = *caches.attention[cache];
  const SequenceId id = session.sequences_[cache];
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
  if (lower.disk() == nullptr && held.device_tokens() == node.length()) held.slices.clear();
}

// Walks down where the tree already knows the tokens. A node in a lower tier takes the session's cells: it is resident
// again at no cost.
void PrefixCacheState::take_known(Session& session, const Path& path) {
  for (Node* node : path.nodes) {
    if (node->start() >= path.matched) break;
    if (node->end() > path.matched) node = trie.split(node, path.matched);
    NodeState& state = state_of(node);
    for (std::size_t i = 0; i < caches.attention.size(); ++i) lend_or_borrow(session, i, state);
    state.on_device() ? places.settle_more_cells(node) : places.come(node);
    move_to(session, node);
  }
}

// What the tree does not know yet becomes a node, or goes to the one the session stands on when nobody else does and
// nothing is to be restored at its end.
void PrefixCacheState::add_fresh(Session& session, std::span<const Token> edge) {
  const std::int32_t known = published(session), end = session.computed_;
  std::vector<SpanList> cells;
  for (std::size_t i = 0; i < caches.attention.size(); ++i)
    cells.push_back(caches.attention[i]->lend(session.sequences_[i], known, end));
  Node* node = session.node_;
  const bool grows = !node->is_root() && node->is_leaf() && node->locks() == 1 && state_of(node).on_device() &&
                     !state_of(node).point().exists() && trie.in_first_use(kDeviceOrder, node);
  if (grows) {
    trie.extend(node, edge);
    state_of(node).extend(end, std::move(cells));
    places.extend(node, edge.size());
  } else {
    auto state = std::make_unique<NodeState>(known, end, caches.attention.size(), &node_costs);
    for (std::size_t i = 0; i < caches.attention.size(); ++i) state->held[i].add(std::move(cells[i]));
    node = trie.add_child(node, edge, std::move(state));
    places.add(node, NodePlaces::Place::kDevice);
    move_to(session, node);
  }
  state_of(session.node_).last_used_seconds = now;
  trie.recall(kDeviceOrder, session.node_, edge.size());
}

void PrefixCacheState::publish(Session& session) {
  const std::int32_t end = session.computed_;
  const std::int32_t begin = published(session);
  if (!session.publish_ || begin == end || caches.all.empty()) return;
  const std::span<const Token> fresh = unpublished(session).first(static_cast<std::size_t>(end - begin));
  const Path path = planner.find_path(session.node_, fresh);
  if (!session.use_ && !path.nodes.empty()) {
    session.publish_ = false;  // it wants its own cells, and these tokens have some already
    return;
  }
  take_known(session, path);
  const std::int32_t known = published(session);
  if (known < end) add_fresh(session, fresh.subspan(static_cast<std::size_t>(known - begin)));
  consume(session.tail_, session.tail_begin_, end - begin);
}

}  // namespace kvtrie
