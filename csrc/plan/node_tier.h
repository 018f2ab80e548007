// The lowest tier that state has to be read from.
//
// Threads: with the prefix cache's mutex held.
#pragma once

#include "plan/plan_types.h"
#include "tree/node_state.h"
#include "tree/reuse_plan.h"

namespace kvtrie {

Tier tier_of(const NodeState& state);
Tier tier_of(const RestorePoint& point);
Tier tier_of(const Fetch& fetch);

}  // namespace kvtrie
