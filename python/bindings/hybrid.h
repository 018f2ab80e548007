// What other topics need of hybrid caches.
#pragma once

#include "cache/hybrid_cache.h"
#include "gil.h"

namespace kvtrie::binding {

// A CausalCache, RecurrentCache or EncoderCache.
py::object component_to_python(const HybridCache::Component& component);

}  // namespace kvtrie::binding
