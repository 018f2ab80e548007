#include "prefix_cache/session.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/media.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

void require_open(bool closed, bool failed) {
  if (closed) fail(ErrorKind::kClosed, "session", "the session is closed");
  if (failed) fail(ErrorKind::kDevice, "session", "the state it stood on was lost to a device failure");
}

}  // namespace

void PrefixCacheState::require_usable(const Session& session) const { require_open(session.closed_, session.failed_); }

Session::~Session() { close(); }

void Session::close() noexcept {
  if (cache_ == nullptr || !cache_->state().home.is_here()) return;
  Entry entry(cache_->state(), /*allow_closed=*/true);
  cache_->state().close(*this);
}

std::int32_t Session::length() const {
  Entry entry(cache_->state(), true);
  return computed_;
}

std::int32_t Session::recorded() const {
  Entry entry(cache_->state());
  require_open(closed_, false);
  return cache_->state().recorded(*this);
}

Tokens Session::tokens() const {
  Entry entry(cache_->state());
  require_open(closed_, false);
  Tokens keys = cache_->state().recorded_keys(*this);
  return atomic_.empty() ? keys : tokens_of(keys);
}

Tokens Session::remaining() const {
  Entry entry(cache_->state());
  require_open(closed_, false);
  const auto own = cache_->state().unpublished(*this);
  const auto rest = own.subspan(static_cast<std::size_t>(computed_ - cache_->state().published(*this)));
  return atomic_.empty() ? Tokens(rest.begin(), rest.end()) : tokens_of(rest);
}

StepPtr Session::prefill_step(PrefixCacheState& state, std::uint32_t chunk, const StepPtr& previous) {
  Entry entry(state);
  require_open(closed_, failed_);
  if (previous != nullptr && previous->dropped()) {
    fail(ErrorKind::kArgument, "session.prefill",
         "the step before was dropped, since the session was asked for something else while it was open: go on with a "
         "new loop");
  }
  if (previous != nullptr && !previous->complete()) {
    state.drop(*previous);
    fail(ErrorKind::kArgument, "session.prefill",
         "the model did not complete the step before: every layer of every cache must be put once");
  }
  if (previous != nullptr) state.measure_again(*previous);
  state.settle_times();
  if (computed_ == state.recorded(*this)) return nullptr;
  const SessionPtr self = shared_from_this();
  return state.make_step(cache_, std::span(&self, 1), chunk, /*adopt=*/true, entry);
}

StepPtr Session::next_prefill(std::uint32_t chunk, const StepPtr& previous) {
  require(chunk > 0, "session.prefill", "chunk: got 0, allowed 1 or more tokens");
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  StepPtr step = prefill_step(state, chunk, previous);
  if (step != nullptr) state.begin_timing(*step);
  return step;
}

void Session::append(std::span<const Token> tokens) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_open(closed_, failed_);
  const bool with_media = check_tokens(tokens, "session.append");
  const std::int32_t before = state.recorded(*this);
  const auto total = static_cast<std::size_t>(before) + tokens.size();
  require(total <= state.caches.longest, "session.append", "tokens: got ", total, " in the session, allowed ",
          state.caches.longest, " (cells of the smallest cache)");
  AtomicSpans atomic = atomic_;
  if (with_media) atomic.add_media(tokens, before);
  state.drop_open_step(*this);
  tail_.insert(tail_.end(), tokens.begin(), tokens.end());
  atomic_ = std::move(atomic);
  if (tokens.size() > 1 && state.caches.has_points())  // a prompt of several tokens: before its last one
    wanted_.push_back({static_cast<std::int32_t>(total) - 1, PointKind::kEnd});
}

StepPtr Session::decode_step(PrefixCacheState& state) {
  Entry entry(state);
  require_open(closed_, failed_);
  const SessionPtr self = shared_from_this();
  return state.make_step(cache_, std::span(&self, 1), ~std::uint32_t{0}, /*adopt=*/false, entry);
}

StepPtr Session::decode() {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  StepPtr step = decode_step(state);
  state.begin_timing(*step);
  return step;
}

// Copies the place, not the history: node, tail and the list of spans.
SessionPtr Session::branch() {
  const SessionCall call(*this);
  SessionPtr twin(new Session(cache_));  // outlives the entry: closing it takes the mutex
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_open(closed_, failed_);
  state.drop_open_step(*this);
  state.open(*twin, name_space_);
  state.move_to(*twin, node_);
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    state.caches.all[i]->fork(sequences_[i], twin->sequences_[i], computed_);
  }
  const auto own = state.unpublished(*this);
  twin->tail_.assign(own.begin(), own.end());
  twin->computed_ = computed_;
  twin->wanted_ = wanted_;
  twin->atomic_ = atomic_;
  twin->use_ = use_;
  twin->publish_ = publish_;
  twin->report_ = {computed_, computed_, computed_ > 0 ? Tier::kDevice : Tier::kNone, 0, {}};
  if (computed_ > state.published(*this)) state.sessions.share_tails();
  ++state.totals.branches;
  return twin;
}

bool Session::can_rewind(std::int32_t length) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_open(closed_, failed_);
  if (length < 0 || length > state.recorded(*this) || atomic_.inside(length)) return false;
  return state.reachable_back(*this, length) == length;
}

void Session::rewind(std::int32_t length) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_open(closed_, failed_);
  const std::int32_t recorded = state.recorded(*this);
  if (length < 0 || length > recorded) {
    throw Error::not_restorable(cat("[session.rewind] length: got ", length, ", allowed 0 to ", recorded),
                                length < 0 ? 0 : recorded);
  }
  const std::int32_t nearest = state.reachable_back(*this, atomic_.begin_of(length));
  if (nearest != length) {
    throw Error::not_restorable(cat("[session.rewind] length: got ", length, ", allowed ", nearest,
                                    ", the nearest below at which every cache has its state"),
                                nearest);
  }
  state.drop_open_step(*this);
  state.drop_ahead(*this);  // it is ahead along tokens that may go now
  ++state.totals.rewinds;
  std::erase_if(wanted_, [&](const WantedPoint& each) { return each.offset > length; });
  atomic_.truncate(length);
  const std::int32_t published = state.published(*this);
  if (length >= published) {
    if (length < computed_) state.go_back(*this, length);
    tail_.resize(tail_begin_ + static_cast<std::size_t>(length - published));
    return;
  }
  tail_.clear();
  tail_begin_ = 0;
  state.go_back(*this, length);
}

std::int32_t Session::checkpoint() {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_open(closed_, failed_);
  if (state.published(*this) != computed_) {
    fail(ErrorKind::kNotSupported, "session.checkpoint",
         "the session does not publish, so no one could come back here");
  }
  state.drop_open_step(*this);  // its recurrent layers may be ahead already
  if (node_->is_root()) return 0;
  state.make_point(*this, computed_, PointKind::kUser, state.states_of(*this));
  state.points.mark_user(node_);
  return computed_;
}

}  // namespace kvtrie
