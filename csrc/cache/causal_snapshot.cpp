// Snapshots and scheduled captures.
#include <algorithm>

#include "cache/causal_cache_state.h"

namespace kvtrie {

using Snapshot = CausalCache::Snapshot;
using SnapshotPtr = CausalCache::SnapshotPtr;

Snapshot::Snapshot(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}

Snapshot::~Snapshot() = default;

std::int32_t Snapshot::start() const noexcept { return contents_->start; }

std::int32_t Snapshot::end() const noexcept { return contents_->end; }

const char* Snapshot::tier() const noexcept { return "device"; }

bool Snapshot::consumed() const noexcept { return contents_->consumed; }

std::uint64_t Snapshot::nbytes() const {
  const auto owner = contents_->owner.lock();
  if (!owner) return 0;
  const std::lock_guard lock(owner->mutex);
  return owner->pool->cells_held_only(contents_->cells.spans(), 1) * owner->store->shape().bytes_per_cell();
}

std::uint64_t Snapshot::shared_nbytes() const {
  const auto owner = contents_->owner.lock();
  if (!owner) return 0;
  const std::lock_guard lock(owner->mutex);
  const SpanList& cells = contents_->cells;
  const std::uint32_t alone = owner->pool->cells_held_only(cells.spans(), 1);
  return (cells.length() - alone) * owner->store->shape().bytes_per_cell();
}

// A snapshot of `cells`; null when there are none.
SnapshotPtr CausalCache::State::make_snapshot(SpanList cells, bool is_private,
                                              const std::weak_ptr<State>& owner) const {
  if (cells.empty()) return nullptr;
  auto contents = std::make_unique<Snapshot::Contents>();
  contents->owner = owner;
  contents->start = cells.begin_position();
  contents->end = cells.end_position();
  contents->cells = std::move(cells);
  contents->is_private = is_private;
  return std::make_shared<Snapshot>(std::move(contents));
}

namespace {

void require_usable(const Snapshot::Contents& contents, const std::shared_ptr<CausalCache::State>& state,
                    const char* where) {
  if (contents.consumed) fail(ErrorKind::kClosed, where, "the snapshot was consumed by split or merge");
  require(contents.owner.lock() == state, where, "snapshot: got one of another cache");
}

// Empty contents to move a part of a snapshot into; everything that can fail happens here.
std::unique_ptr<Snapshot::Contents> part_of(const Snapshot::Contents& whole, std::int32_t start, std::int32_t end) {
  auto part = std::make_unique<Snapshot::Contents>();
  part->owner = whole.owner;
  part->start = start;
  part->end = end;
  part->is_private = whole.is_private;
  return part;
}

// A new snapshot with everything that `from` held.
SnapshotPtr take_over(Snapshot::Contents& from) {
  auto whole = part_of(from, from.start, from.end);
  Snapshot::Contents& to = *whole;
  auto snapshot = std::make_shared<Snapshot>(std::move(whole));
  to.cells = std::move(from.cells);
  from.consumed = true;
  return snapshot;
}

}  // namespace

SnapshotPtr CausalCache::snapshot(SequenceId id, std::int32_t start) {
  require(start >= 0, "causal_cache.snapshot", "start: got ", start, ", allowed 0 or more");
  const std::lock_guard lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  if (sequence == nullptr || start >= sequence->length()) return nullptr;
  SpanList cells(*state_->pool, true);
  cells.append(slice_spans(sequence->history(), start, sequence->length()));
  return state_->make_snapshot(std::move(cells), sequence->is_private, state_);
}

bool CausalCache::restore(SequenceId id, const SnapshotPtr& snapshot, std::int32_t target) {
  const char* where = "causal_cache.restore";
  const std::lock_guard lock(state_->mutex);
  Sequence* sequence = state_->find(id);
  const std::int32_t length = sequence == nullptr ? 0 : sequence->length();
  if (snapshot) require_usable(*snapshot->contents_, state_, where);
  const std::int32_t start = snapshot ? snapshot->start() : length;
  if (target < 0 || start > length || target > (snapshot ? snapshot->end() : length)) return false;
  if (target <= start) {
    if (target == length) return true;
    state_->make_idle(*sequence, where);
    state_->cut(*sequence, target);
    state_->forget_if_empty(id);
    return true;
  }
  SpanList cells = snapshot->contents_->cells.share(start, target);
  sequence = &state_->open(id);
  sequence->own.make_room(cells.spans().size());
  state_->make_idle(*sequence, where);
  state_->cut(*sequence, start);
  sequence->own.append(std::move(cells));
  sequence->is_private = sequence->is_private || snapshot->contents_->is_private;
  sequence->epoch = ++state_->stamp;
  return true;
}

std::pair<SnapshotPtr, SnapshotPtr> CausalCache::split(const SnapshotPtr& snapshot, std::int32_t at) {
  if (!snapshot) return {};
  const std::lock_guard lock(state_->mutex);
  Snapshot::Contents& whole = *snapshot->contents_;
  require_usable(whole, state_, "causal_cache.split");
  if (at <= whole.start) return {nullptr, take_over(whole)};
  if (at >= whole.end) return {take_over(whole), nullptr};
  auto lower = std::make_shared<Snapshot>(part_of(whole, whole.start, at));
  auto upper = std::make_shared<Snapshot>(part_of(whole, at, whole.end));
  upper->contents_->cells = whole.cells.split(at);
  lower->contents_->cells = std::move(whole.cells);
  whole.consumed = true;
  return {std::move(lower), std::move(upper)};
}

SnapshotPtr CausalCache::merge(const SnapshotPtr& a, const SnapshotPtr& b) {
  const char* where = "causal_cache.merge";
  const std::lock_guard lock(state_->mutex);
  if (a) require_usable(*a->contents_, state_, where);
  if (b) require_usable(*b->contents_, state_, where);
  if (!a || !b) return a ? take_over(*a->contents_) : b ? take_over(*b->contents_) : nullptr;
  Snapshot::Contents& first = *a->contents_;
  Snapshot::Contents& second = *b->contents_;
  require(first.end == second.start, where, "b: got a snapshot from ", second.start, ", allowed one from ", first.end);
  first.cells.make_room(second.cells.spans().size());
  auto merged = std::make_shared<Snapshot>(part_of(first, first.start, second.end));
  merged->contents_->is_private = first.is_private || second.is_private;
  first.cells.append(std::move(second.cells));
  merged->contents_->cells = std::move(first.cells);
  first.consumed = second.consumed = true;
  return merged;
}

void CausalCache::prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) {
  const char* where = "causal_cache.prepare_snapshots";
  const std::lock_guard lock(state_->mutex);
  const Sequence* existing = state_->find(id);
  const std::int32_t length = existing == nullptr ? 0 : existing->length();
  require(existing == nullptr || existing->schedule.offsets.empty(), where,
          "the schedule before was not taken: call take_snapshots first");
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int32_t lowest = i == 0 ? length : offsets[i - 1] + 1;
    require(offsets[i] >= lowest, where, "offsets: got ", offsets[i], " at index ", i, ", allowed ", lowest,
            " or more");
  }
  if (offsets.empty()) return;
  CaptureSchedule schedule;
  schedule.captured.resize(offsets.size());
  schedule.cursor = length;
  if (offsets.front() == length) schedule.fired = 1;  // of no width: stays null
  schedule.offsets = std::move(offsets);
  state_->open(id).schedule = std::move(schedule);
}

std::vector<SnapshotPtr> CausalCache::take_snapshots(SequenceId id) {
  const std::lock_guard lock(state_->mutex);
  Sequence* sequence = state_->find(id);
  if (sequence == nullptr) return {};
  std::vector<SnapshotPtr> captured = std::move(sequence->schedule.captured);
  sequence->schedule = {};
  state_->forget_if_empty(id);
  return captured;
}

}  // namespace kvtrie
