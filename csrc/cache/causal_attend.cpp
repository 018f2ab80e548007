// Forwards: puts, attention, completion.
#include <algorithm>
#include <optional>
#include <utility>

#include "cache/causal_cache_state.h"
#include "cache/kv_arguments.h"

namespace kvtrie {
namespace {

using Status = Forward::State::Status;

// Whether everything that a sequence's rows in a complete forward saw is still held, by the sequence or by the forward.
bool still_held(const Sequence& sequence, const ForwardSequence& in_forward) {
  const bool has_passed = in_forward.passed && !in_forward.passed->empty();
  const std::int32_t held = sequence.held_from();
  return std::min(held, has_passed ? in_forward.passed->begin_position() : held) <= in_forward.sees_from;
}

// Everything that completion changes, made before it changes anything.
struct Advance {
  std::vector<CausalCache::SnapshotPtr> captured;
  std::shared_ptr<SpanList> passed;
  std::int32_t held_from = 0;
};

Advance plan_advance(const CausalCache::State& state, const std::shared_ptr<CausalCache::State>& self,
                     const Forward::State& forward, const ForwardSequence& in_forward) KVTRIE_REQUIRES(state.mutex) {
  const Sequence& sequence = *state.find(in_forward.id);
  const std::int32_t length = std::max(sequence.length, in_forward.end());
  CellSpans history = sequence.history();
  for (const CellSpan& span : in_forward.claimed.spans()) append_span(history, span);
  Advance advance;
  advance.captured = state.capture(sequence, history, length, self);
  advance.held_from = sequence.held_from();
  if (!state.is_windowed()) return advance;
  advance.passed = std::make_shared<SpanList>(*state.pool, true);
  if (!forward.lets_go_unseen) return advance;
  advance.held_from = std::max(advance.held_from, state.retained_from(length));
  advance.passed->append(slice_spans(history, sequence.held_from(), advance.held_from));
  return advance;
}

void apply(Advance& advance, Sequence& sequence, ForwardSequence& in_forward) noexcept {
  sequence.own.append(std::move(in_forward.claimed));
  sequence.length = std::max(sequence.length, in_forward.end());
  sequence.forward = nullptr;
  sequence.borrowed.drop_front(advance.held_from);
  sequence.own.drop_front(advance.held_from);
  in_forward.passed = std::move(advance.passed);
  sequence.passed = in_forward.passed;
  sequence.schedule.fire(advance.captured);
}

}  // namespace

// The layer was put, and the histories are still those the forward saw. It is planned again when the same contents have
// moved to other cells, or other rows are causal.
std::uint32_t require_readable(const std::shared_ptr<CausalCache::State>& state, Forward::State& forward,
                               std::int32_t layer, const char* where) KVTRIE_REQUIRES(state->mutex) {
  require_of(state, forward, where);
  state->require_sound(where);
  const std::uint32_t index = state->index_of(layer, where);
  require(forward.put[index], where, "layer: got ", layer, ", which was not put in this forward");
  bool moved = forward.step == nullptr;
  for (const ForwardSequence& in_forward : forward.sequences) {
    const Sequence* sequence = state->find(in_forward.id);
    if (sequence == nullptr || sequence->epoch != in_forward.epoch) {
      fail(ErrorKind::kClosed, where, "sequence ", in_forward.id, " was cut or closed since this forward");
    }
    if (!still_held(*sequence, in_forward)) {
      fail(ErrorKind::kClosed, where, "sequence ", in_forward.id, " has let go of what this forward saw");
    }
    moved = moved || sequence->layout != in_forward.layout;
  }
  if (moved) {
    forward.step = prepare(*state, forward);
    for (ForwardSequence& in_forward : forward.sequences) in_forward.layout = state->find(in_forward.id)->layout;
  }
  return index;
}

void CausalCache::State::complete(Forward::State& forward) {
  const std::shared_ptr<State> self = forward.owner.lock();
  std::vector<Advance> advances;
  for (ForwardSequence& in_forward : forward.sequences) {
    advances.push_back(plan_advance(*this, self, forward, in_forward));
    find(in_forward.id)->own.make_room(in_forward.claimed.spans().size());
  }
  for (std::size_t i = 0; i < forward.sequences.size(); ++i) {
    apply(advances[i], *find(forward.sequences[i].id), forward.sequences[i]);
  }
  std::erase(open_forwards, &forward);
  forward.status = Status::kComplete;
}

namespace {

// The index of a layer that may be put now.
std::uint32_t require_writable(const std::shared_ptr<CausalCache::State>& state, const Forward::State& open,
                               std::int32_t layer, const char* where) KVTRIE_REQUIRES(state->mutex) {
  require_of(state, open, where);
  state->require_sound(where);
  const std::uint32_t index = state->index_of(layer, where);
  require(!open.put[index], where, "layer: got ", layer, ", which was put in this forward already");
  return index;
}

void note_put(CausalCache::State& state, Forward::State& open, std::uint32_t index) KVTRIE_REQUIRES(state.mutex) {
  if (open.puts + 1 == open.put.size()) state.complete(open);
  open.put[index] = true;
  ++open.puts;
}

// The attention of a layer whose rows `put` stores; nullopt where `put` gives no q, and has stored nothing. `packed`:
// rows of q, k and v, or the product that gives them.
template <class Packed, class Put>
std::optional<Tensor> attend_put(const std::shared_ptr<CausalCache::State>& state, Forward::State& open,
                                 std::int32_t layer, const Packed& packed, const ops::AttentionOptions& options,
                                 const Put& put) KVTRIE_REQUIRES(state->mutex) {
  const char* where = "causal_cache.attend_qkv";
  KvStore& store = *state->store;
  const std::uint32_t index = require_writable(state, open, layer, where);
  require_values(store.shape(), where);
  const std::int64_t heads = check_packed(store, open.rows, packed, where);
  check_sinks(store, heads, options, where);
  if (open.step == nullptr) open.step = prepare(*state, open);
  const std::optional<Tensor> q = put(store, index, *open.step);
  if (!q) return std::nullopt;
  note_put(*state, open, index);
  require_readable(state, open, layer, where);
  open.was_read = true;
  const Tensor out = store.attend(index, *open.step, *q, options);
  return out.defined() ? out.reshape({open.rows, heads * store.shape().value_dim()}) : out;
}

}  // namespace

// ---- the cache ----------------------------------------------------------------------------------------------------

void CausalCache::put(Forward& forward, std::int32_t layer, const Tensor& k, const Tensor& v, RowOrder order) {
  const char* where = "causal_cache.put";
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_writable(state_, open, layer, where);
  check_rows(*state_->store, open.rows, k, /*value=*/false, where, order);
  check_rows(*state_->store, open.rows, v, /*value=*/true, where, order);
  if (open.step == nullptr) open.step = prepare(*state_, open);  // here, so that a claim is flat in time
  if (open.fresh() > 0) state_->store->put(index, *open.step, k, v, order);
  note_put(*state_, open, index);
}

Tensor CausalCache::attend_qkv(Forward& forward, std::int32_t layer, const Tensor& qkv,
                               const ops::QkvOptions& projection, const ops::AttentionOptions& options) {
  const MutexLock lock(state_->mutex);
  const auto put = [&](KvStore& store, std::uint32_t index, const PreparedStep& step) {
    return std::optional(store.put_qkv(index, step, qkv, projection));
  };
  return *attend_put(state_, *forward.state_, layer, qkv, options, put);
}

// Where the product does not store its rows, it is launched without the lock, as by callers who have packed rows.
Tensor CausalCache::attend_qkv(Forward& forward, std::int32_t layer, const ops::QkvProduct& product,
                               const ops::QkvOptions& projection, const ops::AttentionOptions& options) {
  if (ops::may_put_qkv(product, projection)) {
    const MutexLock lock(state_->mutex);
    const auto put = [&](KvStore& store, std::uint32_t index, const PreparedStep& step) {
      Tensor q = store.product_puts_qkv(index, step, product, projection);
      return q.defined() ? std::optional(std::move(q)) : std::nullopt;
    };
    const std::optional<Tensor> out = attend_put(state_, *forward.state_, layer, product, options, put);
    if (out) return *out;
  }
  return attend_qkv(forward, layer, ops::matmul(product.x, product.weights, product.bias, product.norm), projection,
                    options);
}

void CausalCache::set_causal(Forward& forward, std::span<const std::uint32_t> except) {
  const char* where = "causal_cache.set_causal";
  std::vector<std::uint32_t> rows(except.begin(), except.end());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  require_of(state_, open, where);
  require(rows.empty() || rows.back() < open.rows, where, "except: got row ", rows.empty() ? 0 : rows.back(),
          ", allowed 0 to ", open.rows - 1);
  if (rows == open.not_causal) return;
  require(!open.was_read, where, "except: got other rows after a layer was attended, allowed before the first one");
  open.not_causal = std::move(rows);
  open.step.reset();
}

void CausalCache::check_query(const Forward& forward, const Tensor& q, const ops::AttentionOptions& options) const {
  const MutexLock lock(state_->mutex);
  kvtrie::check_query(*state_->store, forward.state_->rows, q, options, "causal_cache.attend");
}

Tensor CausalCache::attend(Forward& forward, std::int32_t layer, const Tensor& q,
                           const ops::AttentionOptions& options) {
  const MutexLock lock(state_->mutex);
  Forward::State& open = *forward.state_;
  const std::uint32_t index = require_readable(state_, open, layer, "causal_cache.attend");
  kvtrie::check_query(*state_->store, open.rows, q, options, "causal_cache.attend");
  open.was_read = true;
  return state_->store->attend(index, *open.step, q, options);
}

}  // namespace kvtrie
