// A cache whose state a conversation has at single lengths: what recurrent layers are, and any other kind whose tokens
// have no cells of their own.
//
// Concept. A step reads the state at the length where it begins and leaves the one at its end; states at lengths inside
// come out of it where they are asked for beforehand. Restore points keep the state of one length, which serves there
// and at the lengths to which the kind can cut it:
//
//     kind                      held at 200 serves at                     units
//     recurrent                 200                                       1
//     a state every 64 tokens   200, 192, 128, 64                         4: whole blocks, and the begun one
//
// A new kind derives from this and is given to the prefix cache (CacheSet::states), which knows no kind by its name:
// tests/cpp/block_cache.h is one.
//
// Units are slots of a StatePool; several states may hold the same one.
//
// Threads: as StateCache says. A call that throws has changed nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/state_cache.h"

namespace kvtrie {

// `count` rows that extend `sequence` from its length. `boundaries`: lengths at which states are wanted, ascending,
// each above the present length and below the one at the end (that one is always kept).
struct StateForwardRows {
  SequenceId sequence = 0;
  std::uint32_t count = 0;
  std::vector<std::int32_t> boundaries;
};

// One open step of one cache. Destroying it before it is complete drops it.
class PointForward {
 public:
  PointForward() = default;
  virtual ~PointForward() = default;
  PointForward(const PointForward&) = delete;
  PointForward& operator=(const PointForward&) = delete;

  virtual bool complete() const noexcept = 0;  // every layer was written
  // Of each sequence, as lengths: those that begin_step got. Another thread may drop the step meanwhile.
  virtual std::vector<std::vector<std::int32_t>> boundaries() const = 0;
  virtual std::vector<HeldState> take_captured_states(std::size_t index) = 0;  // at those of one sequence; once
};
using PointForwardPtr = std::shared_ptr<PointForward>;

class PointCache : public StateCache {
 public:
  std::uint32_t freed_by(const HeldState& state) const final {
    std::uint32_t freed = 0;
    for (std::size_t i = 0; i < state.slot_count(); ++i) freed += state.slot(i).holders() == 1 ? 1 : 0;
    return freed;
  }

  // --- lengths ---------------------------------------------------------------------------------------------------
  // The greatest length, at most `wanted`, at which what is held at `held` serves; 0: none.
  virtual std::int32_t cut_to(std::int32_t held, std::int32_t wanted) const noexcept = 0;
  virtual std::uint32_t units_at(std::int32_t length) const noexcept = 0;  // that what is held at `length` has
  // That a step from `begin` to `end` claims, with the states at `boundaries` inside it.
  virtual std::uint32_t units_for(std::int32_t begin, std::int32_t end,
                                  std::span<const std::int32_t> boundaries) const noexcept = 0;

  // --- steps -----------------------------------------------------------------------------------------------------
  // Claims what the rows need, or throws kCacheFull. kBusy: a sequence is in another one.
  virtual PointForwardPtr begin_step(std::span<const StateForwardRows> rows) = 0;
  virtual bool drop_step(PointForward& step) noexcept = 0;  // false: it was complete, or dropped before

  // --- what is held ----------------------------------------------------------------------------------------------
  virtual HeldState held(SequenceId id) const = 0;  // at its length; nothing at length 0
  // The part of a state that can go on at `length`. REQUIRES: cut_to gives it for the length at which the state was
  // held.
  virtual HeldState cut(const HeldState& state, std::int32_t length) const = 0;
  // The sequence goes on from what was held at `length`; from nothing at length 0.
  virtual void resume(SequenceId id, std::int32_t length, HeldState state) = 0;

  // --- images ----------------------------------------------------------------------------------------------------
  // How what is held at `length` lies in host memory: contiguous, from offset 0. `image` must stay alive and, for
  // loading, unchanged until the completion is done.
  virtual std::vector<StateSection> sections_at(std::int32_t length) const = 0;
  // For a page-in; throws kCacheFull. It has the bytes of its last owner until it is loaded.
  virtual HeldState claim_at(std::int32_t length, Owner owner) = 0;
  virtual CompletionPtr store_held(const HeldState& state, std::byte* image) = 0;
  virtual CompletionPtr load_held(const HeldState& state, const std::byte* image, Owner owner) = 0;
};

}  // namespace kvtrie
