// Steps: made (rows chosen, room found, cells and slots claimed), completed, dropped.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/media.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

void PrefixCacheState::drop_open_step(Session& session) noexcept {
  if (session.open_step_ != nullptr) drop(*session.open_step_);
}

void PrefixCacheState::drop(Step& step) noexcept {
  if (step.complete_ || step.dropped_) return;
  step.dropped_ = true;
  // A cache whose layers were all written has moved its sequences on already: they go back. The thread that drives the
  // step may write the last one at this moment, so it is the cache that says.
  for (std::size_t i = 0; i < step.forwards_.size(); ++i) {
    if (caches.attention[i]->drop(*step.forwards_[i])) continue;
    for (const SessionPtr& session : step.sessions_) {
      const SequenceId id = session->sequences_[i];
      const std::int32_t ahead = session->ahead_ == nullptr ? 0 : caches.attention[i]->borrowed_length(id);
      caches.attention[i]->truncate(id, std::max(session->computed_, ahead));
    }
  }
  for (std::size_t i = 0; i < step.state_forwards_.size(); ++i) {
    if (caches.states[i]->drop_step(*step.state_forwards_[i])) continue;
    for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
      const Session& session = *step.sessions_[s];
      caches.states[i]->resume(state_sequence(session, i), session.computed_, step.before_[s][i].share());
    }
  }
  step.before_.clear();
  for (const SessionPtr& session : step.sessions_) {
    if (session->open_step_ == &step) session->open_step_ = nullptr;
  }
  ++totals.dropped_steps;
}

// The states that came out of the step at the offsets it was asked for, and at its end.
void PrefixCacheState::make_points(Step& step, std::size_t index) {
  Session& session = *step.sessions_[index];
  std::vector<std::vector<HeldState>> captured;
  for (const PointForwardPtr& forward : step.state_forwards_) captured.push_back(forward->take_captured_states(index));
  std::size_t inside = 0;
  for (const WantedPoint& wanted : step.captures_[index]) {
    if (wanted.offset == session.computed_) {
      make_point(session, wanted.offset, wanted.kind, states_of(session));
      continue;
    }
    std::vector<HeldState> held;
    held.reserve(captured.size());
    for (auto& each : captured) held.push_back(std::move(each[inside]));
    ++inside;
    make_point(session, wanted.offset, wanted.kind, std::move(held));
  }
  std::erase_if(session.wanted_, [&](const WantedPoint& each) { return each.offset <= session.computed_; });
}

// Nothing is ahead any more once all attention caches have come to the session's own length.
void PrefixCacheState::settle_ahead(Session& session) {
  if (session.ahead_ == nullptr) return;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    if (caches.attention[i]->length(session.sequences_[i]) > session.computed_) return;
  }
  trie.unlock(std::exchange(session.ahead_, nullptr));
}

void PrefixCacheState::complete(Step& step) {
  if (step.complete_ || step.dropped_) return;
  step.complete_ = true;
  ++totals.steps;
  totals.computed_tokens += step.tokens_.size();
  measure(step);
  for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
    Session& session = *step.sessions_[s];
    session.open_step_ = nullptr;
    session.computed_ += static_cast<std::int32_t>(step.counts_[s]);
    publish(session);
    if (caches.has_points()) make_points(step, s);
    for (const std::size_t i : caches.windowed)
      caches.attention[i]->release_unseen(session.sequences_[i], session.computed_);
    settle_ahead(session);
  }
  step.before_.clear();
}

// The next rows of one session. A step never ends inside a span that goes as one.
void PrefixCacheState::add_rows(Step& step, const Session& session, std::uint32_t chunk) const {
  const auto index = static_cast<std::int32_t>(step.counts_.size());
  const std::int32_t left = recorded(session) - session.computed_;
  require(left > 0, "step", "session ", index, " has nothing left to compute: append a token first");
  std::int32_t end = session.computed_ + static_cast<std::int32_t>(std::min(static_cast<std::uint32_t>(left), chunk));
  if (session.atomic_.inside(end)) {
    const std::int32_t begin = session.atomic_.begin_of(end);
    end = begin > session.computed_ ? begin : session.atomic_.end_of(end);
  }
  const auto count = static_cast<std::uint32_t>(end - session.computed_);
  const auto offset = static_cast<std::size_t>(session.computed_ - published(session));
  const auto keys = unpublished(session).subspan(offset, count);
  if (session.atomic_.empty()) {
    step.tokens_.insert(step.tokens_.end(), keys.begin(), keys.end());
  } else {
    const Tokens tokens = tokens_of(keys);
    step.tokens_.insert(step.tokens_.end(), tokens.begin(), tokens.end());
  }
  for (std::int32_t position = session.computed_; position < end; ++position) {
    step.positions_.push_back(position);
    step.sequences_.push_back(index);
  }
  step.counts_.push_back(count);
  if (caches.has_points()) step.captures_.push_back(captures_between(session, end));
}

// The restore points that a step up to `end` makes: wanted ones and spaced ones, each length once.
std::vector<WantedPoint> PrefixCacheState::captures_between(const Session& session, std::int32_t end) const {
  std::vector<WantedPoint> captures;
  if (!session.publish_) return captures;
  const auto want = [&](std::int32_t at, PointKind kind) {
    if (at <= session.computed_ || at > end || session.atomic_.inside(at)) return;
    const auto before = [](const WantedPoint& each, std::int32_t offset) { return each.offset < offset; };
    const auto place = std::lower_bound(captures.begin(), captures.end(), at, before);
    if (place == captures.end() || place->offset != at) {
      captures.insert(place, {at, kind});
    } else {
      place->kind = std::max(place->kind, kind);
    }
  };
  for (const WantedPoint& wanted : session.wanted_) want(wanted.offset, wanted.kind);
  const std::int64_t every = options.checkpoint_every;
  for (std::int64_t at = (session.computed_ / every + 1) * every; at <= end && !caches.states.empty(); at += every) {
    want(static_cast<std::int32_t>(at), PointKind::kSpaced);
  }
  return captures;
}

// The least wanted kind first, the earliest of it first.
std::uint64_t PrefixCacheState::trim_captures(Step& step, std::span<const std::uint32_t> units) const {
  const auto fits = [&]() KVTRIE_REQUIRES(mutex) {
    for (std::size_t i = 0; i < caches.states.size(); ++i) {
      if (units_for(step, i, PointKind::kNone) > units[i]) return false;
    }
    return true;
  };
  std::uint64_t dropped = 0;
  for (; !fits(); ++dropped) {
    std::vector<WantedPoint>* least_list = nullptr;
    std::size_t least = 0;
    for (std::size_t s = 0; s < step.captures_.size(); ++s) {
      auto& list = step.captures_[s];
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].offset >= step.end(s)) continue;
        if (least_list == nullptr || list[i].kind < (*least_list)[least].kind) least_list = &list, least = i;
      }
    }
    ensure(least_list != nullptr, "prefix_cache.step", "the step itself does not fit");
    least_list->erase(least_list->begin() + static_cast<std::ptrdiff_t>(least));
  }
  return dropped;
}

Needs PrefixCacheState::needs_of(const Step& step) const {
  Needs needs = caches.no_needs();
  for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      const std::int32_t held = caches.attention[i]->length(step.sessions_[s]->sequences_[i]);
      if (step.end(s) > held) needs[i] += static_cast<std::uint32_t>(step.end(s) - held);
    }
    for (std::size_t i = 0; i < caches.states.size(); ++i)
      needs[caches.attention.size() + i] += caches.states[i]->units_for(step.sessions_[s]->computed_, step.end(s), {});
  }
  return needs;
}

std::uint32_t PrefixCacheState::units_for(const Step& step, std::size_t state, PointKind least) const {
  std::uint32_t units = 0;
  for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
    units +=
        caches.states[state]->units_for(step.sessions_[s]->computed_, step.end(s), step.boundaries_inside(s, least));
  }
  return units;
}

// Captures inside the step are wanted, not needed: they get what units can be had. A spaced one never takes the place
// of an end or a branch.
void PrefixCacheState::find_slots_for_captures(Step& step) {
  bool any = false;
  for (std::size_t s = 0; s < step.captures_.size(); ++s)
    any = any || !step.boundaries_inside(s, PointKind::kNone).empty();
  if (!any) return;
  std::vector<std::uint32_t> units;
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    room.try_free_slots(caches.attention.size() + i, units_for(step, i, PointKind::kEnd), PointKind::kBranch);
    units.push_back(
        room.try_free_slots(caches.attention.size() + i, units_for(step, i, PointKind::kNone), PointKind::kSpaced));
  }
  totals.skipped_captures += trim_captures(step, units);
}

void PrefixCacheState::claim_for(Step& step) {
  room.make_room(needs_of(step));
  if (!caches.states.empty()) find_slots_for_captures(step);
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    std::vector<ForwardRows> rows;
    for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
      rows.push_back({step.sessions_[s]->sequences_[i], step.counts_[s], step.sessions_[s]->computed_});
    }
    step.forwards_.push_back(caches.attention[i]->begin_forward(rows));
  }
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    std::vector<StateForwardRows> rows;
    for (std::size_t s = 0; s < step.sessions_.size(); ++s) {
      rows.push_back(
          {state_sequence(*step.sessions_[s], i), step.counts_[s], step.boundaries_inside(s, PointKind::kNone)});
    }
    step.state_forwards_.push_back(caches.states[i]->begin_step(rows));
  }
}

StepPtr PrefixCacheState::make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list,
                                    std::uint32_t chunk, bool adopt, Entry& entry) {
  require(!list.empty(), "step", "sessions: got none, allowed at least 1");
  for (const SessionPtr& session : list) {
    require_usable(*session);
    drop_open_step(*session);
    if (adopt && session->use_ && published(*session) == session->computed_) {
      const std::int32_t before = session->computed_;
      advance(*session, recorded(*session) - 1, entry);
      totals.adopted_tokens += static_cast<std::uint64_t>(session->computed_ - before);
    }
  }
  for (const SessionPtr& session : list) require_usable(*session);  // the others, while one was brought back
  settle_times();
  StepPtr step(new Step());
  step->sessions_.assign(list.begin(), list.end());
  for (const SessionPtr& session : list) {
    add_rows(*step, *session, chunk);
    if (!caches.states.empty()) step->before_.push_back(states_of(*session));
  }
  claim_for(*step);
  step->cache_ = owner;
  for (const SessionPtr& session : list) session->open_step_ = step.get();
  if (caches.all.empty()) complete(*step);
  return step;
}

}  // namespace kvtrie
