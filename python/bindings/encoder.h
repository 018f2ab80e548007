// What other topics need of encoder caches.
#pragma once

#include "cache/encoder_cache.h"
#include "device.h"

namespace kvtrie::binding {

// Where the cache takes its tensors: its device, or the host for the reference stores.
Placement placement_of(EncoderCache& cache);

}  // namespace kvtrie::binding
