// Forwards: claims, what rows see, dropping.
#include <algorithm>
#include <limits>
#include <utility>

#include "cache/causal_cache_state.h"

namespace kvtrie {
namespace {

using Status = Forward::State::Status;

constexpr const char* kWhere = "causal_cache.forward";
constexpr std::int32_t kMaxLength = std::numeric_limits<std::int32_t>::max();

void add_block(const CausalCache::State& state, Forward::State& forward, const ForwardRows& rows,
               std::map<SequenceId, std::size_t>& index_of) KVTRIE_REQUIRES(state.mutex) {
  const auto [entry, fresh] = index_of.emplace(rows.sequence, forward.sequences.size());
  if (fresh) {
    const Sequence* sequence = state.find(rows.sequence);
    ForwardSequence& in_forward = forward.sequences.emplace_back();
    in_forward.id = rows.sequence;
    in_forward.length = sequence == nullptr ? 0 : sequence->length;
    require(rows.from >= -1 && rows.from <= in_forward.length, kWhere, "from of sequence ", rows.sequence, ": got ",
            rows.from, ", allowed 0 to ", in_forward.length, ", or -1 for its length");
    in_forward.begin = rows.from < 0 ? in_forward.length : rows.from;
    in_forward.sees_from = state.options.visibility.floor(in_forward.begin);
    if (sequence != nullptr && sequence->held_from() > in_forward.sees_from) {
      state.fail_incomplete(*sequence, in_forward.begin, kWhere);
    }
  }
  ForwardSequence& in_forward = forward.sequences[entry->second];
  require(rows.count >= 1, kWhere, "rows of sequence ", rows.sequence, ": got 0, allowed 1 or more");
  require(rows.count <= static_cast<std::uint32_t>(kMaxLength - in_forward.end()), kWhere, "rows of sequence ",
          rows.sequence, ": got ", rows.count, " after ", in_forward.end(), ", allowed up to position ", kMaxLength);
  forward.blocks.push_back({forward.rows, rows.count, entry->second, in_forward.end()});
  in_forward.count += rows.count;
  forward.rows += rows.count;
}

std::vector<RowRun> runs_of(const Forward::State& forward) {
  std::vector<RowRun> runs;
  for (const ForwardBlock& block : forward.blocks) {
    const ForwardSequence& in_forward = forward.sequences[block.sequence];
    const auto end = block.position + static_cast<std::int32_t>(block.count);
    for (const CellSpan& span : slice_spans(in_forward.claimed.spans(), block.position, end)) {
      runs.push_back({block.row + static_cast<std::uint32_t>(span.position - block.position), span.cell, span.length});
    }
  }
  return runs;
}

void append_spans(CellSpans& spans, const CellSpans& more) {
  for (const CellSpan& span : more) append_span(spans, span);
}

}  // namespace

CellSpans history_of(const CausalCache::State& state, const ForwardSequence& in_forward) {
  const Sequence& sequence = state.known(in_forward.id, kWhere);
  CellSpans spans;
  if (in_forward.passed) {
    const std::int32_t passed_end = std::min(sequence.held_from(), in_forward.end());
    spans = slice_spans(in_forward.passed->spans(), in_forward.sees_from, passed_end);
  }
  append_spans(spans, slice_spans(sequence.history(), in_forward.sees_from, in_forward.end()));
  append_spans(spans, in_forward.claimed.spans());
  return spans;
}

ops::RowBounds bounds_of(const CausalCache::State& state, const Forward::State& forward, const ForwardBlock& block,
                         std::uint32_t index) {
  const std::int32_t position = block.position + static_cast<std::int32_t>(index);
  const std::int32_t end = forward.causal(block.row + index) ? position + 1 : forward.sequences[block.sequence].end();
  return {state.options.visibility.floor(position), end};
}

// The plan of all blocks, each with the keys that its rows see.
PreparedStepPtr prepare(CausalCache::State& state, const Forward::State& forward) {
  std::vector<CellSpans> histories;
  for (const ForwardSequence& in_forward : forward.sequences) histories.push_back(history_of(state, in_forward));
  const bool all_causal = !state.is_windowed() && forward.not_causal.empty();
  std::vector<CellSpans> keys;
  std::vector<std::vector<ops::RowBounds>> bounds(forward.blocks.size());
  keys.reserve(forward.blocks.size());
  std::vector<ops::QueryRows> queries;
  for (std::size_t i = 0; i < forward.blocks.size(); ++i) {
    const ForwardBlock& block = forward.blocks[i];
    std::int32_t end = block.position + static_cast<std::int32_t>(block.count);
    for (std::uint32_t row = 0; row < block.count && !all_causal; ++row) {
      bounds[i].push_back(bounds_of(state, forward, block, row));
      end = std::max(end, bounds[i].back().end);
    }
    const std::int32_t begin = all_causal ? 0 : bounds[i].front().first;
    keys.push_back(slice_spans(histories[block.sequence], begin, end));
    queries.push_back({block.row, block.count, block.position, keys.back(), bounds[i]});
  }
  return state.store->prepare(runs_of(forward), queries, forward.rows);
}

void require_of(const std::shared_ptr<CausalCache::State>& state, const Forward::State& forward, const char* where) {
  require(forward.owner.lock() == state, where, "forward: got one of another cache");
  if (forward.status == Status::kDropped) fail(ErrorKind::kClosed, where, "the forward was dropped");
}

namespace {

// A forward that is not registered yet. Throws what is wrong with the rows.
std::unique_ptr<Forward::State> lay_out(const std::shared_ptr<CausalCache::State>& owner,
                                        std::span<const ForwardRows> wanted) KVTRIE_REQUIRES(owner->mutex) {
  auto forward = std::make_unique<Forward::State>();
  forward->status = Status::kDropped;  // until everything is in place
  forward->owner = owner;
  forward->put.assign(owner->layer_index.size(), false);
  std::map<SequenceId, std::size_t> index_of;
  for (const ForwardRows& rows : wanted) add_block(*owner, *forward, rows, index_of);
  return forward;
}

using PassedLists = std::vector<std::shared_ptr<SpanList>>;

// Cells that complete forwards hold and let go of when this one begins: those that its sequences have passed, and all
// of `before`.
PassedLists ending_with(const CausalCache::State& state, const Forward::State& forward, const Forward::State* before)
    KVTRIE_REQUIRES(state.mutex) {
  PassedLists lists;
  for (const ForwardSequence& in_forward : forward.sequences) {
    const Sequence* sequence = state.find(in_forward.id);
    if (sequence != nullptr) lists.push_back(sequence->passed.lock());
  }
  for (std::size_t i = 0; before != nullptr && i < before->sequences.size(); ++i)
    lists.push_back(before->sequences[i].passed);
  std::erase_if(lists, [](const auto& list) { return list == nullptr || list->empty(); });
  std::sort(lists.begin(), lists.end());
  lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
  return lists;
}

// Throws kCacheFull when the rows do not fit once `ending` and the claims of `replaced` are gone.
void require_room(const CausalCache::State& state, const Forward::State& forward, const PassedLists& ending,
                  const Forward::State* replaced) {
  std::vector<const SpanList*> going;
  for (const auto& list : ending) going.push_back(list.get());
  for (std::size_t i = 0; replaced != nullptr && i < replaced->sequences.size(); ++i) {
    if (!replaced->sequences[i].claimed.empty()) going.push_back(&replaced->sequences[i].claimed);
  }
  const std::uint64_t needed = forward.fresh();
  const Cell free = going.empty() ? state.pool->free_cells() : state.pool->free_without(going);
  if (needed <= free) return;
  const CacheFullCounts counts{needed, free, 0, state.pool->held_cells()};
  throw Error::cache_full(cat("[", kWhere, "] cells: needed ", needed, ", free ", free, ", held ", counts.held_live,
                              " of ", state.pool->limit()),
                          counts);
}

// REQUIRES: require_room. `ending` goes last, so that it stays when memory runs out; first only where it must.
ForwardPtr open_forward(CausalCache::State& state, std::unique_ptr<Forward::State> fresh, const PassedLists& ending)
    KVTRIE_REQUIRES(state.mutex) {
  Forward::State& forward = *fresh;
  OpenedHere<CausalCache::State> opened{state, {}};
  opened.ids.reserve(forward.sequences.size());
  state.open_forwards.reserve(state.open_forwards.size() + 1);
  ForwardPtr result = std::make_shared<Forward>(std::move(fresh));
  const auto let_go = [&] {
    for (const auto& list : ending) list->clear();
  };
  if (forward.fresh() > state.pool->free_cells()) let_go();
  for (ForwardSequence& in_forward : forward.sequences) {
    if (state.find(in_forward.id) == nullptr) opened.ids.push_back(in_forward.id);
    Sequence& sequence = state.open(in_forward.id);
    in_forward.claimed = state.pool->claim(in_forward.fresh(), in_forward.length, sequence.after(),
                                           sequence.reservation, state.growth, sequence.owner);
    state.take_over(in_forward.claimed, sequence);
    in_forward.epoch = sequence.epoch;
    in_forward.layout = sequence.layout;
  }
  let_go();
  for (const ForwardSequence& in_forward : forward.sequences) state.find(in_forward.id)->forward = &forward;
  state.open_forwards.push_back(&forward);
  forward.status = Status::kOpen;
  return result;
}

// The rows of start_forward, in runs of one sequence. Each must continue its sequence.
std::vector<ForwardRows> in_runs(const CausalCache::State& state, std::span<const std::int32_t> positions,
                                 std::span<const SequenceId> sequences, const Forward::State* replaced,
                                 const char* where) KVTRIE_REQUIRES(state.mutex) {
  std::vector<ForwardRows> wanted;
  std::map<SequenceId, std::int32_t> next;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const SequenceId id = sequences[row];
    require(id >= 0 && id < kFirstOpenedSequence, where, "sequences: got ", id, " in row ", row, ", allowed 0 to ",
            kFirstOpenedSequence - 1);
    const Sequence* sequence = state.find(id);
    if (sequence != nullptr && sequence->forward != replaced) state.require_idle(*sequence, where);
    std::int32_t& expected = next.try_emplace(id, sequence == nullptr ? 0 : sequence->length).first->second;
    require(positions[row] == expected, where, "positions: got ", positions[row], " in row ", row, ", allowed ",
            expected, " to continue sequence ", id);
    ++expected;
    if (wanted.empty() || wanted.back().sequence != id) wanted.push_back({id, 0});
    ++wanted.back().count;
  }
  return wanted;
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

bool Forward::State::causal(std::uint32_t row) const noexcept {
  return !std::binary_search(not_causal.begin(), not_causal.end(), row);
}

std::uint64_t Forward::State::fresh() const noexcept {
  std::uint64_t cells = 0;
  for (const ForwardSequence& in_forward : sequences) cells += in_forward.fresh();
  return cells;
}

void CausalCache::State::clear(Cell begin, std::uint32_t length, Owner owner) {
  for (const auto& [cell, count] : owners.foreign(begin, length, owner)) {
    store->fill(cell, count, 0);
    owners.set(cell, count, kClean);
  }
}

void CausalCache::State::take_over(const SpanList& claimed, const Sequence& sequence) {
  bool cleared = false;
  for (const CellSpan& span : claimed.spans()) {
    if (!owners.foreign(span.cell, span.length, sequence.owner).empty()) {
      clear(span.cell, span.length, sequence.owner);
      cleared = true;
    }
    owners.set(span.cell, span.length, sequence.owner);
  }
  const Reservation& behind = sequence.reservation;
  if (cleared) clear(behind.cell(), behind.length(), sequence.owner);
}

bool CausalCache::State::drop(Forward::State& forward) noexcept {
  if (forward.status != Status::kOpen) return false;
  std::erase(open_forwards, &forward);
  for (ForwardSequence& in_forward : forward.sequences) {
    find(in_forward.id)->forward = nullptr;
    in_forward.claimed.clear();
  }
  forward.step.reset();
  forward.chosen.reset();
  forward.status = Status::kDropped;  // last: its owner may let it end in another thread from now on
  return true;
}

bool CausalCache::State::discard(Forward::State& forward) noexcept {
  if (forward.status == Status::kComplete) return false;
  const bool was_open = drop(forward);
  for (const ForwardSequence& in_forward : forward.sequences) forget_if_empty(in_forward.id);
  return was_open;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

Forward::Forward(std::unique_ptr<State> state) : state_(std::move(state)) {}

// Under the lock, so that a count of cells finds each of them held by somebody who is known, or free.
Forward::~Forward() {
  if (state_->status == Status::kDropped) return;  // it holds nothing; perhaps it never did, and the lock is taken
  const auto owner = state_->owner.lock();
  if (owner == nullptr) return;
  const MutexLock lock(owner->mutex);
  if (state_->status == Status::kOpen) owner->discard(*state_);
  for (const ForwardSequence& in_forward : state_->sequences)
    if (in_forward.passed) in_forward.passed->clear();
}

std::uint32_t Forward::rows() const noexcept { return state_->rows; }

bool Forward::complete() const noexcept { return state_->status == State::Status::kComplete; }

ForwardPtr CausalCache::begin(std::span<const ForwardRows> rows) {
  require(!rows.empty(), kWhere, "rows: got none, allowed 1 or more");
  const MutexLock lock(state_->mutex);
  state_->require_sound(kWhere);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    state_->require_idle(state_->known(rows[i].sequence, kWhere), kWhere);
    for (std::size_t j = 0; j < i; ++j) {
      require(rows[j].sequence != rows[i].sequence, kWhere, "sequence: got ", rows[i].sequence, " twice, allowed once");
    }
  }
  std::unique_ptr<Forward::State> forward = lay_out(state_, rows);
  const PassedLists ending = ending_with(*state_, *forward, nullptr);
  require_room(*state_, *forward, ending, nullptr);
  return open_forward(*state_, std::move(forward), ending);
}

ForwardPtr CausalCache::start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                                      bool reserve) {
  const char* where = "causal_cache.start_forward";
  require_rows(positions, sequences, where);
  ForwardPtr ended;  // its end takes the lock
  const MutexLock lock(state_->mutex);
  state_->require_sound(where);
  Forward::State* before = state_->current ? state_->current->state_.get() : nullptr;
  const Forward::State* replaced = before != nullptr && before->status == Status::kOpen ? before : nullptr;
  std::unique_ptr<Forward::State> forward = lay_out(state_, in_runs(*state_, positions, sequences, replaced, where));
  forward->lets_go_unseen = true;
  const PassedLists ending = ending_with(*state_, *forward, before);
  require_room(*state_, *forward, ending, replaced);
  if (reserve) return nullptr;
  if (before != nullptr) state_->discard(*before);
  ForwardPtr begun = open_forward(*state_, std::move(forward), ending);
  ended = std::exchange(state_->current, begun);
  return begun;
}

ForwardPtr CausalCache::current_forward() const {
  const MutexLock lock(state_->mutex);
  require(state_->current != nullptr, "causal_cache", "no forward was started");
  return state_->current;
}

std::uint32_t CausalCache::units_for(SequenceId id, std::int32_t end, std::span<const std::int32_t>) const {
  return static_cast<std::uint32_t>(std::max(0, end - length(id)));
}

bool CausalCache::drop(LayerForward& forward) noexcept {
  auto* const own = dynamic_cast<Forward*>(&forward);
  const MutexLock lock(state_->mutex);
  return own != nullptr && own->state_->owner.lock() == state_ && state_->discard(*own->state_);
}

}  // namespace kvtrie
