// States of a recurrent cache at one length (point_cache.h): held, cut, resumed, and their images.
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

HeldState RecurrentCache::hold(SequenceId id, std::int32_t length) const {
  return length > 0 ? HeldState(slot(id)) : HeldState();
}

HeldState RecurrentCache::cut(const HeldState& state, std::int32_t) const { return state.share(); }

void RecurrentCache::resume(SequenceId id, std::int32_t length, HeldState state) {
  const char* where = "recurrent_cache.resume";
  const MutexLock lock(state_->mutex);
  StateSequence& sequence = state_->known(id, where);
  SlotRef slot = state.slot();
  require(slot ? length > 0 : length == 0, where, "length: got ", length, slot ? " with" : " without",
          " a slot, allowed 0 without and 1 or more with one");
  require(!slot || slot.belongs_to(*state_->pool), where, "slot: got one of another cache");
  state_->make_idle(sequence, where);
  state_->become(sequence, length, std::move(slot));
}

std::vector<StateSection> RecurrentCache::sections(std::int32_t) const { return state_sections(shape()); }

HeldState RecurrentCache::claim(std::int32_t, Owner owner) {
  const MutexLock lock(state_->mutex);
  return HeldState(std::move(state_->pool->claim(1, owner).front()));
}

namespace {

// Of the one slot of a state.
Slot slot_in(const HeldState& state, const StatePool& pool, const char* where) {
  const bool own = state.slots().size() == 1 && state.slots().front().belongs_to(pool);
  require(own, where, "slot: got none, or one of another cache");
  return state.slots().front().slot();
}

}  // namespace

CompletionPtr RecurrentCache::store_image(const HeldState& state, std::byte* image) {
  const MutexLock lock(state_->mutex);
  return state_->store->store_image(slot_in(state, *state_->pool, "recurrent_cache.store_image"), image);
}

CompletionPtr RecurrentCache::load_image(const HeldState& state, const std::byte* image, Owner owner) {
  const MutexLock lock(state_->mutex);
  const Slot slot = slot_in(state, *state_->pool, "recurrent_cache.load_image");
  state_->pool->set_owner(slot, kForeign);
  CompletionPtr loaded = state_->store->load_image(slot, image);
  state_->pool->set_owner(slot, owner);
  return loaded;
}

}  // namespace kvtrie
