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
// Threads: as LayerCache says. A call that throws has changed nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "cache/layer_cache.h"

namespace kvtrie {

class PointCache : public LayerCache {
 public:
  std::uint32_t freed_by(const HeldState& state) const final {
    const std::span<const SlotRef> slots = state.slots();
    return static_cast<std::uint32_t>(
        std::count_if(slots.begin(), slots.end(), [](const SlotRef& slot) { return slot.holders() == 1; }));
  }

  // --- lengths ---------------------------------------------------------------------------------------------------
  // The greatest length, at most `wanted`, at which what is held at `held` serves; 0: none.
  virtual std::int32_t cut_to(std::int32_t held, std::int32_t wanted) const noexcept = 0;
  virtual std::uint32_t units_at(std::int32_t length) const noexcept = 0;  // that what is held at `length` has
  bool can_resume(SequenceId id, std::int32_t position) const final {
    const std::int32_t end = length(id);
    return position == 0 || position == end || (position > 0 && position < end && cut_to(end, position) == position);
  }
  void truncate(SequenceId id, std::int32_t length) final {
    if (length == this->length(id)) return;
    require_resumable(id, length);
    resume(id, length, hold(id, length));
  }
  void fork(SequenceId from, SequenceId to, std::int32_t length) final {
    require_resumable(from, length);
    resume(to, length, hold(from, length));
  }

  // --- what is held ----------------------------------------------------------------------------------------------
  // The part of a state that can go on at `length`. REQUIRES: cut_to gives it for the length at which the state was
  // held.
  virtual HeldState cut(const HeldState& state, std::int32_t length) const = 0;
  // The sequence goes on from what was held at `length`; from nothing at length 0.
  virtual void resume(SequenceId id, std::int32_t length, HeldState state) = 0;

  // --- images ----------------------------------------------------------------------------------------------------
  // How what is held at `length` lies in host memory: contiguous, from offset 0. `image` must stay alive and, for
  // loading, unchanged until the completion is done.
  virtual std::vector<StateSection> sections(std::int32_t length) const = 0;
  // For a page-in; throws kCacheFull. It has the bytes of its last owner until it is loaded.
  virtual HeldState claim(std::int32_t length, Owner owner = kOwnCallers) = 0;
  virtual CompletionPtr store_image(const HeldState& state, std::byte* image) = 0;
  virtual CompletionPtr load_image(const HeldState& state, const std::byte* image, Owner owner = kOwnCallers) = 0;

 private:
  void require_resumable(SequenceId id, std::int32_t position) const {
    require(can_resume(id, position), "point_cache", "length: got ", position, ", allowed 0, ", length(id),
            " or one to which its state can be cut");
  }
};

}  // namespace kvtrie
