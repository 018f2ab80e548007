// A model's calls on an open forward, layer by layer: the fused operations, or states out and in.
#include <utility>

#include "cache/recurrent_cache_state.h"

namespace kvtrie {
namespace {

using ForwardState = StateForward::State;
using Status = ForwardState::Status;
using CacheState = RecurrentCache::State;

// Made by the first operation, so that a claim needs no device.
const PreparedStates& step_of(CacheState& state, ForwardState& forward) KVTRIE_REQUIRES(state.mutex) {
  if (forward.step == nullptr) forward.step = state.store->prepare(forward.rows_of_sequences());
  return *forward.step;
}

void check_tensor(const CacheState& state, const Tensor& tensor, const char* name, const Shape& allowed,
                  const char* where, bool any_float = false) KVTRIE_REQUIRES(state.mutex) {
  if (!state.store->has_bytes()) return;
  require(tensor.defined() && tensor.shape() == allowed, where, name, ": got shape ",
          tensor.defined() ? to_string(tensor.shape()) : "of nothing", ", allowed ", to_string(allowed));
  const DType dtype = tensor.dtype();
  const bool reduced = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (dtype != DType::kFloat32 && !(any_float && reduced)) {
    fail(ErrorKind::kType, where, name, ": got dtype ", name_of(dtype), ", allowed float32",
         any_float ? ", float16 or bfloat16" : "");
  }
  state.store->check_place(tensor, name);
}

// A layer's half that is to be written now: its index.
std::uint32_t unwritten(const CacheState& state, const ForwardState& forward, std::int32_t layer, bool delta,
                        const char* where) {
  const std::uint32_t index = state.index_of(layer, where);
  const StateShape& shape = state.shape;
  if (!(delta ? shape.has_delta() : shape.has_conv())) {
    fail(ErrorKind::kNotSupported, where, "the cache has no ", delta ? "delta" : "conv", " states");
  }
  const ForwardState::Written& written = forward.written[index];
  require(!(delta ? written.delta : written.conv), where, "layer: got ", layer, ", whose ", delta ? "delta" : "conv",
          " states were written in this forward already");
  return index;
}

// Called after the store was told: completion comes first, because it may throw.
void mark_written(CacheState& state, ForwardState& forward, std::uint32_t index, bool conv, bool delta)
    KVTRIE_REQUIRES(state.mutex) {
  const std::size_t halves = std::size_t{conv} + std::size_t{delta};
  if (forward.missing == halves) state.complete(forward);
  forward.missing -= halves;
  forward.written[index].conv |= conv;
  forward.written[index].delta |= delta;
}

}  // namespace

std::vector<ops::StateRows> StateForward::State::rows_of_sequences() const {
  std::vector<ops::StateRows> result;
  std::uint32_t row = 0;
  for (const StateForwardSequence& in_forward : sequences) {
    ops::StateRows& each = result.emplace_back();
    each.row = in_forward.row;
    each.count = in_forward.count;
    each.from = in_forward.from.slot();
    for (std::size_t i = 0; i < in_forward.slots.size(); ++i) {
      const bool last = i == in_forward.boundaries.size();
      const std::uint32_t after =
          last ? in_forward.count : static_cast<std::uint32_t>(in_forward.boundaries[i] - in_forward.begin);
      each.writes.push_back({after, in_forward.slots[i].slot()});
    }
    row = in_forward.row + in_forward.count;
  }
  if (row < rows) result.push_back({row, rows - row, -1, {}});  // padding: nobody's state
  return result;
}

void StateForward::State::require_open(const std::shared_ptr<RecurrentCache::State>& state, const char* where) const {
  require(owner.lock() == state, where, "forward: got one of another cache");
  if (status == Status::kDropped) fail(ErrorKind::kClosed, where, "the forward was dropped");
  if (status == Status::kComplete) fail(ErrorKind::kClosed, where, "the forward is complete");
}

Tensor RecurrentCache::conv(StateForward& forward, std::int32_t layer, const Tensor& x, const Tensor& weight) {
  const char* where = "recurrent_cache.conv";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  open.require_open(state_, where);
  const std::uint32_t index = unwritten(*state_, open, layer, false, where);
  const StateShape& sizes = shape();
  check_tensor(*state_, x, "x", {open.rows, sizes.conv_dim}, where);
  check_tensor(*state_, weight, "weight", {sizes.conv_dim, std::int64_t{sizes.conv_tail} + 1}, where);
  Tensor y = state_->store->conv(index, step_of(*state_, open), x, weight);
  mark_written(*state_, open, index, true, false);
  return y;
}

namespace {

// How many heads share the state's columns: those of q and k, or the groups of B and C. 0: a shape that cannot be.
std::int64_t heads_of(const CacheState& state, const Tensor& tensor, const char* name, std::int64_t rows,
                      const char* where) KVTRIE_REQUIRES(state.mutex) {
  const std::int64_t heads = tensor.defined() && tensor.rank() == 3 ? tensor.dim(1) : 0;
  if (!state.store->has_bytes()) return heads;
  require(heads >= 1 && state.shape.v_heads % heads == 0, where, name, ": got shape ",
          tensor.defined() ? to_string(tensor.shape()) : "of nothing", ", allowed [", rows, ", a divisor of ",
          state.shape.v_heads, ", ", state.shape.k_dim, "]");
  return heads;
}

}  // namespace

Tensor RecurrentCache::gated_delta(StateForward& forward, std::int32_t layer, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& g, const Tensor& beta) {
  const char* where = "recurrent_cache.gated_delta";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  open.require_open(state_, where);
  const std::uint32_t index = unwritten(*state_, open, layer, true, where);
  const StateShape& sizes = shape();
  const std::int64_t rows = open.rows, v_heads = sizes.v_heads;
  const std::int64_t k_heads = heads_of(*state_, q, "q", rows, where);
  check_tensor(*state_, q, "q", {rows, k_heads, sizes.k_dim}, where);
  check_tensor(*state_, k, "k", {rows, k_heads, sizes.k_dim}, where);
  check_tensor(*state_, v, "v", {rows, v_heads, sizes.v_dim}, where);
  check_tensor(*state_, g, "g", g.rank() == 3 ? Shape{rows, v_heads, sizes.k_dim} : Shape{rows, v_heads}, where);
  check_tensor(*state_, beta, "beta", {rows, v_heads}, where);
  Tensor y = state_->store->gated_delta(index, step_of(*state_, open), q, k, v, g, beta);
  mark_written(*state_, open, index, false, true);
  return y;
}

Tensor RecurrentCache::ssd(StateForward& forward, std::int32_t layer, const ops::SsdInputs& in) {
  const char* where = "recurrent_cache.ssd";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  open.require_open(state_, where);
  const std::uint32_t index = unwritten(*state_, open, layer, true, where);
  const StateShape& sizes = shape();
  const std::int64_t rows = open.rows, heads = sizes.v_heads;
  const std::int64_t groups = heads_of(*state_, in.b, "b", rows, where);
  check_tensor(*state_, in.x, "x", {rows, heads, sizes.v_dim}, where);
  check_tensor(*state_, in.dt, "dt", {rows, heads}, where);
  check_tensor(*state_, in.a, "a", {heads}, where);
  check_tensor(*state_, in.b, "b", {rows, groups, sizes.k_dim}, where);
  check_tensor(*state_, in.c, "c", {rows, groups, sizes.k_dim}, where);
  check_tensor(*state_, in.d, "d", {heads}, where);
  require(in.least >= 0.0f && in.most >= in.least, where, "dt_limits: got ", in.least, " and ", in.most,
          ", allowed 0 or more, and as much or more");
  Tensor y = state_->store->ssd(index, step_of(*state_, open), in);
  mark_written(*state_, open, index, false, true);
  return y;
}

RecurrentCache::States RecurrentCache::states(StateForward& forward, std::int32_t layer) {
  const char* where = "recurrent_cache.states";
  const MutexLock lock(state_->mutex);
  forward.state_->require_open(state_, where);
  const std::uint32_t index = state_->index_of(layer, where);
  std::vector<Slot> slots;
  for (const StateForwardSequence& in_forward : forward.state_->sequences) slots.push_back(in_forward.from.slot());
  auto [conv, delta] = state_->store->read(index, slots);
  return {std::move(conv), std::move(delta)};
}

void RecurrentCache::put_states(StateForward& forward, std::int32_t layer, const Tensor& conv, const Tensor& delta) {
  const char* where = "recurrent_cache.put_states";
  const MutexLock lock(state_->mutex);
  ForwardState& open = *forward.state_;
  open.require_open(state_, where);
  const StateShape& sizes = shape();
  const bool any = conv.defined() || delta.defined() || !state_->store->has_bytes();
  require(any, where, "conv, delta: got none of them, allowed at least one");
  const bool with_conv = state_->store->has_bytes() ? conv.defined() : sizes.has_conv();
  const bool with_delta = state_->store->has_bytes() ? delta.defined() : sizes.has_delta();
  std::uint32_t index = 0;
  if (with_conv) index = unwritten(*state_, open, layer, false, where);
  if (with_delta) index = unwritten(*state_, open, layer, true, where);
  const auto entries = static_cast<std::int64_t>(open.slots());
  if (with_conv) check_tensor(*state_, conv, "conv", {entries, sizes.conv_tail, sizes.conv_dim}, where, true);
  if (with_delta) check_tensor(*state_, delta, "delta", {entries, sizes.v_heads, sizes.v_dim, sizes.k_dim}, where);
  std::vector<Slot> slots;
  for (const StateForwardSequence& in_forward : open.sequences) {
    for (const SlotRef& slot : in_forward.slots) slots.push_back(slot.slot());
  }
  state_->store->write(index, slots, conv, delta);
  mark_written(*state_, open, index, with_conv, with_delta);
}

}  // namespace kvtrie
