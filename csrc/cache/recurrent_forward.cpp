// Forwards: claims, completion, drops.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "cache/recurrent_cache_state.h"

namespace kvtrie {
namespace {

using ForwardState = StateForward::State;
using Status = ForwardState::Status;
using CacheState = RecurrentCache::State;

constexpr std::int32_t kMaxLength = std::numeric_limits<std::int32_t>::max();
constexpr const char* kForward = "recurrent_cache.forward";
constexpr const char* kStartForward = "recurrent_cache.start_forward";

// The lengths at which the sequence's rows ask for a state, and those of its schedule.
std::vector<std::int32_t> boundaries_of(const ForwardRows& rows, const StateSequence* sequence) {
  const std::int32_t begin = sequence == nullptr ? 0 : sequence->length;
  require(rows.from < 0 || rows.from == begin, kForward, "from of sequence ", rows.sequence, ": got ", rows.from,
          ", allowed its length, ", begin);
  require(rows.count >= 1, kForward, "rows of sequence ", rows.sequence, ": got 0, allowed 1 or more");
  require(rows.count <= static_cast<std::uint32_t>(kMaxLength - begin), kForward, "rows of sequence ", rows.sequence,
          ": got ", rows.count, " after ", begin, ", allowed up to length ", kMaxLength);
  const std::int32_t end = begin + static_cast<std::int32_t>(rows.count);
  std::int32_t before = begin;
  for (const std::int32_t boundary : rows.boundaries) {
    require(boundary > before && boundary < end, kForward, "boundaries of sequence ", rows.sequence, ": got ", boundary,
            " after ", before, ", allowed more, and below ", end);
    before = boundary;
  }
  std::set<std::int32_t> all(rows.boundaries.begin(), rows.boundaries.end());
  if (sequence != nullptr) {
    for (const std::int32_t offset : sequence->schedule.offsets) {
      if (offset > begin && offset < end) all.insert(offset);
    }
  }
  return {all.begin(), all.end()};
}

// The forward as it will be, without slots: nothing changes yet. `replaced`: a forward that will be dropped first.
std::unique_ptr<ForwardState> plan(const CacheState& state, std::span<const ForwardRows> wanted, std::uint32_t padding,
                                   const ForwardState* replaced) KVTRIE_REQUIRES(state.mutex) {
  auto forward = std::make_unique<ForwardState>();
  forward->status = Status::kDropped;  // until everything is in place
  for (const ForwardRows& rows : wanted) {
    const StateSequence* sequence = state.find(rows.sequence);
    if (sequence != nullptr && sequence->forward != replaced) state.require_idle(*sequence, kForward);
    StateForwardSequence& in_forward = forward->sequences.emplace_back();
    in_forward.boundaries = boundaries_of(rows, sequence);
    in_forward.id = rows.sequence;
    in_forward.row = forward->rows;
    in_forward.count = rows.count;
    if (sequence != nullptr) in_forward.begin = sequence->length;
    in_forward.slots.resize(in_forward.boundaries.size() + 1);
    require(rows.count <= UINT32_MAX - padding - forward->rows, kForward, "rows: got more than ", UINT32_MAX);
    forward->rows += rows.count;
  }
  forward->rows += padding;
  const StateShape& shape = state.shape;
  forward->written.assign(shape.layers, {!shape.has_conv(), !shape.has_delta()});
  forward->missing = ForwardState::halves(shape);
  return forward;
}

void require_room(const CacheState& state, std::uint64_t needed, std::uint64_t given_back) {
  const std::uint64_t free = state.pool->free_slots() + given_back;
  if (needed <= free) return;
  const CacheFullCounts counts{needed, free, 0,
                               state.pool->limit() - std::min<std::uint64_t>(free, state.pool->limit())};
  throw Error::cache_full(cat("[", kForward, "] slots: needed ", needed, ", free ", free, ", held ", counts.held_live,
                              " of ", state.pool->limit()),
                          counts);
}

// REQUIRES: the room for the forward's slots is there once `replaced` (may be null) is dropped, which happens when
// nothing can fail any more.
StateForwardPtr open_forward(CacheState& state, std::unique_ptr<ForwardState> planned, ForwardState* replaced)
    KVTRIE_REQUIRES(state.mutex) {
  ForwardState& forward = *planned;
  std::vector<SlotRef> claimed(forward.slots());
  std::vector<Owner> owners;
  owners.reserve(claimed.size());
  OpenedHere<CacheState> opened{state, {}};
  opened.ids.reserve(forward.sequences.size());
  state.open_forwards.reserve(state.open_forwards.size() + 1);
  StateForwardPtr result = std::make_shared<StateForward>(std::move(planned));
  for (const StateForwardSequence& in_forward : forward.sequences) {
    if (state.find(in_forward.id) != nullptr) continue;
    opened.ids.push_back(in_forward.id);
    state.open(in_forward.id);
  }
  for (const StateForwardSequence& in_forward : forward.sequences) {
    owners.insert(owners.end(), in_forward.slots.size(), state.find(in_forward.id)->owner);
  }
  if (replaced != nullptr) state.drop(*replaced);
  state.pool->claim(claimed, owners);
  state.take_over(claimed, owners);
  auto next = claimed.begin();
  for (StateForwardSequence& in_forward : forward.sequences) {
    for (SlotRef& slot : in_forward.slots) slot = std::move(*next++);
    StateSequence& sequence = *state.find(in_forward.id);
    in_forward.from = sequence.slot;
    sequence.forward = &forward;
  }
  state.open_forwards.push_back(&forward);
  forward.status = Status::kOpen;
  if (replaced != nullptr) state.discard(*replaced);
  return result;
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

std::size_t StateForward::State::slots() const noexcept {
  std::size_t count = 0;
  for (const StateForwardSequence& in_forward : sequences) count += in_forward.slots.size();
  return count;
}

bool RecurrentCache::State::drop(StateForward::State& forward) noexcept {
  if (forward.status != Status::kOpen) return false;
  std::erase(open_forwards, &forward);
  for (StateForwardSequence& in_forward : forward.sequences) {
    find(in_forward.id)->forward = nullptr;
    in_forward.from.reset();
    in_forward.slots.clear();
  }
  forward.step.reset();
  forward.status = Status::kDropped;  // last: its owner may let it end in another thread from now on
  return true;
}

bool RecurrentCache::State::discard(StateForward::State& forward) noexcept {
  if (forward.status == Status::kComplete) return false;
  const bool was_open = drop(forward);
  for (const StateForwardSequence& in_forward : forward.sequences) forget_if_empty(in_forward.id);
  return was_open;
}

void RecurrentCache::State::complete(StateForward::State& forward) {
  std::vector<std::pair<SnapshotPtr*, SnapshotPtr>> captures;
  for (StateForwardSequence& in_forward : forward.sequences) {
    auto& schedule = find(in_forward.id)->schedule;
    for (std::size_t i = 0; i < schedule.offsets.size(); ++i) {
      const std::int32_t offset = schedule.offsets[i];
      if (offset <= in_forward.begin || offset > in_forward.end()) continue;
      const auto at = std::lower_bound(in_forward.boundaries.begin(), in_forward.boundaries.end(), offset);
      ensure(offset == in_forward.end() || (at != in_forward.boundaries.end() && *at == offset), kForward,
             "boundaries: no ", offset, " for sequence ", in_forward.id);
      const SlotRef& slot = in_forward.slots[static_cast<std::size_t>(at - in_forward.boundaries.begin())];
      captures.emplace_back(&schedule.captured[i],
                            make_snapshot(forward.owner.lock(), slot, schedule.start(i), offset));
    }
  }
  for (auto& [place, snapshot] : captures) *place = std::move(snapshot);
  for (StateForwardSequence& in_forward : forward.sequences) {
    StateSequence& sequence = *find(in_forward.id);
    become(sequence, in_forward.end(), std::move(in_forward.slots.back()));
    in_forward.slots.pop_back();
    if (!forward.keeps_captured) in_forward.slots.clear();
    in_forward.from.reset();
    sequence.forward = nullptr;
  }
  std::erase(open_forwards, &forward);
  forward.status = Status::kComplete;
}

// ---- the forward --------------------------------------------------------------------------------------------------

StateForward::StateForward(std::unique_ptr<State> state) : state_(std::move(state)) {}

StateForward::~StateForward() {
  if (state_->status != Status::kOpen) return;
  if (const auto owner = state_->owner.lock()) {
    const MutexLock lock(owner->mutex);
    owner->discard(*state_);
  }
}

std::uint32_t StateForward::rows() const noexcept { return state_->rows; }

bool StateForward::complete() const noexcept { return state_->status == Status::kComplete; }

std::vector<std::vector<std::int32_t>> StateForward::boundaries() const {
  std::vector<std::vector<std::int32_t>> lists;
  for (const StateForwardSequence& in_forward : state_->sequences) lists.push_back(in_forward.boundaries);
  return lists;
}

std::vector<std::vector<std::int32_t>> StateForward::row_boundaries() const {
  std::vector<std::vector<std::int32_t>> lists = boundaries();
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (std::int32_t& boundary : lists[i]) boundary -= state_->sequences[i].begin;
  }
  return lists;
}

std::vector<std::int32_t> StateForward::row_starts() const {
  std::vector<std::int32_t> starts{0};
  for (const StateForwardSequence& in_forward : state_->sequences)
    starts.push_back(static_cast<std::int32_t>(in_forward.row + in_forward.count));
  return starts;
}

std::vector<HeldState> StateForward::take_captured(std::size_t sequence) {
  const char* where = "recurrent_cache.take_captured";
  require(sequence < state_->sequences.size(), where, "sequence: got ", sequence, ", allowed 0 to ",
          state_->sequences.size() - 1);
  const auto owner = state_->owner.lock();
  if (!owner) fail(ErrorKind::kClosed, where, "the cache is gone");
  const MutexLock lock(owner->mutex);
  require(state_->status == Status::kComplete, where, "the forward is not complete");
  std::vector<HeldState> states;
  std::vector<SlotRef>& slots = state_->sequences[sequence].slots;
  states.reserve(slots.size());
  for (SlotRef& slot : slots) states.emplace_back(std::move(slot));
  slots.clear();
  return states;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

StateForwardPtr RecurrentCache::begin(std::span<const ForwardRows> rows) {
  require(!rows.empty(), kForward, "rows: got none, allowed 1 or more");
  const MutexLock lock(state_->mutex);
  std::set<SequenceId> ids;
  for (const ForwardRows& each : rows) {
    state_->known(each.sequence, kForward);
    require(ids.insert(each.sequence).second, kForward, "sequence: got ", each.sequence, " twice, allowed once");
  }
  std::unique_ptr<ForwardState> planned = plan(*state_, rows, 0, nullptr);
  planned->keeps_captured = true;
  require_room(*state_, planned->slots(), 0);
  planned->owner = state_;
  return open_forward(*state_, std::move(planned), nullptr);
}

namespace {

// Rows one by one, as consecutive rows of sequences; returns the number of padding rows at the end.
std::uint32_t group_rows(const CacheState& state, std::span<const std::int32_t> positions,
                         std::span<const SequenceId> sequences, std::vector<ForwardRows>& wanted)
    KVTRIE_REQUIRES(state.mutex) {
  std::set<SequenceId> ids;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const SequenceId id = sequences[row];
    if (id == -1) {
      const auto rest = sequences.subspan(row);
      require(std::all_of(rest.begin(), rest.end(), [](SequenceId other) { return other == -1; }), kStartForward,
              "sequences: got -1 in row ", row, ", allowed at the end only");
      require(row > 0, kStartForward, "sequences: got padding only, allowed at least one row of a sequence");
      return static_cast<std::uint32_t>(rest.size());
    }
    require(id >= 0 && id < kFirstOpenedSequence, kStartForward, "sequences: got ", id, " in row ", row,
            ", allowed 0 to ", kFirstOpenedSequence - 1, ", and -1 at the end");
    if (wanted.empty() || wanted.back().sequence != id) {
      require(ids.insert(id).second, kStartForward, "sequences: got ", id, " again in row ", row,
              ", allowed one run of rows for each sequence");
      wanted.push_back({id, 0});
    }
    const StateSequence* sequence = state.find(id);
    const std::int64_t expected = (sequence == nullptr ? 0 : sequence->length) + std::int64_t{wanted.back().count};
    require(positions[row] == expected, kStartForward, "positions: got ", positions[row], " in row ", row, ", allowed ",
            expected, " to continue sequence ", id);
    ++wanted.back().count;
  }
  return 0;
}

}  // namespace

StateForwardPtr RecurrentCache::start_forward(std::span<const std::int32_t> positions,
                                              std::span<const SequenceId> sequences, bool reserve) {
  require_rows(positions, sequences, kStartForward);
  const MutexLock lock(state_->mutex);
  ForwardState* replaced = state_->current ? state_->current->state_.get() : nullptr;
  if (replaced != nullptr && replaced->status != Status::kOpen) replaced = nullptr;
  std::vector<ForwardRows> wanted;
  const std::uint32_t padding = group_rows(*state_, positions, sequences, wanted);
  std::unique_ptr<ForwardState> planned = plan(*state_, wanted, padding, replaced);
  require_room(*state_, planned->slots(), replaced == nullptr ? 0 : replaced->slots());
  if (reserve) return nullptr;
  planned->owner = state_;
  state_->current =
      open_forward(*state_, std::move(planned), replaced);  // the one before is not open: its end needs no lock
  return state_->current;
}

StateForwardPtr RecurrentCache::current_forward() const {
  const MutexLock lock(state_->mutex);
  require(state_->current != nullptr, "recurrent_cache", "no forward was started");
  return state_->current;
}

std::uint32_t RecurrentCache::units_for(SequenceId, std::int32_t, std::span<const std::int32_t> boundaries) const {
  return static_cast<std::uint32_t>(boundaries.size()) + 1;
}

bool RecurrentCache::drop(LayerForward& forward) noexcept {
  auto* const own = dynamic_cast<StateForward*>(&forward);
  const MutexLock lock(state_->mutex);
  return own != nullptr && own->state_->owner.lock() == state_ && state_->discard(*own->state_);
}

}  // namespace kvtrie
