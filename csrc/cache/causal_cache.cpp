// Creation, sequences and questions.
#include "cache/causal_cache.h"

#include <algorithm>

#include "cache/causal_cache_state.h"

namespace kvtrie {

Cell Sequence::after() const noexcept {
  const SpanList& last = own.empty() ? borrowed : own;
  return last.empty() ? 0 : last.spans().back().end_cell();
}

CellSpans Sequence::history() const {
  CellSpans spans = borrowed.spans();
  for (const CellSpan& span : own.spans()) append_span(spans, span);
  return spans;
}

namespace {

void check_visibility(const CausalCache::Options& options) {
  const auto [window, chunk] = options.visibility;
  const std::int32_t memory = options.memory;
  require(window >= 0, "causal_cache", "window: got ", window, ", allowed 1 or more tokens, or 0 for none");
  require(chunk >= 0, "causal_cache", "chunk: got ", chunk, ", allowed 1 or more tokens, or 0 for none");
  require(memory >= 0, "causal_cache", "memory: got ", memory, ", allowed 1 or more tokens, or 0 for the window's");
  if (memory == 0) return;
  require(chunk == 0, "causal_cache", "memory: got ", memory, ", allowed none with chunks");
  require(memory >= window, "causal_cache", "memory: got ", memory, ", allowed ", window, " (the window) or more");
}

}  // namespace

// ---- state --------------------------------------------------------------------------------------------------------

CausalCache::State::State(std::unique_ptr<KvStore> store_in, Options options_in)
    : CacheBase(kName, options_in.layers, store_in->shape().layers),
      store(std::move(store_in)),
      shape(store->shape()),
      pool(CellPool::create(shape.cells)),
      options(std::move(options_in)),
      owners(shape.cells) {
  growth = options.growth;
  const std::size_t layers = shape.layers;
  const std::size_t ropes = options.rope.size();
  require(ropes == 0 || ropes == 1 || ropes == layers, "causal_cache", "rope: got ", ropes, ", allowed none, 1 or ",
          layers);
  for (const ops::RopeParams& each : options.rope) {
    const auto head_dim = static_cast<std::int32_t>(shape.k_dim);
    ops::rope_table(each, head_dim);
    const std::int32_t rotated = each.dims == 0 ? head_dim : each.dims;
    const std::int32_t most = head_dim - static_cast<std::int32_t>(shape.latent_dim);
    require(rotated <= most, "causal_cache", "rope: got ", rotated, " rotated dims, allowed up to ", most,
            ": the latent behind them is not rotated");
  }
  check_visibility(options);
  rope = ropes == 1 ? std::vector<ops::RopeParams>(layers, options.rope.front()) : options.rope;
  store->set_rope(rope);
}

CausalCache::State::~State() {
  sequences.clear();
  current.reset();
  pool->on_free = nullptr;
}

void CausalCache::State::require_sound(const char* where) const {
  if (damaged) fail(ErrorKind::kDevice, where, "the cells were damaged by an earlier device failure");
}

bool CausalCache::State::busy(const Sequence& sequence) const noexcept {
  return sequence.forward != nullptr && (!current || current->state_.get() != sequence.forward);
}

void CausalCache::State::make_idle(Sequence& sequence, const char* where) {
  if (busy(sequence)) require_idle(sequence, where);
  if (sequence.forward != nullptr) drop(*sequence.forward);
}

Sequence& CausalCache::State::open(SequenceId id) {
  if (Sequence* sequence = find(id)) return *sequence;
  const bool windowed = is_windowed();
  Sequence& sequence = add(id, *pool, windowed);
  sequence.epoch = sequence.layout = ++stamp;
  return sequence;
}

void CausalCache::State::cut(Sequence& sequence, std::int32_t length) noexcept {
  pool->release(sequence.reservation);
  if (length >= sequence.length) return;
  sequence.let_passed_go();
  sequence.own.truncate(length);
  sequence.borrowed.truncate(length);
  sequence.length = length;
  sequence.borrowed_end = std::min(sequence.borrowed_end, length);
  sequence.epoch = ++stamp;
  if (length == 0) sequence.is_private = false;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

std::shared_ptr<CausalCache> CausalCache::create(std::unique_ptr<KvStore> store, Options options) {
  require(store != nullptr, "causal_cache", "store: got none");
  auto state = std::make_shared<State>(std::move(store), std::move(options));
  return std::shared_ptr<CausalCache>(new CausalCache(std::move(state)));
}

CausalCache::CausalCache(std::shared_ptr<State> state) : state_(std::move(state)) {}

CausalCache::~CausalCache() = default;

const std::vector<std::int32_t>& CausalCache::layers() const noexcept { return state_->options.layers; }

bool CausalCache::has_layer(std::int32_t layer) const noexcept { return state_->layer_index.count(layer) != 0; }

const KvShape& CausalCache::shape() const noexcept { return state_->shape; }

std::uint64_t CausalCache::nbytes() const noexcept { return shape().bytes_per_cell() * shape().cells; }

CacheIdentity CausalCache::identity() const {
  const KvShape& of = shape();
  CacheIdentity identity{CacheIdentity::kAttention,
                         of.formats.code(),
                         {of.layers, of.kv_heads, of.k_dim, of.v_dim, visibility().window, visibility().chunk}};
  if (of.latent_dim > 0) identity.shape.push_back(of.latent_dim);
  return identity;
}

Cell CausalCache::capacity() const noexcept { return shape().cells; }

Cell CausalCache::free_cells() const { return state_->pool->free_cells(); }

CausalCache::Usage CausalCache::usage() const {
  const CellPool& pool = *state_->pool;
  const MutexLock lock(state_->mutex);
  return {pool.cells(), pool.free_cells(), pool.reserved_cells(), pool.held_cells(), pool.pieces(), pool.limit()};
}

Cell CausalCache::limit() const { return state_->pool->limit(); }

bool CausalCache::set_limit(Cell cells) {
  const MutexLock lock(state_->mutex);
  return state_->pool->set_limit(cells);
}

void CausalCache::attach() {
  const MutexLock lock(state_->mutex);
  require(!state_->attached, "causal_cache", "caches: got one that already belongs to a prefix cache");
  state_->owners.distrust();
  state_->attached = true;
}

void CausalCache::detach() noexcept {
  const MutexLock lock(state_->mutex);
  static_cast<void>(state_->pool->set_limit(state_->pool->cells()));  // a higher one is never refused
  state_->pool->count_owners(false);
  state_->attached = false;
}

SequenceId CausalCache::open_sequence(Owner owner) {
  const MutexLock lock(state_->mutex);
  const bool windowed = is_windowed();
  const auto [id, sequence] = state_->add_next(*state_->pool, windowed);
  sequence->owner = owner;
  sequence->epoch = sequence->layout = ++state_->stamp;
  return id;
}

void CausalCache::close_sequence(SequenceId id) noexcept {
  const MutexLock lock(state_->mutex);
  Sequence* sequence = state_->find(id);
  if (sequence == nullptr) return;
  if (sequence->forward != nullptr) state_->drop(*sequence->forward);
  sequence->let_passed_go();
  state_->sequences.erase(id);
}

std::int32_t CausalCache::length(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  return state_->length_of(id);
}

CellSpans CausalCache::spans(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence == nullptr ? CellSpans{} : sequence->history();
}

bool CausalCache::is_private(SequenceId id) const {
  const MutexLock lock(state_->mutex);
  const Sequence* sequence = state_->find(id);
  return sequence != nullptr && sequence->is_private;
}

void CausalCache::set_growth(std::uint32_t cells) noexcept {
  const MutexLock lock(state_->mutex);
  state_->growth = cells;
}

CellPool& CausalCache::pool() noexcept { return *state_->pool; }

// The use of the returned reference is not followed: the caller serialises, as the header says.
KvStore& CausalCache::store() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS { return *state_->store; }

}  // namespace kvtrie
