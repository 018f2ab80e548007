#include "prefix_cache/calls.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

// ---- outside ------------------------------------------------------------------------------------------------------

void CallsOutside::remove(std::thread::id thread) noexcept {
  const auto place = std::find(threads_.begin(), threads_.end(), thread);
  if (place != threads_.end()) threads_.erase(place);
  came_back_.notify_all();
}

bool CallsOutside::has(std::thread::id thread) const noexcept {
  return std::find(threads_.begin(), threads_.end(), thread) != threads_.end();
}

bool CallsOutside::only(std::thread::id thread) const noexcept {
  return std::all_of(threads_.begin(), threads_.end(), [&](std::thread::id each) { return each == thread; });
}

void CallsOutside::wait_for_others(Mutex& mutex) {
  while (!only(std::this_thread::get_id())) came_back_.wait(mutex);
}

Entry::Outside::Outside(Entry& entry) : entry_(entry) {
  entry_.state_.outside.add(std::this_thread::get_id());
  entry_.lock_.unlock();
}

Entry::Outside::Outside(Entry& entry, ClosingTag) noexcept : entry_(entry) {
  entry_.state_.outside.add_closing(std::this_thread::get_id());
  entry_.lock_.unlock();
}

Entry::Outside::~Outside() {
  entry_.state_.turns.wait([this] { entry_.lock_.lock(); });
  entry_.state_.outside.remove(std::this_thread::get_id());
}

// ---- the frame of a call ------------------------------------------------------------------------------------------

// While more than half of the host tier waits to be written, calls wait: what comes next needs the other half.
Entry::Entry(PrefixCacheState& state, bool allow_closed) : state_(state), allow_closed_(allow_closed) {
  if (!state.home.is_here()) {
    fail(ErrorKind::kNotSupported, "prefix_cache",
         "this process was forked from the one that made the cache, and has neither its threads nor its locks: make a "
         "cache of its own here, or start workers with the 'spawn' method");
  }
  const double now = read_clock(state.options);
  if (state.writer != nullptr) state.writer->wait_below(state.host->cap() / 2);
  state.turns.wait([&] { lock_ = MovableMutexLock(state.mutex); });
  try {
    begin(now);
  } catch (...) {
    finish();  // it may have been outside, and the last one there
    throw;
  }
}

void Entry::begin(double now) {
  if (!allow_closed_ && state_.closed) fail(ErrorKind::kClosed, "prefix_cache", "the cache is closed");
  state_.now = std::max(state_.now, now);
  try {
    if (!state_.pending_loads.empty()) state_.reap_pending_loads();
  } catch (const std::bad_alloc&) {
    if (!allow_closed_) throw;  // what only ends goes on: the next call does it
  }
  try {
    if (state_.now >= state_.expiry.next_expiry(state_.leases) && !state_.closed) state_.expire(*this);
  } catch (const std::bad_alloc&) {  // the next call does it
  }
  if (state_.lower.disk() != nullptr) state_.behind.write_again_after_a_while(state_.now);
}

Entry::~Entry() { finish(); }

void Entry::finish() noexcept {
  if (state_.closing_is_left && state_.outside.empty()) {
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

void Entry::give_way() {
  const std::uint32_t turn = state_.turns.taken();
  double now = 0;
  {
    const Outside meanwhile(*this);
    now = read_clock(state_.options);
    state_.turns.let_one_in(turn);
  }
  if (!allow_closed_) require_open();
  state_.mutex.assert_held();  // by lock_
  state_.now = std::max(state_.now, now);
}

void Entry::require_open() const {
  state_.mutex.assert_held();  // by lock_
  if (state_.closed) fail(ErrorKind::kClosed, "prefix_cache", "the cache was closed during the call");
}

void PrefixCacheState::expire(Entry& entry) {
  constexpr std::size_t kPinsAtOnce = 64;  // each looks at all pins
  Pieces pieces(*this, entry);
  std::size_t gone = 0;
  while (Node* node = closed ? nullptr : leases.take_expired(now)) {
    state_of(node).last_used_seconds = now;  // it was wanted until now
    ++totals.expired_pins;
    removal.try_join(node);
    if (++gone % kPinsAtOnce == 0) pieces.end();
  }
  const auto remove = [this](Node* leaf) KVTRIE_REQUIRES(mutex) {
    totals.expired_tokens += state_of(leaf).length();
    removal.remove_subtree(leaf, /*tidy=*/false);  // a join would take away a node that is still to be looked at
  };
  while (!closed && expiry.due(now) && !expiry.sweep_some(now, pieces.most(), remove)) pieces.end();
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

void PrefixCacheState::close(Entry& entry) noexcept {
  if (closed) return;
  closed = true;
  behind.close();
  times.clear();
  const bool in_job = exchange != nullptr && exchange->on_own_thread();
  if (!in_job && !outside.has(std::this_thread::get_id())) return take_apart(entry);
  closing_is_left = true;
  if (!in_job) return;
  *closing = shared_from_this();
  exchange->add_last();
}

void PrefixCacheState::prepare_last_job() {
  exchange->prepare_last([closing = closing] {
    const std::shared_ptr<PrefixCacheState> keep = std::exchange(*closing, nullptr);
    const Entry last(*keep, /*allow_closed=*/true);
  });
}

// State that sessions leave is written before the tree goes; from then on the files stay.
void PrefixCacheState::take_apart(Entry& entry) noexcept {
  outside.wait_for_others(mutex);
  while (!sessions.empty()) detach(**sessions.begin());
  {
    const Entry::Outside meanwhile(entry, {});
    if (writer != nullptr) writer->drain();
    if (exchange != nullptr && !exchange->on_own_thread()) exchange->drain();
  }
  if (lower.disk() != nullptr) lower.disk()->keep_files();
  remove_all(entry);
  for (LayerCache* cache : caches.all) cache->detach();
  lower.close_disk();  // another cache may open the folder
}

void PrefixCacheState::remove_all(Entry& entry) noexcept {
  while (Node* leaf = trie.any_top()) {
    for (std::size_t removed = 0; leaf != nullptr && removed < piece; ++removed) {
      while (leaf->first_child() != nullptr) leaf = leaf->first_child();
      Node* above = leaf->parent();
      Node* next = above->is_root() ? leaf->next_sibling() : above;  // a root may go with its last child
      removal.remove_subtree(leaf, /*tidy=*/false);
      leaf = next;
    }
    const std::uint32_t turn = turns.taken();
    const Entry::Outside meanwhile(entry, {});
    turns.let_one_in(turn);
  }
}

}  // namespace kvtrie
