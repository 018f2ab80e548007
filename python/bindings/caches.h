// Functions on caches that other bindings use.
#pragma once

#include "cache/causal_cache.h"
#include "device.h"

namespace kvtrie::binding {

// Where the cache takes its tensors: its device, or the host for the reference stores.
Placement placement_of(CausalCache& cache);

}  // namespace kvtrie::binding
