// Functions on hybrid caches that other bindings use.
#pragma once

#include "gil.h"
#include "standalone/hybrid_cache.h"

namespace kvtrie::binding {

// A CausalCache, RecurrentCache or EncoderCache.
py::object component_to_python(const HybridCache::Component& component);

}  // namespace kvtrie::binding
