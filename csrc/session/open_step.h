// The next rows of some conversations, and what they claimed in every cache: the inside of a Step (step.h), which Steps
// makes, completes and drops.
//
// Threads: `complete` and `dropped` are written with the prefix cache's mutex held, the rest before anybody else sees
// it. Units: rows are tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cache/causal_cache.h"
#include "session/step_times.h"
#include "tree/cursor.h"

namespace kvtrie {

struct OpenStep {
  std::vector<Cursor*> cursors;                    // each outlives it
  std::vector<std::uint32_t> counts;               // rows of each cursor
  Tokens tokens;                                   // [rows]
  std::vector<std::int32_t> positions, sequences;  // [rows]; sequences: indices into `cursors`
  std::vector<LayerForwardPtr> forwards;           // one per cache, those of attention first
  std::size_t attention = 0;                       // how many those are
  std::vector<std::vector<WantedPoint>> captures;  // of each cursor: inside the step, or at its end
  std::vector<std::vector<HeldState>> before;      // of each cursor: its states when the step began; none without any
  StepTiming timing;                               // set once the call that made it is over
  std::atomic<bool> complete{false}, dropped{false};

  Cursor& cursor(std::size_t index) const noexcept { return *cursors[index]; }
  // By the number among the caches of attention, or of states. REQUIRES: claimed.
  Forward& of_attention(std::size_t index) const { return static_cast<Forward&>(*forwards[index]); }
  LayerForward& of_states(std::size_t index) const { return *forwards[attention + index]; }
  // The length that a cursor will have; before completion.
  std::int32_t end(std::size_t index) const noexcept {
    return cursors[index]->computed + static_cast<std::int32_t>(counts[index]);
  }
  std::int32_t end_of(const Cursor& cursor) const;  // REQUIRES: it is of the step
  // Lengths at which states come out inside the step, for captures of kinds from `least` on.
  std::vector<std::int32_t> boundaries_inside(std::size_t index, PointKind least) const;
};

}  // namespace kvtrie
