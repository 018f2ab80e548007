// The cell pool: which cells are free, reserved or held, and by whom. Bookkeeping only; it owns no K/V bytes.
//
// Concept. A cell is claimed once, written once and then held by reference until nobody holds it. Counts are kept per
// *piece* (a maximal run of cells with equal counts), in an ordered map of borders, so holding costs by pieces, never
// by tokens. Everything that names cells is a `SpanList` (span_list.h) registered with the pool.
//
//     cells     0         8    12        20   24            40
//     borders   0:2       8:1  12:0      20:1 24:reserved   32:0       value = holders
//               |held twice|once| free    |once|kept back    | free
//
// Free runs are indexed by length. A claim continues directly after the sequence's last cell where it can, then takes
// the best fitting run, and only then several. Neighbouring pieces never have equal values.
//
// A *limit* below the number of cells hides the rest: at most so many are held or kept back at once, whichever they
// are.
//
// Cells are claimed for an owner, and counted by owner where that is wanted (owner_counts.h).
//
// Threads: every public call takes the pool's own mutex; `on_free` runs under it and must not call back. Compaction is
// serialised with the readers of span lists by the owning cache (span_list.h).
// Units: cells. A call that throws has changed nothing, except that reservations, which are hints, may have gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/cell_span.h"
#include "base/mutex.h"
#include "cache/owner_counts.h"
#include "cache/span_list.h"
#include "cache/stable_tree.h"

namespace kvtrie {

struct CellMove;
class CellPool;

// Cells kept back so that a sequence's next cells follow its last one. Counts as claimable: under pressure the pool
// takes all reservations back. Gives its cells back when it is destroyed.
class Reservation {
 public:
  Reservation() noexcept = default;
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Snapshots of the moment for tests and reports: another thread's claim may take the reservation back.
  Cell cell() const noexcept { return cell_; }
  std::uint32_t length() const noexcept { return length_; }

 private:
  friend class CellPool;
  std::shared_ptr<CellPool> pool_;  // null while empty
  Cell cell_ = 0;
  std::uint32_t length_ = 0;
  Reservation* previous_ = nullptr;  // the pool's list of reservations; linked exactly while length_ > 0
  Reservation* next_ = nullptr;
};

class CellPool : public std::enable_shared_from_this<CellPool> {
 public:
  static std::shared_ptr<CellPool> create(Cell cells);  // 1 to 2^31 - 1
  CellPool(const CellPool&) = delete;
  CellPool& operator=(const CellPool&) = delete;

  Cell cells() const noexcept { return cells_; }
  Cell free_cells() const noexcept;  // claimable at once, reservations included, under the limit
  Cell reserved_cells() const noexcept;
  Cell held_cells() const noexcept;
  Cell limit() const noexcept;  // the most that may be held
  // Takes reservations back where they are in the way. False: more are held, nothing changed. REQUIRES: 1 to cells().
  [[nodiscard]] bool set_limit(Cell limit);

  // Claims `count` cells as few, long runs with one hold each, at consecutive positions from `position`, and returns
  // them as a counted list. `after`: the sequence's last cell + 1, tried first; 0 for none. All or nothing: throws
  // kCacheFull. `reservation` is used up first and then renewed behind the last run with at most `reserve_ahead` cells.
  SpanList claim(std::uint32_t count, std::int32_t position, Cell after, Reservation& reservation,
                 std::uint32_t reserve_ahead, Owner owner = kOwnCallers);
  void release(Reservation& reservation) noexcept;  // gives the rest of a reservation back

  // Cells of `spans` that at most the given number of holders hold: what would become free if they let go.
  std::uint32_t cells_held_only(const CellSpans& spans, std::uint32_t holders) const;
  // The same as spans: what of `spans` has at most (first) and more than (second) `holders` holders.
  std::pair<CellSpans, CellSpans> split_by_holders(const CellSpans& spans, std::uint32_t holders) const;
  std::uint32_t holders_of(Cell cell) const;

  void count_owners(bool on);                // from now on; what is held now is kOwnCallers'
  std::uint32_t held_by(Owner owner) const;  // cells that were claimed for it. REQUIRES: they are counted
  // The value of free_cells() if these counted lists let go of everything.
  Cell free_without(std::span<const SpanList* const> lists) const;

  // Slides every held piece towards cell 0 in ascending order, gives all reservations up, and relabels every registered
  // list; spans that have become neighbours are joined. The caller performs the returned moves on the store, in order,
  // before it enqueues anything else. `on_free` is not called: the moves still read the old places.
  std::vector<CellMove> compact();

  // Called with each run that becomes free (tests poison it; owner changes clear it). May be empty. It may throw; the
  // exception is dropped: releasing never fails. Set it before the pool is used.
  std::function<void(Cell begin, std::uint32_t length)> on_free;

  std::size_t pieces() const noexcept;
  std::vector<std::string> check()
      const;                 // empty when every invariant holds; O(n log n) in pieces and registered spans
  std::string dump() const;  // the pieces, one per line: "begin..end value"

 private:
  friend class SpanList;
  friend class Reservation;
  static constexpr std::uint32_t kReserved = 0xffffffffu;     // value of a piece that is kept back
  using Pieces = std::map<Cell, std::uint32_t>;               // first cell -> holders, 0 for free, kReserved
  using FreeRuns = std::set<std::pair<std::uint32_t, Cell>>;  // (length, first cell)
  using PieceAt = Pieces::iterator;
  struct Run {
    Cell cell;
    std::uint32_t length;
  };

  explicit CellPool(Cell cells);

  void reserve_nodes(std::size_t more_spans) KVTRIE_REQUIRES(mutex_);
  PieceAt piece_at(Cell cell) noexcept KVTRIE_REQUIRES(mutex_);
  Cell end_of(PieceAt piece) noexcept KVTRIE_REQUIRES(mutex_);
  PieceAt cut(Cell cell) noexcept KVTRIE_REQUIRES(mutex_);              // makes `cell` a border
  void join_with_previous(Cell cell) noexcept KVTRIE_REQUIRES(mutex_);  // if both sides have the same value
  void set_value(PieceAt piece, std::uint32_t value) noexcept KVTRIE_REQUIRES(mutex_);
  // REQUIRES: within one piece.
  void assign(Cell begin, std::uint32_t length, std::uint32_t value) noexcept KVTRIE_REQUIRES(mutex_);
  void index(PieceAt piece) noexcept KVTRIE_REQUIRES(mutex_);
  void unindex(PieceAt piece) noexcept KVTRIE_REQUIRES(mutex_);
  void hold(const CellSpan& span) noexcept KVTRIE_REQUIRES(mutex_);  // REQUIRES: held or being claimed; nodes reserved
  void unhold(const CellSpan& span) noexcept KVTRIE_REQUIRES(mutex_);
  void unhold(const CellSpans& spans) noexcept KVTRIE_REQUIRES(mutex_);
  void require_held(const CellSpans& spans) const KVTRIE_REQUIRES(mutex_);
  void enroll(SpanList& list) noexcept KVTRIE_REQUIRES(mutex_);
  void resign(SpanList& list) noexcept KVTRIE_REQUIRES(mutex_);
  void take_back(Reservation& reservation) noexcept KVTRIE_REQUIRES(mutex_);
  void unlink(Reservation& reservation) noexcept KVTRIE_REQUIRES(mutex_);
  void keep_back(Reservation& reservation, Cell cell, std::uint32_t length) noexcept KVTRIE_REQUIRES(mutex_);
  std::vector<Run> plan_claim(std::uint32_t count, Cell after, std::uint32_t reserve_ahead) KVTRIE_REQUIRES(mutex_);
  void reserve_behind(Reservation& reservation, Cell cell, std::uint32_t reserve_ahead) noexcept
      KVTRIE_REQUIRES(mutex_);
  // Free ones that the limit keeps from being claimed.
  Cell hidden() const noexcept KVTRIE_REQUIRES(mutex_) { return cells_ - limit_; }
  void check_pieces(std::vector<std::string>& faults) const KVTRIE_REQUIRES(mutex_);
  void check_lists(std::vector<std::string>& faults) const KVTRIE_REQUIRES(mutex_);
  void check_owners(std::vector<std::string>& faults) const KVTRIE_REQUIRES(mutex_);
  void check_reservations(std::vector<std::string>& faults) const KVTRIE_REQUIRES(mutex_);
  template <class Visit>
  void for_each_piece(const CellSpan& span, Visit visit) const KVTRIE_REQUIRES(mutex_);  // visit(begin, end, value)

  mutable Mutex mutex_;
  const Cell cells_;
  Cell free_ KVTRIE_GUARDED_BY(mutex_) = 0;
  Cell reserved_ KVTRIE_GUARDED_BY(mutex_) = 0;
  Cell limit_ KVTRIE_GUARDED_BY(mutex_);  // free_ >= hidden(): what is held or reserved is at most this
  StableTree<Pieces> pieces_ KVTRIE_GUARDED_BY(mutex_);
  StableTree<FreeRuns> free_runs_ KVTRIE_GUARDED_BY(mutex_);
  SpanList* lists_ KVTRIE_GUARDED_BY(mutex_) = nullptr;
  Reservation* reservations_ KVTRIE_GUARDED_BY(mutex_) = nullptr;
  std::size_t counted_spans_ KVTRIE_GUARDED_BY(mutex_) = 0;  // spans in registered counted lists
  std::size_t reservation_count_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<OwnerCounts> owned_ KVTRIE_GUARDED_BY(mutex_);  // null: not counted
};

template <class Visit>
void CellPool::for_each_piece(const CellSpan& span, Visit visit) const {
  for (auto piece = std::prev(pieces_->upper_bound(span.cell)); piece != pieces_->end(); ++piece) {
    const Cell begin = std::max(piece->first, span.cell);
    if (begin >= span.end_cell()) return;
    const auto next = std::next(piece);
    visit(begin, std::min(next == pieces_->end() ? cells_ : next->first, span.end_cell()), piece->second);
  }
}

}  // namespace kvtrie
