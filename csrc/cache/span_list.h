// Span lists: everything that names cells of a pool, registered with it.
//
// Concept. Sequences, trie nodes, detached snapshots, open forwards and transfers name cells through a `SpanList`. A
// *counted* list keeps its cells alive; an *uncounted* one borrows cells that another holder is known to keep (a
// session's view of its trie path) and is registered only so that compaction can relabel it. Consecutive cells at
// consecutive positions are one span, whatever steps they were appended in.
//
// Threads: every call takes the pool's own mutex, so lists may be made, changed and destroyed on any thread while
// `CellPool::compact` relabels them. One list belongs to one thread at a time. The result of `spans()` is stable only
// while nobody compacts: CausalCache reads lists under its own mutex, and also compacts under it. Positions never
// change by compaction. A list keeps its pool's bookkeeping alive, so it may outlive the cache. Units: cells and
// positions. A call that throws has changed nothing; releasing never throws and never allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/cell_span.h"

namespace kvtrie {

class CellPool;

// The part of `spans` (in position order) that lies in [from, to).
CellSpans slice_spans(const CellSpans& spans, std::int32_t from, std::int32_t to);

class SpanList {
 public:
  SpanList() noexcept = default;           // bound to no pool, empty
  SpanList(CellPool& pool, bool counted);  // empty
  SpanList(SpanList&& other) noexcept;
  SpanList& operator=(SpanList&& other) noexcept;
  ~SpanList();  // a counted list releases its cells

  const CellSpans& spans() const noexcept { return spans_; }
  bool empty() const noexcept { return spans_.empty(); }
  bool counted() const noexcept { return counted_; }
  bool belongs_to(const CellPool& pool) const noexcept { return pool_.get() == &pool; }
  std::int32_t begin_position() const noexcept { return spans_.empty() ? 0 : spans_.front().position; }
  std::int32_t end_position() const noexcept { return spans_.empty() ? 0 : spans_.back().end_position(); }
  std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(end_position() - begin_position()); }

  void append(const CellSpan& span);  // adjacent in position; a counted list adds one hold
  void append(const CellSpans& spans);
  void append(SpanList&& other);          // takes over other's holds without touching any count
  SpanList split(std::int32_t position);  // keeps [begin, position), returns [position, end); counts unchanged
  void truncate(std::int32_t position);   // drops [position, end)
  void drop_front(std::int32_t position) noexcept;           // drops [begin, position)
  SpanList share() const;                                    // a counted list on the same cells
  SpanList share(std::int32_t from, std::int32_t to) const;  // the same for the positions [from, to)
  void shift_positions(std::int32_t delta) noexcept;         // relabels positions; the cells stay
  void clear() noexcept;
  void make_room(std::size_t more);  // so that appending a list of `more` spans cannot fail

 private:
  friend class CellPool;
  void leave() noexcept;                              // releases and unregisters
  void check_adjacent(const CellSpans& spans) const;  // this and the next: the pool's mutex is held
  void grow(std::size_t more);

  std::shared_ptr<CellPool> pool_;
  bool counted_ = true;
  CellSpans spans_;
  SpanList* previous_ = nullptr;  // the pool's list of registered holders
  SpanList* next_ = nullptr;
};

}  // namespace kvtrie
