// Types that the operations of a prefix cache hand to each other: paths, state that is missing on them, state in use.
//
// Threads: values; those that name nodes are valid while the prefix cache's mutex is held, or their path is.
// Units: positions, tokens, cells; bytes where the name says so.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/coverage.h"
#include "tree/cache_table.h"
#include "tree/node_state.h"
#include "tree/reuse_plan.h"

namespace kvtrie {

// A prompt's match with a path: nodes below the starting node, towards the match, and where states may be cut further
// to the next restore point.
struct Path {
  std::vector<Node*> nodes;
  std::int32_t matched = 0;  // tokens from the root
};

// The deepest offset that all caches can reach on a path.
struct Reach {
  std::int32_t target = 0;
  ReasonCode reason = ReasonCode::kNone;  // why it is not the match
};

// The state that has to come from lower tiers before a session can stand at `target`.
struct Fetch {
  std::vector<Node*> nodes;  // their full attention, root first; the last one may reach beyond the target
  std::vector<std::vector<WindowSource>> windows;  // per attention cache; only those not on the device
  Node* point = nullptr;                           // its states
  Needs needs;
  std::uint64_t bytes = 0;
  std::int32_t resident = 0;  // up to here full attention is on the device

  bool empty() const noexcept { return nodes.empty() && bytes == 0; }
};

// State that a page-in builds on: it is not evicted to make room for the rest.
struct InUse {
  const Node* point = nullptr;                 // whose restore point the session will stand on
  std::vector<std::vector<SpanList>> windows;  // per attention cache: cells on the device that its window needs
  Group group = 0;                             // of its namespace
};

}  // namespace kvtrie
