// The next rows of some conversations, and what they claimed in every cache: the inside of a Step (step.h), which Steps
// makes, completes and drops.
//
// Drafted rows. Behind the last recorded token of a cursor a step may have rows of tokens that are only proposed.
// States come out at each length at which the conversation may stand afterwards, and until somebody decides how many
// drafts are right, the step stays open: its caches are at its end, its cursors where they were.
//
//     computed | recorded, not computed | drafted |
//              |------- rows of the step ---------|
//                                       ^ ^ ^ ^ ^      where it may stand: with 0 to all of the drafts
//
// A tree of drafts. The same cursor may be in a step several times, each time with drafts along another path. Behind
// where it stands it then has a sequence for each path, forked from its own, so that every path has rows, cells and
// states of its own, and none sees another's; below, all of them are the same cells. One path is taken in the end: its
// sequences are the cursor's from then on, and the others are closed.
//
//     computed, in common | recorded | drafts of path 0 |      the cursor's own sequences
//                         | recorded | drafts of path 1   |    branches[1]
//                         | recorded | drafts of path 2 |      branches[2]
//
// Threads: `complete` and `dropped` are written with the prefix cache's mutex held, the rest before anybody else sees
// it. Units: rows are tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/causal_cache.h"
#include "session/step_times.h"
#include "tree/cursor.h"

namespace kvtrie {

struct OpenStep {
  std::vector<Cursor*> cursors;                    // each outlives it
  std::vector<std::uint32_t> counts;               // rows of each cursor, drafted ones included
  std::vector<Tokens> drafts;                      // of the first cursors, up to the last that drafts: their last rows
  Tokens tokens;                                   // [rows]
  std::vector<std::int32_t> positions, sequences;  // [rows]; sequences: indices into `cursors`
  std::vector<LayerForwardPtr> forwards;           // one per cache, those of attention first
  std::size_t attention = 0;                       // how many those are
  std::vector<std::vector<WantedPoint>> captures;  // of each cursor: inside the step, or at its end
  std::vector<std::vector<HeldState>> before;      // of each cursor: its states when the step began; none without any
  std::vector<std::vector<std::int32_t>> inside;   // of each cursor: lengths at which states come out; once claimed
  std::vector<std::uint32_t> wrong;                // of each cursor: its last drafts; none until they are decided about
  // Of each cursor whose drafts are being decided about, and each cache of states: what came out at its boundaries.
  std::vector<std::vector<std::vector<HeldState>>> captured;
  // Of a tree, once claimed, and of each path: the sequences that stand for the cursor; none: its own.
  std::vector<std::vector<SequenceId>> branches;
  std::size_t path = 0;  // of a tree: the one that was taken
  StepTiming timing;     // set once the call that made it is over
  std::atomic<bool> complete{false}, dropped{false};

  Cursor& cursor(std::size_t index) const noexcept { return *cursors[index]; }
  bool is_tree() const noexcept { return cursors.size() > 1 && cursors[0] == cursors[1]; }
  // Whether its cursor goes on along these rows, once it is decided.
  bool is_taken(std::size_t index) const noexcept { return !is_tree() || index == path; }
  std::span<const SequenceId> sequences_of(std::size_t index) const noexcept {
    const bool own = index >= branches.size() || branches[index].empty();
    return own ? cursors[index]->sequences : branches[index];
  }
  // By the number among the caches of attention, or of states. REQUIRES: claimed.
  Forward& of_attention(std::size_t index) const { return static_cast<Forward&>(*forwards[index]); }
  LayerForward& of_states(std::size_t index) const { return *forwards[attention + index]; }
  // The length that a cursor will have; before completion.
  std::int32_t end(std::size_t index) const noexcept {
    return cursors[index]->computed + static_cast<std::int32_t>(counts[index]);
  }
  std::int32_t end_of(const Cursor& cursor) const;  // REQUIRES: it is of the step
  std::uint32_t drafted(std::size_t index) const noexcept {
    return index < drafts.size() ? static_cast<std::uint32_t>(drafts[index].size()) : 0;
  }
  bool any_drafted() const noexcept;
  std::uint32_t kept(std::size_t index) const noexcept { return counts[index] - (wrong.empty() ? 0 : wrong[index]); }
  bool written() const noexcept;  // every layer of every cache
  // Lengths inside the step at which the cursor may stand once its drafts are decided about: ascending.
  std::vector<std::int32_t> undecided(std::size_t index) const;
  std::size_t number_inside(std::size_t index, std::int32_t length) const;  // REQUIRES: it is in `inside`
  // Lengths at which states come out inside the step: those, and captures that are worth `least` or more. Ascending.
  std::vector<std::int32_t> boundaries_inside(std::size_t index, double least = 0) const;
  std::vector<double> worths() const;  // what captures are worth, each once, the most first; 0 is the last
};

}  // namespace kvtrie
