// Sessions move through the tree, and what they computed becomes nodes of it.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::int32_t PrefixCacheState::recorded(const Session& session) const {
  return published(session) + static_cast<std::int32_t>(session.tail_.size() - session.tail_begin_);
}

std::span<const Token> PrefixCacheState::unpublished(const Session& session) const {
  return std::span<const Token>(session.tail_).subspan(session.tail_begin_);
}

Tokens PrefixCacheState::path_tokens(const Node* node) const {
  Tokens tokens(static_cast<std::size_t>(node->end()));
  for (; node != nullptr; node = node->parent()) {
    std::copy(node->tokens().begin(), node->tokens().end(), tokens.begin() + node->start());
  }
  return tokens;
}

void PrefixCacheState::open(Session& session, std::string_view name_space) {
  for (const auto& cache : caches) session.sequences_.push_back(cache->open_sequence());
  session.name_space_ = std::string(name_space);
  session.node_ = trie.root(name_space);
  trie.lock(session.node_);
  sessions.insert(&session);
}

void PrefixCacheState::detach(Session& session) noexcept {
  if (session.closed_) return;
  drop_open_step(session);
  session.closed_ = true;
  for (std::size_t i = 0; i < session.sequences_.size(); ++i) caches[i]->close_sequence(session.sequences_[i]);
  sessions.erase(&session);
  if (sessions.empty()) tails_are_shared = false;
  if (session.node_ == nullptr) return;
  Node* node = std::exchange(session.node_, nullptr);
  if (!node->is_root()) state_of(node).last_used_seconds = now;
  trie.unlock(node);
  try_join(node);
  session.tail_ = {};
}

void PrefixCacheState::try_join(Node* node) {
  if (node->is_root() || node->locks() != 0 || node->child_count() != 1) return;
  trie.join_with_child(node);
}

void PrefixCacheState::move_to(Session& session, Node* node) {
  if (node == session.node_) return;
  Node* before = std::exchange(session.node_, node);
  trie.lock(node);
  if (!before->is_root()) state_of(before).last_used_seconds = now;
  trie.unlock(before);
  try_join(before);
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

// Walks down as far as the tree already knows the tokens, then adds what is left as a node, or to the node itself when
// nobody else stands there:
//
//   known and resident   the session re-points to the published cells, its own go back
//   known, on the host   the node takes the session's cells: it is resident again at no cost
//   unknown              the session's cells become a node
void PrefixCacheState::publish(Session& session) {
  const std::int32_t end = session.computed_;
  const std::int32_t begin = published(session);
  if (!session.publish_ || begin == end) return;
  const std::span<const Token> fresh = unpublished(session).first(static_cast<std::size_t>(end - begin));
  const Path path = find_path(session.node_, fresh);
  if (!session.use_ && !path.nodes.empty()) {
    session.publish_ = false;  // it wants its own cells, and these tokens have some already
    return;
  }
  borrow_path(session, path, path.matched);
  const std::int32_t known = published(session);
  if (known < end) {
    std::vector<SpanList> cells;
    for (std::size_t i = 0; i < caches.size(); ++i) cells.push_back(caches[i]->lend(session.sequences_[i], known, end));
    const auto edge = fresh.subspan(static_cast<std::size_t>(known - begin));
    Node* node = session.node_;
    if (!node->is_root() && node->is_leaf() && node->locks() == 1 && state_of(node).on_device()) {
      trie.extend(node, edge);
      state_of(node).extend(end, std::move(cells));
    } else {
      auto state = std::make_unique<NodeState>(known, end, caches.size());
      state->set_cells(std::move(cells));
      node = trie.add_child(node, edge, std::move(state));
      trie.join_order(kDeviceOrder, node);
      move_to(session, node);
    }
    device_tokens += edge.size();
    state_of(session.node_).last_used_seconds = now;
  }
  consume(session.tail_, session.tail_begin_, end - begin);
}

void PrefixCacheState::drop_open_step(Session& session) noexcept {
  if (session.open_step_ != nullptr) drop(*session.open_step_);
}

void PrefixCacheState::drop(Step& step) noexcept {
  if (step.complete_ || step.dropped_) return;
  step.dropped_ = true;
  for (std::size_t i = 0; i < step.forwards_.size(); ++i) {
    if (!step.forwards_[i]->complete()) {
      caches[i]->drop(*step.forwards_[i]);
      continue;
    }
    // This cache has had all its layers, another one has not: its sequences go back, too.
    for (const SessionPtr& session : step.sessions_) caches[i]->truncate(session->sequences_[i], session->computed_);
  }
  for (const SessionPtr& session : step.sessions_) {
    if (session->open_step_ == &step) session->open_step_ = nullptr;
  }
  ++totals.dropped_steps;
}

void PrefixCacheState::complete(Step& step) {
  if (step.complete_ || step.dropped_) return;
  step.complete_ = true;
  ++totals.steps;
  totals.computed_tokens += step.tokens_.size();
  for (std::size_t i = 0; i < step.sessions_.size(); ++i) {
    Session& session = *step.sessions_[i];
    session.open_step_ = nullptr;
    session.computed_ += static_cast<std::int32_t>(step.counts_[i]);
    publish(session);
  }
}

StepPtr PrefixCacheState::make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list,
                                    std::uint32_t chunk, bool adopt, Entry& entry) {
  require(!list.empty(), "step", "sessions: got none, allowed at least 1");
  for (const SessionPtr& session : list) {
    if (session->closed_) fail(ErrorKind::kClosed, "step", "the session is closed");
    if (session->failed_) fail(ErrorKind::kDevice, "step", "the session's state was lost to a device failure");
    drop_open_step(*session);
    if (adopt && session->use_ && published(*session) == session->computed_) {
      const std::int32_t before = session->computed_;
      advance(*session, recorded(*session) - 1, entry);
      totals.adopted_tokens += static_cast<std::uint64_t>(session->computed_ - before);
    }
  }
  StepPtr step(new Step());
  std::vector<std::vector<ForwardRows>> rows(caches.size());
  for (std::size_t s = 0; s < list.size(); ++s) {
    const Session& session = *list[s];
    const std::int32_t left = recorded(session) - session.computed_;
    require(left > 0, "step", "session ", s, " has nothing left to compute: append a token first");
    const std::uint32_t count = std::min(static_cast<std::uint32_t>(left), chunk);
    const auto offset = static_cast<std::size_t>(session.computed_ - published(session));
    const auto tokens = unpublished(session).subspan(offset, count);
    step->tokens_.insert(step->tokens_.end(), tokens.begin(), tokens.end());
    for (std::uint32_t i = 0; i < count; ++i) {
      step->positions_.push_back(session.computed_ + static_cast<std::int32_t>(i));
      step->sequences_.push_back(static_cast<std::int32_t>(s));
    }
    step->counts_.push_back(count);
    for (std::size_t i = 0; i < caches.size(); ++i) rows[i].push_back({session.sequences_[i], count});
  }
  make_room(static_cast<std::uint32_t>(step->tokens_.size()));
  for (std::size_t i = 0; i < caches.size(); ++i) step->forwards_.push_back(caches[i]->begin_forward(rows[i]));
  step->sessions_.assign(list.begin(), list.end());
  step->cache_ = owner;
  for (const SessionPtr& session : list) session->open_step_ = step.get();
  return step;
}

}  // namespace kvtrie
