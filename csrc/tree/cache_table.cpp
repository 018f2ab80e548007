#include "tree/cache_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

using Layers = std::map<std::int32_t, std::size_t>;

template <class Cache>
Layers index_layers(const std::vector<std::shared_ptr<Cache>>& caches, const Layers& others) {
  Layers owners;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    require(caches[i] != nullptr, "prefix_cache", "caches: number ", i, " is empty");
    for (const std::int32_t layer : caches[i]->layers()) {
      require(owners.emplace(layer, i).second && others.count(layer) == 0, "prefix_cache", "caches: layer ", layer,
              " is in two caches");
    }
  }
  return owners;
}

std::vector<LayerCache*> in_order(const std::vector<std::shared_ptr<CausalCache>>& attention,
                                  const std::vector<std::shared_ptr<PointCache>>& states) {
  std::vector<LayerCache*> all;
  all.reserve(attention.size() + states.size());
  for (const auto& cache : attention) all.push_back(cache.get());
  for (const auto& cache : states) all.push_back(cache.get());
  return all;
}

// The windowed ones of `caches`, or the others.
std::vector<std::size_t> indices_of(const std::vector<std::shared_ptr<CausalCache>>& caches, bool windowed) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (caches[i]->is_windowed() == windowed) indices.push_back(i);
  }
  return indices;
}

// Windowed ones, then those of states.
std::vector<std::size_t> numbers_of_points(std::vector<std::size_t> windowed, std::size_t attention, std::size_t all) {
  for (std::size_t i = attention; i < all; ++i) windowed.push_back(i);
  return windowed;
}

std::uint32_t smallest(const std::vector<std::shared_ptr<CausalCache>>& caches, const std::vector<std::size_t>& full) {
  auto cells = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
  for (const std::size_t i : full) cells = std::min(cells, caches[i]->capacity());
  return cells;
}

static_assert(static_cast<std::uint8_t>(SnapshotCache::Kind::kAttention) == CacheIdentity::kAttention);
static_assert(static_cast<std::uint8_t>(SnapshotCache::Kind::kRecurrent) == CacheIdentity::kRecurrent);

std::vector<SnapshotCache> identities_of(const std::vector<LayerCache*>& caches) {
  std::vector<SnapshotCache> identities;
  for (const LayerCache* cache : caches) {
    CacheIdentity own = cache->identity();
    own.shape.insert(own.shape.end(), cache->layers().begin(), cache->layers().end());
    identities.push_back({static_cast<SnapshotCache::Kind>(own.kind), own.format, std::move(own.shape)});
  }
  return identities;
}

std::size_t owner_of(const std::map<std::int32_t, std::size_t>& owners, std::int32_t layer, const char* kind,
                     std::string_view where) {
  const auto owner = owners.find(layer);
  if (owner != owners.end()) return owner->second;
  if (owners.empty()) fail(ErrorKind::kArgument, where, "layer: got ", layer, ", but there is no ", kind, " layer");
  fail(ErrorKind::kArgument, where, "layer: got ", layer, ", allowed the ", owners.size(), " ", kind,
       " layers of the caches, ", owners.begin()->first, " to ", owners.rbegin()->first);
}

}  // namespace

CacheTable::CacheTable(CacheSet set)
    : attention(std::move(set.attention)),
      states(std::move(set.states)),
      all(in_order(attention, states)),
      attention_of_layer(index_layers(attention, {})),
      state_of_layer(index_layers(states, attention_of_layer)),
      full(indices_of(attention, /*windowed=*/false)),
      windowed(indices_of(attention, /*windowed=*/true)),
      of_points(numbers_of_points(windowed, attention.size(), all.size())),
      longest(smallest(attention, full)),
      identities(identities_of(all)) {}

std::uint64_t CacheTable::bytes_per_token() const noexcept {
  std::uint64_t bytes = 0;
  for (const std::size_t i : full) bytes += attention[i]->shape().bytes_per_cell();
  return bytes;
}

std::size_t CacheTable::attention_number(std::int32_t layer, std::string_view where) const {
  return owner_of(attention_of_layer, layer, "attention", where);
}

std::size_t CacheTable::state_number(std::int32_t layer, std::string_view where) const {
  return owner_of(state_of_layer, layer, "recurrent", where);
}

void CacheTable::distrust_owners() const {
  for (LayerCache* cache : all) cache->distrust_owners();
}

std::int32_t CacheTable::cut_to(std::int32_t held, std::int32_t wanted) const noexcept {
  std::int32_t length = std::min(held, wanted);
  for (std::size_t i = 0; i < states.size();) {
    const std::int32_t shorter = states[i]->cut_to(held, length);
    i = shorter == length ? i + 1 : 0;
    length = shorter;
  }
  return length;
}

bool CacheTable::serves(std::int32_t held, std::int32_t wanted) const noexcept {
  if (wanted <= 0) return false;
  return held == wanted || (held > wanted && !states.empty() && cut_to(held, wanted) == wanted);
}

void Attachment::add(LayerCache& cache) {
  attached_.reserve(attached_.size() + 1);
  cache.attach();
  attached_.push_back(&cache);
}

Attachment::~Attachment() {
  for (LayerCache* cache : attached_) cache->detach();
}

}  // namespace kvtrie
