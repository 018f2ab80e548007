// What other topics need of hybrid caches.
#pragma once

#include "cache/hybrid_cache.h"
#include "gil.h"

namespace kvtrie::binding {

py::object part_to_python(const HybridCache::Part& part);  // the CausalCache, RecurrentCache or EncoderCache

}  // namespace kvtrie::binding
