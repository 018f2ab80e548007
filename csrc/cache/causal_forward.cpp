// Forwards: claims, puts, attention, completion.
#include <algorithm>
#include <limits>

#include "cache/causal_cache_state.h"

namespace kvtrie {
namespace {

using Status = Forward::State::Status;

constexpr std::int32_t kMaxLength = std::numeric_limits<std::int32_t>::max();

// Consecutive rows of one sequence, as asked for.
struct RowsWanted {
  SequenceId id = 0;
  std::uint32_t count = 0;
};

void add_block(Forward::State& forward, const RowsWanted& rows, std::map<SequenceId, std::size_t>& part_of,
               std::int32_t length) {
  const auto [entry, fresh] = part_of.emplace(rows.id, forward.parts.size());
  if (fresh) {
    forward.parts.emplace_back();
    forward.parts.back().id = rows.id;
    forward.parts.back().begin = length;
  }
  ForwardPart& part = forward.parts[entry->second];
  require(rows.count >= 1, "causal_cache.forward", "rows of sequence ", rows.id, ": got 0, allowed 1 or more");
  require(rows.count <= static_cast<std::uint32_t>(kMaxLength - part.end()), "causal_cache.forward",
          "rows of sequence ", rows.id, ": got ", rows.count, " after ", part.end(), ", allowed up to position ",
          kMaxLength);
  forward.blocks.push_back({forward.rows, rows.count, entry->second, part.end()});
  part.count += rows.count;
  forward.rows += rows.count;
}

std::vector<RowRun> runs_of(const Forward::State& forward) {
  std::vector<RowRun> runs;
  for (const ForwardBlock& block : forward.blocks) {
    const ForwardPart& part = forward.parts[block.part];
    const auto end = block.position + static_cast<std::int32_t>(block.count);
    for (const CellSpan& span : slice_spans(part.claimed.spans(), block.position, end)) {
      runs.push_back({block.row + static_cast<std::uint32_t>(span.position - block.position), span.cell, span.length});
    }
  }
  return runs;
}

[[noreturn]] void fail_full(const CellPool& pool, std::uint64_t needed, std::uint64_t free) {
  const CacheFullCounts counts{needed, free, 0, pool.held_cells()};
  throw Error::cache_full(cat("[causal_cache.forward] cells: needed ", needed, ", free ", free, ", held ",
                              counts.held_live, " of ", pool.cells()),
                          counts);
}

}  // namespace

CellSpans history_of(const CausalCache::State& state, const ForwardPart& part) {
  const Sequence& sequence = state.known(part.id, "causal_cache.forward");
  if (part.claimed.empty()) return slice_spans(sequence.history(), 0, part.end());
  CellSpans spans = sequence.history();
  for (const CellSpan& span : part.claimed.spans()) append_span(spans, span);
  return spans;
}

namespace {

// The plan of all blocks. A block that is not the last of its sequence sees the keys up to its own end only.
PreparedStepPtr prepare(CausalCache::State& state, const Forward::State& forward, std::span<const RowRun> runs) {
  std::vector<CellSpans> histories;
  for (const ForwardPart& part : forward.parts) histories.push_back(history_of(state, part));
  std::vector<CellSpans> shorter;
  shorter.reserve(forward.blocks.size());
  std::vector<ops::QueryRows> queries;
  for (const ForwardBlock& block : forward.blocks) {
    const std::int32_t end = block.position + static_cast<std::int32_t>(block.count);
    const CellSpans* keys = &histories[block.part];
    if (end < forward.parts[block.part].end()) keys = &shorter.emplace_back(slice_spans(*keys, 0, end));
    queries.push_back({block.row, block.count, block.position, *keys});
  }
  return state.store->prepare(runs, queries, forward.rows);
}

// Sequences that do not exist yet come into being with the forward, or not at all.
struct OpenedHere {
  CausalCache::State& state;
  std::vector<SequenceId> ids;
  ~OpenedHere() {
    for (const SequenceId id : ids) state.forget_if_empty(id);
  }
};

ForwardPtr begin(const std::shared_ptr<CausalCache::State>& owner, std::span<const RowsWanted> wanted) {
  CausalCache::State& state = *owner;
  auto fresh = std::make_unique<Forward::State>();
  Forward::State& forward = *fresh;
  forward.status = Status::kDropped;  // until everything is in place
  forward.owner = owner;
  forward.put.assign(state.layer_index.size(), false);
  std::map<SequenceId, std::size_t> part_of;
  for (const RowsWanted& rows : wanted) {
    const Sequence* sequence = state.find(rows.id);
    if (sequence != nullptr) state.require_idle(*sequence, "causal_cache.forward");
    add_block(forward, rows, part_of, sequence == nullptr ? 0 : sequence->length());
  }
  if (forward.rows > state.pool->free_cells()) fail_full(*state.pool, forward.rows, state.pool->free_cells());
  OpenedHere opened{state, {}};
  opened.ids.reserve(forward.parts.size());
  for (ForwardPart& part : forward.parts) {
    if (state.find(part.id) == nullptr) opened.ids.push_back(part.id);
    Sequence& sequence = state.open(part.id);
    part.claimed = state.pool->claim(part.count, part.begin, sequence.after(), sequence.reservation, state.growth);
    part.epoch = sequence.epoch;
    part.layout = sequence.layout;
  }
  state.open_forwards.reserve(state.open_forwards.size() + 1);
  ForwardPtr result = std::make_shared<Forward>(std::move(fresh));
  for (const ForwardPart& part : forward.parts) state.find(part.id)->forward = &forward;
  state.open_forwards.push_back(&forward);
  forward.status = Status::kOpen;
  return result;
}

void check_rows(const CausalCache::State& state, const Forward::State& forward, const Tensor& tensor, const char* name,
                std::uint32_t dim) {
  if (!state.store->has_bytes()) return;
  const Shape expected{forward.rows, state.store->shape().kv_heads, dim};
  require(tensor.defined() && tensor.shape() == expected, "causal_cache.put", name, ": got shape ",
          tensor.defined() ? to_string(tensor.shape()) : "of nothing", ", allowed ", to_string(expected));
  const DType dtype = tensor.dtype();
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    fail(ErrorKind::kType, "causal_cache.put", name, ": got dtype ", name_of(dtype),
         ", allowed float32, float16 or bfloat16");
  }
  state.store->check_place(tensor, name);
}

void check_attention(const CausalCache::State& state, const Forward::State& forward, const Tensor& q,
                     const ops::AttentionOptions& options) {
  if (!state.store->has_bytes()) return;
  const KvShape& shape = state.store->shape();
  const char* where = "causal_cache.attend";
  require(q.defined() && q.rank() == 3, where, "q: got ", q.defined() ? to_string(q.shape()) : "nothing",
          ", allowed [rows, heads, dim]");
  require(q.dim(0) == forward.rows && q.dim(2) == shape.k_dim && q.dim(1) > 0 && q.dim(1) % shape.kv_heads == 0, where,
          "q: got shape ", to_string(q.shape()), ", allowed [", forward.rows, ", a multiple of ", shape.kv_heads, ", ",
          shape.k_dim, "]");
  if (q.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "q: got dtype ", name_of(q.dtype()), ", allowed float32");
  }
  state.store->check_place(q, "q");
  if (!options.sinks.defined()) return;
  if (options.sinks.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "sinks: got dtype ", name_of(options.sinks.dtype()), ", allowed float32");
  }
  require(options.sinks.shape() == Shape{q.dim(1)}, where, "sinks: got shape ", to_string(options.sinks.shape()),
          ", allowed [", q.dim(1), "]");
  state.store->check_place(options.sinks, "sinks");
}

void require_of(const std::shared_ptr<CausalCache::State>& state, const Forward::State& forward, const char* where) {
  require(forward.owner.lock() == state, where, "forward: got one of another cache");
  if (forward.status == Status::kDropped) fail(ErrorKind::kClosed, where, "the forward was dropped");
}

}  // namespace

// What attend and get ask first: the layer was put, and the histories are still those the forward saw. A complete
// forward plans again when the same contents have moved to other cells.
std::uint32_t require_readable(const std::shared_ptr<CausalCache::State>& state, Forward::State& forward,
                               std::int32_t layer, const char* where) {
  require_of(state, forward, where);
  state->require_sound(where);
  const std::uint32_t index = state->index_of(layer, where);
  require(forward.put[index], where, "layer: got ", layer, ", which was not put in this forward");
  bool moved = false;
  for (const ForwardPart& part : forward.parts) {
    const Sequence* sequence = state->find(part.id);
    if (sequence == nullptr || sequence->epoch != part.epoch) {
      fail(ErrorKind::kClosed, where, "sequence ", part.id, " was cut or closed since this forward");
    }
    moved = moved || sequence->layout != part.layout;
  }
  if (moved) {
    forward.step = prepare(*state, forward, {});
    for (ForwardPart& part : forward.parts) part.layout = state->find(part.id)->layout;
  }
  return index;
}

// ---- state --------------------------------------------------------------------------------------------------------

void CausalCache::State::drop(Forward::State& forward) noexcept {
  if (forward.status != Status::kOpen) return;
  forward.status = Status::kDropped;
  std::erase(open_forwards, &forward);
  for (ForwardPart& part : forward.parts) {
    find(part.id)->forward = nullptr;
    part.claimed.clear();
  }
  forward.step.reset();
}

void CausalCache::State::discard(Forward::State& forward) noexcept {
  drop(forward);
  for (const ForwardPart& part : forward.parts) forget_if_empty(part.id);
}

std::vector<SpanList> CausalCache::State::capture(const Sequence& sequence, const SpanList& claimed) const {
  const CaptureSchedule& schedule = sequence.schedule;
  std::vector<SpanList> captured;
  if (schedule.fired == schedule.offsets.size()) return captured;
  CellSpans history = sequence.history();
  for (const CellSpan& span : claimed.spans()) append_span(history, span);
  const std::int32_t length = history.empty() ? 0 : history.back().end_position();
  std::int32_t cursor = schedule.cursor;
  for (std::size_t i = schedule.fired; i < schedule.offsets.size() && schedule.offsets[i] <= length; ++i) {
    captured.emplace_back(*pool, true);
    captured.back().append(slice_spans(history, cursor, schedule.offsets[i]));
    cursor = schedule.offsets[i];
  }
  return captured;
}

void CausalCache::State::complete(Forward::State& forward) {
  std::vector<std::vector<SnapshotPtr>> captures;
  for (ForwardPart& part : forward.parts) {
    Sequence& sequence = *find(part.id);
    std::vector<SnapshotPtr>& made = captures.emplace_back();
    for (SpanList& cells : capture(sequence, part.claimed)) {
      made.push_back(make_snapshot(std::move(cells), sequence.is_private, forward.owner));
    }
    sequence.own.make_room(part.claimed.spans().size());
  }
  for (std::size_t i = 0; i < forward.parts.size(); ++i) {
    Sequence& sequence = *find(forward.parts[i].id);
    sequence.own.append(std::move(forward.parts[i].claimed));
    sequence.forward = nullptr;
    CaptureSchedule& schedule = sequence.schedule;
    for (SnapshotPtr& snapshot : captures[i]) {
      schedule.cursor = schedule.offsets[schedule.fired];
      schedule.captured[schedule.fired++] = std::move(snapshot);
    }
  }
  std::erase(open_forwards, &forward);
  forward.status = Status::kComplete;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

Forward::Forward(std::unique_ptr<State> state) : state_(std::move(state)) {}

Forward::~Forward() {
  if (state_->status != Status::kOpen) return;
  if (const auto owner = state_->owner.lock()) {
    const std::lock_guard lock(owner->mutex);
    owner->discard(*state_);
  }
}

std::uint32_t Forward::rows() const noexcept { return state_->rows; }

bool Forward::complete() const noexcept { return state_->status == State::Status::kComplete; }

ForwardPtr CausalCache::begin_forward(std::span<const ForwardRows> rows) {
  require(!rows.empty(), "causal_cache.forward", "rows: got none, allowed 1 or more");
  const std::lock_guard lock(state_->mutex);
  state_->require_sound("causal_cache.forward");
  std::vector<RowsWanted> wanted;
  for (const ForwardRows& each : rows) {
    state_->known(each.sequence, "causal_cache.forward");
    for (const RowsWanted& other : wanted) {
      require(other.id != each.sequence, "causal_cache.forward", "sequence: got ", each.sequence,
              " twice, allowed once");
    }
    wanted.push_back({each.sequence, each.count});
  }
  return begin(state_, wanted);
}

ForwardPtr CausalCache::start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                                      bool reserve) {
  const char* where = "causal_cache.start_forward";
  require(!positions.empty(), where, "positions: got none, allowed 1 or more");
  require(positions.size() == sequences.size(), where, "sequences: got ", sequences.size(), ", allowed ",
          positions.size(), " as positions has");
  const std::lock_guard lock(state_->mutex);
  state_->require_sound(where);
  Forward::State* replaced = state_->current ? state_->current->state_.get() : nullptr;
  if (replaced != nullptr && replaced->status != Status::kOpen) replaced = nullptr;
  std::vector<RowsWanted> wanted;
  std::map<SequenceId, std::int32_t> next;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const SequenceId id = sequences[row];
    require(id >= 0 && id < kFirstOpenedSequence, where, "sequences: got ", id, " in row ", row, ", allowed 0 to ",
            kFirstOpenedSequence - 1);
    const Sequence* sequence = state_->find(id);
    if (sequence != nullptr && sequence->forward != replaced) state_->require_idle(*sequence, where);
    std::int32_t& expected = next.try_emplace(id, sequence == nullptr ? 0 : sequence->length()).first->second;
    require(positions[row] == expected, where, "positions: got ", positions[row], " in row ", row, ", allowed ",
            expected, " to continue sequence ", id);
    ++expected;
    if (wanted.empty() || wanted.back().id != id) wanted.push_back({id, 0});
    ++wanted.back().count;
  }
  std::uint64_t free = state_->pool->free_cells();
  if (replaced != nullptr) free += replaced->rows;
  if (positions.size() > free) fail_full(*state_->pool, positions.size(), free);
  if (reserve) return nullptr;
  if (replaced != nullptr) state_->discard(*replaced);
  state_->current.reset();  // dropped or complete, so its end needs no lock
  state_->current = begin(state_, wanted);
  return state_->current;
}

ForwardPtr CausalCache::current_forward() const {
  const std::lock_guard lock(state_->mutex);
  require(state_->current != nullptr, "causal_cache", "no forward was started");
  return state_->current;
}

void CausalCache::put(Forward& forward, std::int32_t layer, const Tensor& k, const Tensor& v) {
  const char* where = "causal_cache.put";
  const std::lock_guard lock(state_->mutex);
  Forward::State& open = *forward.state_;
  require_of(state_, open, where);
  state_->require_sound(where);
  const std::uint32_t index = state_->index_of(layer, where);
  require(!open.put[index], where, "layer: got ", layer, ", which was put in this forward already");
  check_rows(*state_, open, k, "k", shape().k_dim);
  check_rows(*state_, open, v, "v", shape().v_dim);
  if (open.step == nullptr) open.step = prepare(*state_, open, runs_of(open));  // here, so that a claim is flat in time
  state_->store->put(index, *open.step, k, v);
  if (open.puts + 1 == open.put.size()) state_->complete(open);
  open.put[index] = true;
  ++open.puts;
}

void CausalCache::check_query(const Forward& forward, const Tensor& q, const ops::AttentionOptions& options) const {
  check_attention(*state_, *forward.state_, q, options);
}

Tensor CausalCache::attend(Forward& forward, std::int32_t layer, const Tensor& q,
                           const ops::AttentionOptions& options) {
  const std::lock_guard lock(state_->mutex);
  const std::uint32_t index = require_readable(state_, *forward.state_, layer, "causal_cache.attend");
  check_attention(*state_, *forward.state_, q, options);
  return state_->store->attend(index, *forward.state_->step, q, options);
}

void CausalCache::drop(Forward& forward) noexcept {
  const std::lock_guard lock(state_->mutex);
  if (forward.state_->owner.lock() == state_) state_->discard(*forward.state_);
}

}  // namespace kvtrie
