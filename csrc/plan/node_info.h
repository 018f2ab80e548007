// Every node of the tree as callers see it.
//
// Threads: with the prefix cache's mutex held; what is returned is the caller's own. Units: tokens, bytes, seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree/cache_table.h"
#include "tree/live_sessions.h"
#include "tree/node_state.h"
#include "trie/trie.h"

namespace kvtrie {

// Indices refer to the same list.
struct NodeInfo {
  Tokens tokens;
  std::int32_t start = 0, end = 0;
  std::int32_t parent = -1;  // index, -1 for a namespace's root
  std::string name_space;
  Tier tier = Tier::kNone;  // kNone for roots
  std::uint64_t bytes = 0;  // device or host bytes of this node's own tokens
  double age_seconds = 0;   // since last used
  bool user = false;
  PointKind point = PointKind::kNone;  // the restore point at its end
  Tier point_tier = Tier::kNone;
  std::uint32_t pins = 0, live = 0;  // pins on it; sessions that stand on it
};

// Pre-order.
std::vector<NodeInfo> node_infos(const Trie& trie, const CacheTable& caches, const LiveSessions& sessions, double now);

}  // namespace kvtrie
