// The lowest tier that state has to be read from.
//
// Threads: with the prefix cache's mutex held.
#pragma once

#include "prefix_cache/node_state.h"
#include "prefix_cache/plan_types.h"
#include "prefix_cache/reuse_plan.h"

namespace kvtrie {

Tier tier_of(const NodeState& state);
Tier tier_of(const RestorePoint& point);
Tier tier_of(const Fetch& fetch);

}  // namespace kvtrie
