// Reading K and V of a session.
//
// The mutex is held while copies are enqueued, so that they see one state of the session; the owner of the tensors
// waits for the device. Any later use of the cells comes later in the queue.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/entry.h"
#include "prefix_cache/session.h"

namespace kvtrie {
namespace {

constexpr const char* kWhere = "session.kv";

// A negative or too large number is refused with what the layer has now.
Session::Rows range_of(std::int32_t layer, std::int32_t held_from, std::int32_t computed,
                       std::optional<std::int32_t> start, std::optional<std::int32_t> stop) {
  const std::int32_t first = std::min(held_from, computed);
  const auto check = [&](const char* name, std::int32_t got, std::int32_t last) {
    require(first <= got && got <= last, kWhere, name, ": got ", got, ", allowed ", first, " to ", last,
            ", of which layer ", layer, " holds rows");
  };
  Session::Rows range;
  range.stop = stop.value_or(computed);
  check("stop", range.stop, computed);
  range.start = start.value_or(first);
  check("start", range.start, range.stop);
  return range;
}

}  // namespace

std::vector<std::int32_t> Session::attention_layers() const {
  std::vector<std::int32_t> layers;
  for (const auto& [layer, owner] : cache_->state().caches.attention_of_layer) layers.push_back(layer);
  return layers;
}

std::vector<Session::Rows> Session::rows(std::span<const std::int32_t> layers, std::optional<std::int32_t> start,
                                         std::optional<std::int32_t> stop, RowLayout layout) const {
  PrefixCacheState& state = cache_->state();
  std::vector<std::size_t> owners;
  for (const std::int32_t layer : layers) owners.push_back(state.caches.attention_number(layer, kWhere));
  if (!owners.empty()) {
    if (const cl::DevicePtr device = state.caches.attention[owners.front()]->store().device()) device->pace();
  }
  std::vector<Rows> all;
  all.reserve(layers.size());
  const Entry entry(state);
  require_usable(at_);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const CausalCache& cache = *state.caches.attention[owners[i]];
    const SequenceId sequence = at_.sequences[owners[i]];
    Rows range = range_of(layers[i], cache.held_from(sequence), at_.computed, start, stop);
    CausalCache::Rows copied = cache.rows(sequence, layers[i], range.start, range.stop, layout);
    range.k = std::move(copied.k), range.v = std::move(copied.v);
    all.push_back(std::move(range));
  }
  return all;
}

}  // namespace kvtrie
