// Creation, layers and questions.
#include "standalone/hybrid_cache.h"

#include <algorithm>
#include <sstream>

#include "standalone/hybrid_cache_state.h"

namespace kvtrie {
namespace {

// "0 to 2, 5" for 0, 1, 2, 5.
std::string list(const std::vector<std::int32_t>& layers) {
  std::ostringstream out;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    out << (i > 0 ? ", " : "") << layers[i];
    if (last > i) out << (last > i + 1 ? " to " : ", ") << layers[last];
    i = last + 1;
  }
  return layers.empty() ? "none" : out.str();
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

HybridCache::State::State(std::vector<Component> caches_in) : caches(std::move(caches_in)) {
  require(!caches.empty(), "hybrid_cache", "caches: got none, allowed 1 or more");
  for (const Component& cache : caches) {
    components.push_back(make_component(cache));
    for (const std::int32_t layer : components.back()->layers()) {
      const auto [entry, fresh] = component_of_layer.emplace(layer, components.size() - 1);
      require(fresh, "hybrid_cache", "caches: got layer ", layer, " in caches ", entry->second, " and ",
              components.size() - 1, ", allowed in one");
    }
  }
}

template <class Allowed>
std::size_t HybridCache::State::find(std::int32_t layer, const char* where, Allowed allowed) const {
  const auto entry = component_of_layer.find(layer);
  if (entry != component_of_layer.end() && allowed(*components[entry->second])) return entry->second;
  std::vector<std::int32_t> layers;
  for (const auto& [number, component] : component_of_layer) {
    if (allowed(*components[component])) layers.push_back(number);
  }
  fail(ErrorKind::kArgument, where, "layer: got ", layer, ", allowed ", list(layers));
}

AttentionLayers& HybridCache::State::attention(std::int32_t layer, const char* where) const {
  const std::size_t found = find(layer, where, [](HybridComponent& each) { return each.attention() != nullptr; });
  return *components[found]->attention();
}

RecurrentLayers& HybridCache::State::recurrent(std::int32_t layer, const char* where) const {
  const std::size_t found = find(layer, where, [](HybridComponent& each) { return each.recurrent() != nullptr; });
  return *components[found]->recurrent();
}

std::int32_t HybridCache::State::length_in(std::size_t component, SequenceId id) const {
  const HybridMember* in_step = whole() ? nullptr : member(id);
  return in_step != nullptr ? in_step->begin : components[component]->length(id);
}

std::int32_t HybridCache::State::length(SequenceId id) const {
  std::int32_t length = length_in(0, id);
  for (std::size_t i = 1; i < components.size(); ++i) length = std::min(length, length_in(i, id));
  return length;
}

bool HybridCache::State::is_level(SequenceId id) const {
  for (std::size_t i = 1; i < components.size(); ++i) {
    if (length_in(i, id) != length_in(0, id)) return false;
  }
  return true;
}

std::int32_t HybridCache::State::level(SequenceId id, const char* where) const {
  const std::int32_t shortest = length(id);
  require(is_level(id), where, "sequence ", id, ": got ", shortest,
          " and more tokens in its caches, allowed as many in all: cut it with remove(", id, ", 0)");
  return shortest;
}

bool HybridCache::State::can_resume(std::size_t component, SequenceId id, std::int32_t position) const {
  const HybridMember* in_step = whole() ? nullptr : member(id);
  if (in_step == nullptr) return components[component]->can_resume(id, position);
  return position == in_step->begin || (position < in_step->begin && components[component]->can_resume(id, position));
}

bool HybridCache::State::can_resume(SequenceId id, std::int32_t position) const {
  if (position < 0 || position > length(id)) return false;
  for (std::size_t i = 0; i < components.size(); ++i) {
    if (!can_resume(i, id, position)) return false;
  }
  return true;
}

void HybridCache::State::require_resumable(SequenceId id, std::int32_t position, const char* where) const {
  if (can_resume(id, position)) return;
  std::int32_t nearest = position;
  while (!can_resume(id, nearest)) {
    for (std::size_t i = 0; i < components.size(); ++i) {
      if (!can_resume(i, id, nearest)) nearest = components[i]->resumable_below(nearest);
    }
  }
  throw Error::not_restorable(cat("[", where, "] length: got ", position, ", which not all of the ", components.size(),
                                  " caches can be cut to, allowed ", nearest, " or the length, ", length(id)),
                              nearest);
}

void HybridCache::State::check_change(SequenceId id, const char* where) const {
  for (const auto& component : components) component->check_change(id, where);
}

// ---- the cache ----------------------------------------------------------------------------------------------------

HybridCache::Ptr HybridCache::create(std::vector<Component> caches) {
  return Ptr(new HybridCache(std::make_shared<State>(std::move(caches))));
}

HybridCache::HybridCache(std::shared_ptr<State> state) : state_(std::move(state)) {}

HybridCache::~HybridCache() { drop_forward(); }  // an open step ends with its hybrid

const std::vector<HybridCache::Component>& HybridCache::caches() const noexcept { return state_->caches; }

std::vector<std::int32_t> HybridCache::layers() const {
  std::vector<std::int32_t> layers;
  for (const auto& [layer, component] : state_->component_of_layer) layers.push_back(layer);
  return layers;
}

bool HybridCache::has_layer(std::int32_t layer) const noexcept { return state_->component_of_layer.count(layer) != 0; }

const HybridCache::Component& HybridCache::attention_component(std::int32_t layer, const char* where) const {
  return state_->caches[state_->find(layer, where, [](HybridComponent& each) { return each.attention() != nullptr; })];
}

const HybridCache::Component& HybridCache::recurrent_component(std::int32_t layer, const char* where) const {
  return state_->caches[state_->find(layer, where, [](HybridComponent& each) { return each.recurrent() != nullptr; })];
}

std::uint64_t HybridCache::nbytes() const {
  std::uint64_t bytes = 0;
  for (const auto& component : state_->components) bytes += component->nbytes();
  return bytes;
}

std::optional<Cell> HybridCache::free_cells() const {
  std::optional<Cell> fewest;
  for (const auto& component : state_->components) {
    const std::optional<Cell> cells = component->free_cells();
    if (cells && (!fewest || *cells < *fewest)) fewest = cells;
  }
  return fewest;
}

std::optional<std::uint32_t> HybridCache::free_slots() const {
  std::optional<std::uint32_t> fewest;
  for (const auto& component : state_->components) {
    const std::optional<std::uint32_t> slots = component->free_slots();
    if (slots && (!fewest || *slots < *fewest)) fewest = slots;
  }
  return fewest;
}

std::int32_t HybridCache::length(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  return state_->length(id);
}

bool HybridCache::can_resume(SequenceId id, std::int32_t position) const {
  const MutexLock lock(state_->mutex);
  return state_->can_resume(id, position);
}

std::vector<std::string> HybridCache::check() const {
  const MutexLock lock(state_->mutex);
  std::vector<std::string> faults;
  for (std::size_t i = 0; i < state_->components.size(); ++i) {
    for (const std::string& fault : state_->components[i]->check()) faults.push_back(cat("cache ", i, ": ", fault));
  }
  return faults;
}

std::string HybridCache::dump() const {
  const MutexLock lock(state_->mutex);
  std::ostringstream out;
  for (std::size_t i = 0; i < state_->components.size(); ++i)
    out << "cache " << i << '\n' << state_->components[i]->dump();
  for (const HybridMember& member : state_->members) {
    if (state_->whole()) break;
    out << "step of sequence " << member.id << " from " << member.begin << " to " << member.end << '\n';
  }
  for (const auto& [id, schedule] : state_->schedules) {
    out << "schedule of sequence " << id << ':';
    for (const std::int32_t offset : schedule.offsets) out << ' ' << offset;
    out << '\n';
  }
  return out.str();
}

}  // namespace kvtrie
