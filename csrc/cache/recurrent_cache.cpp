// Creation, sequences and owners.
#include "cache/recurrent_cache.h"

#include "cache/recurrent_cache_state.h"

namespace kvtrie {

// ---- state --------------------------------------------------------------------------------------------------------

RecurrentCache::State::State(std::unique_ptr<StateStore> store_in, std::vector<std::int32_t> layers_in)
    : CacheBase(kName, layers_in, store_in->shape().layers),
      store(std::move(store_in)),
      shape(store->shape()),
      pool(StatePool::create(shape.slots)),
      layers(std::move(layers_in)) {}

RecurrentCache::State::~State() {
  sequences.clear();
  current.reset();
  pool->forget_listener();
}

bool RecurrentCache::State::busy(const StateSequence& sequence) const noexcept {
  return sequence.forward != nullptr && (!current || current->state_.get() != sequence.forward);
}

void RecurrentCache::State::make_idle(StateSequence& sequence, const char* where) {
  if (busy(sequence)) require_idle(sequence, where);
  if (sequence.forward != nullptr) drop(*sequence.forward);
}

StateSequence& RecurrentCache::State::open(SequenceId id) {
  StateSequence* sequence = find(id);
  return sequence != nullptr ? *sequence : add(id);
}

void RecurrentCache::State::take_over(std::span<const SlotRef> claimed, std::span<const Owner> by) {
  for (std::size_t i = 0; i < claimed.size(); ++i) {
    const Owner last = pool->owner_of(claimed[i].slot());
    if (last != by[i] && last != kClean) store->fill(claimed[i].slot(), 0);
    pool->set_owner(claimed[i].slot(), by[i]);
  }
}

void RecurrentCache::State::become(StateSequence& sequence, std::int32_t length, SlotRef slot) noexcept {
  sequence.length = length;
  sequence.slot = std::move(slot);
}

// ---- the cache ----------------------------------------------------------------------------------------------------

std::shared_ptr<RecurrentCache> RecurrentCache::create(std::unique_ptr<StateStore> store,
                                                       std::vector<std::int32_t> layers) {
  require(store != nullptr, "recurrent_cache", "store: got none");
  auto state = std::make_shared<State>(std::move(store), std::move(layers));
  return std::shared_ptr<RecurrentCache>(new RecurrentCache(std::move(state)));
}

RecurrentCache::RecurrentCache(std::shared_ptr<State> state) : state_(std::move(state)) {}

RecurrentCache::~RecurrentCache() = default;

const std::vector<std::int32_t>& RecurrentCache::layers() const noexcept { return state_->layers; }

bool RecurrentCache::has_layer(std::int32_t layer) const noexcept { return state_->layer_index.count(layer) != 0; }

const StateShape& RecurrentCache::shape() const noexcept { return state_->shape; }

std::uint64_t RecurrentCache::nbytes() const noexcept { return shape().bytes_per_slot() * shape().slots; }

std::uint32_t RecurrentCache::capacity() const noexcept { return shape().slots; }

std::uint32_t RecurrentCache::free_slots() const { return state_->pool->free_slots(); }

std::uint32_t RecurrentCache::limit() const { return state_->pool->limit(); }

bool RecurrentCache::set_limit(std::uint32_t slots) {
  const MutexLock lock(state_->mutex);
  return state_->pool->set_limit(slots);
}

void RecurrentCache::attach() {
  const MutexLock lock(state_->mutex);
  require(!state_->attached, "recurrent_cache", "caches: got one that already belongs to a prefix cache");
  state_->pool->distrust();
  state_->attached = true;
}

void RecurrentCache::detach() noexcept {
  const MutexLock lock(state_->mutex);
  static_cast<void>(state_->pool->set_limit(state_->pool->slots()));  // a higher one is never refused
  state_->pool->count_owners(false);
  state_->attached = false;
}

SequenceId RecurrentCache::open_sequence(Owner owner) {
  const MutexLock lock(state_->mutex);
  const auto [id, sequence] = state_->add_next();
  sequence->owner = owner;
  return id;
}

void RecurrentCache::close_sequence(SequenceId id) noexcept {
  const MutexLock lock(state_->mutex);
  const StateSequence* sequence = state_->find(id);
  if (sequence == nullptr) return;
  if (sequence->forward != nullptr) state_->drop(*sequence->forward);
  state_->sequences.erase(id);
}

std::int32_t RecurrentCache::length(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  return state_->length_of(id);
}

SlotRef RecurrentCache::slot(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const StateSequence* sequence = state_->find(id);
  return sequence == nullptr ? SlotRef() : sequence->slot;
}

void RecurrentCache::count_owners() { state_->pool->count_owners(true); }

std::uint32_t RecurrentCache::held_by(Owner owner) const { return state_->pool->held_by(owner); }

CompletionPtr RecurrentCache::mark() {
  const MutexLock lock(state_->mutex);
  return state_->store->mark();
}

void RecurrentCache::distrust_owners() { state_->pool->distrust(); }

StatePool& RecurrentCache::pool() noexcept { return *state_->pool; }

// The use of the returned reference is not followed: the caller serialises, as the header says.
StateStore& RecurrentCache::store() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS { return *state_->store; }

}  // namespace kvtrie
