// Attention to chosen keys, which are read where they lie.
#include "cache/causal_union.h"
#include "cache/kv_arguments.h"
#include "ops/chosen.h"

namespace kvtrie {
namespace {

using State = CausalCache::State;

ChosenCells& chosen_cells(const State& state, Forward::State& forward) KVTRIE_REQUIRES(state.mutex) {
  if (forward.chosen == nullptr || forward.chosen->of != forward.step) {
    auto made = std::make_shared<ChosenCells>(ChosenCells{forward.step, SeenCells(state, forward)});
    made->copied = made->seen.any_moved();
    if (!made->copied) {
      const std::vector<std::int32_t> cells = made->seen.cells();
      made->cells = Tensor::from_host(state.store->device(), DType::kInt32, {static_cast<std::int64_t>(cells.size())},
                                      cells.data());
    }
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

const Tensor& mask_of(const State& state, const Forward::State& forward, ChosenCells& chosen)
    KVTRIE_REQUIRES(state.mutex) {
  if (!chosen.mask.defined()) {
    const ops::ChoiceTables keys = chosen.seen.keys(state, forward, true);
    chosen.mask =
        Tensor::from_host(state.store->device(), DType::kFloat32, {forward.rows, keys.count}, keys.mask.data());
  }
  return chosen.mask;
}

const ops::ChoiceBlocks& blocks_of(const State& state, const Forward::State& forward, ChosenCells& chosen,
                                   std::int32_t ratio) KVTRIE_REQUIRES(state.mutex) {
  const auto [entry, is_new] = chosen.blocks.try_emplace(ratio);
  if (is_new)
    entry->second = {state.store->device(), chosen.seen.blocks(state, forward, ratio), std::int64_t{forward.rows}};
  return entry->second;
}

// Index keys of a layer, where they lie if they are numbers by themselves.
ops::ListedKeys index_keys(State& state, std::uint32_t index, const ChosenCells& chosen) KVTRIE_REQUIRES(state.mutex) {
  const ops::ListedCells keys = listed_cells(state, index, chosen, state.shape.formats.k->plain());
  const Tensor& k = keys.pool.k;
  return {keys.cells.defined() ? k : k.reshape({k.dim(1), 1, k.dim(2)}), keys.cells};
}

void require_index(const State& state, const Forward::State& open, const Tensor& q, const char* where)
    KVTRIE_REQUIRES(state.mutex) {
  require_device(state, where);
  if (state.shape.kv_heads != 1)
    fail(ErrorKind::kNotSupported, where, "kv_heads: got ", state.shape.kv_heads, ", allowed 1");
  kvtrie::check_query(*state.store, open.rows, q, ops::AttentionOptions{}, where);
}

}  // namespace

Tensor CausalCache::choose_keys(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& weights,
                                std::int32_t count) {
  const char* where = "causal_cache.choose_keys";
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, where);
  require_index(*state_, open, q, where);
  ChosenCells& chosen = chosen_cells(*state_, open);
  const Tensor& mask = mask_of(*state_, open, chosen);
  open.was_read = true;
  return ops::choose_keys(q, index_keys(*state_, index, chosen), weights, mask, count, shape().cells);
}

Tensor CausalCache::choose_blocks(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& weights,
                                  std::int32_t ratio, std::int32_t count, const ops::BlockKeys& made) {
  const char* where = "causal_cache.choose_blocks";
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, where);
  require_index(*state_, open, q, where);
  if (state_->is_windowed())
    fail(ErrorKind::kNotSupported, where, "visibility: got a window or chunks, allowed attention to all keys");
  const auto cells = static_cast<std::int32_t>(shape().cells);
  require(ratio >= 1 && ratio <= cells, where, "ratio: got ", ratio, ", allowed 1 to ", cells,
          ", the cells of the cache");
  require(count >= 1, where, "count: got ", count, ", allowed 1 or more");
  ChosenCells& chosen = chosen_cells(*state_, open);
  const ops::ChoiceBlocks& blocks = blocks_of(*state_, open, chosen, ratio);
  open.was_read = true;
  return ops::choose_blocks(q, index_keys(*state_, index, chosen), blocks, weights, made,
                            std::min(count, cells / ratio));
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
  return ops::attend_chosen(q, listed_cells(*state_, index, cells, /*in_place=*/true), chosen, options, &cells.plans);
}

}  // namespace kvtrie
