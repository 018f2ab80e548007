// The bytes of nodes: on the device, outside it, and without a copy outside yet.
//
// Threads: with the prefix cache's mutex held. Cost: O(caches), and O(slices) outside the device.
#pragma once

#include <cstdint>

#include "tree/cache_table.h"
#include "tree/node_state.h"

namespace kvtrie {

// The bytes that evicting the node would free: states that others hold, too, are not counted.
std::uint64_t device_bytes_of(const CacheTable& caches, const NodeState& node);
// In lower tiers, copies of what is on the device included.
std::uint64_t outside_bytes_of(const CacheTable& caches, const NodeState& node);
// On the device, without a copy outside.
std::uint64_t uncopied_bytes(const CacheTable& caches, const NodeState& node);
std::uint64_t point_bytes(const CacheTable& caches, const RestorePoint& point);  // REQUIRES: on the device

}  // namespace kvtrie
