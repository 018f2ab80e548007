// Functions on recurrent caches that other bindings use.
#pragma once

#include "cache/recurrent_cache.h"
#include "device.h"

namespace kvtrie::binding {

// Where the cache takes its tensors: its device, or the host for the reference stores.
Placement placement_of(RecurrentCache& cache);

}  // namespace kvtrie::binding
