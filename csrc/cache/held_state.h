// The state that somebody other than a sequence holds of one cache at one length: the cells that a query there sees, or
// the slots of its state. Holding it keeps it; no bytes move.
//
// Threads: belongs to its owner; dropping it takes the pool's own mutex.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cache/span_list.h"
#include "cache/state_pool.h"

namespace kvtrie {

// One section of an image of a state in host memory: what has a checksum of its own.
struct StateSection {
  std::uint64_t offset = 0, bytes = 0;
};

class HeldState {
 public:
  HeldState() = default;  // nothing
  explicit HeldState(SpanList cells) : cells_(std::move(cells)) {}
  explicit HeldState(SlotRef slot) : slot_(std::move(slot)) {}
  explicit HeldState(std::vector<SlotRef> slots) : more_(std::move(slots)) {  // REQUIRES: none is empty
    if (more_.empty()) return;
    slot_ = std::move(more_.front());
    more_.erase(more_.begin());
  }

  bool empty() const noexcept { return cells_.empty() && !slot_; }
  std::uint32_t units() const noexcept { return slot_ ? slot_count() : cells_.length(); }
  const SpanList& cells() const noexcept { return cells_; }  // empty where it is a state
  std::uint32_t slot_count() const noexcept { return slot_ ? static_cast<std::uint32_t>(more_.size()) + 1 : 0; }
  // REQUIRES: index < slot_count(), or 0: the empty one, which stands for zeros, where no slot is held.
  const SlotRef& slot(std::size_t index = 0) const noexcept { return index == 0 ? slot_ : more_[index - 1]; }

  // Another hold on the same.
  HeldState share() const {
    HeldState other(slot_);
    other.more_ = more_;
    if (!cells_.empty()) other.cells_ = cells_.share();
    return other;
  }

  // REQUIRES: cells that follow these, or that are the first.
  void append(SpanList more) {
    if (cells_.empty()) {
      cells_ = std::move(more);
    } else {
      cells_.append(std::move(more));
    }
  }

 private:
  SpanList cells_;
  SlotRef slot_;
  std::vector<SlotRef> more_;  // of kinds whose states have several
};

}  // namespace kvtrie
