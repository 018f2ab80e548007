#include "prefix_cache/session.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/entry.h"
#include "prefix_cache/step.h"
#include "tree/media.h"
#include "trie/continuation.h"

namespace kvtrie {
namespace {

Tokens without(Tokens tokens, std::int32_t begin, std::int32_t end) {
  tokens.erase(tokens.begin() + begin, tokens.begin() + end);
  return tokens;
}

void record(PrefixCacheState& state, Cursor& at, std::span<const Token> tokens) KVTRIE_REQUIRES(state.gate.mutex) {
  const bool with_media = check_tokens(tokens, "session.append");
  const std::int32_t before = at.recorded();
  const auto total = static_cast<std::size_t>(before) + tokens.size();
  require(total <= state.caches.longest, "session.append", "tokens: got ", total, " in the session, allowed ",
          state.caches.longest, " (cells of the smallest cache)");
  AtomicSpans atomic = at.atomic;
  if (with_media) atomic.add_media(tokens, before);
  const bool wants_point = tokens.size() > 1 && state.caches.has_points();  // before the last one of a prompt
  std::optional<MessageEnds> ends;
  if (wants_point && before > at.computed) {  // a prompt within a conversation is its next message
    ends = at.message_ends;
    ends->add(before, Checkpointer::least_between_message_ends(state.options.checkpoint_every));
  }
  if (wants_point) at.wanted.reserve(at.wanted.size() + 1);
  state.steps.drop_open(at);
  at.tail.insert(at.tail.end(), tokens.begin(), tokens.end());
  at.atomic = std::move(atomic);
  if (ends) at.message_ends = std::move(*ends);
  if (wants_point) at.wanted.push_back({static_cast<std::int32_t>(total) - 1, PointKind::kEnd});
}

// REQUIRES: every cache can go back there.
void go_back(PrefixCacheState& state, Cursor& at, std::int32_t length) KVTRIE_REQUIRES(state.gate.mutex) {
  state.steps.drop_open(at);
  state.cursors.drop_ahead(at);  // it is ahead along tokens that may go now
  const std::int32_t published = at.published();
  if (length < at.computed) state.cursors.go_back(at, length);
  ++state.totals.rewinds;
  std::erase_if(at.wanted, [&](const WantedPoint& each) { return each.offset > length; });
  at.message_ends.truncate(length);
  at.atomic.truncate(length);
  if (length >= published) return at.tail.resize(at.tail_begin + static_cast<std::size_t>(length - published));
  at.tail.clear();
  at.tail_begin = 0;
}

}  // namespace

Session::~Session() { close(); }

void Session::close() noexcept {
  if (cache_ == nullptr || !cache_->state().gate.home.is_here()) return;
  Entry entry(cache_->state(), /*allow_closed=*/true);
  cache_->state().close(*this);
}

std::int32_t Session::length() const {
  Entry entry(cache_->state(), true);
  return at_.computed;
}

std::int32_t Session::recorded() const {
  Entry entry(cache_->state());
  require_open(at_);
  return at_.recorded();
}

std::uint32_t Session::room() const {
  Entry entry(cache_->state());
  require_open(at_);
  return cache_->state().caches.longest - static_cast<std::uint32_t>(at_.recorded());
}

bool Session::publishes() const {
  Entry entry(cache_->state());
  require_open(at_);
  return at_.publish;
}

bool Session::has_states() const noexcept { return !cache_->states().empty(); }

Tokens Session::tokens() const {
  Entry entry(cache_->state());
  require_open(at_);
  Tokens keys = at_.recorded_keys();
  return at_.atomic.empty() ? keys : tokens_of(keys);
}

Tokens Session::remaining() const {
  Entry entry(cache_->state());
  require_open(at_);
  const auto own = at_.unpublished();
  const auto rest = own.subspan(static_cast<std::size_t>(at_.computed - at_.published()));
  return at_.atomic.empty() ? Tokens(rest.begin(), rest.end()) : tokens_of(rest);
}

StepPtr Session::prefill_step(PrefixCacheState& state, std::uint32_t chunk, const StepPtr& previous) {
  Entry entry(state);
  require_usable(at_);
  if (previous != nullptr && previous->dropped()) {
    fail(ErrorKind::kArgument, "session.prefill",
         "the step before was dropped, since the session was asked for something else while it was open: go on with a "
         "new loop");
  }
  if (previous != nullptr && !previous->complete()) {
    state.steps.drop(previous->open_);
    fail(ErrorKind::kArgument, "session.prefill",
         "the model did not complete the step before: every layer of every cache must be put once");
  }
  if (previous != nullptr) {
    const auto rows = static_cast<std::uint32_t>(previous->tokens().size());
    state.times.measure_again(previous->open_.timing, rows, state.gate.now);
  }
  state.times.settle();
  if (at_.computed == at_.recorded()) return nullptr;
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
  require_usable(at_);
  record(state, at_, tokens);
}

bool Session::accept(Token token, std::int32_t length) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  if (length != at_.recorded()) return false;
  record(state, at_, std::span(&token, 1));
  return true;
}

StepPtr Session::decode_step(PrefixCacheState& state, std::span<const std::span<const Token>> paths) {
  const std::vector<SessionPtr> each(paths.size(), shared_from_this());  // outlives the entry
  Entry entry(state);
  require_usable(at_);
  return state.make_step(cache_, each, ~std::uint32_t{0}, /*adopt=*/false, entry, paths);
}

StepPtr Session::decode() { return propose({}); }

StepPtr Session::propose(std::span<const Token> tokens) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  StepPtr step = decode_step(state, std::span(&tokens, 1));
  state.begin_timing(*step);
  return step;
}

StepPtr Session::propose_tree(std::span<const std::span<const Token>> paths) {
  require(!paths.empty(), "session.propose_tree", "paths: got none, allowed 1 or more");
  for (std::size_t i = 0; i < paths.size(); ++i)
    require(!paths[i].empty(), "session.propose_tree", "paths[", i, "]: got 0 tokens, allowed 1 or more");
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  StepPtr step = decode_step(state, paths);
  state.begin_timing(*step);
  return step;
}

SessionPtr Session::branch(bool publish) {
  const SessionCall call(*this);
  SessionPtr twin(new Session(cache_));  // outlives the entry: closing it takes the mutex
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  state.steps.drop_open(at_);
  state.cursors.open(twin->at_, at_.name_space, state.namespaces.number_of(at_.name_space));
  state.cursors.branch(at_, twin->at_);
  twin->at_.publish = at_.publish && publish;
  twin->report_ = {at_.computed, at_.computed, at_.computed > 0 ? Tier::kDevice : Tier::kNone, 0, {}};
  ++state.totals.branches;
  return twin;
}

bool Session::can_rewind(std::int32_t length) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  if (length < 0 || length > at_.recorded() || at_.atomic.inside(length)) return false;
  return state.cursors.reachable_back(at_, length) == length;
}

void Session::rewind(std::int32_t length) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const std::int32_t recorded = at_.recorded();
  if (length < 0 || length > recorded) {
    throw Error::not_restorable(cat("[session.rewind] length: got ", length, ", allowed 0 to ", recorded),
                                length < 0 ? 0 : recorded);
  }
  const std::int32_t nearest = state.cursors.reachable_back(at_, at_.atomic.begin_of(length));
  if (nearest != length) {
    throw Error::not_restorable(cat("[session.rewind] length: got ", length, ", allowed ", nearest,
                                    ", the nearest below at which every cache has its state"),
                                nearest);
  }
  go_back(state, at_, length);
}

std::int32_t Session::recompute() {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const std::int32_t recorded = at_.recorded();
  require(recorded > 0, "session.recompute", "session: got 0 tokens, allowed 1 or more");
  if (at_.computed < recorded) return recorded - at_.computed;
  return go_back_recording(state, at_.atomic.begin_of(recorded - 1), recorded);
}

// To the nearest length at or below `computed`; tokens up to `recorded` are recorded.
std::int32_t Session::go_back_recording(PrefixCacheState& state, std::int32_t computed, std::int32_t recorded) {
  state.gate.mutex.assert_held();  // by the caller's entry
  const std::int32_t nearest = state.cursors.reachable_back(at_, computed);
  Tokens tail = at_.recorded_keys();
  AtomicSpans atomic = at_.atomic;
  at_.wanted.reserve(at_.wanted.size() + 1);
  go_back(state, at_, nearest);  // the last that may fail
  tail.resize(static_cast<std::size_t>(recorded));
  tail.erase(tail.begin(), tail.begin() + at_.published());
  tail.shrink_to_fit();
  at_.tail = std::move(tail);
  at_.tail_begin = 0;
  atomic.truncate(recorded);
  at_.atomic = std::move(atomic);
  if (state.caches.has_points() && recorded - nearest > 1) at_.wanted.push_back({recorded - 1, PointKind::kEnd});
  return recorded - at_.computed;
}

std::int32_t Session::rollback(std::int32_t count) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const std::int32_t before = at_.recorded(), recorded = before - count;
  require(count >= 0 && recorded >= 0, "session.rollback", "count: got ", count, ", allowed 0 to ", before);
  require(!at_.atomic.inside(recorded), "session.rollback", "count: got ", count,
          ", which ends inside a span that goes as one");
  return go_back_recording(state, recorded, recorded);
}

Tokens Session::continuation(std::size_t most) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  return kvtrie::continuation(state.trie, at_.node, at_.unpublished(), at_.use ? most : 0);
}

std::vector<Tokens> Session::continuations(std::size_t most, std::size_t count) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  return kvtrie::continuations(state.trie, at_.node, at_.unpublished(), at_.use ? most : 0, count);
}

Tokens Session::suffix_continuation(std::size_t most) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const SuffixIndex& suffixes = state.suffixes();
  return suffixes.continuation(at_.node, at_.unpublished(), at_.use ? most : 0);
}

std::vector<Tokens> Session::suffix_continuations(std::size_t most, std::size_t count) const {
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const SuffixIndex& suffixes = state.suffixes();
  return suffixes.continuations(at_.node, at_.unpublished(), at_.use ? most : 0, count);
}

std::int32_t Session::checkpoint() {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  state.steps.drop_open(at_);  // its recurrent layers may be ahead already
  state.cursors.publish(at_);  // what there was no memory for at its time
  if (at_.published() != at_.computed) {
    fail(ErrorKind::kNotSupported, "session.checkpoint",
         "the session does not publish, so no one could come back here");
  }
  if (at_.node->is_root()) return 0;
  state.checkpointer.make_end_point(at_, PointKind::kUser);
  state.points.mark_user(at_.node);
  return at_.computed;
}

std::vector<std::int32_t> Session::attention_layers() const {
  std::vector<std::int32_t> layers;
  for (const auto& [layer, owner] : cache_->state().caches.attention_of_layer) layers.push_back(layer);
  return layers;
}

std::vector<Session::Rows> Session::rows(std::span<const std::int32_t> layers, std::optional<std::int32_t> start,
                                         std::optional<std::int32_t> stop, RowLayout layout) const {
  PrefixCacheState& state = cache_->state();
  for (const std::int32_t layer : layers) {
    CausalCache& cache = *state.caches.attention[state.caches.attention_number(layer, "session.kv")];
    const cl::DevicePtr device = layer == layers.front() ? cache.store().device() : nullptr;  // one has them all
    if (device != nullptr) device->pace();  // before the mutex is held
  }
  const Entry entry(state);
  require_usable(at_);
  return copy_rows_of(state.caches, at_, layers, start, stop, layout);
}

std::optional<Tokens> Session::shift(std::int32_t keep, std::int32_t limit) {
  const SessionCall call(*this);
  PrefixCacheState& state = cache_->state();
  Entry entry(state);
  require_usable(at_);
  const std::int32_t recorded = at_.recorded();
  require(limit >= 0, "session.shift", "limit: got ", limit, ", allowed 1 or more, or 0 for as many as are recorded");
  require(!at_.atomic.inside(keep), "session.shift", "keep: got ", keep, ", which is inside a span that goes as one");
  const std::int32_t discard = shift_discard(limit == 0 ? recorded : limit, keep, recorded, at_.atomic);
  if (discard == 0) return std::nullopt;
  const std::int32_t end = keep + discard;
  const Tokens keys = without(at_.recorded_keys(), keep, end);
  state.steps.drop_open(at_);
  state.cursors.drop_ahead(at_);
  if (!state.caches.states.empty() || end > at_.computed || !state.shift.can(at_, keep, end)) return tokens_of(keys);
  state.shift.apply(at_, keep, end);
  at_.set_tail(keys, at_.published());
  at_.atomic.remove(keep, end);
  return std::nullopt;
}

}  // namespace kvtrie
