// Forwards: rows, claims, ends.
#include <algorithm>
#include <limits>
#include <set>

#include "cache/encoder_cache_state.h"

namespace kvtrie {
namespace {

using ForwardState = EncoderForward::State;
using Status = ForwardState::Status;
using CacheState = EncoderCache::State;

constexpr const char* kWhere = "encoder_cache.start_forward";
constexpr std::int32_t kMaxLength = std::numeric_limits<std::int32_t>::max();

void add_row(const CacheState& state, ForwardState& forward, std::int32_t position, SequenceId id,
             std::map<SequenceId, std::size_t>& part_of) KVTRIE_REQUIRES(state.mutex) {
  require(id >= 0 && id < kFirstOpenedSequence, kWhere, "sequences: got ", id, " in row ", forward.rows,
          ", allowed 0 to ", kFirstOpenedSequence - 1);
  const auto [entry, fresh] = part_of.emplace(id, forward.parts.size());
  if (fresh) {
    const std::int32_t length = state.length(id);
    require(position >= 0 && position <= length, kWhere, "positions: got ", position, " in row ", forward.rows,
            ", allowed 0 to ", length, ", the length of sequence ", id);
    EncoderPart& part = forward.parts.emplace_back();
    part.id = id;
    part.begin = part.end = position;
  }
  EncoderPart& part = forward.parts[entry->second];
  require(position == part.end && position < kMaxLength, kWhere, "positions: got ", position, " in row ", forward.rows,
          ", allowed ", part.end, " to continue sequence ", id);
  if (forward.blocks.empty() || forward.blocks.back().part != entry->second) {
    forward.blocks.push_back({forward.rows, 0, entry->second, position});
  }
  ++forward.blocks.back().count;
  ++forward.rows;
  ++part.end;
}

std::unique_ptr<ForwardState> lay_out(const std::shared_ptr<CacheState>& owner, std::span<const std::int32_t> positions,
                                      std::span<const SequenceId> sequences) KVTRIE_REQUIRES(owner->mutex) {
  auto forward = std::make_unique<ForwardState>();
  forward->owner = owner;
  forward->put.assign(owner->layers.size(), false);
  std::map<SequenceId, std::size_t> part_of;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    add_row(*owner, *forward, positions[row], sequences[row], part_of);
  }
  return forward;
}

std::uint64_t check_items(const ForwardState& forward, std::span<const EncoderItem> items, const char* where) {
  std::set<SequenceId> ids;
  std::uint64_t cells = 0;
  for (const EncoderItem& item : items) {
    const EncoderPart* part = forward.part_of(item.sequence);
    require(part != nullptr, where, "items: got one for sequence ", item.sequence, ", which has no row in this step");
    require(ids.insert(item.sequence).second, where, "items: got two for sequence ", item.sequence, ", allowed one");
    require(item.position >= part->begin && item.position < part->end, where, "items: got position ", item.position,
            " for sequence ", item.sequence, ", allowed ", part->begin, " to ", part->end - 1, " as its rows have");
    require(item.cells >= 1, where, "items: got 0 cells for sequence ", item.sequence, ", allowed 1 or more");
    cells += item.cells;
  }
  return cells;
}

// `replaced`: a forward whose claims go before, or null.
void require_room(const CacheState& state, std::uint64_t needed, const ForwardState* replaced, const char* where) {
  if (needed == 0) return;
  std::vector<const SpanList*> going;
  if (replaced != nullptr) {
    for (const EncoderPart& part : replaced->parts) going.push_back(&part.claimed);
  }
  const Cell free = state.pool->free_without(going);
  if (needed <= free) return;
  const CacheFullCounts counts{needed, free, 0, state.pool->cells() - free};
  throw Error::cache_full(cat("[", where, "] cells for items: needed ", needed, ", free ", free, ", held ",
                              counts.held_live, " of ", state.pool->cells()),
                          counts);
}

// Sequences that do not exist yet come into being with the forward, or not at all.
struct OpenedHere {
  CacheState& state;
  std::vector<SequenceId> ids;
  ~OpenedHere() {
    for (const SequenceId id : ids) state.forget_if_empty(id);
  }
};

// REQUIRES: the room for the items is there once `before` (may be null) has ended. That ends last, so that it stays
// when memory runs out; first only where its cells are needed.
EncoderForwardPtr begin(CacheState& state, std::unique_ptr<ForwardState> planned, std::span<const EncoderItem> items,
                        std::uint64_t cells, ForwardState* before) KVTRIE_REQUIRES(state.mutex) {
  ForwardState& forward = *planned;
  OpenedHere opened{state, {}};
  opened.ids.reserve(forward.parts.size());
  EncoderForwardPtr result = std::make_shared<EncoderForward>(std::move(planned));
  for (EncoderPart& part : forward.parts) {
    if (state.find(part.id) == nullptr) opened.ids.push_back(part.id);
    part.epoch = state.open(part.id).epoch;
  }
  forward.status = Status::kText;
  if (before != nullptr && cells > state.pool->free_cells()) state.end(*before);
  if (!items.empty()) claim_items(state, forward, items, kWhere);
  if (state.unended() != nullptr) state.end(*before);
  for (const EncoderPart& part : forward.parts) state.find(part.id)->forward = &forward;
  if (before != nullptr) state.forget_empty(*before);
  return result;
}

// What completion changes, made before it changes anything.
using Captured = std::vector<EncoderCache::SnapshotPtr>;

Captured captured_by(const CacheState& state, const ForwardState& forward, const EncoderPart& part)
    KVTRIE_REQUIRES(state.mutex) {
  const EncoderSequence& sequence = *state.find(part.id);
  const bool brings = !part.claimed.empty();
  const CellSpans& cells = brings ? part.claimed.spans() : sequence.cells.spans();
  const std::int32_t position = brings ? part.item_position : sequence.position;
  return state.capture(sequence, cells, position, std::max(sequence.length, part.end), forward.owner.lock());
}

void advance(CacheState& state, EncoderPart& part, Captured& captured) noexcept KVTRIE_REQUIRES(state.mutex) {
  EncoderSequence& sequence = *state.find(part.id);
  sequence.length = std::max(sequence.length, part.end);
  sequence.forward = nullptr;
  if (!part.claimed.empty()) {
    sequence.cells = std::move(part.claimed);
    sequence.position = part.item_position;
    part.epoch = sequence.epoch = ++state.stamp;
  }
  EncoderSchedule& schedule = sequence.schedule;
  for (EncoderCache::SnapshotPtr& snapshot : captured) {
    schedule.cursor = schedule.offsets[schedule.fired];
    schedule.captured[schedule.fired++] = std::move(snapshot);
  }
}

}  // namespace

void claim_items(CacheState& state, ForwardState& forward, std::span<const EncoderItem> items, const char* where) {
  const std::uint64_t cells = check_items(forward, items, where);
  require_room(state, cells, nullptr, where);
  std::vector<SpanList> claims;
  std::vector<std::size_t> item_parts;
  for (const EncoderItem& item : items) {
    Reservation none;
    claims.push_back(state.pool->claim(item.cells, 0, 0, none, 0));
    item_parts.push_back(static_cast<std::size_t>(forward.part_of(item.sequence) - forward.parts.data()));
  }
  forward.item_parts = std::move(item_parts);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EncoderPart& part = forward.parts[forward.item_parts[i]];
    part.claimed = std::move(claims[i]);
    part.item_position = items[i].position;
  }
  forward.item_rows = static_cast<std::uint32_t>(cells);
  forward.brings = true;
  forward.status = Status::kOpen;
  forward.step.reset();
}

// ---- state --------------------------------------------------------------------------------------------------------

const EncoderPart* EncoderForward::State::part_of(SequenceId id) const noexcept {
  const auto part = std::find_if(parts.begin(), parts.end(), [id](const EncoderPart& each) { return each.id == id; });
  return part == parts.end() ? nullptr : &*part;
}

ForwardState* CacheState::unended() const noexcept {
  ForwardState* forward = current ? current->state_.get() : nullptr;
  const bool ended = forward == nullptr || forward->status == Status::kComplete || forward->status == Status::kDropped;
  return ended ? nullptr : forward;
}

void CacheState::make_idle(SequenceId id) {
  ForwardState* forward = find(id)->forward;
  if (forward == nullptr) return;
  end(*forward);
  forget_empty(*forward, id);
}

void CacheState::end(ForwardState& forward) {
  if (forward.status == Status::kText) return complete(forward);
  drop(forward);
}

void CacheState::forget_empty(const ForwardState& forward, SequenceId kept) noexcept {
  for (const EncoderPart& part : forward.parts) {
    if (part.id != kept) forget_if_empty(part.id);
  }
}

void CacheState::complete(ForwardState& forward) {
  std::vector<Captured> captured;
  for (const EncoderPart& part : forward.parts) captured.push_back(captured_by(*this, forward, part));
  for (std::size_t i = 0; i < forward.parts.size(); ++i) advance(*this, forward.parts[i], captured[i]);
  forward.status = Status::kComplete;
}

void CacheState::drop(ForwardState& forward) noexcept {
  if (forward.status != Status::kText && forward.status != Status::kOpen) return;
  forward.status = Status::kDropped;
  for (EncoderPart& part : forward.parts) {
    find(part.id)->forward = nullptr;
    part.claimed.clear();
  }
  forward.step.reset();
}

// ---- the forward --------------------------------------------------------------------------------------------------

EncoderForward::EncoderForward(std::unique_ptr<State> state) : state_(std::move(state)) {}

EncoderForward::~EncoderForward() = default;

std::uint32_t EncoderForward::rows() const noexcept { return state_->rows; }

bool EncoderForward::brings_items() const noexcept { return state_->brings; }

bool EncoderForward::may_bring_item() const noexcept {
  return state_->status == Status::kText && state_->parts.size() == 1;
}

bool EncoderForward::complete() const noexcept {
  const Status status = state_->status;
  return status == Status::kText || status == Status::kComplete;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

EncoderForwardPtr EncoderCache::start_forward(std::span<const std::int32_t> positions,
                                              std::span<const SequenceId> sequences, bool reserve,
                                              std::span<const EncoderItem> items) {
  require(!positions.empty(), kWhere, "positions: got none, allowed 1 or more");
  require(positions.size() <= static_cast<std::size_t>(kMaxLength), kWhere, "positions: got ", positions.size(),
          ", allowed ", kMaxLength);
  require(positions.size() == sequences.size(), kWhere, "sequences: got ", sequences.size(), ", allowed ",
          positions.size(), " as positions has");
  const MutexLock lock(state_->mutex);
  state_->require_sound(kWhere);
  ForwardState* before = state_->unended();
  std::unique_ptr<ForwardState> planned = lay_out(state_, positions, sequences);
  const std::uint64_t cells = check_items(*planned, items, kWhere);
  require_room(*state_, cells, before, kWhere);
  if (reserve) return nullptr;
  state_->current = begin(*state_, std::move(planned), items, cells, before);
  return state_->current;
}

EncoderForwardPtr EncoderCache::current_forward() const {
  const MutexLock lock(state_->mutex);
  require(state_->current != nullptr, "encoder_cache", "no forward was started");
  return state_->current;
}

void EncoderCache::drop(EncoderForward& forward) noexcept {
  const MutexLock lock(state_->mutex);
  if (forward.state_->owner.lock() != state_) return;
  state_->drop(*forward.state_);
  state_->forget_empty(*forward.state_);
}

}  // namespace kvtrie
