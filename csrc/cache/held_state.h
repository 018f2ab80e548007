// What somebody other than a sequence holds of one cache at one length: the cells that a query there sees, or the whole
// state. Holding it keeps it; no bytes move.
//
// Threads: belongs to whoever has it; dropping it takes the pool's own mutex.
#pragma once

#include <cstdint>
#include <utility>

#include "cache/span_list.h"
#include "cache/state_pool.h"

namespace kvtrie {

class HeldState {
 public:
  HeldState() = default;  // nothing
  explicit HeldState(SpanList cells) : cells_(std::move(cells)) {}
  explicit HeldState(SlotRef slot) : slot_(std::move(slot)) {}

  bool empty() const noexcept { return cells_.empty() && !slot_; }
  std::uint32_t units() const noexcept { return slot_ ? 1 : cells_.length(); }
  const SpanList& cells() const noexcept { return cells_; }  // empty where it is a state
  const SlotRef& slot() const noexcept { return slot_; }     // none where it is cells

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
};

}  // namespace kvtrie
