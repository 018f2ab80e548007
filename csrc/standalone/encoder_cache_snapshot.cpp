// Snapshots and scheduled captures: what sequences_of.h asks of items.
#include <algorithm>

#include "cache/sequences_of.h"
#include "standalone/encoder_cache_state.h"

namespace kvtrie {

using CacheState = EncoderCache::State;

// ---- contents -----------------------------------------------------------------------------------------------------

std::uint64_t EncoderContents::bytes(bool alone) const {
  const auto state = owner.lock();
  if (!state) return 0;
  const MutexLock lock(state->mutex);
  const std::uint64_t own = state->pool->cells_held_only(cells.spans(), 1);
  return (alone ? own : cells.length() - own) * state->shape.bytes_per_cell();
}

void EncoderContents::take(EncoderContents& from) noexcept {
  cells = std::move(from.cells);
  position = from.position;
}

void EncoderContents::split(std::int32_t at, EncoderContents& lower, EncoderContents& upper) noexcept {
  (has_item_below(at) ? lower : upper).take(*this);
}

void EncoderContents::join(EncoderContents& first, EncoderContents& second) noexcept {
  take(second.cells.empty() ? first : second);
  first.cells.clear();
}

// ---- state --------------------------------------------------------------------------------------------------------

namespace {

// Of [start, end), with an item of these cells if it stands there.
std::unique_ptr<EncoderContents> contents_of(const std::shared_ptr<CacheState>& state, const CellSpans& cells,
                                             std::int32_t position, std::int32_t start, std::int32_t end) {
  auto contents = CacheState::no_contents(state, start, end);
  if (position >= start && position < end) contents->cells.append(cells);
  contents->position = position;
  return contents;
}

}  // namespace

std::unique_ptr<EncoderContents> CacheState::no_contents(const std::shared_ptr<State>& self, std::int32_t start,
                                                         std::int32_t end) {
  auto contents = std::make_unique<Contents>();
  contents->owner = self;
  contents->cells = SpanList(*self->pool, true);
  contents->start = start;
  contents->end = end;
  return contents;
}

std::unique_ptr<EncoderContents> CacheState::contents_of(const std::shared_ptr<State>& self,
                                                         const EncoderSequence& sequence, std::int32_t start,
                                                         std::int32_t length) const {
  return kvtrie::contents_of(self, sequence.cells.spans(), sequence.position, start, length);
}

std::vector<EncoderCache::SnapshotPtr> CacheState::capture(const EncoderSequence& sequence, const CellSpans& cells,
                                                           std::int32_t position, std::int32_t length,
                                                           const std::shared_ptr<State>& self) const {
  return sequence.schedule.due(length, [&](std::int32_t start, std::int32_t offset) {
    return std::make_shared<Snapshot>(kvtrie::contents_of(self, cells, position, start, offset));
  });
}

std::optional<CacheState::Restoring> CacheState::plan_restore(SequenceId id, const Contents* contents,
                                                              std::int32_t target) const {
  const std::int32_t length = length_of(id);
  if (target < 0 || target > (contents != nullptr ? contents->end : length)) return std::nullopt;
  if (contents == nullptr) return Restoring{false, target};
  if (contents->has_item_below(target)) return Restoring{true, 0};
  if (contents->start > length) return std::nullopt;
  return Restoring{false, std::min(contents->start, target)};
}

void CacheState::restore(SequenceId id, const Restoring& plan, const Contents* contents, std::int32_t target,
                         const char* where) {
  SpanList cells;
  if (plan.from_snapshot) cells = contents->cells.share();
  EncoderSequence& sequence = open(id);
  make_idle(sequence, where);
  if (plan.from_snapshot) return become(sequence, target, {std::move(cells), contents->position});
  cut(sequence, plan.kept);
  sequence.length = target;
  forget_if_empty(id);
}

template class CacheSnapshot<EncoderCache, EncoderContents>;
template class Sequences<EncoderCache, EncoderContents>;

}  // namespace kvtrie
