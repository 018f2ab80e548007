// Forwards: rows, claims, ends.
#include <algorithm>
#include <limits>
#include <set>

#include "standalone/encoder_cache_state.h"

namespace kvtrie {
namespace {

using ForwardState = EncoderForward::State;
using Status = ForwardState::Status;
using CacheState = EncoderCache::State;

constexpr const char* kWhere = "encoder_cache.start_forward";
constexpr std::int32_t kMaxLength = std::numeric_limits<std::int32_t>::max();

void add_row(const CacheState& state, ForwardState& forward, std::int32_t position, SequenceId id,
             std::map<SequenceId, std::size_t>& index_of) KVTRIE_REQUIRES(state.mutex) {
  require(id >= 0 && id < kFirstOpenedSequence, kWhere, "sequences: got ", id, " in row ", forward.rows,
          ", allowed 0 to ", kFirstOpenedSequence - 1);
  const auto [entry, fresh] = index_of.emplace(id, forward.sequences.size());
  if (fresh) {
    const std::int32_t length = state.length_of(id);
    require(position >= 0 && position <= length, kWhere, "positions: got ", position, " in row ", forward.rows,
            ", allowed 0 to ", length, ", the length of sequence ", id);
    EncoderForwardSequence& in_forward = forward.sequences.emplace_back();
    in_forward.id = id;
    in_forward.begin = in_forward.end = position;
  }
  EncoderForwardSequence& in_forward = forward.sequences[entry->second];
  require(position == in_forward.end && position < kMaxLength, kWhere, "positions: got ", position, " in row ",
          forward.rows, ", allowed ", in_forward.end, " to continue sequence ", id);
  if (forward.blocks.empty() || forward.blocks.back().sequence != entry->second) {
    forward.blocks.push_back({forward.rows, 0, entry->second, position});
  }
  ++forward.blocks.back().count;
  ++forward.rows;
  ++in_forward.end;
}

std::unique_ptr<ForwardState> lay_out(const std::shared_ptr<CacheState>& owner, std::span<const std::int32_t> positions,
                                      std::span<const SequenceId> sequences) KVTRIE_REQUIRES(owner->mutex) {
  auto forward = std::make_unique<ForwardState>();
  forward->owner = owner;
  forward->put.assign(owner->layers.size(), false);
  std::map<SequenceId, std::size_t> index_of;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    add_row(*owner, *forward, positions[row], sequences[row], index_of);
  }
  return forward;
}

std::uint64_t check_items(const ForwardState& forward, std::span<const EncoderItem> items, const char* where) {
  std::set<SequenceId> ids;
  std::uint64_t cells = 0;
  for (const EncoderItem& item : items) {
    const EncoderForwardSequence* in_forward = forward.find(item.sequence);
    require(in_forward != nullptr, where, "items: got one for sequence ", item.sequence,
            ", which has no row in this step");
    require(ids.insert(item.sequence).second, where, "items: got two for sequence ", item.sequence, ", allowed one");
    require(item.position >= in_forward->begin && item.position < in_forward->end, where, "items: got position ",
            item.position, " for sequence ", item.sequence, ", allowed ", in_forward->begin, " to ",
            in_forward->end - 1, " as its rows have");
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
    for (const EncoderForwardSequence& in_forward : replaced->sequences) going.push_back(&in_forward.claimed);
  }
  const Cell free = state.pool->free_without(going);
  if (needed <= free) return;
  const CacheFullCounts counts{needed, free, 0, state.pool->cells() - free};
  throw Error::cache_full(cat("[", where, "] cells for items: needed ", needed, ", free ", free, ", held ",
                              counts.held_live, " of ", state.pool->cells()),
                          counts);
}

// REQUIRES: the room for the items is there once `before` (may be null) has ended. That ends last, so that it stays
// when memory runs out; first only where its cells are needed.
EncoderForwardPtr begin(CacheState& state, std::unique_ptr<ForwardState> planned, std::span<const EncoderItem> items,
                        std::uint64_t cells, ForwardState* before) KVTRIE_REQUIRES(state.mutex) {
  ForwardState& forward = *planned;
  OpenedHere<CacheState> opened{state, {}};
  opened.ids.reserve(forward.sequences.size());
  EncoderForwardPtr result = std::make_shared<EncoderForward>(std::move(planned));
  for (EncoderForwardSequence& in_forward : forward.sequences) {
    if (state.find(in_forward.id) == nullptr) opened.ids.push_back(in_forward.id);
    in_forward.epoch = state.open(in_forward.id).epoch;
  }
  forward.status = Status::kText;
  if (before != nullptr && cells > state.pool->free_cells()) state.end(*before);
  if (!items.empty()) claim_items(state, forward, items, kWhere);
  if (state.unended() != nullptr) state.end(*before);
  for (const EncoderForwardSequence& in_forward : forward.sequences) state.find(in_forward.id)->forward = &forward;
  if (before != nullptr) state.forget_empty(*before);
  return result;
}

// Everything that completion changes, made before it changes anything.
using Captured = std::vector<EncoderCache::SnapshotPtr>;

Captured captured_by(const CacheState& state, const ForwardState& forward, const EncoderForwardSequence& in_forward)
    KVTRIE_REQUIRES(state.mutex) {
  const EncoderSequence& sequence = *state.find(in_forward.id);
  const bool brings = !in_forward.claimed.empty();
  const CellSpans& cells = brings ? in_forward.claimed.spans() : sequence.cells.spans();
  const std::int32_t position = brings ? in_forward.item_position : sequence.position;
  return state.capture(sequence, cells, position, std::max(sequence.length, in_forward.end), forward.owner.lock());
}

void advance(CacheState& state, EncoderForwardSequence& in_forward, Captured& captured) noexcept
    KVTRIE_REQUIRES(state.mutex) {
  EncoderSequence& sequence = *state.find(in_forward.id);
  sequence.length = std::max(sequence.length, in_forward.end);
  sequence.forward = nullptr;
  if (!in_forward.claimed.empty()) {
    sequence.cells = std::move(in_forward.claimed);
    sequence.position = in_forward.item_position;
    in_forward.epoch = sequence.epoch = ++state.stamp;
  }
  sequence.schedule.fire(captured);
}

}  // namespace

void claim_items(CacheState& state, ForwardState& forward, std::span<const EncoderItem> items, const char* where) {
  const std::uint64_t cells = check_items(forward, items, where);
  require_room(state, cells, nullptr, where);
  std::vector<SpanList> claims;
  std::vector<std::size_t> bringing;
  for (const EncoderItem& item : items) {
    Reservation none;
    claims.push_back(state.pool->claim(item.cells, 0, 0, none, 0));
    bringing.push_back(static_cast<std::size_t>(forward.find(item.sequence) - forward.sequences.data()));
  }
  forward.bringing = std::move(bringing);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EncoderForwardSequence& in_forward = forward.sequences[forward.bringing[i]];
    in_forward.claimed = std::move(claims[i]);
    in_forward.item_position = items[i].position;
  }
  forward.item_rows = static_cast<std::uint32_t>(cells);
  forward.brings = true;
  forward.status = Status::kOpen;
  forward.step.reset();
}

// ---- state --------------------------------------------------------------------------------------------------------

const EncoderForwardSequence* EncoderForward::State::find(SequenceId id) const noexcept {
  const auto found = std::find_if(sequences.begin(), sequences.end(),
                                  [id](const EncoderForwardSequence& each) { return each.id == id; });
  return found == sequences.end() ? nullptr : &*found;
}

ForwardState* CacheState::unended() const noexcept {
  ForwardState* forward = current ? current->state_.get() : nullptr;
  const bool ended = forward == nullptr || forward->status == Status::kComplete || forward->status == Status::kDropped;
  return ended ? nullptr : forward;
}

void CacheState::make_idle(EncoderSequence& sequence, const char*) {
  ForwardState* forward = sequence.forward;
  if (forward == nullptr) return;
  end(*forward);
  forget_empty(*forward, &sequence);
}

void CacheState::end_rows(const EncoderSequence& sequence) {
  if (sequence.forward != nullptr && !sequence.forward->brings) end(*sequence.forward);
}

void CacheState::end(ForwardState& forward) {
  if (forward.status == Status::kText) return complete(forward);
  drop(forward);
}

void CacheState::forget_empty(const ForwardState& forward, const EncoderSequence* kept) noexcept {
  for (const EncoderForwardSequence& in_forward : forward.sequences) {
    if (find(in_forward.id) != kept) forget_if_empty(in_forward.id);
  }
}

void CacheState::complete(ForwardState& forward) {
  std::vector<Captured> captured;
  for (const EncoderForwardSequence& in_forward : forward.sequences)
    captured.push_back(captured_by(*this, forward, in_forward));
  for (std::size_t i = 0; i < forward.sequences.size(); ++i) advance(*this, forward.sequences[i], captured[i]);
  forward.status = Status::kComplete;
}

void CacheState::drop(ForwardState& forward) noexcept {
  if (forward.status != Status::kText && forward.status != Status::kOpen) return;
  forward.status = Status::kDropped;
  for (EncoderForwardSequence& in_forward : forward.sequences) {
    find(in_forward.id)->forward = nullptr;
    in_forward.claimed.clear();
  }
  forward.step.reset();
}

// ---- the forward --------------------------------------------------------------------------------------------------

EncoderForward::EncoderForward(std::unique_ptr<State> state) : state_(std::move(state)) {}

EncoderForward::~EncoderForward() = default;

std::uint32_t EncoderForward::rows() const noexcept { return state_->rows; }

bool EncoderForward::brings_items() const noexcept { return state_->brings; }

bool EncoderForward::may_bring_item() const noexcept {
  return state_->status == Status::kText && state_->sequences.size() == 1;
}

bool EncoderForward::complete() const noexcept {
  const Status status = state_->status;
  return status == Status::kText || status == Status::kComplete;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

EncoderForwardPtr EncoderCache::start_forward(std::span<const std::int32_t> positions,
                                              std::span<const SequenceId> sequences, bool reserve,
                                              std::span<const EncoderItem> items) {
  require_rows(positions, sequences, kWhere);
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
