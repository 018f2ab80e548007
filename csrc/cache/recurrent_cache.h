// The cache of a group of recurrent layers: a pool of state slots, a store, and sequences.
//
// Concept. A recurrent layer's state is whole: it exists at one offset and cannot be cut. A *sequence* holds one slot
// (none at length 0: the zero state) and its length. A *forward* is one step's open claim: for each sequence one new
// slot for the state at its end, and one for each scheduled offset inside; the old slot is read and stays as it is, so
// whoever holds it keeps it. When every layer has been written once the forward is complete: the sequences move to
// their new slots, and the slots at the scheduled offsets are there to be held by those who asked for them.
//
//     length    0 ------------- 1024 ------ 1500 -- 1536
//     slots                     7 (read)    8       9 (the sequence's from then on)
//
// A layer is written when its conv state (where the shape has one) and its delta state (the same) were written, by the
// fused operations or by put_states. Where a history is cut into forwards or boundaries changes no bit of its outputs
// and states, except that float16 conv states round the inputs that a later forward reads.
//
// Threads: every public method may be called from any thread; a mutex inside is never held across a device wait.
// Units: lengths and offsets in tokens, capacity in slots, sizes in bytes. A call that throws has changed nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/point_cache.h"
#include "cache/sequences.h"
#include "cache/state_pool.h"
#include "cache/state_store.h"

namespace kvtrie {

class RecurrentCache;

class StateForward final : public LayerForward {
 public:
  struct State;  // private to cache/
  explicit StateForward(std::unique_ptr<State> state);
  ~StateForward() override;

  std::uint32_t rows() const noexcept;
  bool complete() const noexcept override;
  std::vector<std::vector<std::int32_t>> boundaries() const override;
  std::vector<std::vector<std::int32_t>> row_boundaries() const;  // the same, counted from the sequence's first row
  std::vector<std::int32_t> row_starts() const;                   // per sequence, then the end of the last one
  // Forwards of start_forward keep nothing: take_snapshots has the scheduled states.
  std::vector<HeldState> take_captured(std::size_t sequence) override;

 private:
  friend class RecurrentCache;
  friend class RecurrentHold;
  std::unique_ptr<State> state_;
};
using StateForwardPtr = std::shared_ptr<StateForward>;

struct RecurrentContents;  // what is in a snapshot: private

class RecurrentCache final : public PointCache,
                             public Sequences<RecurrentCache, RecurrentContents>,
                             public std::enable_shared_from_this<RecurrentCache> {
 public:
  static std::shared_ptr<RecurrentCache> create(std::unique_ptr<StateStore> store, std::vector<std::int32_t> layers);
  ~RecurrentCache() override;

  const std::vector<std::int32_t>& layers() const noexcept override;
  bool has_layer(std::int32_t layer) const noexcept;
  const StateShape& shape() const noexcept;
  std::uint64_t nbytes() const noexcept override;
  CacheIdentity identity() const override;
  std::uint32_t capacity() const noexcept override;
  std::uint32_t free_slots() const;
  std::uint32_t free_units() const override { return free_slots(); }
  std::uint64_t bytes_per_unit() const noexcept override { return shape().bytes_per_slot(); }
  std::uint32_t limit() const override;
  [[nodiscard]] bool set_limit(std::uint32_t slots) override;
  void attach() override;
  void detach() noexcept override;

  // --- sequences -----------------------------------------------------------------------------------------------
  SequenceId open_sequence(Owner owner = kOwnCallers) override;  // zero state
  void close_sequence(SequenceId id) noexcept override;
  std::int32_t length(SequenceId id) const override;
  SlotRef slot(SequenceId id) const;  // the present state; none at length 0

  // --- steps ---------------------------------------------------------------------------------------------------
  std::uint32_t units_for(SequenceId id, std::int32_t end, std::span<const std::int32_t> boundaries) const override;
  StateForwardPtr begin(std::span<const ForwardRows> rows);  // claims a slot for the end and each boundary
  // ops/recurrent.h. Rows are those of the forward in order. Each writes its half of the layer's states; a second time
  // is kArgument.
  Tensor conv(StateForward& forward, std::int32_t layer, const Tensor& x, const Tensor& weight);
  Tensor gated_delta(StateForward& forward, std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& g, const Tensor& beta);
  Tensor ssd(StateForward& forward, std::int32_t layer, const ops::SsdInputs& inputs);  // its states are the delta ones
  struct States {
    Tensor conv, delta;
  };  // conv [n, conv_tail, conv_dim], delta [n, v_heads, v_dim, k_dim]
  States states(StateForward& forward, std::int32_t layer);  // before the forward's first rows, one per sequence
  // One entry per boundary plus the end, sequence after sequence. Throws kArgument for any other number. `conv` in any
  // float dtype, `delta` float32. One of them may be undefined: that half is written by another call.
  void put_states(StateForward& forward, std::int32_t layer, const Tensor& conv, const Tensor& delta);
  bool drop(LayerForward& forward) noexcept override;

  // As CausalCache::start_forward; the rows of one sequence must be consecutive. Offsets of prepare_snapshots that lie
  // inside become boundaries (in begin, too). `padding`: rows at the end of `positions` with sequence -1 belong
  // to nobody: they give some output and change no state.
  StateForwardPtr start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                                bool reserve = false);
  StateForwardPtr current_forward() const;

  // --- what the prefix cache builds on -------------------------------------------------------------------------
  CompletionPtr mark() override;
  void count_owners() override;
  std::uint32_t held_by(Owner owner) const override;
  void distrust_owners() override;

  // A state cannot be cut, and is one slot.
  std::int32_t cut_to(std::int32_t held, std::int32_t wanted) const noexcept override;
  std::uint32_t units_at(std::int32_t length) const noexcept override;
  HeldState hold(SequenceId id, std::int32_t length) const override;
  HeldState cut(const HeldState& state, std::int32_t length) const override;
  void resume(SequenceId id, std::int32_t length, HeldState state) override;
  std::vector<StateSection> sections(std::int32_t length) const override;
  HeldState claim(std::int32_t length, Owner owner = kOwnCallers) override;
  CompletionPtr store_image(const HeldState& state, std::byte* image) override;  // state_store.h
  CompletionPtr load_image(const HeldState& state, const std::byte* image, Owner owner = kOwnCallers) override;

  // The cache by itself (docs/tensors.md): sequences.h. A state exists at one length, so a sequence is cut to 0 or its
  // length and restored to the end of a snapshot, whatever it held before. Of two merged snapshots the later state
  // stays; a schedule's capture at the present length is taken at once.

  StatePool& pool() noexcept;
  StateStore& store() noexcept;
  std::vector<std::string> check() const override;
  std::string dump() const;

  struct State;  // private to cache/

 private:
  friend class RecurrentHold;
  friend Sequences;
  LayerForwardPtr begin_any(std::span<const ForwardRows> rows) override { return begin(rows); }
  explicit RecurrentCache(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

extern template class CacheSnapshot<RecurrentCache, RecurrentContents>;  // recurrent_snapshot.cpp
extern template class Sequences<RecurrentCache, RecurrentContents>;

}  // namespace kvtrie
