// Histories and masks for models that do their own attention, and rows to look at.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "cache/causal_cache_state.h"

namespace kvtrie {
namespace {

// Columns of the union of several histories, found by cell; cells that several histories name have one column, but for
// those that moved in one of them by another number of positions: their keys differ.
class Columns {
 public:
  // Gives columns to the cells of `span` that have none yet.
  void add(const CellSpan& span) {
    walk(span, [this](const CellSpan& fresh) {
      spans_.push_back(fresh);
      runs_.emplace(Key{fresh.moved, fresh.cell}, Run{fresh.end_cell(), count_});
      count_ += fresh.length;
    });
  }

  // visit(first column, length, position of the first cell) for every run of columns of `span`.
  template <class Visit>
  void visit(const CellSpan& span, Visit visit) const {
    for (Cell cell = span.cell; cell < span.end_cell();) {
      const auto run = std::prev(runs_.upper_bound({span.moved, cell}));
      const Cell end = std::min(run->second.end, span.end_cell());
      visit(run->second.column + (cell - run->first.second), end - cell,
            span.position + static_cast<std::int32_t>(cell - span.cell));
      cell = end;
    }
  }

  const CellSpans& spans() const { return spans_; }
  std::uint64_t count() const { return count_; }

 private:
  using Key = std::pair<std::int32_t, Cell>;  // moved, first cell
  struct Run {
    Cell end;
    std::uint64_t column;
  };

  // fresh(run) for each run of `span` that was not added yet.
  template <class Fresh>
  void walk(const CellSpan& span, Fresh fresh) {
    for (Cell cell = span.cell; cell < span.end_cell();) {
      const auto next = runs_.upper_bound({span.moved, cell});
      const bool follows = next != runs_.begin() && std::prev(next)->first.first == span.moved;
      if (follows && std::prev(next)->second.end > cell) {
        cell = std::prev(next)->second.end;
        continue;
      }
      const bool leads = next != runs_.end() && next->first.first == span.moved;
      const Cell end = leads ? std::min(next->first.second, span.end_cell()) : span.end_cell();
      fresh(CellSpan{cell, end - cell, span.position + static_cast<std::int32_t>(cell - span.cell), span.moved});
      cell = end;
    }
  }

  std::map<Key, Run> runs_;
  CellSpans spans_;  // in column order
  std::uint64_t count_ = 0;
};

// The columns of the positions [position, position + length) in one row of the mask: 0 where the row sees them.
void show(float* columns, std::int32_t position, std::uint32_t length, const ops::RowBounds& bounds) {
  const std::int32_t begin = std::max(position, bounds.first);
  const std::int32_t end = std::min(position + static_cast<std::int32_t>(length), bounds.end);
  if (begin < end) std::fill(columns + (begin - position), columns + (end - position), 0.0f);
}

// mask[row, column] = 0 where the row's own history has the cell at a position that it sees, else -inf.
void write_mask(std::span<float> mask, const CausalCache::State& state, const Forward::State& forward,
                const std::vector<CellSpans>& histories, const Columns& columns) {
  std::fill(mask.begin(), mask.end(), -std::numeric_limits<float>::infinity());
  for (const ForwardBlock& block : forward.blocks) {
    for (std::uint32_t i = 0; i < block.count; ++i) {
      const ops::RowBounds bounds = bounds_of(state, forward, block, i);
      float* row = mask.data() + (block.row + i) * columns.count();
      for (const CellSpan& span : histories[block.sequence]) {
        columns.visit(span, [&](std::uint64_t column, std::uint32_t length, std::int32_t position) {
          show(row + column, position, length, bounds);
        });
      }
    }
  }
}

}  // namespace

CausalCache::History CausalCache::get(Forward& forward, std::int32_t layer, RowOrder order) {
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, "causal_cache.get");
  std::vector<CellSpans> histories;
  Columns columns;
  for (const ForwardSequence& in_forward : open.sequences) {
    histories.push_back(history_of(*state_, in_forward));
    for (const CellSpan& span : histories.back()) columns.add(span);
  }
  History history;
  std::tie(history.k, history.v) = state_->store->rows(index, columns.spans(), order);
  const Shape shape{open.rows, static_cast<std::int64_t>(columns.count())};
  history.mask = Tensor::host(DType::kFloat32, shape);
  write_mask(history.mask.host_span<float>(), *state_, open, histories, columns);
  if (history.k.defined() && !history.k.on_host()) {
    history.mask = Tensor::from_host(history.k.device(), DType::kFloat32, shape, history.mask.host_data());
  }
  open.was_read = true;
  return history;
}

CausalCache::Rows CausalCache::rows(SequenceId id, std::int32_t layer, std::int32_t from, std::int32_t to,
                                    RowLayout layout) const {
  const char* where = "causal_cache.rows";
  const MutexLock lock(state_->mutex);
  state_->require_sound(where);
  const std::uint32_t index = state_->index_of(layer, where);
  const Sequence& sequence = state_->known(id, where);
  const std::int32_t first = sequence.held_from();
  require(from <= to && (from == to || (first <= from && to <= sequence.length)), where, "positions: got ", from,
          " to ", to, ", allowed within ", first, " to ", sequence.length);
  Rows rows;
  std::tie(rows.k, rows.v) = state_->store->rows(index, slice_spans(sequence.history(), from, to), layout);
  return rows;
}

}  // namespace kvtrie
