// What somebody other than a sequence holds of one cache at one length: the cells that a query there sees, or the slots
// of its state. Holding it keeps it; no bytes move.
//
// Threads: belongs to whoever has it; dropping it takes the pool's own mutex.
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
  explicit HeldState(SlotRef slot) {
    if (slot) slots_.push_back(std::move(slot));
  }
  explicit HeldState(std::vector<SlotRef> slots) : slots_(std::move(slots)) {}  // REQUIRES: none is empty

  bool empty() const noexcept { return cells_.empty() && slots_.empty(); }
  std::uint32_t units() const noexcept {
    return slots_.empty() ? cells_.length() : static_cast<std::uint32_t>(slots_.size());
  }
  const SpanList& cells() const noexcept { return cells_; }              // empty where it is a state
  const std::vector<SlotRef>& slots() const noexcept { return slots_; }  // none where it is cells
  // Of a state in one slot; the empty one, which stands for zeros, where nothing is held.
  SlotRef slot() const noexcept { return slots_.empty() ? SlotRef() : slots_.front(); }

  // Another hold on the same.
  HeldState share() const {
    HeldState other(slots_);
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
  std::vector<SlotRef> slots_;
};

}  // namespace kvtrie
