// A recurrent cache as one of those that have states at single lengths (point_cache.h).
#include "cache/recurrent_cache_state.h"

namespace kvtrie {

CacheIdentity RecurrentCache::identity() const {
  const StateShape& of = shape();
  return {CacheIdentity::kRecurrent,
          plain_format(of.dtype)->code,
          {of.layers, of.conv_tail, of.conv_dim, of.v_heads, of.v_dim, of.k_dim}};
}

std::int32_t RecurrentCache::cut_to(std::int32_t held, std::int32_t wanted) const noexcept {
  return held <= wanted ? held : 0;
}

std::uint32_t RecurrentCache::units_at(std::int32_t length) const noexcept { return length > 0 ? 1 : 0; }

std::uint32_t RecurrentCache::units_for(std::int32_t, std::int32_t,
                                        std::span<const std::int32_t> boundaries) const noexcept {
  return static_cast<std::uint32_t>(boundaries.size()) + 1;
}

PointForwardPtr RecurrentCache::begin_step(std::span<const StateForwardRows> rows) { return begin_forward(rows); }

bool RecurrentCache::drop_step(PointForward& step) noexcept {
  auto* forward = dynamic_cast<StateForward*>(&step);
  return forward != nullptr && drop(*forward);
}

HeldState RecurrentCache::held(SequenceId id) const { return HeldState(slot(id)); }

HeldState RecurrentCache::cut(const HeldState& state, std::int32_t) const { return state.share(); }

void RecurrentCache::resume(SequenceId id, std::int32_t length, HeldState state) { stand_at(id, length, state.slot()); }

std::vector<StateSection> RecurrentCache::sections_at(std::int32_t) const { return state_sections(shape()); }

HeldState RecurrentCache::claim_at(std::int32_t, Owner owner) { return HeldState(claim(owner)); }

CompletionPtr RecurrentCache::store_held(const HeldState& state, std::byte* image) {
  return store_image(state.slot(), image);
}

CompletionPtr RecurrentCache::load_held(const HeldState& state, const std::byte* image, Owner owner) {
  return load_image(state.slot(), image, owner);
}

std::vector<HeldState> StateForward::take_captured_states(std::size_t index) {
  std::vector<HeldState> states;
  for (SlotRef& slot : take_captured(index)) states.emplace_back(std::move(slot));
  return states;
}

}  // namespace kvtrie
