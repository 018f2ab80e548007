// Invariants of the pool, recounted from the registered lists, and its dump.
#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "cache/cell_pool.h"

namespace kvtrie {

// Borders ascend from 0, neighbours differ, the index names exactly the free pieces, the sums are the counters.
void CellPool::check_pieces(std::vector<std::string>& faults) const {
  std::uint64_t free = 0, reserved = 0;
  std::size_t free_pieces = 0;
  if (pieces_->empty() || pieces_->begin()->first != 0) faults.push_back("pool: the first border is not 0");
  for (auto piece = pieces_->begin(); piece != pieces_->end(); ++piece) {
    const auto next = std::next(piece);
    const Cell end = next == pieces_->end() ? cells_ : next->first;
    if (end <= piece->first) faults.push_back(cat("pool: the piece at ", piece->first, " is empty"));
    if (next != pieces_->end() && next->second == piece->second) {
      faults.push_back(cat("pool: pieces at ", piece->first, " and ", next->first, " have the same value"));
    }
    if (piece->second == kReserved) reserved += end - piece->first;
    if (piece->second != 0) continue;
    free += end - piece->first;
    ++free_pieces;
    if (free_runs_->count({end - piece->first, piece->first}) == 0) {
      faults.push_back(cat("pool: the free run at ", piece->first, " is not in the index"));
    }
  }
  if (free_pieces != free_runs_->size()) faults.push_back("pool: the index of free runs names others");
  if (free != free_) faults.push_back(cat("pool: counted ", free, " free cells, believed ", free_));
  if (reserved != reserved_) faults.push_back(cat("pool: counted ", reserved, " reserved cells, believed ", reserved_));
  if (cells_ - free > limit_)
    faults.push_back(cat("pool: ", cells_ - free - reserved, " cells held, ", reserved, " reserved, limit ", limit_));
}

void CellPool::check_owners(std::vector<std::string>& faults) const {
  if (owned_ == nullptr) return;
  const OwnerCounts& owned = *owned_;
  std::unordered_map<Owner, std::uint32_t> counted;
  for_each_piece({0, cells_, 0}, [&](Cell begin, Cell end, std::uint32_t value) {
    for (Cell cell = begin; cell < end && value != 0 && value != kReserved; ++cell) ++counted[owned.owner_of(cell)];
  });
  owned.check(counted, faults);
}

// Every list is well formed, and the holders of each piece are as many as counted lists name it.
void CellPool::check_lists(std::vector<std::string>& faults) const {
  std::map<Cell, std::int64_t> changes;  // border -> holders gained minus lost there
  std::size_t counted = 0;
  for (const SpanList* list = lists_; list != nullptr; list = list->next_) {
    const CellSpans& spans = list->spans_;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].length == 0 || spans[i].cell >= cells_ || spans[i].length > cells_ - spans[i].cell) {
        faults.push_back(cat("list: the span at cell ", spans[i].cell, " lies outside the pool"));
        continue;
      }
      if (i > 0 && spans[i].position != spans[i - 1].end_position()) {
        faults.push_back(cat("list: positions jump from ", spans[i - 1].end_position(), " to ", spans[i].position));
      }
      if (i > 0 && spans[i - 1].meets(spans[i])) {
        faults.push_back(cat("list: the spans that meet at cell ", spans[i].cell, " are not joined"));
      }
      if (list->counted_) {
        ++changes[spans[i].cell];
        --changes[spans[i].end_cell()];
        ++counted;
        continue;
      }
      for_each_piece(spans[i], [&](Cell begin, Cell, std::uint32_t value) {
        if (value == 0 || value == kReserved)
          faults.push_back(cat("list: borrowed cell ", begin, " is held by nobody"));
      });
    }
  }
  if (counted != counted_spans_) faults.push_back(cat("pool: ", counted, " counted spans, believed ", counted_spans_));
  std::int64_t holders = 0;
  Cell from = 0;
  changes[cells_] += 0;
  for (const auto& [cell, change] : changes) {
    if (cell > from) {
      for_each_piece({from, cell - from, 0}, [&](Cell begin, Cell end, std::uint32_t value) {
        const std::int64_t believed = value == kReserved ? 0 : value;
        if (believed != holders) {
          faults.push_back(cat("pool: cells ", begin, "..", end, " have ", holders, " holders, believed ", believed));
        }
      });
    }
    holders += change;
    from = cell;
  }
}

// Every reserved cell belongs to exactly one reservation.
void CellPool::check_reservations(std::vector<std::string>& faults) const {
  std::vector<std::pair<Cell, Cell>> ranges;
  for (const Reservation* each = reservations_; each != nullptr; each = each->next_) {
    ranges.emplace_back(each->cell_, each->cell_ + each->length_);
    for_each_piece({each->cell_, each->length_, 0}, [&](Cell begin, Cell, std::uint32_t value) {
      if (value != kReserved) faults.push_back(cat("pool: cell ", begin, " of a reservation is not kept back"));
    });
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t reserved = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    reserved += ranges[i].second - ranges[i].first;
    if (ranges[i].first == ranges[i].second) faults.push_back("pool: an empty reservation is registered");
    if (i > 0 && ranges[i].first < ranges[i - 1].second) faults.push_back("pool: two reservations overlap");
  }
  if (ranges.size() != reservation_count_ || reserved != reserved_) {
    faults.push_back(cat("pool: ", ranges.size(), " reservations of ", reserved, " cells, believed ",
                         reservation_count_, " of ", reserved_));
  }
}

std::vector<std::string> CellPool::check() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> faults;
  check_pieces(faults);
  check_lists(faults);
  check_reservations(faults);
  check_owners(faults);
  return faults;
}

std::string CellPool::dump() const {
  const MutexLock lock(mutex_);
  std::ostringstream out;
  for (auto piece = pieces_->begin(); piece != pieces_->end(); ++piece) {
    const auto next = std::next(piece);
    out << piece->first << ".." << (next == pieces_->end() ? cells_ : next->first) << ' ';
    if (piece->second == kReserved) {
      out << "reserved\n";
    } else {
      out << piece->second << '\n';
    }
  }
  return out.str();
}

}  // namespace kvtrie
