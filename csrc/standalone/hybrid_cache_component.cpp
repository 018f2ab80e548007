// The three kinds of components.
#include "standalone/hybrid_cache_component.h"

#include <algorithm>

#include "base/error.h"

namespace kvtrie {
namespace {

// The common part of the caches.
template <class Cache, class ForwardHandle>
class CacheComponent : public HybridComponent {
 public:
  explicit CacheComponent(std::shared_ptr<Cache> cache) : cache_(std::move(cache)) {}

  const std::vector<std::int32_t>& layers() const override { return cache_->layers(); }
  std::uint64_t nbytes() const override { return cache_->nbytes(); }
  std::int32_t length(SequenceId id) const override { return cache_->length(id); }
  bool can_resume(SequenceId id, std::int32_t position) const override { return cache_->can_resume(id, position); }
  void check_change(SequenceId id, const char* where) const override {
    if (cache_->busy(id)) fail(ErrorKind::kBusy, where, "the sequence is in a forward that is still open");
  }
  bool can_restore(SequenceId id, const ComponentSnapshot& snapshot, std::int32_t target) const override {
    return snapshot && cache_->can_restore(id, typed(snapshot), target);
  }
  std::vector<std::string> check() const override { return cache_->check(); }
  std::string dump() const override { return cache_->dump(); }

  ComponentForward forward() const override {
    if (!forward_) return ComponentForward::kNone;
    return forward_->complete() ? ComponentForward::kComplete : ComponentForward::kOpen;
  }
  void drop() noexcept override {
    if (forward_) cache_->drop(*forward_);
  }

  void copy_prefix(SequenceId from, SequenceId to, std::int32_t length) override {
    cache_->copy_prefix(from, to, length);
  }
  void remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) override {
    cache_->remove(id, begin, end);
  }
  bool restore(SequenceId id, const ComponentSnapshot& snapshot, std::int32_t target) override {
    return cache_->restore(id, typed(snapshot), target);
  }
  ComponentSnapshot snapshot(SequenceId id, std::int32_t start) override { return cache_->snapshot(id, start); }
  std::pair<ComponentSnapshot, ComponentSnapshot> split(const ComponentSnapshot& snapshot, std::int32_t at) override {
    return cache_->split(typed(snapshot), at);
  }
  ComponentSnapshot merge(const ComponentSnapshot& a, const ComponentSnapshot& b) override {
    return cache_->merge(typed(a), typed(b));
  }
  std::uint64_t nbytes(const ComponentSnapshot& snapshot) const override { return typed(snapshot)->nbytes(); }
  std::uint64_t shared_nbytes(const ComponentSnapshot& snapshot) const override {
    return typed(snapshot)->shared_nbytes();
  }
  void prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) override {
    cache_->prepare_snapshots(id, std::move(offsets));
  }
  std::vector<ComponentSnapshot> take_snapshots(SequenceId id) override {
    auto taken = cache_->take_snapshots(id);
    return {taken.begin(), taken.end()};
  }

 protected:
  using Typed = std::shared_ptr<typename Cache::Snapshot>;
  static Typed typed(const ComponentSnapshot& snapshot) {
    return std::static_pointer_cast<typename Cache::Snapshot>(snapshot);
  }
  auto& started() const {
    require(forward_ != nullptr, "hybrid_cache", "no forward was started");
    return *forward_;
  }

  std::shared_ptr<Cache> cache_;
  ForwardHandle forward_;
};

class CausalComponent final : public CacheComponent<CausalCache, ForwardPtr>, public AttentionLayers {
 public:
  using CacheComponent::CacheComponent;

  AttentionLayers* attention() noexcept override { return this; }
  std::optional<Cell> free_cells() const override { return cache_->free_cells(); }
  std::int32_t resumable_below(std::int32_t position) const override {
    const std::int32_t chunk = cache_->visibility().chunk;
    return chunk > 0 ? position - position % chunk : 0;
  }
  void check_remove_middle(SequenceId id, std::int32_t begin, std::int32_t end, const char* where) const override {
    cache_->check_remove_middle(id, begin, end, where);
  }

  void check_start(const HybridRows& rows) override { cache_->start_forward(rows.positions, rows.sequences, true); }
  void start(const HybridRows& rows) override { forward_ = cache_->start_forward(rows.positions, rows.sequences); }
  bool set_causal(std::span<const std::uint32_t> except) override {
    cache_->set_causal(started(), except);
    return true;
  }
  // A cache that is not windowed can be cut to any length.
  ComponentSnapshot hold(SequenceId id) override { return cache_->is_windowed() ? cache_->snapshot(id, 0) : nullptr; }
  void defrag() override { cache_->defrag(); }

  void put(std::int32_t layer, const Tensor& k, const Tensor& v) override { cache_->put(started(), layer, k, v); }
  Tensor attend(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) override {
    return cache_->attend(started(), layer, q, options);
  }
  CausalCache::History get(std::int32_t layer) override { return cache_->get(started(), layer); }
};

class RecurrentComponent final : public CacheComponent<RecurrentCache, StateForwardPtr>, public RecurrentLayers {
 public:
  using CacheComponent::CacheComponent;

  RecurrentLayers* recurrent() noexcept override { return this; }
  std::optional<std::uint32_t> free_slots() const override { return cache_->free_slots(); }
  void check_remove_middle(SequenceId, std::int32_t begin, std::int32_t end, const char* where) const override {
    fail(ErrorKind::kNotSupported, where, "tokens ", begin, " to ", end,
         ": a recurrent state cannot lose tokens in its middle");
  }

  void check_start(const HybridRows& rows) override { cache_->start_forward(rows.positions, rows.sequences, true); }
  void start(const HybridRows& rows) override { forward_ = cache_->start_forward(rows.positions, rows.sequences); }
  ComponentSnapshot hold(SequenceId id) override { return cache_->snapshot(id, 0); }
  void defrag() override {}

  // Only the later of two states can stay; where there is no token between them the cache itself sees to that.
  ComponentSnapshot merge(const ComponentSnapshot& a, const ComponentSnapshot& b) override {
    const bool apart = a && b && typed(a)->end() != typed(b)->start();
    return CacheComponent::merge(apart ? nullptr : a, b);
  }

  Tensor conv(std::int32_t layer, const Tensor& x, const Tensor& weight) override {
    return cache_->conv(started(), layer, x, weight);
  }
  Tensor gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta) override {
    return cache_->gated_delta(started(), layer, q, k, v, g, beta);
  }
  Tensor ssd(std::int32_t layer, const ops::SsdInputs& inputs) override {
    return cache_->ssd(started(), layer, inputs);
  }
  RecurrentCache::States states(std::int32_t layer) override { return cache_->states(started(), layer); }
  void put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta) override {
    cache_->put_states(started(), layer, conv, delta);
  }
  const StateForward& step() const override { return started(); }
};

class EncoderComponent final : public CacheComponent<EncoderCache, EncoderForwardPtr>, public AttentionLayers {
 public:
  using CacheComponent::CacheComponent;

  AttentionLayers* attention() noexcept override { return this; }
  bool takes_items() const override { return true; }
  std::optional<Cell> free_cells() const override { return cache_->free_cells(); }
  void check_remove_middle(SequenceId, std::int32_t, std::int32_t, const char*) const override {}

  void check_start(const HybridRows& rows) override {
    cache_->start_forward(rows.positions, rows.sequences, true, rows.items);
  }
  void start(const HybridRows& rows) override {
    forward_ = cache_->start_forward(rows.positions, rows.sequences, false, rows.items);
  }
  ComponentForward forward() const override {
    const ComponentForward status = CacheComponent::forward();
    return status == ComponentForward::kComplete && !forward_->brings_items() ? ComponentForward::kText : status;
  }
  bool may_reopen() const override { return forward_ && forward_->may_bring_item(); }
  ComponentSnapshot hold(SequenceId id) override { return cache_->snapshot(id, 0); }
  void defrag() override { cache_->defrag(); }

  void put(std::int32_t layer, const Tensor& k, const Tensor& v) override { cache_->put(started(), layer, k, v); }
  Tensor attend(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) override {
    return cache_->attend(started(), layer, q, options);
  }
  CausalCache::History get(std::int32_t layer) override { return cache_->get(started(), layer); }
};

std::unique_ptr<HybridComponent> component_of(const std::shared_ptr<CausalCache>& cache) {
  return std::make_unique<CausalComponent>(cache);
}
std::unique_ptr<HybridComponent> component_of(const std::shared_ptr<RecurrentCache>& cache) {
  return std::make_unique<RecurrentComponent>(cache);
}
std::unique_ptr<HybridComponent> component_of(const std::shared_ptr<EncoderCache>& cache) {
  return std::make_unique<EncoderComponent>(cache);
}

}  // namespace

void HybridComponent::take_back(SequenceId id, const ComponentSnapshot& held, std::int32_t length) {
  if (held && restore(id, held, length)) return;
  remove(id, held ? 0 : std::min(length, this->length(id)), std::nullopt);
}

std::unique_ptr<HybridComponent> make_component(const HybridCache::Component& cache) {
  return std::visit(
      [](const auto& each) {
        require(each != nullptr, "hybrid_cache", "caches: got none, allowed a cache");
        return component_of(each);
      },
      cache);
}

}  // namespace kvtrie
