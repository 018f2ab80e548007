// When to stop asking somebody who does not answer, and when to ask again.
//
//     closed --K failures in a row--> open --retry_after seconds, one caller probes--> closed, if that ended well
//       ^                              ^ |                                              |
//       |                              | +-- every other caller is refused              | else
//       +--any success----------------+ +<----------------------------------------------+
//
// Threads: one at a time; the owner has a lock. Units: seconds of the owner's clock.
#pragma once

#include <cstdint>
#include <utility>

namespace kvtrie {

class Circuit {
 public:
  enum class State : std::uint8_t { kClosed, kOpen, kProbing };

  Circuit(int failures_in_a_row, double retry_after) : limit_(failures_in_a_row), retry_after_(retry_after) {}

  State state() const noexcept { return state_; }

  // Whether a call may be made now. Every call that may ends with `succeeded` or `failed`.
  bool allow(double now) noexcept {
    if (state_ == State::kClosed) return true;
    const bool due = now - since_ >= retry_after_ || now < since_;  // a clock that went back must not refuse for long
    if (state_ == State::kProbing || !due) return false;
    state_ = State::kProbing;
    return true;
  }
  // True when it closed just now.
  bool succeeded() noexcept {
    failures_ = 0;
    return std::exchange(state_, State::kClosed) != State::kClosed;
  }
  // True when it opened just now, having been closed.
  bool failed(double now) noexcept {
    if (state_ == State::kClosed && ++failures_ < limit_) return false;
    since_ = now;
    return std::exchange(state_, State::kOpen) == State::kClosed;
  }

 private:
  const int limit_;
  const double retry_after_;
  State state_ = State::kClosed;
  int failures_ = 0;
  double since_ = 0;  // of the last failure that opened it
};

}  // namespace kvtrie
