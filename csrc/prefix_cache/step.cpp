#include "prefix_cache/step.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/entry.h"

namespace kvtrie {

// Another thread may be dropping it right now, by its session: that is over once the mutex is free.
Step::~Step() {
  if (cache_ == nullptr || open_.complete) return;
  if (!cache_->state().gate.home.is_here()) {  // their locks may be held for ever
    leave_as_it_is(open_.forwards);
    return;
  }
  Entry entry(cache_->state(), /*allow_closed=*/true);
  cache_->state().steps.drop(open_);
}

std::vector<std::int32_t> Step::last_rows() const {
  std::vector<std::int32_t> rows;
  std::int32_t end = 0;
  for (const std::uint32_t count : open_.counts) {
    end += static_cast<std::int32_t>(count);
    rows.push_back(end - 1);
  }
  return rows;
}

void Step::require_kept() const {
  if (open_.dropped) fail(ErrorKind::kClosed, "step", "the step was dropped: its session was asked for something else");
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
  return {*cache, static_cast<StateForward&>(open_.of_states(owner))};
}

std::vector<std::vector<HeldState>> Step::states_before() const {
  const Entry entry(cache_->state());
  std::vector<std::vector<HeldState>> before(open_.before.size());
  for (std::size_t s = 0; s < open_.before.size(); ++s) {
    for (const HeldState& state : open_.before[s]) before[s].push_back(state.share());
  }
  return before;
}

void Step::finish_if_complete() {
  if (open_.complete || !open_.written()) return;
  if (!open_.any_drafted()) {
    Entry entry(cache_->state());
    cache_->state().complete(*this);
  }
  require_kept();
  for (const auto& cache : cache_->caches())
    if (const cl::DevicePtr device = cache->store().device()) return device->flush();  // one device has them all
}

std::vector<std::uint32_t> Step::drafted() const {
  std::vector<std::uint32_t> counts;
  for (std::size_t s = 0; s < sessions_.size(); ++s) counts.push_back(open_.drafted(s));
  return counts;
}

void Step::accept(std::span<const std::uint32_t> counts) {
  require(!is_tree(), "step.accept", "path: got none for a tree of drafts, allowed 0 to ", sessions_.size() - 1);
  require(counts.size() == sessions_.size(), "step.accept", "counts: got ", counts.size(), ", allowed ",
          sessions_.size(), ", one for each session");
  for (std::size_t s = 0; s < counts.size(); ++s) {
    require(counts[s] <= open_.drafted(s), "step.accept", "counts[", s, "]: got ", counts[s], ", allowed 0 to ",
            open_.drafted(s));
  }
  decide(counts, 0);
}

void Step::accept_path(std::size_t path, std::uint32_t count) {
  require(is_tree() || sessions_.size() == 1, "step.accept", "path: got ", path, " in a step of ", sessions_.size(),
          " sessions, allowed none");
  require(path < sessions_.size(), "step.accept", "path: got ", path, ", allowed 0 to ", sessions_.size() - 1);
  require(count <= open_.drafted(path), "step.accept", "counts[0]: got ", count, ", allowed 0 to ",
          open_.drafted(path));
  std::vector<std::uint32_t> counts(sessions_.size());
  counts[path] = count;
  decide(counts, path);
}

void Step::decide(std::span<const std::uint32_t> counts, std::size_t path) {
  std::vector<SessionCall> calls;
  const std::span<const SessionPtr> each = std::span(sessions_).first(is_tree() ? 1 : sessions_.size());
  calls.reserve(each.size());
  for (const SessionPtr& session : each) calls.emplace_back(*session);
  Entry entry(cache_->state());
  require_kept();
  require(undecided(), "step.accept", "step: got one that is ", complete() ? "complete" : "not computed",
          ", allowed one with drafts whose layers were all put");
  cache_->state().accept(*this, counts, path);
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
  cache.check_query(open_.of_attention(owner), q, options);
  pace(cache);
  cache.put(open_.of_attention(owner), layer, k, v);
  attended_ = true;
  Tensor out = cache.attend(open_.of_attention(owner), layer, q, options);
  finish_if_complete();
  return out;
}

// `packed`: rows, or the product that gives them.
template <class Packed>
Tensor Step::attend_packed(std::int32_t layer, const Packed& packed, const ops::QkvOptions& projection,
                           const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  pace(*cache_->caches()[owner]);
  Tensor out = cache_->caches()[owner]->attend_qkv(open_.of_attention(owner), layer, packed, projection, options);
  attended_ = true;
  finish_if_complete();
  return out;
}

Tensor Step::attend_qkv(std::int32_t layer, const Tensor& qkv, const ops::QkvOptions& projection,
                        const ops::AttentionOptions& options) {
  return attend_packed(layer, qkv, projection, options);
}

Tensor Step::attend_qkv(std::int32_t layer, const ops::QkvProduct& product, const ops::QkvOptions& projection,
                        const ops::AttentionOptions& options) {
  return attend_packed(layer, product, projection, options);
}

void Step::put(std::int32_t layer, const Tensor& k, const Tensor& v, RowOrder order) {
  const std::size_t owner = attention_of(layer);
  cache_->caches()[owner]->put(open_.of_attention(owner), layer, k, v, order);
  finish_if_complete();
}

CausalCache::History Step::get(std::int32_t layer, RowOrder order) {
  const std::size_t owner = attention_of(layer);
  return cache_->caches()[owner]->get(open_.of_attention(owner), layer, order);
}

Tensor Step::choose_keys(std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t count) {
  const std::size_t owner = attention_of(layer);
  attended_ = true;
  return cache_->caches()[owner]->choose_keys(open_.of_attention(owner), layer, q, weights, count);
}

Tensor Step::choose_blocks(std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t ratio,
                           std::int32_t count, const ops::BlockKeys& made) {
  const std::size_t owner = attention_of(layer);
  attended_ = true;
  return cache_->caches()[owner]->choose_blocks(open_.of_attention(owner), layer, q, weights, ratio, count, made);
}

Tensor Step::attend_chosen(std::int32_t layer, const Tensor& q, const Tensor& chosen,
                           const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  attended_ = true;
  return cache_->caches()[owner]->attend_chosen(open_.of_attention(owner), layer, q, chosen, options);
}

Tensor Step::attend_stored(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) {
  const std::size_t owner = attention_of(layer);
  attended_ = true;
  return cache_->caches()[owner]->attend(open_.of_attention(owner), layer, q, options);
}

void Step::set_causal(std::span<const std::uint32_t> except) {
  require_kept();
  require(!attended_, "step.set_causal", "the step has attended already: call it before");
  for (std::size_t i = 0; i < cache_->caches().size(); ++i)
    cache_->caches()[i]->set_causal(open_.of_attention(i), except);
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

Tensor Step::ssd(std::int32_t layer, const ops::SsdInputs& inputs) {
  const Recurrent in = recurrent_of(layer);
  Tensor out = in.cache.ssd(in.forward, layer, inputs);
  finish_if_complete();
  return out;
}

RecurrentCache::States Step::states(std::int32_t layer) {
  const Recurrent in = recurrent_of(layer);
  return in.cache.states(in.forward, layer);
}

std::vector<std::vector<std::int32_t>> Step::boundaries() const {
  if (cache_->states().empty()) return std::vector<std::vector<std::int32_t>>(sessions_.size());
  return open_.of_states(0).boundaries();
}

void Step::put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta) {
  const Recurrent in = recurrent_of(layer);
  in.cache.put_states(in.forward, layer, conv, delta);
  finish_if_complete();
}

void Step::write_states(std::int32_t layer, const std::function<void(PointCache&, LayerForward&)>& write) {
  const std::size_t owner = state_of(layer);
  write(*cache_->states()[owner], open_.of_states(owner));
  finish_if_complete();
}

}  // namespace kvtrie
