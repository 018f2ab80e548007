// Creation, sequences and questions.
#include "standalone/encoder_cache.h"

#include <algorithm>

#include "standalone/encoder_cache_state.h"

namespace kvtrie {

// ---- state --------------------------------------------------------------------------------------------------------

EncoderCache::State::State(std::unique_ptr<KvStore> store_in, std::vector<std::int32_t> layers_in)
    : CacheBase(kName, layers_in, store_in->shape().layers),
      store(std::move(store_in)),
      shape(store->shape()),
      pool(CellPool::create(shape.cells)),
      layers(std::move(layers_in)) {}

EncoderCache::State::~State() {
  sequences.clear();
  current.reset();
  pool->on_free = nullptr;
}

EncoderSequence& EncoderCache::State::open(SequenceId id) {
  if (EncoderSequence* sequence = find(id)) return *sequence;
  EncoderSequence& sequence = add(id, *pool);
  sequence.epoch = ++stamp;
  return sequence;
}

void EncoderCache::State::require_sound(const char* where) const {
  if (damaged) fail(ErrorKind::kDevice, where, "the cells were damaged by an earlier device failure");
}

std::int32_t EncoderCache::State::length_of(SequenceId id) const {
  const EncoderSequence* sequence = find(id);
  if (sequence == nullptr) return 0;
  const EncoderForward::State* forward = sequence->forward;
  if (forward == nullptr || forward->status != EncoderForward::State::Status::kText) return sequence->length;
  return std::max(sequence->length, forward->find(id)->end);
}

void EncoderCache::State::let_go(EncoderSequence& sequence) noexcept {
  if (!sequence.has_item()) return;
  sequence.cells.clear();
  sequence.epoch = ++stamp;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

std::shared_ptr<EncoderCache> EncoderCache::create(std::unique_ptr<KvStore> store, std::vector<std::int32_t> layers) {
  require(store != nullptr, "encoder_cache", "store: got none");
  auto state = std::make_shared<State>(std::move(store), std::move(layers));
  return std::shared_ptr<EncoderCache>(new EncoderCache(std::move(state)));
}

EncoderCache::EncoderCache(std::shared_ptr<State> state) : state_(std::move(state)) {}

EncoderCache::~EncoderCache() = default;

const std::vector<std::int32_t>& EncoderCache::layers() const noexcept { return state_->layers; }

bool EncoderCache::has_layer(std::int32_t layer) const noexcept { return state_->layer_index.count(layer) != 0; }

const KvShape& EncoderCache::shape() const noexcept { return state_->shape; }

std::uint64_t EncoderCache::nbytes() const noexcept { return shape().bytes_per_cell() * shape().cells; }

Cell EncoderCache::capacity() const noexcept { return shape().cells; }

Cell EncoderCache::free_cells() const { return state_->pool->free_cells(); }

std::int32_t EncoderCache::length(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  return state_->length_of(id);
}

std::optional<EncoderCache::Item> EncoderCache::item(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const EncoderSequence* sequence = state_->find(id);
  if (sequence == nullptr || !sequence->has_item()) return std::nullopt;
  return Item{sequence->position, sequence->cells.spans()};
}

bool EncoderCache::can_resume(SequenceId id, std::int32_t position) const {
  return position >= 0 && position <= length(id);
}

CellPool& EncoderCache::pool() noexcept { return *state_->pool; }

// The use of the returned reference is not followed: the caller serialises, as the header says.
KvStore& EncoderCache::store() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS { return *state_->store; }

}  // namespace kvtrie
