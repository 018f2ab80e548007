// Attention to chosen keys, which are read where they lie.
#include "cache/causal_union.h"
#include "cache/kv_arguments.h"
#include "ops/chosen.h"

namespace kvtrie {

// Of one plan: what all layers of the forward share. Keys that have moved are read as copies, whose numbers need no
// cells.
struct ChosenCells {
  PreparedStepPtr of;
  SeenCells seen;
  bool copied = false;
  Tensor cells = {};          // int32 [columns]; undefined where copied
  Tensor mask = {};           // undefined until a layer chooses
  ops::ChosenPlan plan = {};  // of the last layer that attended
};

namespace {

using State = CausalCache::State;

Tensor listed(const Columns& columns, const cl::DevicePtr& device) {
  std::vector<std::int32_t> cells;
  cells.reserve(columns.count());
  for (const CellSpan& span : columns.spans()) {
    for (Cell cell = span.cell; cell < span.end_cell(); ++cell) cells.push_back(static_cast<std::int32_t>(cell));
  }
  return Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(cells.size())}, cells.data());
}

ChosenCells& chosen_cells(const State& state, Forward::State& forward) KVTRIE_REQUIRES(state.mutex) {
  if (forward.chosen == nullptr || forward.chosen->of != forward.step) {
    auto made = std::make_shared<ChosenCells>(ChosenCells{forward.step, SeenCells(state, forward)});
    made->copied = made->seen.any_moved();
    if (!made->copied) made->cells = listed(made->seen.columns, state.store->device());
    forward.chosen = std::move(made);
  }
  return *forward.chosen;
}

// The cells of a layer in the order of the columns: where they lie, or copied.
ops::ListedCells listed_cells(State& state, std::uint32_t index, const ChosenCells& chosen, bool in_place)
    KVTRIE_REQUIRES(state.mutex) {
  if (!chosen.copied && in_place) return {*state.store->cells(index), chosen.cells};
  auto [k, v] = state.store->rows(index, chosen.seen.columns.spans(), RowOrder::kHeadsFirst);
  ops::ListedCells copy{ops::LayerCells(std::move(k), std::move(v)), {}};
  copy.pool.latent_dim = state.shape.latent_dim;
  return copy;
}

void require_device(const State& state, const char* where) KVTRIE_REQUIRES(state.mutex) {
  if (state.store->device() == nullptr)
    fail(ErrorKind::kNotSupported, where, "device: got a cache without one, allowed one on a device");
}

}  // namespace

Tensor CausalCache::choose_keys(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& weights,
                                std::int32_t count) {
  const char* where = "causal_cache.choose_keys";
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, where);
  require_device(*state_, where);
  if (shape().kv_heads != 1) fail(ErrorKind::kNotSupported, where, "kv_heads: got ", shape().kv_heads, ", allowed 1");
  kvtrie::check_query(*state_->store, open.rows, q, ops::AttentionOptions{}, where);
  ChosenCells& chosen = chosen_cells(*state_, open);
  if (!chosen.mask.defined()) chosen.mask = chosen.seen.mask(*state_, open, state_->store->device());
  open.was_read = true;
  const ops::ListedCells keys = listed_cells(*state_, index, chosen, shape().formats.k->plain());
  const Tensor& k = keys.pool.k;
  const ops::ListedKeys named{keys.cells.defined() ? k : k.reshape({k.dim(1), 1, k.dim(2)}), keys.cells};
  return ops::choose_keys(q, named, weights, chosen.mask, count);
}

Tensor CausalCache::attend_chosen(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& chosen,
                                  const ops::AttentionOptions& options) {
  const char* where = "causal_cache.attend_chosen";
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, where);
  require_values(shape(), where);
  require_device(*state_, where);
  kvtrie::check_query(*state_->store, open.rows, q, options, where);
  ChosenCells& cells = chosen_cells(*state_, open);
  open.was_read = true;
  return ops::attend_chosen(q, listed_cells(*state_, index, cells, /*in_place=*/true), chosen, options, &cells.plan);
}

}  // namespace kvtrie
