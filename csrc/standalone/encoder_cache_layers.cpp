// Forwards: puts, attention, histories.
#include <algorithm>
#include <limits>

#include "cache/kv_arguments.h"
#include "standalone/encoder_cache_state.h"

namespace kvtrie {
namespace {

using ForwardState = EncoderForward::State;
using Status = ForwardState::Status;
using CacheState = EncoderCache::State;

// The cells of the item that a sequence's rows see, in a forward that is not dropped; empty without one.
const CellSpans& seen_by(const CacheState& state, const EncoderForwardSequence& in_forward)
    KVTRIE_REQUIRES(state.mutex) {
  return in_forward.claimed.empty() ? state.find(in_forward.id)->cells.spans() : in_forward.claimed.spans();
}

std::uint32_t count_of(const CellSpans& cells) {
  return cells.empty() ? 0 : static_cast<std::uint32_t>(cells.back().end_position());
}

std::vector<RowRun> runs_of(const ForwardState& forward) {
  std::vector<RowRun> runs;
  std::uint32_t row = 0;
  for (const std::size_t index : forward.bringing) {
    for (const CellSpan& span : forward.sequences[index].claimed.spans()) {
      runs.push_back({row, span.cell, span.length});
      row += span.length;
    }
  }
  return runs;
}

// Every row sees all of its sequence's item, so all bounds of a block are alike.
PreparedStepPtr prepare(CacheState& state, const ForwardState& forward) KVTRIE_REQUIRES(state.mutex) {
  std::vector<std::vector<ops::RowBounds>> bounds;
  bounds.reserve(forward.blocks.size());
  std::vector<ops::QueryRows> queries;
  for (const EncoderBlock& block : forward.blocks) {
    const CellSpans& cells = seen_by(state, forward.sequences[block.sequence]);
    bounds.emplace_back(block.count, ops::RowBounds{0, static_cast<std::int32_t>(count_of(cells))});
    queries.push_back({block.row, block.count, block.position, cells, bounds.back()});
  }
  return state.store->prepare(runs_of(forward), queries, forward.rows);
}

void require_of(const std::shared_ptr<CacheState>& state, const ForwardState& forward, const char* where) {
  require(forward.owner.lock() == state, where, "forward: got one of another cache");
  if (forward.status == Status::kDropped) fail(ErrorKind::kClosed, where, "the forward was dropped");
}

// The layer's index. Its items are put, the others are those that the forward saw; planned again when cells moved.
std::uint32_t require_readable(const std::shared_ptr<CacheState>& state, ForwardState& forward, std::int32_t layer,
                               const char* where) KVTRIE_REQUIRES(state->mutex) {
  require_of(state, forward, where);
  state->require_sound(where);
  const std::uint32_t index = state->index_of(layer, where);
  require(!forward.brings || forward.put[index], where, "layer: got ", layer, ", which was not put in this forward");
  for (const EncoderForwardSequence& in_forward : forward.sequences) {
    const EncoderSequence* sequence = state->find(in_forward.id);
    if (sequence != nullptr && sequence->epoch == in_forward.epoch) continue;
    fail(ErrorKind::kClosed, where, "the item of sequence ", in_forward.id, " changed since this forward");
  }
  if (forward.step == nullptr || forward.layout != state->layout) {
    forward.step = prepare(*state, forward);
    forward.layout = state->layout;
  }
  return index;
}

// The item that the first put of a forward without items makes.
EncoderItem item_of(const ForwardState& forward, const Tensor& k, const char* where) {
  require(forward.sequences.size() == 1, where, "items: got none for a step of ", forward.sequences.size(),
          " sequences, allowed without only for one: say in start_forward which cells are whose");
  require(k.defined() && k.rank() == 3 && k.dim(0) >= 1 && k.dim(0) <= std::numeric_limits<std::int32_t>::max(), where,
          "k: got ", k.defined() ? to_string(k.shape()) : "nothing", ", allowed [1 or more cells, kv_heads, dim]");
  const EncoderForwardSequence& in_forward = forward.sequences.front();
  return {in_forward.id, in_forward.begin, static_cast<std::uint32_t>(k.dim(0))};
}

// Makes a forward of text again of one whose first put failed.
class FirstPut {
 public:
  explicit FirstPut(ForwardState& forward) noexcept : forward_(&forward) {}
  ~FirstPut() {
    if (forward_ == nullptr) return;
    for (EncoderForwardSequence& in_forward : forward_->sequences) in_forward.claimed.clear();
    forward_->bringing.clear();
    forward_->item_rows = 0;
    forward_->brings = false;
    forward_->status = Status::kText;
    forward_->step.reset();
  }
  FirstPut(const FirstPut&) = delete;
  FirstPut& operator=(const FirstPut&) = delete;
  void keep() noexcept { forward_ = nullptr; }

 private:
  ForwardState* forward_;
};

void store_layer(CacheState& state, ForwardState& forward, std::uint32_t index, const Tensor& k, const Tensor& v)
    KVTRIE_REQUIRES(state.mutex) {
  if (forward.step == nullptr) {
    forward.step = prepare(state, forward);
    forward.layout = state.layout;
  }
  state.store->put(index, *forward.step, k, v, RowOrder::kTokensFirst);
  if (forward.puts + 1 == forward.put.size()) state.complete(forward);
  forward.put[index] = true;
  ++forward.puts;
}

// The items of all sequences, each once, and the column where each sequence's begins.
struct Columns {
  CellSpans spans;
  std::vector<std::uint32_t> begin;
  std::uint32_t count = 0;
};

Columns columns_of(const CacheState& state, const ForwardState& forward) KVTRIE_REQUIRES(state.mutex) {
  Columns columns;
  std::map<Cell, std::uint32_t> placed;  // first cell of an item -> column; items share all cells or none
  for (const EncoderForwardSequence& in_forward : forward.sequences) {
    const CellSpans& cells = seen_by(state, in_forward);
    const auto [entry, fresh] = placed.emplace(cells.empty() ? UINT32_MAX : cells.front().cell, columns.count);
    columns.begin.push_back(entry->second);
    if (!fresh) continue;
    columns.spans.insert(columns.spans.end(), cells.begin(), cells.end());
    columns.count += count_of(cells);
  }
  return columns;
}

Tensor mask_of(const CacheState& state, const ForwardState& forward, const Columns& columns)
    KVTRIE_REQUIRES(state.mutex) {
  Tensor mask = Tensor::host(DType::kFloat32, {forward.rows, columns.count});
  const auto values = mask.host_span<float>();
  std::fill(values.begin(), values.end(), -std::numeric_limits<float>::infinity());
  for (const EncoderBlock& block : forward.blocks) {
    const std::uint32_t count = count_of(seen_by(state, forward.sequences[block.sequence]));
    for (std::uint32_t row = block.row; row < block.row + block.count; ++row) {
      const auto first = values.begin() + std::ptrdiff_t{row} * columns.count + columns.begin[block.sequence];
      std::fill(first, first + count, 0.0f);
    }
  }
  return mask;
}

}  // namespace

void EncoderCache::put(EncoderForward& forward, std::int32_t layer, const Tensor& k, const Tensor& v) {
  const char* where = "encoder_cache.put";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  require_of(state_, open, where);
  state_->require_sound(where);
  const std::uint32_t index = state_->index_of(layer, where);
  require(!open.put[index], where, "layer: got ", layer, ", which was put in this forward already");
  if (open.status == Status::kComplete) fail(ErrorKind::kClosed, where, "the forward has ended without an item");
  const bool first = open.status == Status::kText;
  const EncoderItem item = first ? item_of(open, k, where) : EncoderItem{};
  const std::uint32_t rows = first ? item.cells : open.item_rows;
  check_rows(*state_->store, rows, k, /*value=*/false, where);
  check_rows(*state_->store, rows, v, /*value=*/true, where);
  if (!first) return store_layer(*state_, open, index, k, v);
  claim_items(*state_, open, {&item, 1}, where);
  FirstPut undo(open);
  store_layer(*state_, open, index, k, v);
  undo.keep();
}

Tensor EncoderCache::attend(EncoderForward& forward, std::int32_t layer, const Tensor& q,
                            const ops::AttentionOptions& options) {
  const char* where = "encoder_cache.attend";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, where);
  check_query(*state_->store, open.rows, q, options, where);
  return state_->store->attend(index, *open.step, q, options);
}

CausalCache::History EncoderCache::get(EncoderForward& forward, std::int32_t layer) {
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, "encoder_cache.get");
  const Columns columns = columns_of(*state_, open);
  CausalCache::History history;
  std::tie(history.k, history.v) = state_->store->rows(index, columns.spans, RowOrder::kTokensFirst);
  history.mask = mask_of(*state_, open, columns);
  if (history.k.defined() && !history.k.on_host()) {
    const Shape shape = history.mask.shape();
    history.mask = Tensor::from_host(history.k.device(), DType::kFloat32, shape, history.mask.host_data());
  }
  return history;
}

}  // namespace kvtrie
