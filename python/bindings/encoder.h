// Functions on encoder caches that other bindings use.
#pragma once

#include "device.h"
#include "standalone/encoder_cache.h"

namespace kvtrie::binding {

// Where the cache takes its tensors: its device, or the host for the reference stores.
Placement placement_of(EncoderCache& cache);

}  // namespace kvtrie::binding
