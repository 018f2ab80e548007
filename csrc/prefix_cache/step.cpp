#include "prefix_cache/step.h"

#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

Step::~Step() {
  if (cache_ == nullptr || complete_ || dropped_) return;
  Entry entry(cache_->state(), /*allow_closed=*/true);
  cache_->state().drop(*this);
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

std::size_t Step::cache_of(std::int32_t layer) const {
  if (dropped_) fail(ErrorKind::kClosed, "step", "the step was dropped: its session was asked for something else");
  const auto& owners = cache_->state().cache_of_layer;
  const auto owner = owners.find(layer);
  if (owner == owners.end()) {
    fail(ErrorKind::kArgument, "step", "layer: got ", layer, ", allowed the ", owners.size(), " layers of the caches, ",
         owners.begin()->first, " to ", owners.rbegin()->first);
  }
  return owner->second;
}

void Step::finish_if_complete() {
  const bool done =
      std::all_of(forwards_.begin(), forwards_.end(), [](const ForwardPtr& each) { return each->complete(); });
  if (!done || complete_) return;
  Entry entry(cache_->state());
  cache_->state().complete(*this);
}

Tensor Step::attend(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                    const ops::AttentionOptions& options) {
  const std::size_t owner = cache_of(layer);
  CausalCache& cache = *cache_->caches()[owner];
  cache.check_query(*forwards_[owner], q, options);
  cache.put(*forwards_[owner], layer, k, v);
  Tensor out = cache.attend(*forwards_[owner], layer, q, options);
  finish_if_complete();
  return out;
}

void Step::put(std::int32_t layer, const Tensor& k, const Tensor& v) {
  const std::size_t owner = cache_of(layer);
  cache_->caches()[owner]->put(*forwards_[owner], layer, k, v);
  finish_if_complete();
}

CausalCache::History Step::get(std::int32_t layer) {
  const std::size_t owner = cache_of(layer);
  return cache_->caches()[owner]->get(*forwards_[owner], layer);
}

Tensor Step::attend_stored(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) {
  const std::size_t owner = cache_of(layer);
  return cache_->caches()[owner]->attend(*forwards_[owner], layer, q, options);
}

}  // namespace kvtrie
