// Steps: starting, what components hold, taking back; and what names a layer.
#include <algorithm>
#include <limits>

#include "standalone/hybrid_cache_state.h"

namespace kvtrie {
namespace {

using CacheState = HybridCache::State;

constexpr const char* kWhere = "hybrid_cache.start_forward";

void check_items(const CacheState& state, std::size_t items) {
  const auto encoders = std::count_if(state.components.begin(), state.components.end(),
                                      [](const auto& each) { return each->takes_items(); });
  require(items == 0 || encoders == 1, kWhere, "items: got ", items, " for ", encoders,
          " encoder caches, allowed for one; put them without where there are several");
}

// The sequences of a step in the order of their first rows. REQUIRES: check_start of every component.
std::vector<HybridMember> members_of(const CacheState& state, const HybridRows& rows) KVTRIE_REQUIRES(state.mutex) {
  std::vector<HybridMember> members;
  for (std::size_t row = 0; row < rows.positions.size(); ++row) {
    const SequenceId id = rows.sequences[row];
    if (id < 0) continue;  // padding
    auto member = std::find_if(members.begin(), members.end(), [id](const auto& each) { return each.id == id; });
    if (member == members.end()) {
      const std::int32_t length = state.length(id);
      members.push_back({id, length, length, {}});
      member = std::prev(members.end());
    }
    member->end = std::max(member->end, rows.positions[row] + 1);
  }
  return members;
}

void hold(const CacheState& state, std::vector<HybridMember>& members) {
  for (HybridMember& member : members) {
    for (const auto& component : state.components) member.held.push_back(component->hold(member.id));
  }
}

void start_all(CacheState& state, const HybridRows& rows) {
  std::size_t started = 0;
  try {
    for (; started < state.components.size(); ++started) state.components[started]->start(rows);
  } catch (...) {
    for (std::size_t i = 0; i < started; ++i) state.components[i]->drop();
    throw;
  }
}

void lose_captures(CacheState& state, const HybridMember& member) KVTRIE_REQUIRES(state.mutex) {
  const auto entry = state.schedules.find(member.id);
  if (entry == state.schedules.end()) return;
  HybridSchedule& schedule = entry->second;
  for (std::size_t i = 0; i < schedule.offsets.size(); ++i) {
    const std::int32_t offset = schedule.offsets[i];
    if (offset > member.begin && offset <= member.end) schedule.lost[i] = true;
  }
}

const StateForward& recurrent_step(const CacheState& state, std::optional<std::int32_t> layer, const char* where) {
  if (layer) return state.recurrent(*layer, where).step();
  for (const auto& component : state.components) {
    if (RecurrentLayers* layers = component->recurrent()) return layers->step();
  }
  fail(ErrorKind::kNotSupported, where, "none of the caches is recurrent");
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

const HybridMember* CacheState::member(SequenceId id) const noexcept {
  const auto found =
      std::find_if(members.begin(), members.end(), [id](const HybridMember& each) { return each.id == id; });
  return found == members.end() ? nullptr : &*found;
}

bool CacheState::torn() const {
  return !whole() && std::any_of(components.begin(), components.end(),
                                 [](const auto& each) { return each->forward() == ComponentForward::kComplete; });
}

bool CacheState::whole() const {
  return std::all_of(components.begin(), components.end(), [](const auto& each) {
    return each->forward() == ComponentForward::kComplete || each->forward() == ComponentForward::kText;
  });
}

void CacheState::settle() noexcept {
  if (whole() &&
      std::none_of(components.begin(), components.end(), [](const auto& each) { return each->may_reopen(); })) {
    members.clear();
  }
}

void CacheState::take_back() {
  if (members.empty()) return;
  if (whole()) return members.clear();
  const bool was_torn = torn();
  std::vector<bool> complete;
  for (const auto& component : components) complete.push_back(component->forward() == ComponentForward::kComplete);
  const std::vector<HybridMember> going = std::move(members);  // from here on nothing may stop half-way
  members.clear();
  for (const auto& component : components) component->drop();
  for (const HybridMember& each : going) {
    if (was_torn) lose_captures(*this, each);
    try {
      for (std::size_t i = 0; i < components.size(); ++i) {
        if (complete[i]) components[i]->take_back(each.id, each.held[i], each.begin);
      }
    } catch (...) {
      empty(each.id);  // what cannot be put back is forgotten
    }
  }
}

void CacheState::take_back_torn(SequenceId id) {
  if (member(id) != nullptr && torn()) take_back();
}

void CacheState::make_idle(SequenceId id) {
  if (member(id) != nullptr) take_back();
}

void CacheState::empty(SequenceId id, std::int32_t length) noexcept {
  const std::int32_t kept = can_resume(id, length) ? length : 0;
  for (const auto& component : components) {
    try {
      component->remove(id, kept, std::nullopt);
    } catch (...) {  // only memory can be short: the caller has an error to report already
    }
  }
}

// ---- the cache ----------------------------------------------------------------------------------------------------

void HybridCache::start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                                bool reserve, std::span<const EncoderItem> items) {
  require_rows(positions, sequences, kWhere);
  check_items(*state_, items.size());
  const HybridRows rows{positions, sequences, items};
  const MutexLock lock(state_->mutex);
  if (state_->whole()) state_->members.clear();
  if (state_->torn()) state_->take_back();
  for (const auto& component : state_->components) component->check_start(rows);
  if (reserve) return;
  state_->take_back();
  std::vector<HybridMember> members = members_of(*state_, rows);
  hold(*state_, members);
  start_all(*state_, rows);
  state_->members = std::move(members);
  state_->not_causal.clear();
}

bool HybridCache::complete() const {
  const MutexLock lock(state_->mutex);
  return state_->whole();
}

void HybridCache::drop_forward() noexcept {
  const MutexLock lock(state_->mutex);
  try {
    state_->take_back();
  } catch (...) {  // memory is short: the next call takes it back
  }
}

void HybridCache::put(std::int32_t layer, const Tensor& k, const Tensor& v) {
  const MutexLock lock(state_->mutex);
  state_->attention(layer, "hybrid_cache.put").put(layer, k, v);
  state_->settle();
}

Tensor HybridCache::attend(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) {
  const MutexLock lock(state_->mutex);
  return state_->attention(layer, "hybrid_cache.attend").attend(layer, q, options);
}

CausalCache::History HybridCache::get(std::int32_t layer) {
  const MutexLock lock(state_->mutex);
  return state_->attention(layer, "hybrid_cache.get").get(layer);
}

void HybridCache::set_causal(std::span<const std::uint32_t> except) {
  const MutexLock lock(state_->mutex);
  bool any = false;
  std::vector<std::uint32_t> wanted(except.begin(), except.end());
  std::size_t set = 0;
  try {
    for (; set < state_->components.size(); ++set) any = state_->components[set]->set_causal(except) || any;
  } catch (...) {  // the components before were not read: theirs can be set again
    for (std::size_t i = 0; i < set; ++i) state_->components[i]->set_causal(state_->not_causal);
    throw;
  }
  if (!any) fail(ErrorKind::kNotSupported, "hybrid_cache.set_causal", "none of the caches is causal");
  state_->not_causal = std::move(wanted);
}

Tensor HybridCache::conv(std::int32_t layer, const Tensor& x, const Tensor& weight) {
  const MutexLock lock(state_->mutex);
  Tensor y = state_->recurrent(layer, "hybrid_cache.conv").conv(layer, x, weight);
  state_->settle();
  return y;
}

Tensor HybridCache::gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                const Tensor& beta) {
  const MutexLock lock(state_->mutex);
  Tensor out = state_->recurrent(layer, "hybrid_cache.gated_delta").gated_delta(layer, q, k, v, g, beta);
  state_->settle();
  return out;
}

Tensor HybridCache::ssd(std::int32_t layer, const ops::SsdInputs& inputs) {
  const MutexLock lock(state_->mutex);
  Tensor out = state_->recurrent(layer, "hybrid_cache.ssd").ssd(layer, inputs);
  state_->settle();
  return out;
}

RecurrentCache::States HybridCache::states(std::int32_t layer) {
  const MutexLock lock(state_->mutex);
  return state_->recurrent(layer, "hybrid_cache.states").states(layer);
}

void HybridCache::put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta) {
  const MutexLock lock(state_->mutex);
  state_->recurrent(layer, "hybrid_cache.put_states").put_states(layer, conv, delta);
  state_->settle();
}

std::vector<std::vector<std::int32_t>> HybridCache::boundaries(std::optional<std::int32_t> layer) const {
  const MutexLock lock(state_->mutex);
  return recurrent_step(*state_, layer, "hybrid_cache.boundaries").row_boundaries();
}

std::vector<std::int32_t> HybridCache::row_starts(std::optional<std::int32_t> layer) const {
  const MutexLock lock(state_->mutex);
  return recurrent_step(*state_, layer, "hybrid_cache.row_starts").row_starts();
}

}  // namespace kvtrie
