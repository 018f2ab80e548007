#include "session/steps.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "tree/media.h"

namespace kvtrie {

// ---- made ---------------------------------------------------------------------------------------------------------

void Steps::add_rows(OpenStep& step, Cursor& cursor, std::uint32_t chunk, std::span<const Token> drafts) const {
  const auto index = static_cast<std::int32_t>(step.counts.size());
  const std::int32_t left = cursor.recorded() - cursor.computed;
  require(left > 0, "step", "session ", index, " has nothing left to compute: append a token first");
  std::int32_t end = cursor.computed + static_cast<std::int32_t>(std::min(static_cast<std::uint32_t>(left), chunk));
  if (cursor.atomic.inside(end)) {
    const std::int32_t begin = cursor.atomic.begin_of(end);
    end = begin > cursor.computed ? begin : cursor.atomic.end_of(end);
  }
  const auto count = static_cast<std::uint32_t>(end - cursor.computed);
  const auto offset = static_cast<std::size_t>(cursor.computed - cursor.published());
  const auto keys = cursor.unpublished().subspan(offset, count);
  if (cursor.atomic.empty()) {
    step.tokens.insert(step.tokens.end(), keys.begin(), keys.end());
  } else {
    const Tokens tokens = tokens_of(keys);
    step.tokens.insert(step.tokens.end(), tokens.begin(), tokens.end());
  }
  require(drafts.empty() || end == cursor.recorded(), "step", "chunk: got ", chunk, " for session ", index,
          ", whose drafts stand behind ", left, " tokens that remain, allowed ", left, " or more");
  step.tokens.insert(step.tokens.end(), drafts.begin(), drafts.end());
  const auto rows = count + static_cast<std::uint32_t>(drafts.size());
  step.positions.resize(step.positions.size() + rows);
  std::iota(step.positions.end() - static_cast<std::ptrdiff_t>(rows), step.positions.end(), cursor.computed);
  step.sequences.insert(step.sequences.end(), rows, index);
  step.cursors.push_back(&cursor);
  step.counts.push_back(rows);
  if (!drafts.empty()) {
    step.drafts.resize(step.cursors.size());
    step.drafts.back().assign(drafts.begin(), drafts.end());
  }
  if (caches_.has_points())
    step.captures.push_back(checkpointer_.wanted_between(cursor, cursor.computed + static_cast<std::int32_t>(rows)));
  if (!caches_.states.empty()) step.before.push_back(checkpointer_.states_of(cursor));
}

bool Steps::captures_fit(const OpenStep& step, const Allowed& allowed) const {
  for (std::size_t i = caches_.attention.size(); i < caches_.all.size(); ++i) {
    if (units_for(step, i, 0, allowed) > allowed.units[i]) return false;
  }
  return true;
}

// The least wanted kind first, of it what is worth least, of that the earliest.
std::uint64_t Steps::trim_captures(OpenStep& step, const Allowed& allowed) const {
  const auto rank = [](const WantedPoint& each) { return std::pair(each.kind, each.worth); };
  std::uint64_t dropped = 0;
  for (; !captures_fit(step, allowed); ++dropped) {
    std::vector<WantedPoint>* least_list = nullptr;
    std::size_t least = 0;
    for (std::size_t s = 0; s < step.captures.size(); ++s) {
      if (!allowed.concerns(step.cursor(s))) continue;
      auto& list = step.captures[s];
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].offset >= step.end(s)) continue;
        if (least_list == nullptr || rank(list[i]) < rank((*least_list)[least])) least_list = &list, least = i;
      }
    }
    ensure(least_list != nullptr, "prefix_cache.step", "the step itself does not fit");
    least_list->erase(least_list->begin() + static_cast<std::ptrdiff_t>(least));
  }
  return dropped;
}

void Steps::add_needs(const OpenStep& step, std::size_t session, Needs& needs) const {
  const std::span<const SequenceId> sequences = step.sequences_of(session);
  for (std::size_t i = 0; i < caches_.all.size(); ++i)
    needs[i] += caches_.all[i]->units_for(sequences[i], step.end(session), step.undecided(session));
}

std::vector<Claim> Steps::claims_of(const OpenStep& step) const {
  std::vector<Claim> claims;
  for (std::size_t s = 0; s < step.cursors.size(); ++s) {
    const Group who = step.cursor(s).node->group();
    const auto is_its = [&](const Claim& each) { return each.who == who; };
    auto claim = std::find_if(claims.begin(), claims.end(), is_its);
    if (claim == claims.end()) claim = claims.insert(claim, {who, caches_.no_needs()});
    add_needs(step, s, claim->needs);
  }
  return claims;
}

std::uint32_t Steps::units_for(const OpenStep& step, std::size_t cache, double least, const Allowed& whose) const {
  std::uint32_t units = 0;
  for (std::size_t s = 0; s < step.cursors.size(); ++s) {
    if (!whose.concerns(step.cursor(s))) continue;
    const SequenceId id = step.sequences_of(s)[cache];
    units += caches_.all[cache]->units_for(id, step.end(s), step.boundaries_inside(s, least));
  }
  return units;
}

// Captures inside the step are wanted, not needed: they get what units can be had, each group of namespaces its
// own, so that what is wanted for one never takes what another one needs. Each takes the place of what is worth less.
std::vector<Steps::Allowed> Steps::slots_for_captures(const OpenStep& step, std::span<Claim> claims) {
  std::vector<Allowed> allowed;
  allowed.reserve(claims.size());
  for (const Claim& claim : claims) allowed.push_back({claim.who, {}});
  const std::vector<double> worths = step.worths();
  for (std::size_t i = caches_.attention.size(); i < caches_.all.size(); ++i) {
    for (std::size_t c = 0; c < claims.size(); ++c) {
      const std::uint32_t needed = claims[c].needs[i];
      std::vector<std::uint32_t> units(claims.size());
      for (const double worth : worths) {
        claims[c].needs[i] = units_for(step, i, worth, allowed[c]);
        units = device_budget_.try_free_slots(i, claims, worth);
      }
      claims[c].needs[i] = std::max(needed, units[c]);
      for (std::size_t other = 0; other < claims.size(); ++other)
        if (units[other] < claims[other].needs[i]) claims[c].needs[i] = needed;
    }
  }
  for (std::size_t c = 0; c < claims.size(); ++c) allowed[c].units = claims[c].needs;
  return allowed;
}

void Steps::find_slots_for_captures(OpenStep& step, std::span<Claim> claims) {
  bool any = false;
  for (std::size_t s = 0; s < step.captures.size(); ++s) any = any || !step.boundaries_inside(s).empty();
  if (!any) return;
  for (const Allowed& each : slots_for_captures(step, claims)) totals_.skipped_captures += trim_captures(step, each);
}

LayerForwardPtr Steps::begin(const OpenStep& step, std::size_t cache) const {
  std::vector<ForwardRows> rows;
  rows.reserve(step.cursors.size());
  for (std::size_t s = 0; s < step.cursors.size(); ++s) {
    const Cursor& cursor = step.cursor(s);
    const SequenceId id = step.sequences_of(s)[cache];
    ForwardRows& each = rows.emplace_back(ForwardRows{id, step.counts[s], {}, cursor.computed});
    if (cache >= step.attention) each.boundaries = step.inside[s];
  }
  return caches_.all[cache]->begin(rows);
}

void Steps::claim(OpenStep& step) {
  if (!step.is_tree()) return begin_all(step);
  open_branches(step);
  try {
    begin_all(step);
  } catch (...) {
    step.forwards.clear();
    close_branches(step);
    throw;
  }
}

void Steps::begin_all(OpenStep& step) {
  std::vector<Claim> claims = claims_of(step);
  device_budget_.make_room(claims);
  if (!caches_.states.empty()) find_slots_for_captures(step, claims);
  step.attention = caches_.attention.size();
  step.inside.resize(caches_.states.empty() ? 0 : step.cursors.size());
  for (std::size_t s = 0; s < step.inside.size(); ++s) step.inside[s] = step.boundaries_inside(s);
  step.forwards.reserve(caches_.all.size());
  for (std::size_t i = 0; i < caches_.all.size(); ++i) step.forwards.push_back(begin(step, i));
}

// ---- dropped ------------------------------------------------------------------------------------------------------

// To where the cursor stands, or as far ahead as it borrows.
void Steps::go_back(OpenStep& step, std::size_t index, std::size_t cache) noexcept {
  LayerCache& owner = *caches_.all[cache];
  const Cursor& cursor = step.cursor(index);
  const SequenceId id = step.sequences_of(index)[cache];
  if (cache < step.attention) return owner.truncate(id, std::max(cursor.computed, owner.borrowed_length(id)));
  const std::size_t state = cache - step.attention;
  caches_.states[state]->resume(id, cursor.computed, std::move(step.before[index][state]));
}

// A cache whose layers were all written has moved its sequences on already: they go back.
void Steps::drop(OpenStep& step, std::size_t cache) noexcept {
  if (caches_.all[cache]->drop(*step.forwards[cache])) return;
  for (std::size_t s = 0; s < step.cursors.size(); ++s) go_back(step, s, cache);
}

void Steps::drop(OpenStep& step) noexcept {
  if (step.complete || step.dropped) return;
  step.dropped = true;
  for (std::size_t i = 0; i < step.forwards.size(); ++i) drop(step, i);
  close_branches(step);
  step.before.clear();
  step.captured.clear();
  for (std::size_t s = 0; s < step.cursors.size(); ++s) {
    if (step.cursor(s).open_step == &step) step.cursor(s).open_step = nullptr;
  }
  ++totals_.dropped_steps;
}

void Steps::drop_open(Cursor& cursor) noexcept {
  if (cursor.open_step != nullptr) drop(*cursor.open_step);
}

// ---- completed ----------------------------------------------------------------------------------------------------

std::vector<std::vector<HeldState>> Steps::take_captured(OpenStep& step, std::size_t index) const {
  std::vector<std::vector<HeldState>> captured;
  for (std::size_t i = 0; i < caches_.states.size(); ++i) captured.push_back(step.of_states(i).take_captured(index));
  return captured;
}

// The states that came out of the step at the offsets it was asked for, and at its end.
void Steps::make_points(OpenStep& step, std::size_t index) {
  Cursor& cursor = step.cursor(index);
  std::vector<std::vector<HeldState>> captured =
      step.captured.empty() ? take_captured(step, index) : std::move(step.captured[index]);
  for (const WantedPoint& wanted : step.captures[index]) {
    if (wanted.offset > cursor.computed) break;  // of drafts that were wrong
    if (wanted.offset == cursor.computed) {
      checkpointer_.make_end_point(cursor, wanted.kind, wanted.gap);
      continue;
    }
    std::vector<HeldState> held;
    held.reserve(captured.size());
    for (auto& each : captured) held.push_back(std::move(each[step.number_inside(index, wanted.offset)]));
    checkpointer_.make_point(cursor, wanted, std::move(held));
  }
  std::erase_if(cursor.wanted, [&](const WantedPoint& each) { return each.offset <= cursor.computed; });
}

void Steps::share_result(OpenStep& step, std::size_t index) {
  Cursor& cursor = step.cursor(index);
  cursors_.publish(cursor);
  if (caches_.has_points()) make_points(step, index);
  for (const std::size_t i : caches_.windowed)
    caches_.attention[i]->release_unseen(cursor.sequences[i], cursor.computed);
  cursors_.settle_ahead(cursor);
}

// The cursor stands where it stood, and computes these rows again.
void Steps::take_back(OpenStep& step, std::size_t index) noexcept {
  Cursor& cursor = step.cursor(index);
  cursor.computed -= static_cast<std::int32_t>(step.kept(index));
  for (std::size_t i = 0; i < caches_.all.size(); ++i) go_back(step, index, i);
}

// All rows are stored: it does not fail any more. If there is no memory to publish tokens, they stay the cursor's own
// until a later step publishes them; where the cursor is ahead along nodes that are not its own to keep, it has to do
// without the step.
void Steps::complete(OpenStep& step) {
  step.complete = true;
  ++totals_.steps;
  for (std::size_t s = 0; s < step.cursors.size(); ++s) {
    Cursor& cursor = step.cursor(s);
    cursor.open_step = nullptr;
    if (!step.is_taken(s)) continue;
    cursor.computed += static_cast<std::int32_t>(step.kept(s));
    totals_.computed_tokens += step.kept(s);
    try {
      share_result(step, s);
    } catch (const std::bad_alloc&) {
      if (cursor.ahead != nullptr && cursor.published() < cursor.computed) take_back(step, s);
    }
  }
  step.before.clear();
  step.captured.clear();
}

}  // namespace kvtrie
