#include "cache/cell_owners.h"

#include <algorithm>
#include <iterator>

#include "cache/kv_store.h"

namespace kvtrie {

Cell CellOwners::end_of(Labels::const_iterator label) const {
  const auto next = std::next(label);
  return next == labels_.end() ? cells_ : next->first;
}

Owner CellOwners::owner_of(Cell cell) const { return std::prev(labels_.upper_bound(cell))->second; }

CellOwners::Runs CellOwners::foreign(Cell begin, std::uint32_t length, Owner owner) const {
  Runs runs;
  const Cell end = begin + length;
  for (auto label = std::prev(labels_.upper_bound(begin)); label != labels_.end() && label->first < end; ++label) {
    if (label->second == owner || label->second == kClean) continue;
    const Cell from = std::max(begin, label->first), to = std::min(end, end_of(label));
    if (from >= to) continue;
    if (!runs.empty() && runs.back().first + runs.back().second == from) {
      runs.back().second += to - from;
    } else {
      runs.emplace_back(from, to - from);
    }
  }
  return runs;
}

void CellOwners::cut(Cell cell) {
  if (cell < cells_) labels_.emplace(cell, owner_of(cell));
}

// Both borders are there before a label changes, so running out of memory changes none.
void CellOwners::set(Cell begin, std::uint32_t length, Owner owner) {
  if (length == 0) return;
  const Cell end = begin + length;
  const auto present = std::prev(labels_.upper_bound(begin));
  if (present->second == owner && end_of(present) >= end) return;
  cut(begin);
  cut(end);
  const auto first = labels_.find(begin);
  first->second = owner;
  labels_.erase(std::next(first), labels_.lower_bound(end));
  const auto next = std::next(first);
  if (next != labels_.end() && next->second == owner) labels_.erase(next);
  if (first != labels_.begin() && std::prev(first)->second == owner) labels_.erase(first);
}

void CellOwners::move(std::span<const CellMove> moves) {
  for (const CellMove& move : moves) {
    std::vector<std::pair<Cell, Owner>> from;  // offset in the move -> owner
    for (auto label = std::prev(labels_.upper_bound(move.from));
         label != labels_.end() && label->first < move.from + move.length; ++label) {
      from.emplace_back(std::max(label->first, move.from) - move.from, label->second);
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Cell end = i + 1 < from.size() ? from[i + 1].first : move.length;
      set(move.to + from[i].first, end - from[i].first, from[i].second);
    }
  }
}

void CellOwners::distrust() {
  Labels labels;
  for (const auto& [cell, owner] : labels_) {
    const Owner now = owner == kClean ? kClean : kForeign;
    if (labels.empty() || std::prev(labels.end())->second != now) labels.emplace_hint(labels.end(), cell, now);
  }
  labels_.swap(labels);
}

}  // namespace kvtrie
