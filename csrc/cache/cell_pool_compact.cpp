// Compaction: sliding what is held towards cell 0, and relabelling everybody who names it, in one routine.
//
//     before   [A A][. .][B B B][.][C]        A, B, C: held runs; the moves read B at 4 and C at 8
//     after    [A A B B B C][. . .]           moves {4 -> 2, 3} {8 -> 5, 1}
//
// Moves go downwards in ascending order, so none overwrites what a later one still reads.
#include <algorithm>

#include "cache/cell_pool.h"
#include "cache/kv_store.h"

namespace kvtrie {
namespace {

// Where the cell lies after the moves. `moves` holds every held run, also those that stay.
Cell moved(const std::vector<CellMove>& moves, Cell cell) {
  auto move = std::upper_bound(moves.begin(), moves.end(), cell,
                               [](Cell value, const CellMove& each) { return value < each.from; });
  if (move == moves.begin()) return cell;
  --move;
  return cell - move->from < move->length ? move->to + (cell - move->from) : cell;
}

void relabel(CellSpans& spans, const std::vector<CellMove>& moves) {
  std::size_t kept = 0;
  for (CellSpan span : spans) {
    span.cell = moved(moves, span.cell);
    if (kept > 0 && spans[kept - 1].meets(span)) {
      spans[kept - 1].length += span.length;
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
}

}  // namespace

std::vector<CellMove> CellPool::compact() {
  const MutexLock lock(mutex_);
  std::vector<CellMove> moves;
  moves.reserve(pieces_->size());
  std::vector<Pieces::value_type::second_type> values;
  std::vector<Cell> borders;
  values.reserve(pieces_->size());
  borders.reserve(pieces_->size());
  while (reservations_ != nullptr) take_back(*reservations_);

  Cell to = 0;
  for (PieceAt piece = pieces_->begin(); piece != pieces_->end(); ++piece) {
    if (piece->second == 0) continue;
    const std::uint32_t length = end_of(piece) - piece->first;
    if (!moves.empty() && moves.back().from + moves.back().length == piece->first) {
      moves.back().length += length;
    } else {
      moves.push_back({piece->first, to, length});
    }
    if (values.empty() || values.back() != piece->second) {
      borders.push_back(to);
      values.push_back(piece->second);
    }
    to += length;
  }
  if (to < cells_) {
    borders.push_back(to);
    values.push_back(0);
  }

  if (owned_ != nullptr) {
    for (const CellMove& move : moves) owned_->moved(move.from, move.to, move.length);
  }
  pieces_.clear();
  free_runs_.clear();
  for (std::size_t i = 0; i < borders.size(); ++i) {
    Pieces::node_type node = pieces_.take();
    node.key() = borders[i];
    node.mapped() = values[i];
    pieces_.insert(pieces_->end(), std::move(node));
  }
  if (to < cells_) index(std::prev(pieces_->end()));
  for (SpanList* list = lists_; list != nullptr; list = list->next_) {
    const std::size_t before = list->spans_.size();
    relabel(list->spans_, moves);
    if (list->counted_) counted_spans_ -= before - list->spans_.size();
  }
  std::erase_if(moves, [](const CellMove& move) { return move.from == move.to; });
  return moves;
}

}  // namespace kvtrie
