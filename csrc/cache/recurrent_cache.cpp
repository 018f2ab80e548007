// Creation, sequences and owners.
#include "cache/recurrent_cache.h"

#include "cache/recurrent_cache_state.h"

namespace kvtrie {

// ---- state --------------------------------------------------------------------------------------------------------

RecurrentCache::State::State(std::unique_ptr<StateStore> store_in, std::vector<std::int32_t> layers_in)
    : store(std::move(store_in)),
      shape(store->shape()),
      pool(StatePool::create(shape.slots)),
      layers(std::move(layers_in)) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool fresh = layer_index.emplace(layers[i], static_cast<std::uint32_t>(i)).second;
    require(fresh, "recurrent_cache", "layers: got ", layers[i], " twice, allowed once");
  }
  const std::uint32_t stored = shape.layers;
  require(layers.size() == stored, "recurrent_cache", "layers: got ", layers.size(), ", allowed ", stored,
          " as the store has");
}

RecurrentCache::State::~State() {
  sequences.clear();
  pool->forget_listener();
}

std::uint32_t RecurrentCache::State::index_of(std::int32_t layer, const char* where) const {
  const auto entry = layer_index.find(layer);
  if (entry == layer_index.end()) {
    fail(ErrorKind::kArgument, where, "layer: got ", layer, ", allowed the ", layer_index.size(),
         " layers of this cache, ", layer_index.begin()->first, " to ", layer_index.rbegin()->first);
  }
  return entry->second;
}

StateSequence* RecurrentCache::State::find(SequenceId id) {
  const auto entry = sequences.find(id);
  return entry == sequences.end() ? nullptr : &entry->second;
}

const StateSequence* RecurrentCache::State::find(SequenceId id) const {
  const auto entry = sequences.find(id);
  return entry == sequences.end() ? nullptr : &entry->second;
}

StateSequence& RecurrentCache::State::known(SequenceId id, const char* where) {
  StateSequence* sequence = find(id);
  require(sequence != nullptr, where, "sequence: got ", id, ", allowed one of the ", sequences.size(), " open ones");
  return *sequence;
}

void RecurrentCache::State::require_idle(const StateSequence& sequence, const char* where) const {
  if (sequence.forward != nullptr) fail(ErrorKind::kBusy, where, "the sequence is in a forward that is still open");
}

void RecurrentCache::State::make_idle(StateSequence& sequence, const char* where) {
  if (sequence.forward == nullptr) return;
  if (!current || current->state_.get() != sequence.forward) require_idle(sequence, where);
  drop(*sequence.forward);
}

StateSequence& RecurrentCache::State::open(SequenceId id) {
  if (StateSequence* sequence = find(id)) return *sequence;
  require(id >= 0 && id < kFirstOpenedSequence, "recurrent_cache", "sequence: got ", id, ", allowed 0 to ",
          kFirstOpenedSequence - 1);
  return sequences[id];
}

void RecurrentCache::State::forget_if_empty(SequenceId id) noexcept {
  const StateSequence* sequence = find(id);
  if (sequence == nullptr || id >= kFirstOpenedSequence || sequence->length > 0) return;
  if (sequence->forward == nullptr && sequence->schedule.offsets.empty()) sequences.erase(id);
}

void RecurrentCache::State::take_over(std::span<const SlotRef> claimed, std::span<const Owner> by) {
  for (std::size_t i = 0; i < claimed.size(); ++i) {
    const Owner last = pool->owner_of(claimed[i].slot());
    if (last != by[i] && last != kClean) store->fill(claimed[i].slot(), 0);
    pool->set_owner(claimed[i].slot(), by[i]);
  }
}

void RecurrentCache::State::stand(StateSequence& sequence, std::int32_t length, SlotRef slot) noexcept {
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
  const auto next = [](SequenceId id) { return id == INT32_MAX ? kFirstOpenedSequence : id + 1; };
  SequenceId id = state_->next_opened;
  while (state_->find(id) != nullptr) id = next(id);
  state_->sequences.try_emplace(id).first->second.owner = owner;
  state_->next_opened = next(id);
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
  const StateSequence* sequence = state_->find(id);
  return sequence == nullptr ? 0 : sequence->length;
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

// What it is used for is not followed: the caller serialises, as the header says.
StateStore& RecurrentCache::store() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS { return *state_->store; }

}  // namespace kvtrie
