// Snapshots and scheduled captures.
#include <algorithm>

#include "cache/cache_snapshot_contents.h"
#include "cache/causal_cache_state.h"

namespace kvtrie {

using Snapshot = CausalCache::Snapshot;
using SnapshotPtr = CausalCache::SnapshotPtr;

// ---- contents -----------------------------------------------------------------------------------------------------

CausalContents::CausalContents(const std::shared_ptr<CausalCache::State>& state, std::int32_t start_in,
                               std::int32_t end_in, bool is_private_in)
    : owner(state), start(start_in), end(end_in), is_private(is_private_in) {
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

namespace {

using Contents = Snapshot::Contents;

// A snapshot of [start, end) with what of `history` lies there.
SnapshotPtr make_snapshot(const std::shared_ptr<CausalCache::State>& state, const CellSpans& history,
                          std::int32_t start, std::int32_t end, bool is_private) {
  auto contents = std::make_unique<Contents>(state, start, end, is_private);
  SpanList cells(*state->pool, true);
  cells.append(slice_spans(history, start, end));
  if (!cells.empty()) contents->held.push_back(std::move(cells));
  return std::make_shared<Snapshot>(std::move(contents));
}

// A new snapshot with everything that `from` held.
SnapshotPtr take_over(const std::shared_ptr<CausalCache::State>& state, Contents& from) {
  auto whole = std::make_unique<Contents>(state, from.start, from.end, from.is_private);
  Contents& to = *whole;
  auto snapshot = std::make_shared<Snapshot>(std::move(whole));
  to.held = std::move(from.held);
  from.held.clear();
  from.consumed = true;
  return snapshot;
}

// The held run that lies on both sides of `at`; the end when none does.
std::size_t across(const std::vector<SpanList>& held, std::int32_t at) {
  std::size_t i = 0;
  while (i < held.size() && held[i].end_position() <= at) ++i;
  return i < held.size() && held[i].begin_position() < at ? i : held.size();
}

// How a restored sequence comes to be: what it holds below `kept` stays, [share_from, target) is the snapshot's.
struct Restoring {
  bool possible = false;
  std::int32_t kept = 0, share_from = 0;
};

Restoring plan_restore(const CausalCache::State& state, const Sequence* sequence, const Contents& contents,
                       std::int32_t target) {
  const std::int32_t length = sequence == nullptr ? 0 : sequence->length;
  Restoring plan;
  plan.share_from = contents.held_from(target);
  const bool joins = sequence != nullptr && contents.start <= length && plan.share_from == contents.start &&
                     sequence->held_from() < contents.start;
  if (joins) plan.kept = contents.start;
  plan.possible = state.complete_at(target, joins ? sequence->held_from() : plan.share_from);
  return plan;
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

std::vector<SnapshotPtr> CausalCache::State::capture(const Sequence& sequence, const CellSpans& history,
                                                     std::int32_t length, const std::shared_ptr<State>& self) const {
  return sequence.schedule.due(length, [&](std::int32_t start, std::int32_t offset) {
    return make_snapshot(self, history, start, offset, sequence.is_private);
  });
}

bool CausalCache::State::restore_by_cutting(SequenceId id, std::int32_t target, const char* where) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return target == 0;
  if (!resumable(*sequence, target)) return false;
  if (target == sequence->length) return true;
  make_idle(*sequence, where);
  cut(*sequence, target);
  forget_if_empty(id);
  return true;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

SnapshotPtr CausalCache::snapshot(SequenceId id, std::int32_t start) {
  require(start >= 0, "causal_cache.snapshot", "start: got ", start, ", allowed 0 or more");
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  if (sequence == nullptr || start >= sequence->length) return nullptr;
  return make_snapshot(state_, sequence->history(), start, sequence->length, sequence->is_private);
}

bool CausalCache::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  const char* where = "causal_cache.restore";
  const MutexLock lock(state_->mutex);
  Sequence* sequence = state_->find(id);
  const std::int32_t length = sequence == nullptr ? 0 : sequence->length;
  if (snapshot) require_usable(*snapshot->contents_, state_, where);
  if (target < 0 || target > (snapshot ? snapshot->end() : length)) return false;
  if (snapshot == nullptr || target < snapshot->start()) {
    return (snapshot == nullptr || snapshot->start() <= length) && state_->restore_by_cutting(id, target, where);
  }
  const Contents& contents = *snapshot->contents_;
  const Restoring plan = plan_restore(*state_, sequence, contents, target);
  if (!plan.possible) return false;
  if (target == contents.start && target == length && plan.kept == target) return true;
  SpanList cells(*state_->pool, true);
  cells.append(slice_spans(contents.spans(), plan.share_from, target));
  sequence = &state_->open(id);
  sequence->own.make_room(cells.spans().size());
  state_->make_idle(*sequence, where);
  state_->cut(*sequence, plan.kept);
  if (!cells.empty()) sequence->is_private = sequence->is_private || contents.is_private;
  sequence->own.append(std::move(cells));
  sequence->length = target;
  sequence->epoch = ++state_->stamp;
  state_->forget_if_empty(id);
  return true;
}

std::pair<SnapshotPtr, SnapshotPtr> CausalCache::split(const SnapshotPtr& snapshot, std::int32_t at) {
  if (!snapshot) return {};
  const MutexLock lock(state_->mutex);
  Contents& whole = *snapshot->contents_;
  require_usable(whole, state_, "causal_cache.split");
  if (at <= whole.start) return {nullptr, take_over(state_, whole)};
  if (at >= whole.end) return {take_over(state_, whole), nullptr};
  auto lower = std::make_shared<Snapshot>(std::make_unique<Contents>(state_, whole.start, at, whole.is_private));
  auto upper = std::make_shared<Snapshot>(std::make_unique<Contents>(state_, at, whole.end, whole.is_private));
  lower->contents_->held.reserve(whole.held.size());
  upper->contents_->held.reserve(whole.held.size() + 1);
  SpanList rest;
  const std::size_t cut = across(whole.held, at);
  if (cut < whole.held.size()) rest = whole.held[cut].split(at);
  if (!rest.empty()) upper->contents_->held.push_back(std::move(rest));
  for (SpanList& list : whole.held) {
    Contents& half = list.begin_position() < at ? *lower->contents_ : *upper->contents_;
    half.held.push_back(std::move(list));
  }
  whole.held.clear();
  whole.consumed = true;
  return {std::move(lower), std::move(upper)};
}

SnapshotPtr CausalCache::merge(const SnapshotPtr& a, const SnapshotPtr& b) {
  const char* where = "causal_cache.merge";
  const MutexLock lock(state_->mutex);
  if (a) require_usable(*a->contents_, state_, where);
  if (b) require_usable(*b->contents_, state_, where);
  if (!a || !b) return a || b ? take_over(state_, a ? *a->contents_ : *b->contents_) : nullptr;
  Contents& first = *a->contents_;
  Contents& second = *b->contents_;
  require(first.end == second.start, where, "b: got a snapshot from ", second.start, ", allowed one from ", first.end);
  const bool is_private = first.is_private || second.is_private;
  auto merged = std::make_shared<Snapshot>(std::make_unique<Contents>(state_, first.start, second.end, is_private));
  std::vector<SpanList>& held = merged->contents_->held;
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
  first.consumed = second.consumed = true;
  return merged;
}

void CausalCache::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  const char* where = "causal_cache.prepare_snapshots";
  const MutexLock lock(state_->mutex);
  const Sequence* existing = state_->find(id);
  CaptureSchedule<SnapshotPtr> schedule(existing == nullptr ? nullptr : &existing->schedule, std::move(offsets),
                                        state_->length_of(id), where);
  if (!schedule.offsets.empty()) state_->open(id).schedule = std::move(schedule);
}

std::vector<SnapshotPtr> CausalCache::take_snapshots(SequenceId id) {
  const MutexLock lock(state_->mutex);
  return take_captured(*state_, id);
}

template class CacheSnapshot<CausalCache, CausalContents>;

}  // namespace kvtrie
