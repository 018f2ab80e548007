// Private to cache/: the cells that the rows of a forward see, as the columns of one matrix, and who sees which.
//
// Concept. Models that attend by themselves, or to keys that they choose, name keys by number. The histories of a
// forward's sequences, one after the other, give each cell a number where it comes first:
//
//     sequence 0   cells 4 5 6 | 9        columns  0 1 2 3
//     sequence 1   cells 4 5 6 | 20 21    columns  0 1 2   4 5       the branch shares three of them
//
// Along each sequence, columns ascend where its cells are in position order, as they are in a forward's history.
//
// Threads: under the cache's lock. Units: columns and cells.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cache/causal_cache_state.h"
#include "ops/chosen.h"

namespace kvtrie {

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

// The cells that `get` copies and that chosen keys are numbers of.
struct SeenCells {
  SeenCells(const CausalCache::State& state, const Forward::State& forward) KVTRIE_REQUIRES(state.mutex);

  // float32 [rows, columns]: 0 where the row's own history has the cell at a position that it sees, else -inf.
  void write_mask(std::span<float> mask, const CausalCache::State& state, const Forward::State& forward) const
      KVTRIE_REQUIRES(state.mutex);
  bool any_moved() const;
  std::vector<std::int32_t> cells() const;  // of each column
  // The columns as keys that are chosen one by one. `masked`: with a mask.
  ops::ChoiceTables keys(const CausalCache::State& state, const Forward::State& forward, bool masked) const
      KVTRIE_REQUIRES(state.mutex);
  // The columns in blocks of `ratio` along each sequence. There is one at least, which may be nobody's. REQUIRES: rows
  // see all that came before them.
  ops::ChoiceTables blocks(const CausalCache::State& state, const Forward::State& forward, std::int32_t ratio) const
      KVTRIE_REQUIRES(state.mutex);

  std::vector<CellSpans> histories;  // of each sequence
  Columns columns;
};

// What all layers of a forward share that choose from its keys or attend to chosen ones, on the device. Keys that have
// moved are read as copies, whose numbers need no cells.
struct ChosenCells {
  PreparedStepPtr of;
  SeenCells seen;
  bool copied = false;
  Tensor cells = {};                                   // int32 [columns]; undefined where copied
  Tensor mask = {};                                    // undefined until a layer chooses keys
  std::map<std::int32_t, ops::ChoiceBlocks> blocks{};  // by ratio
  ops::ChosenPlans plans = {};
};

}  // namespace kvtrie
