// Quotas of namespaces: `PrefixCache.set_quota`, `remove_quota` and `usage`.
//
// Threads: with the GIL, which is let go of while the cache works.
#pragma once

#include <pybind11/pybind11.h>

#include "prefix_cache/prefix_cache.h"

namespace kvtrie::binding {

// `_set_quota` takes two mappings of amounts; python/kvtrie/_quotas.py makes them of what users give.
void add_quotas(pybind11::class_<PrefixCache, PrefixCachePtr>& c);

}  // namespace kvtrie::binding
