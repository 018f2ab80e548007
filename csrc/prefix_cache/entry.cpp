#include "prefix_cache/entry.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie {

// ---- the frame of a call ------------------------------------------------------------------------------------------

// While more than half of the host tier waits to be written, calls wait: what comes next needs the other half.
Entry::Entry(PrefixCacheState& state, bool allow_closed) : Call(state.gate, allow_closed), state_(state) {
  if (!gate_.home.is_here()) {
    fail(ErrorKind::kNotSupported, "prefix_cache",
         "this process was forked from the one that made the cache, and has neither its threads nor its locks: make a "
         "cache of its own here, or start workers with the 'spawn' method");
  }
  const double now = gate_.read_clock();
  if (state.writer != nullptr) state.writer->wait_below(state.host->cap() / 2);
  gate_.turns.wait([&] { lock_ = MovableMutexLock(gate_.mutex); });
  state.gate.mutex.assert_held();  // by lock_
  try {
    begin(now);
  } catch (...) {
    finish();  // it may have been outside, and the last one there
    throw;
  }
}

void Entry::begin(double now) {
  if (!allow_closed_ && state_.gate.closed) fail(ErrorKind::kClosed, "prefix_cache", "the cache is closed");
  state_.gate.now = std::max(state_.gate.now, now);
  try {
    if (!state_.pending_loads.empty()) state_.page_in.reap_pending_loads();
    if (state_.gate.now >= state_.expiry.next_expiry(state_.leases) && !state_.gate.closed) state_.expire(*this);
  } catch (const std::bad_alloc&) {
    if (!allow_closed_) throw;  // so nothing that is over is given; what only ends goes on, and the next call does it
  }
  if (state_.lower.disk() != nullptr) state_.behind.write_again_after_a_while(state_.gate.now);
}

Entry::~Entry() { finish(); }

void Entry::finish() noexcept {
  if (state_.closing_is_left && state_.gate.outside.empty()) {
    state_.closing_is_left = false;
    state_.take_apart(*this);
  }
  std::vector<BlobPtr> sealing = state_.copies.take_unsealed();
  const auto sealing_calls = sealing.empty() ? nullptr : state_.sealing_calls;
  if (sealing_calls != nullptr) ++*sealing_calls;
  const std::shared_ptr<DiskTier> disk = state_.lower.disk();
  lock_.unlock();
  for (const BlobPtr& blob : sealing) blob->seal();
  sealing.clear();
  if (sealing_calls != nullptr) --*sealing_calls;
  if (disk != nullptr && disk->needs_sweep()) disk->sweep();
}

void PrefixCacheState::expire(Call& call) {
  constexpr std::size_t kPinsAtOnce = 64;  // each looks at all pins
  Pieces pieces(call);
  std::size_t gone = 0;
  while (Node* node = gate.closed ? nullptr : leases.take_expired(gate.now)) {
    state_of(node).last_used_seconds = gate.now;  // it was wanted until now
    ++totals.expired_pins;
    removal.try_join(node);
    if (++gone % kPinsAtOnce == 0) pieces.end();
  }
  const auto remove = [this](Node* leaf) KVTRIE_REQUIRES(gate.mutex) {
    totals.expired_tokens += state_of(leaf).length();
    removal.remove_subtree(leaf, /*tidy=*/false);  // a join would take away a node that is still to be looked at
  };
  while (!gate.closed && expiry.due(gate.now) && !expiry.sweep_some(gate.now, pieces.most(), remove)) pieces.end();
}

// ---- calls on a session -------------------------------------------------------------------------------------------

SessionCall::SessionCall(Session& session) : session_(&session) {
  auto found = Session::Call::kNone;
  if (session.call_.compare_exchange_strong(found, Session::Call::kOne)) return;
  if (found == Session::Call::kOneAndClosing)
    fail(ErrorKind::kClosed, "session", "the session is closed; a call of another thread is still on it");
  fail(ErrorKind::kBusy, "session", "another thread is in a call on this session");
}

SessionCall::~SessionCall() {
  if (session_ == nullptr || session_->call_.exchange(Session::Call::kNone) == Session::Call::kOne) return;
  PrefixCacheState& state = session_->cache_->state();
  Entry entry(state, /*allow_closed=*/true);
  state.detach(session_->at_);
}

void PrefixCacheState::close(Session& session) noexcept {
  steps.drop_open(session.at_);
  session.at_.closed = true;
  auto found = Session::Call::kOne;
  if (session.call_.compare_exchange_strong(found, Session::Call::kOneAndClosing) ||
      found == Session::Call::kOneAndClosing)
    return;
  detach(session.at_);
}

// Where a session ends is a restore point: the next turn goes on from there.
void PrefixCacheState::keep_end_of(Cursor& cursor) {
  if (cursor.failed || cursor.node == nullptr) return;
  if (!cursor.publish) {
    if (cursor.write_after >= 0) behind.save_path(cursor.node);
    return;
  }
  cursors.publish(cursor);  // what there was no memory for at its time
  checkpointer.make_end_point(cursor, PointKind::kEnd);
  const bool has_way_out = lower.disk() != nullptr || exchange != nullptr;
  if (has_way_out && options.keys != nullptr && !options.keys->has(cursor.name_space)) ++totals.keyless_sessions;
  behind.save_path(cursor.node);
  if (exchange != nullptr) exchange->offer(cursor.node);
}

namespace {

void log_lost(const char* what, const std::exception& error) noexcept {
  try {
    log_message(LogLevel::kWarning, cat("prefix cache: ", what, ": ", error.what()));
  } catch (const std::exception&) {  // no memory for the message
  }
}

}  // namespace

void PrefixCacheState::detach(Cursor& cursor) noexcept {
  if (cursor.detached) return;
  steps.drop_open(cursor);
  cursors.drop_ahead(cursor);
  cursor.closed = cursor.detached = true;
  try {
    keep_end_of(cursor);
  } catch (const std::exception& error) {
    log_lost("the end of a session was not kept", error);
  }
  cursors.close(cursor);
}

void PrefixCacheState::write_behind(Node* node) noexcept {
  if (lower.disk() == nullptr) return;
  try {
    behind.save_path(node);
  } catch (const std::exception& error) {
    log_lost("what was asked for again was not written", error);
  }
}

// ---- closing the cache --------------------------------------------------------------------------------------------

void PrefixCacheState::close(Call& call) noexcept {
  if (gate.closed) return;
  gate.closed = true;
  behind.close();
  times.clear();
  const bool in_job = exchange != nullptr && exchange->on_own_thread();
  if (!in_job && !gate.outside.has(std::this_thread::get_id())) return take_apart(call);
  closing_is_left = true;
  if (!in_job) return;
  *closing = shared_from_this();
  exchange->add_last();
}

// State that sessions leave is written before the tree goes; from then on the files stay.
void PrefixCacheState::take_apart(Call& call) noexcept {
  gate.outside.wait_for_others(gate.mutex);
  while (!sessions.empty()) detach(**sessions.begin());
  {
    const Call::Outside meanwhile(call, {});
    if (writer != nullptr) writer->drain();
    if (exchange != nullptr && !exchange->on_own_thread()) exchange->drain();
  }
  if (lower.disk() != nullptr) lower.disk()->keep_files();
  remove_all(call);
  for (LayerCache* cache : caches.all) cache->detach();
  lower.close_disk();  // another cache may open the folder
}

void PrefixCacheState::remove_all(Call& call) noexcept {
  while (Node* leaf = trie.any_top()) {
    for (std::size_t removed = 0; leaf != nullptr && removed < gate.piece; ++removed) {
      while (leaf->first_child() != nullptr) leaf = leaf->first_child();
      Node* above = leaf->parent();
      Node* next = above->is_root() ? leaf->next_sibling() : above;  // a root may go with its last child
      removal.remove_subtree(leaf, /*tidy=*/false);
      leaf = next;
    }
    const std::uint32_t turn = gate.turns.taken();
    const Call::Outside meanwhile(call, {});
    gate.turns.let_one_in(turn);
  }
}

}  // namespace kvtrie
