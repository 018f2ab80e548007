#include "cache/cell_pool.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace kvtrie {

Reservation::~Reservation() {
  if (pool_) pool_->release(*this);
}

std::shared_ptr<CellPool> CellPool::create(Cell cells) { return std::shared_ptr<CellPool>(new CellPool(cells)); }

CellPool::CellPool(Cell cells) : cells_(cells), limit_(cells) {
  constexpr Cell kMax = std::numeric_limits<std::int32_t>::max();
  require(cells >= 1 && cells <= kMax, "cell_pool", "cells: got ", cells, ", allowed 1 to ", kMax);
  reserve_nodes(0);
  Pieces::node_type node = pieces_.take();
  node.key() = 0;
  node.mapped() = 0;
  free_ = cells;
  index(pieces_.insert(pieces_->end(), std::move(node)));
}

Cell CellPool::free_cells() const noexcept {
  const MutexLock lock(mutex_);
  return free_ + reserved_ - hidden();
}

Cell CellPool::reserved_cells() const noexcept {
  const MutexLock lock(mutex_);
  return reserved_;
}

Cell CellPool::held_cells() const noexcept {
  const MutexLock lock(mutex_);
  return cells_ - free_ - reserved_;
}

Cell CellPool::limit() const noexcept {
  const MutexLock lock(mutex_);
  return limit_;
}

bool CellPool::set_limit(Cell limit) {
  require(limit >= 1 && limit <= cells_, "cell_pool.set_limit", "limit: got ", limit, ", allowed 1 to ", cells_);
  const MutexLock lock(mutex_);
  if (cells_ - free_ - reserved_ > limit) return false;
  while (free_ < cells_ - limit) take_back(*reservations_);
  limit_ = limit;
  return true;
}

std::size_t CellPool::pieces() const noexcept {
  const MutexLock lock(mutex_);
  return pieces_->size();
}

// ---- pieces -------------------------------------------------------------------------------------------------------

// Borders lie only at the ends of counted spans and reservations (and at 0), so this many nodes always suffice; the
// slack covers the borders that an operation sets before it takes others away.
void CellPool::reserve_nodes(std::size_t more_spans) {
  constexpr std::size_t kSlack = 8;
  const std::size_t nodes = 2 * (counted_spans_ + reservation_count_ + more_spans) + kSlack;
  pieces_.reserve(nodes, [](std::size_t i) { return Pieces::value_type(static_cast<Cell>(i), 0); });
  free_runs_.reserve(nodes, [](std::size_t i) { return FreeRuns::value_type(0, static_cast<Cell>(i)); });
}

CellPool::PieceAt CellPool::piece_at(Cell cell) noexcept { return std::prev(pieces_->upper_bound(cell)); }

Cell CellPool::end_of(PieceAt piece) noexcept {
  const PieceAt next = std::next(piece);
  return next == pieces_->end() ? cells_ : next->first;
}

void CellPool::index(PieceAt piece) noexcept {
  FreeRuns::node_type node = free_runs_.take();
  node.value() = {end_of(piece) - piece->first, piece->first};
  free_runs_.insert(free_runs_->begin(), std::move(node));
}

void CellPool::unindex(PieceAt piece) noexcept {
  free_runs_.erase(free_runs_->find({end_of(piece) - piece->first, piece->first}));
}

CellPool::PieceAt CellPool::cut(Cell cell) noexcept {
  if (cell == cells_) return pieces_->end();
  const PieceAt piece = piece_at(cell);
  if (piece->first == cell) return piece;
  if (piece->second == 0) unindex(piece);
  Pieces::node_type node = pieces_.take();
  node.key() = cell;
  node.mapped() = piece->second;
  const PieceAt second = pieces_.insert(std::next(piece), std::move(node));
  if (piece->second == 0) {
    index(piece);
    index(second);
  }
  return second;
}

void CellPool::join_with_previous(Cell cell) noexcept {
  if (cell == 0 || cell == cells_) return;
  const PieceAt piece = pieces_->find(cell);
  if (piece == pieces_->end()) return;
  const PieceAt before = std::prev(piece);
  if (before->second != piece->second) return;
  const bool free = piece->second == 0;
  if (free) {
    unindex(before);
    unindex(piece);
  }
  pieces_.erase(piece);
  if (free) index(before);
}

void CellPool::set_value(PieceAt piece, std::uint32_t value) noexcept {
  const Cell length = end_of(piece) - piece->first;
  if (piece->second == 0) {
    unindex(piece);
    free_ -= length;
  } else if (piece->second == kReserved) {
    reserved_ -= length;
  }
  piece->second = value;
  if (value == 0) {
    index(piece);
    free_ += length;
  } else if (value == kReserved) {
    reserved_ += length;
  }
}

void CellPool::assign(Cell begin, std::uint32_t length, std::uint32_t value) noexcept {
  const PieceAt piece = cut(begin);
  cut(begin + length);
  set_value(piece, value);
  join_with_previous(begin);
  join_with_previous(begin + length);
}

void CellPool::hold(const CellSpan& span) noexcept {
  const Cell end = span.end_cell();
  PieceAt piece = cut(span.cell);
  cut(end);
  for (; piece != pieces_->end() && piece->first < end; ++piece) ++piece->second;
  join_with_previous(span.cell);
  join_with_previous(end);
}

// Neighbours differ before and every piece loses one, so only the two ends can join; or a piece that became free, which
// only has neighbours inside the span that are still held.
void CellPool::unhold(const CellSpan& span) noexcept {
  const Cell end = span.end_cell();
  PieceAt piece = cut(span.cell);
  cut(end);
  for (; piece != pieces_->end() && piece->first < end; ++piece) {
    if (piece->second > 1) {
      --piece->second;
      continue;
    }
    set_value(piece, 0);
    if (owned_ != nullptr) owned_->freed(piece->first, end_of(piece) - piece->first);
    if (!on_free) continue;
    try {
      on_free(piece->first, end_of(piece) - piece->first);
    } catch (...) {  // the hook is an observer; giving cells back always succeeds
    }
  }
  join_with_previous(span.cell);
  join_with_previous(end);
}

void CellPool::unhold(const CellSpans& spans) noexcept {
  for (const CellSpan& span : spans) unhold(span);
}

void CellPool::require_held(const CellSpans& spans) const {
  for (const CellSpan& span : spans) {
    ensure(span.length > 0 && span.cell < cells_ && span.length <= cells_ - span.cell, "cell_pool.hold",
           "span of cells ", span.cell, " + ", span.length, " lies outside the pool of ", cells_);
    for_each_piece(span, [&](Cell begin, Cell, std::uint32_t value) {
      ensure(value != 0 && value != kReserved, "cell_pool.hold", "cell ", begin, " is held by nobody");
    });
  }
}

// ---- who is registered --------------------------------------------------------------------------------------------

void CellPool::enroll(SpanList& list) noexcept {
  list.previous_ = nullptr;
  list.next_ = lists_;
  if (lists_ != nullptr) lists_->previous_ = &list;
  lists_ = &list;
}

void CellPool::resign(SpanList& list) noexcept {
  (list.previous_ != nullptr ? list.previous_->next_ : lists_) = list.next_;
  if (list.next_ != nullptr) list.next_->previous_ = list.previous_;
  list.previous_ = list.next_ = nullptr;
}

// ---- reservations -------------------------------------------------------------------------------------------------

void CellPool::keep_back(Reservation& reservation, Cell cell, std::uint32_t length) noexcept {
  assign(cell, length, kReserved);
  reservation.cell_ = cell;
  reservation.length_ = length;
  reservation.previous_ = nullptr;
  reservation.next_ = reservations_;
  if (reservations_ != nullptr) reservations_->previous_ = &reservation;
  reservations_ = &reservation;
  ++reservation_count_;
}

void CellPool::take_back(Reservation& reservation) noexcept {
  if (reservation.length_ == 0) return;
  assign(reservation.cell_, reservation.length_, 0);
  unlink(reservation);
}

void CellPool::unlink(Reservation& reservation) noexcept {
  (reservation.previous_ != nullptr ? reservation.previous_->next_ : reservations_) = reservation.next_;
  if (reservation.next_ != nullptr) reservation.next_->previous_ = reservation.previous_;
  reservation.previous_ = reservation.next_ = nullptr;
  reservation.cell_ = 0;
  reservation.length_ = 0;
  --reservation_count_;
}

void CellPool::release(Reservation& reservation) noexcept {
  const MutexLock lock(mutex_);
  take_back(reservation);
}

void CellPool::reserve_behind(Reservation& reservation, Cell cell, std::uint32_t reserve_ahead) noexcept {
  if (reserve_ahead == 0 || cell == cells_) return;
  const PieceAt piece = pieces_->find(cell);
  if (piece == pieces_->end() || piece->second != 0) return;
  const std::uint32_t length = std::min({reserve_ahead, end_of(piece) - cell, free_ - hidden()});
  if (length > 0) keep_back(reservation, cell, length);
}

// ---- claims -------------------------------------------------------------------------------------------------------

// Runs for `count` free cells, changing nothing. REQUIRES: count <= free_.
//   1. directly after the sequence's last cell
//   2. the smallest run that holds the rest and what is reserved ahead, else the smallest that holds the rest
//   3. else the largest run whole, and again
std::vector<CellPool::Run> CellPool::plan_claim(std::uint32_t count, Cell after, std::uint32_t reserve_ahead) {
  std::vector<Run> runs;
  std::uint32_t rest = count;
  FreeRuns::iterator used = free_runs_->end();  // the run of case 1, taken whole when case 2 is reached
  if (after != 0 && after < cells_) {
    const PieceAt piece = pieces_->find(after);
    if (piece != pieces_->end() && piece->second == 0) {
      const std::uint32_t length = end_of(piece) - after;
      runs.push_back({after, std::min(length, rest)});
      rest -= runs.back().length;
      used = free_runs_->find({length, after});
    }
  }
  FreeRuns::iterator limit = free_runs_->end();  // runs from here on are used up (case 3)
  const auto smallest = [&](std::uint64_t length) KVTRIE_REQUIRES(mutex_) {
    if (length > cells_) return limit;
    FreeRuns::iterator run = free_runs_->lower_bound({static_cast<std::uint32_t>(length), 0});
    if (run == used && run != free_runs_->end()) ++run;
    return limit == free_runs_->end() || (run != free_runs_->end() && *run < *limit) ? run : limit;
  };
  while (rest > 0) {
    FreeRuns::iterator run = smallest(std::uint64_t{rest} + reserve_ahead);
    if (run == limit) run = smallest(rest);
    if (run == limit) {
      if (--run == used) --run;
      limit = run;
    }
    const std::uint32_t length = std::min(run->first, rest);
    runs.push_back({run->second, length});
    rest -= length;
  }
  return runs;
}

SpanList CellPool::claim(std::uint32_t count, std::int32_t position, Cell after, Reservation& reservation,
                         std::uint32_t reserve_ahead, Owner owner) {
  constexpr std::int32_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
  require(position >= 0 && count <= static_cast<std::uint32_t>(kMaxPosition - position), "cell_pool.claim",
          "positions: got ", position, " + ", count, ", allowed 0 to ", kMaxPosition);
  SpanList list(*this, true);
  if (count == 0) return list;
  if (!reservation.pool_) reservation.pool_ = shared_from_this();
  ensure(reservation.pool_.get() == this, "cell_pool.claim", "the reservation is of another pool");
  const MutexLock lock(mutex_);
  if (count > free_ + reserved_ - hidden()) {
    const CacheFullCounts counts{count, free_ + reserved_ - hidden(), 0, cells_ - free_ - reserved_};
    throw Error::cache_full(cat("[cell_pool.claim] cells: needed ", count, ", free ", counts.free, ", held ",
                                counts.held_live, " of ", limit_),
                            counts);
  }
  const bool in_reservation = reservation.length_ >= count && reservation.cell_ == after;
  std::vector<Run> runs;
  if (in_reservation) {
    runs.push_back({after, count});
  } else {
    take_back(reservation);
    while (count > free_ - hidden()) take_back(*reservations_);
    runs = plan_claim(count, after, reserve_ahead);
  }
  list.spans_.reserve(runs.size());
  reserve_nodes(runs.size() + 1);
  if (owned_ != nullptr) owned_->prepare(owner);
  for (const Run& run : runs) {
    assign(run.cell, run.length, 1);
    if (owned_ != nullptr) owned_->claimed(run.cell, run.length, owner);
  }
  if (in_reservation) {
    reservation.cell_ += count;
    reservation.length_ -= count;
    if (reservation.length_ == 0) unlink(reservation);
  }
  if (reservation.length_ == 0) reserve_behind(reservation, runs.back().cell + runs.back().length, reserve_ahead);
  for (const Run& run : runs) {
    append_span(list.spans_, {run.cell, run.length, position});
    position += static_cast<std::int32_t>(run.length);
  }
  counted_spans_ += list.spans_.size();
  return list;
}

// ---- questions ----------------------------------------------------------------------------------------------------

std::uint32_t CellPool::cells_held_only(const CellSpans& spans, std::uint32_t holders) const {
  const MutexLock lock(mutex_);
  std::uint32_t cells = 0;
  for (const CellSpan& span : spans) {
    for_each_piece(span, [&](Cell begin, Cell end, std::uint32_t value) {
      if (value != 0 && value <= holders) cells += end - begin;
    });
  }
  return cells;
}

std::pair<CellSpans, CellSpans> CellPool::split_by_holders(const CellSpans& spans, std::uint32_t holders) const {
  const MutexLock lock(mutex_);
  std::pair<CellSpans, CellSpans> found;
  for (const CellSpan& span : spans) {
    for_each_piece(span, [&](Cell begin, Cell end, std::uint32_t value) {
      append_span(value <= holders ? found.first : found.second,
                  {begin, end - begin, span.position + static_cast<std::int32_t>(begin - span.cell), span.moved});
    });
  }
  return found;
}

Cell CellPool::free_without(std::span<const SpanList* const> lists) const {
  const MutexLock lock(mutex_);
  Cell free = free_ + reserved_ - hidden();
  std::map<Cell, std::int64_t> changes;  // cell -> of these lists' holds, those that begin less those that end
  for (const SpanList* list : lists) {
    for (const CellSpan& span : list->spans_) {
      ++changes[span.cell];
      --changes[span.end_cell()];
    }
  }
  std::int64_t going = 0;
  for (auto change = changes.begin(); change != changes.end(); ++change) {
    going += change->second;
    if (going == 0) continue;
    for_each_piece({change->first, std::next(change)->first - change->first, 0},
                   [&](Cell begin, Cell end, std::uint32_t value) { free += value == going ? end - begin : 0; });
  }
  return free;
}

void CellPool::count_owners(bool on) {
  const MutexLock lock(mutex_);
  owned_ = on ? std::make_unique<OwnerCounts>(cells_, cells_ - free_ - reserved_) : nullptr;
}

std::uint32_t CellPool::held_by(Owner owner) const {
  const MutexLock lock(mutex_);
  ensure(owned_ != nullptr, "cell_pool.held_by", "owners are not counted");
  return owned_->of(owner);
}

std::uint32_t CellPool::holders_of(Cell cell) const {
  require(cell < cells_, "cell_pool.holders_of", "cell: got ", cell, ", allowed 0 to ", cells_ - 1);
  const MutexLock lock(mutex_);
  const std::uint32_t value = std::prev(pieces_->upper_bound(cell))->second;
  return value == kReserved ? 0 : value;
}

}  // namespace kvtrie
