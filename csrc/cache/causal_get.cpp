// Histories and masks for models that do their own attention, and rows to look at.
#include <utility>

#include "cache/causal_union.h"

namespace kvtrie {

CausalCache::History CausalCache::get(Forward& forward, std::int32_t layer, RowOrder order) {
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, "causal_cache.get");
  const SeenCells seen(*state_, open);
  History history;
  std::tie(history.k, history.v) = state_->store->rows(index, seen.columns.spans(), order);
  const Shape shape{open.rows, static_cast<std::int64_t>(seen.columns.count())};
  history.mask = Tensor::host(DType::kFloat32, shape);
  seen.write_mask(history.mask.host_span<float>(), *state_, open);
  const cl::DevicePtr device = history.k.defined() ? history.k.device() : nullptr;
  if (device != nullptr)
    history.mask = Tensor::from_host(device, DType::kFloat32, shape, Tensor(history.mask).host_data());
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
