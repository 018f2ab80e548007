// Several caches as one: a model whose layers keep states of several kinds.
//
// Concept. Each *component* is a cache of a group of layers (attention, recurrent, encoder). Layers decide who answers:
// what names a layer goes to the component that has it; everything else goes to all components, or to none: every one
// is asked first, and only when all can does any change. So a sequence has one length in all of them. A hybrid of
// attention and recurrent layers can be cut, copied or restored to the lengths that all agree on, and to no other.
//
// A *step* is one forward in every component, and is complete when all of them are. Components complete one by one,
// when their last layer was written; until the step is complete the hybrid holds what the sequences had before (until
// the next call where an encoder cache could still be given an item by a first put). A step that ends half-way, because
// its model failed, is *taken back*: each sequence stands where it stood, in every component. It ends with the next
// start_forward, or with the next call that changes one of its sequences; a step that some component has completed
// already also with snapshot(), and before such a call is checked.
//
//     causal      |====== 40 ======|-- 8 -->     not complete: dropped
//     recurrent   |====== 40 ======|== 8 ==>     complete: goes back to 40
//
// Threads: every public method may be called from any thread; a mutex inside is taken before those of the
// components. The components are driven through the hybrid only.
// Units: positions and lengths in tokens, sizes in bytes.
// Errors: a call that throws has changed nothing, with these exceptions. Where a component's own header says otherwise;
// a removal in the middle that fails on a device then cuts the sequence at `begin` in all components. And where memory
// runs out after the first component has changed: an open step may have gone, a changed sequence is put back or, when
// that fails too, emptied, and snapshots that were split or merged are consumed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cache/cache_snapshot.h"
#include "cache/causal_cache.h"
#include "cache/recurrent_cache.h"
#include "standalone/encoder_cache.h"

namespace kvtrie {

struct HybridContents;  // what is in a snapshot: private

class HybridCache : public std::enable_shared_from_this<HybridCache> {
 public:
  using Component =
      std::variant<std::shared_ptr<CausalCache>, std::shared_ptr<RecurrentCache>, std::shared_ptr<EncoderCache>>;
  using Ptr = std::shared_ptr<HybridCache>;
  // No layer may be in two components. For a hybrid inside another give its caches().
  static Ptr create(std::vector<Component> caches);
  ~HybridCache();

  const std::vector<Component>& caches() const noexcept;
  std::vector<std::int32_t> layers() const;  // of all components, ascending
  bool has_layer(std::int32_t layer) const noexcept;
  // The component that answers for a layer of attention (or cross attention), or of recurrent state; kArgument when
  // nobody does, which names the layers that are allowed.
  const Component& attention_component(std::int32_t layer, const char* where) const;
  const Component& recurrent_component(std::int32_t layer, const char* where) const;

  std::uint64_t nbytes() const;
  std::optional<Cell> free_cells() const;           // the fewest of any component with cells; none: there are no cells
  std::optional<std::uint32_t> free_slots() const;  // the same for slots
  std::int32_t length(SequenceId id) const;         // 0 for an unknown sequence; the shortest if components disagree

  // --- steps ---------------------------------------------------------------------------------------------------
  // As the components', for all of them. `items` are the encoder cache's; kArgument when there is not exactly one.
  // Throws what the first component that cannot throws; then all stand where they stood, an open step included.
  void start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                     bool reserve = false, std::span<const EncoderItem> items = {});
  bool complete() const;         // every component is; false without a step
  void drop_forward() noexcept;  // takes the step back unless it is complete
  void put(std::int32_t layer, const Tensor& k, const Tensor& v);
  Tensor attend(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options);
  CausalCache::History get(std::int32_t layer);
  void set_causal(std::span<const std::uint32_t> except);  // for all causal caches; kNotSupported without one
  Tensor conv(std::int32_t layer, const Tensor& x, const Tensor& weight);
  Tensor gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta);
  Tensor ssd(std::int32_t layer, const ops::SsdInputs& inputs);
  RecurrentCache::States states(std::int32_t layer);
  void put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta);
  // StateForward::row_boundaries and row_starts, of the recurrent cache with that layer; without one of the first,
  // which is as good (kNotSupported when there is none).
  std::vector<std::vector<std::int32_t>> boundaries(std::optional<std::int32_t> layer = std::nullopt) const;
  std::vector<std::int32_t> row_starts(std::optional<std::int32_t> layer = std::nullopt) const;

  // --- editing (docs/tensors.md) ---------------------------------------------------------------------------------
  using Snapshot = CacheSnapshot<HybridCache, HybridContents>;  // of every component
  using SnapshotPtr = std::shared_ptr<Snapshot>;
  bool can_resume(SequenceId id, std::int32_t position) const;
  void copy_prefix(SequenceId from, SequenceId to, std::int32_t length);  // an unknown `from` is an empty one
  void remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end = std::nullopt);
  void defrag();  // kBusy while a step is open

  // One object over the snapshots of the components. Some of those may be missing: after a split, the state of a
  // recurrent cache is in one half only. Missing state is not made up for: restore() answers False there.
  SnapshotPtr snapshot(SequenceId id, std::int32_t start);
  // False, with nothing changed, unless every component can. Below the snapshot's start, and at it, a component that
  // cannot do it from the snapshot is cut.
  bool restore(SequenceId id, const SnapshotPtr& snapshot_or_null, std::int32_t target);
  std::pair<SnapshotPtr, SnapshotPtr> split(const SnapshotPtr& snapshot, std::int32_t at);
  SnapshotPtr merge(const SnapshotPtr& a, const SnapshotPtr& b);
  // As the components'. An offset that was reached only by a step which was taken back has null.
  void prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets);
  std::vector<SnapshotPtr> take_snapshots(SequenceId id);

  std::vector<std::string> check() const;  // empty when every invariant of every component holds
  std::string dump() const;                // for comparing before and after

  struct State;  // private to cache/

 private:
  explicit HybridCache(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

extern template class CacheSnapshot<HybridCache, HybridContents>;  // hybrid_cache_snapshot.cpp

}  // namespace kvtrie
