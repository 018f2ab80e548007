// Private to ops/: the table that kernels/turn.cl reads, which says what copies of queries a plan needs.
//
// Concept (attention_plan.h). Keys that have moved are read with copies of queries that are turned by as much. One
// launch for each layer makes all of them, whatever their number and distances are: both are in the table, so that a
// recorded step (launch_graph.h) takes them as it takes the rest of its plan.
//
// Threads: pure. Units: positions; ints into the table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention_plan.h"
#include "ops/rope.h"

namespace kvtrie::ops {

struct TurnOffsets {
  std::int32_t sources = 0, ropes = 0;
};

// Appends where each query comes from, first the `rows` and then the copies, and one entry of `ropes` for each layer,
// with the turns of those that differ once. Angles are float64. Heads have `k_dim` numbers. Throws kArgument for a rope
// that cannot shift where there are copies.
TurnOffsets append_turns(std::vector<std::int32_t>& table, std::uint32_t rows, std::span<const TurnedRow> copies,
                         std::span<const RopeParams> ropes, std::int32_t k_dim);

}  // namespace kvtrie::ops
