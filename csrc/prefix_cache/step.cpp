#include "prefix_cache/step.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

// Another thread may be dropping it right now, by its session: that is over once the mutex is free.
Step::~Step() {
  if (cache_ == nullptr || complete_) return;
  if (!cache_->state().home.is_here()) {  // their locks may be held for ever
    leave_as_it_is(forwards_);
    leave_as_it_is(state_forwards_);
    return;
  }
  Entry entry(cache_->state(), /*allow_closed=*/true);
  cache_->state().steps.drop(*this);
}

std::int32_t Step::end_of(const Cursor& cursor) const {
  std::size_t own = 0;
  while (&this->cursor(own) != &cursor) ++own;
  return end(own);
}

std::vector<std::int32_t> Step::last_rows() const {
  std::vector<std::int32_t> rows;
  std::int32_t end = 0;
  for (const std::uint32_t count : counts_) {
    end += static_cast<std::int32_t>(count);
    rows.push_back(end - 1);
  }
  return rows;
}

void Step::require_kept() const {
  if (dropped_) fail(ErrorKind::kClosed, "step", "the step was dropped: its session was asked for something else");
}

std::size_t Step::attention_of(std::int32_t layer) const {
  require_kept();
  return cache_->state().caches.attention_number(layer, "step");
}

std::size_t Step::state_of(std::int32_t layer) const {
  require_kept();
  return cache_->state().caches.state_number(layer, "step");
}

Step::Recurrent Step::recurrent_of(std::int32_t layer) const {
  const std::size_t owner = state_of(layer);
  auto* cache = dynamic_cast<RecurrentCache*>(cache_->states()[owner].get());
  require(cache != nullptr, "step", "layer: got ", layer,
          ", whose cache is of another kind, allowed a recurrent layer");
  return {*cache, static_cast<StateForward&>(*state_forwards_[owner])};
}

std::vector<std::vector<HeldState>> Step::states_before() const {
  const Entry entry(cache_->state());
  std::vector<std::vector<HeldState>> before(before_.size());
  for (std::size_t s = 0; s < before_.size(); ++s) {
    for (const HeldState& state : before_[s]) before[s].push_back(state.share());
  }
  return before;
}

std::vector<std::int32_t> Step::boundaries_inside(std::size_t session, PointKind least) const {
  std::vector<std::int32_t> inside;
  for (const WantedPoint& each : captures_[session]) {
    if (each.offset < end(session) && each.kind >= least) inside.push_back(each.offset);
  }
  return inside;
}

void Step::finish_if_complete() {
  const auto complete = [](const auto& each) { return each->complete(); };
  if (complete_ || !std::all_of(forwards_.begin(), forwards_.end(), complete) ||
      !std::all_of(state_forwards_.begin(), state_forwards_.end(), complete))
    return;
  {
    Entry entry(cache_->state());
    cache_->state().complete(*this);
  }
  require_kept();
  for (const auto& cache : cache_->caches())
    if (const cl::DevicePtr device = cache->store().device()) return device->flush();  // one device has them all
}

namespace {

// Where the device is far behind, waits before a cache is locked rather than while it is.
void pace(CausalCache& cache) {
  if (const cl::DevicePtr device = cache.store().device()) device->pace();
}

}  // namespace

// ---- attention ----------------------------------------------------------------------------------------------------

Tensor Step::attend(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                    const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  CausalCache& cache = *cache_->caches()[owner];
  cache.check_query(*forwards_[owner], q, options);
  pace(cache);
  cache.put(*forwards_[owner], layer, k, v);
  attended_ = true;
  Tensor out = cache.attend(*forwards_[owner], layer, q, options);
  finish_if_complete();
  return out;
}

Tensor Step::attend_qkv(std::int32_t layer, const Tensor& qkv, const ops::QkvOptions& projection,
                        const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  pace(*cache_->caches()[owner]);
  Tensor out = cache_->caches()[owner]->attend_qkv(*forwards_[owner], layer, qkv, projection, options);
  attended_ = true;
  finish_if_complete();
  return out;
}

void Step::put(std::int32_t layer, const Tensor& k, const Tensor& v, RowOrder order) {
  const std::size_t owner = attention_of(layer);
  cache_->caches()[owner]->put(*forwards_[owner], layer, k, v, order);
  finish_if_complete();
}

CausalCache::History Step::get(std::int32_t layer, RowOrder order) {
  const std::size_t owner = attention_of(layer);
  return cache_->caches()[owner]->get(*forwards_[owner], layer, order);
}

Tensor Step::attend_stored(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  attended_ = true;
  return cache_->caches()[owner]->attend(*forwards_[owner], layer, q, options);
}

void Step::set_causal(std::span<const std::uint32_t> except) {
  require_kept();
  require(!attended_, "step.set_causal", "the step has attended already: call it before");
  for (std::size_t i = 0; i < forwards_.size(); ++i) cache_->caches()[i]->set_causal(*forwards_[i], except);
}

// ---- states -------------------------------------------------------------------------------------------------------

Tensor Step::conv(std::int32_t layer, const Tensor& x, const Tensor& weight) {
  const Recurrent in = recurrent_of(layer);
  Tensor out = in.cache.conv(in.forward, layer, x, weight);
  finish_if_complete();
  return out;
}

Tensor Step::gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta) {
  const Recurrent in = recurrent_of(layer);
  Tensor out = in.cache.gated_delta(in.forward, layer, q, k, v, g, beta);
  finish_if_complete();
  return out;
}

RecurrentCache::States Step::states(std::int32_t layer) {
  const Recurrent in = recurrent_of(layer);
  return in.cache.states(in.forward, layer);
}

std::vector<std::vector<std::int32_t>> Step::boundaries() const {
  if (state_forwards_.empty()) return std::vector<std::vector<std::int32_t>>(sessions_.size());
  return state_forwards_.front()->boundaries();
}

void Step::put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta) {
  const Recurrent in = recurrent_of(layer);
  in.cache.put_states(in.forward, layer, conv, delta);
  finish_if_complete();
}

void Step::write_states(std::int32_t layer, const std::function<void(PointCache&, PointForward&)>& write) {
  const std::size_t owner = state_of(layer);
  write(*cache_->states()[owner], *state_forwards_[owner]);
  finish_if_complete();
}

}  // namespace kvtrie
