// The state that somebody other than a sequence holds of one cache at one length: the cells that a query there sees, or
// the slots of its state. Holding it keeps it; no bytes move.
//
// Threads: belongs to its owner; dropping it takes the pool's own mutex.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "cache/span_list.h"
#include "cache/state_pool.h"

namespace kvtrie {

// One section of an image of a state in host memory: what has a checksum of its own.
struct StateSection {
  std::uint64_t offset = 0, bytes = 0;
};

inline const SpanList kNoCells;

class HeldState {
 public:
  HeldState() = default;  // nothing
  explicit HeldState(SpanList cells) : units_(std::move(cells)) {}
  explicit HeldState(SlotRef slot) : units_(std::move(slot)) {}  // an empty one stands for zeros: nothing is held
  explicit HeldState(std::vector<SlotRef> slots) : units_(std::move(slots)) {}  // REQUIRES: none is empty

  bool empty() const noexcept { return units() == 0; }
  std::uint32_t units() const noexcept { return cells().length() + static_cast<std::uint32_t>(slots().size()); }
  const SpanList& cells() const noexcept {  // empty where it is a state
    const SpanList* cells = std::get_if<SpanList>(&units_);
    return cells != nullptr ? *cells : kNoCells;
  }
  std::span<const SlotRef> slots() const noexcept {  // empty where it is cells
    if (const auto* slot = std::get_if<SlotRef>(&units_)) return {slot, *slot ? std::size_t{1} : std::size_t{0}};
    const auto* slots = std::get_if<std::vector<SlotRef>>(&units_);
    return slots != nullptr ? std::span(*slots) : std::span<const SlotRef>();
  }

  SlotRef slot() const noexcept { return slots().empty() ? SlotRef() : slots().front(); }  // of a kind that has one

  // Another hold on the same.
  HeldState share() const {
    if (const auto* slot = std::get_if<SlotRef>(&units_)) return HeldState(*slot);
    if (const auto* slots = std::get_if<std::vector<SlotRef>>(&units_)) return HeldState(*slots);
    return cells().empty() ? HeldState() : HeldState(cells().share());
  }

  // REQUIRES: cells that follow these, or that are the first.
  void append(SpanList more) {
    if (cells().empty()) {
      units_ = std::move(more);
    } else {
      std::get<SpanList>(units_).append(std::move(more));
    }
  }

 private:
  std::variant<SpanList, SlotRef, std::vector<SlotRef>> units_;  // one slot takes no memory of its own
};

}  // namespace kvtrie
