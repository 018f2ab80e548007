// What nodes hold, in bytes: on the device, outside it, and what has no copy outside yet.
//
// Threads: with the prefix cache's mutex held. Cost: O(caches), and O(slices) outside the device.
#pragma once

#include <cstdint>

#include "tree/cache_table.h"
#include "tree/node_state.h"

namespace kvtrie {

// What evicting the node would free: states that others hold, too, are not counted.
std::uint64_t device_bytes_of(const CacheTable& caches, const NodeState& node);
// In lower tiers, copies of what is on the device included.
std::uint64_t outside_bytes_of(const CacheTable& caches, const NodeState& node);
// Of what is on the device only.
std::uint64_t uncopied_bytes(const CacheTable& caches, const NodeState& node);
std::uint64_t point_bytes(const CacheTable& caches, const RestorePoint& point);  // REQUIRES: on the device

}  // namespace kvtrie
