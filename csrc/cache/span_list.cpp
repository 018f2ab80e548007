#include "cache/span_list.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/cell_pool.h"

namespace kvtrie {

CellSpans slice_spans(const CellSpans& spans, std::int32_t from, std::int32_t to) {
  CellSpans slice;
  auto span = std::partition_point(spans.begin(), spans.end(),
                                   [&](const CellSpan& each) { return each.end_position() <= from; });
  for (; span != spans.end() && span->position < to; ++span) {
    const std::int32_t begin = std::max(span->position, from);
    const std::int32_t end = std::min(span->end_position(), to);
    if (begin >= end) continue;
    const auto skipped = static_cast<std::uint32_t>(begin - span->position);
    slice.push_back({span->cell + skipped, static_cast<std::uint32_t>(end - begin), begin, span->moved});
  }
  return slice;
}

SpanList::SpanList(CellPool& pool, bool counted) : pool_(pool.shared_from_this()), counted_(counted) {
  const MutexLock lock(pool_->mutex_);
  pool_->enroll(*this);
}

SpanList::SpanList(SpanList&& other) noexcept { *this = std::move(other); }

SpanList& SpanList::operator=(SpanList&& other) noexcept {
  if (this == &other) return *this;
  leave();
  pool_ = std::move(other.pool_);
  counted_ = other.counted_;
  if (!pool_) return *this;
  const MutexLock lock(pool_->mutex_);
  spans_.swap(other.spans_);
  pool_->resign(other);
  pool_->enroll(*this);
  return *this;
}

SpanList::~SpanList() { leave(); }

void SpanList::leave() noexcept {
  if (!pool_) return;
  clear();
  {
    const MutexLock lock(pool_->mutex_);
    pool_->resign(*this);
  }
  pool_.reset();
}

void SpanList::check_adjacent(const CellSpans& spans) const {
  std::int32_t position = spans_.empty() ? spans.front().position : end_position();
  for (const CellSpan& span : spans) {
    ensure(span.position == position, "span_list.append", "position: got ", span.position, ", allowed ", position);
    position = span.end_position();
  }
}

void SpanList::make_room(std::size_t more) {
  if (!pool_) return;
  const MutexLock lock(pool_->mutex_);
  grow(more);
}

void SpanList::grow(std::size_t more) {
  const std::size_t needed = spans_.size() + more;
  if (spans_.capacity() < needed) spans_.reserve(std::max(2 * spans_.size(), needed));
}

void SpanList::append(const CellSpan& span) { append(CellSpans{span}); }

void SpanList::append(const CellSpans& spans) {
  if (spans.empty()) return;
  ensure(pool_ != nullptr, "span_list.append", "the list belongs to no pool");
  const MutexLock lock(pool_->mutex_);
  check_adjacent(spans);
  pool_->require_held(spans);
  grow(spans.size());
  const std::size_t before = spans_.size();
  if (counted_) {
    pool_->reserve_nodes(spans.size());
    for (const CellSpan& span : spans) pool_->hold(span);
  }
  for (const CellSpan& span : spans) append_span(spans_, span);
  if (counted_) pool_->counted_spans_ += spans_.size() - before;
}

void SpanList::append(SpanList&& other) {
  if (!pool_) {
    *this = std::move(other);
    return;
  }
  if (other.empty()) return;
  ensure(pool_ == other.pool_ && counted_ == other.counted_, "span_list.append", "the lists are of two kinds or pools");
  const MutexLock lock(pool_->mutex_);
  check_adjacent(other.spans_);
  grow(other.spans_.size());
  const std::size_t before = spans_.size() + other.spans_.size();
  for (const CellSpan& span : other.spans_) append_span(spans_, span);
  other.spans_.clear();
  if (counted_) pool_->counted_spans_ -= before - spans_.size();
}

SpanList SpanList::split(std::int32_t position) {
  SpanList rest;
  if (!pool_) return rest;
  rest = SpanList(*pool_, counted_);
  const MutexLock lock(pool_->mutex_);
  if (position >= end_position()) return rest;
  CellSpans upper = slice_spans(spans_, position, end_position());
  pool_->reserve_nodes(1);
  while (!spans_.empty() && spans_.back().position >= position) spans_.pop_back();
  if (!spans_.empty() && spans_.back().end_position() > position) {
    spans_.back().length = static_cast<std::uint32_t>(position - spans_.back().position);
    if (counted_) ++pool_->counted_spans_;
  }
  rest.spans_ = std::move(upper);
  return rest;
}

void SpanList::truncate(std::int32_t position) {
  if (!pool_) return;
  const MutexLock lock(pool_->mutex_);
  while (!spans_.empty() && spans_.back().end_position() > position) {
    CellSpan& last = spans_.back();
    const std::uint32_t kept = position > last.position ? static_cast<std::uint32_t>(position - last.position) : 0;
    if (counted_) pool_->unhold({last.cell + kept, last.length - kept, 0});
    if (kept > 0) {
      last.length = kept;
      return;
    }
    spans_.pop_back();
    if (counted_) --pool_->counted_spans_;
  }
}

void SpanList::drop_front(std::int32_t position) noexcept {
  if (!pool_) return;
  const MutexLock lock(pool_->mutex_);
  auto kept = spans_.begin();
  for (; kept != spans_.end() && kept->position < position; ++kept) {
    const auto dropped = std::min(kept->length, static_cast<std::uint32_t>(position - kept->position));
    if (counted_) pool_->unhold({kept->cell, dropped, 0});
    if (dropped < kept->length) {
      *kept = {kept->cell + dropped, kept->length - dropped, position, kept->moved};
      break;
    }
    if (counted_) --pool_->counted_spans_;
  }
  spans_.erase(spans_.begin(), kept);
}

SpanList SpanList::share() const {
  return share(std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max());
}

SpanList SpanList::share(std::int32_t from, std::int32_t to) const {
  SpanList shared;
  if (!pool_) return shared;
  shared = SpanList(*pool_, true);
  const MutexLock lock(pool_->mutex_);
  CellSpans spans = slice_spans(spans_, from, to);
  pool_->require_held(spans);
  pool_->reserve_nodes(spans.size());
  for (const CellSpan& span : spans) pool_->hold(span);
  shared.spans_ = std::move(spans);
  pool_->counted_spans_ += shared.spans_.size();
  return shared;
}

void SpanList::shift_positions(std::int32_t delta) noexcept {
  for (CellSpan& span : spans_) span.position += delta;
}

void SpanList::clear() noexcept {
  if (!pool_) return;
  const MutexLock lock(pool_->mutex_);
  if (counted_) {
    pool_->unhold(spans_);
    pool_->counted_spans_ -= spans_.size();
  }
  spans_.clear();
}

}  // namespace kvtrie
