// Snapshots and scheduled captures.
#include <algorithm>

#include "cache/causal_cache_state.h"
#include "cache/sequences_of.h"

namespace kvtrie {

using SnapshotPtr = CausalCache::SnapshotPtr;

// ---- contents -----------------------------------------------------------------------------------------------------

CausalContents::CausalContents(const std::shared_ptr<CausalCache::State>& state, std::int32_t start_in,
                               std::int32_t end_in)
    : owner(state), start(start_in), end(end_in) {
  const MutexLock lock(state->registry);
  state->snapshots.insert(this);
}

CausalContents::~CausalContents() {
  const auto state = owner.lock();
  if (!state) return;
  const MutexLock lock(state->registry);
  state->snapshots.erase(this);
}

std::uint64_t CausalContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  std::uint64_t cells = 0;
  for (const SpanList& list : held) cells += list.length();
  const std::uint64_t own = state->pool->cells_held_only(spans(), 1);
  return (alone ? own : cells - own) * state->shape.bytes_per_cell();
}

CellSpans CausalContents::spans() const {
  CellSpans spans;
  for (const SpanList& list : held) spans.insert(spans.end(), list.spans().begin(), list.spans().end());
  return spans;
}

std::int32_t CausalContents::held_from(std::int32_t position) const noexcept {
  for (const SpanList& list : held) {
    if (list.begin_position() < position && position <= list.end_position()) return list.begin_position();
  }
  return position;
}

void CausalContents::take(CausalContents& from) noexcept {
  held = std::move(from.held);
  from.held.clear();
  is_private = from.is_private;
}

void CausalContents::split(std::int32_t at, CausalContents& lower, CausalContents& upper) {
  lower.is_private = upper.is_private = is_private;
  lower.held.reserve(held.size());
  upper.held.reserve(held.size() + 1);
  const auto across = std::find_if(held.begin(), held.end(), [at](const SpanList& list) {
    return list.begin_position() < at && at < list.end_position();
  });
  SpanList rest;
  if (across != held.end()) rest = across->split(at);
  if (!rest.empty()) upper.held.push_back(std::move(rest));
  for (SpanList& list : held) {
    CausalContents& half = list.begin_position() < at ? lower : upper;
    half.held.push_back(std::move(list));
  }
  held.clear();
}

void CausalContents::join(CausalContents& first, CausalContents& second) {
  is_private = first.is_private || second.is_private;
  held.reserve(first.held.size() + second.held.size());
  const bool meet = !first.held.empty() && !second.held.empty() &&
                    first.held.back().end_position() == second.held.front().begin_position();
  if (meet) first.held.back().make_room(second.held.front().spans().size());
  std::move(first.held.begin(), first.held.end(), std::back_inserter(held));
  auto next = second.held.begin();
  if (meet) held.back().append(std::move(*next++));
  std::move(next, second.held.end(), std::back_inserter(held));
  first.held.clear();
  second.held.clear();
}

// ---- state --------------------------------------------------------------------------------------------------------

namespace {

using CacheState = CausalCache::State;

// Of [start, end) with what of `history` lies there.
std::unique_ptr<CausalContents> contents_of(const std::shared_ptr<CacheState>& state, const CellSpans& history,
                                            std::int32_t start, std::int32_t end, bool is_private) {
  auto contents = CacheState::no_contents(state, start, end);
  contents->is_private = is_private;
  SpanList cells(*state->pool, true);
  cells.append(slice_spans(history, start, end));
  if (!cells.empty()) contents->held.push_back(std::move(cells));
  return contents;
}

}  // namespace

std::unique_ptr<CausalContents> CacheState::no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                                        std::int32_t end) {
  return std::make_unique<CausalContents>(self, start, end);
}

std::unique_ptr<CausalContents> CacheState::contents_of(const std::shared_ptr<State>& self, const Sequence& sequence,
                                                        std::int32_t start, std::int32_t length) const {
  return kvtrie::contents_of(self, sequence.history(), start, length, sequence.is_private);
}

std::vector<SnapshotPtr> CacheState::capture(const Sequence& sequence, const CellSpans& history, std::int32_t length,
                                             const std::shared_ptr<State>& self) const {
  return sequence.schedule.due(length, [&](std::int32_t start, std::int32_t offset) {
    return std::make_shared<Snapshot>(kvtrie::contents_of(self, history, start, offset, sequence.is_private));
  });
}

std::optional<CacheState::Restoring> CacheState::plan_restore(SequenceId id, const Contents* contents,
                                                              std::int32_t target) const {
  const Sequence* sequence = find(id);
  const std::int32_t length = length_of(id);
  if (target < 0 || target > (contents != nullptr ? contents->end : length)) return std::nullopt;
  if (contents == nullptr || target < contents->start) {  // the sequence alone, cut
    const bool reaches = contents == nullptr || contents->start <= length;
    const bool can = sequence == nullptr ? target == 0 : resumable(*sequence, target);
    return reaches && can ? std::optional(Restoring{target, target}) : std::nullopt;
  }
  Restoring plan{0, contents->held_from(target)};
  const bool joins = sequence != nullptr && contents->start <= length && plan.share_from == contents->start &&
                     sequence->held_from() < contents->start;
  if (joins) plan.kept = contents->start;
  return complete_at(target, joins ? sequence->held_from() : plan.share_from) ? std::optional(plan) : std::nullopt;
}

void CacheState::restore(SequenceId id, const Restoring& plan, const Contents* contents, std::int32_t target,
                         const char* where) {
  if (plan.kept == target && length_of(id) == target) return;
  SpanList cells(*pool, true);
  if (plan.share_from < target) cells.append(slice_spans(contents->spans(), plan.share_from, target));
  Sequence& sequence = open(id);
  sequence.own.make_room(cells.spans().size());
  make_idle(sequence, where);
  cut(sequence, plan.kept);
  if (!cells.empty()) sequence.is_private = sequence.is_private || contents->is_private;
  sequence.own.append(std::move(cells));
  sequence.length = target;
  sequence.epoch = ++stamp;
  forget_if_empty(id);
}

template class CacheSnapshot<CausalCache, CausalContents>;
template class Sequences<CausalCache, CausalContents>;

}  // namespace kvtrie
