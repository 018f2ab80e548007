// A Python object as a store: get(key), put(key, value) and delete(key), and if it has it get_many(keys, most,
// seconds), whoever wrote them.
//
// Each call takes the GIL for its own length. An exception of Python becomes a std::runtime_error with the text; no
// Python exception leaves the call that met it. A KeyboardInterrupt is raised again in the main thread.
//
// Calls begin until the interpreter ends: its exit waits for those under way, and later ones fail. So a thread that
// writes behind never meets an interpreter that is half gone, and a store whose calls block for ever keeps the process.
//
// Threads: any, with or without the GIL; never under a lock that Python code could need.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string_view>

#include "prefix_cache/prefix_cache.h"
#include "store/remote_store.h"
#include "store/shared_tier.h"

namespace kvtrie::binding {

// Throws kType for an object without the three methods. REQUIRES: the GIL is held.
std::shared_ptr<RemoteStore> remote_store(pybind11::handle object, std::string_view where);

// Shows what a store made by that keeps of Python (tp_traverse); nothing for any other. REQUIRES: the GIL is held.
int show_store(const RemoteStore* store, visitproc visit, void* arg) noexcept;

// Tells a store made by `remote_store` which cache it is of. REQUIRES: the GIL is held.
void set_cache_of(const RemoteStore* store, const PrefixCachePtr& cache);

// The counters under their names; `faults` has those that are not 0, by the fault's name. REQUIRES: the GIL is held.
pybind11::dict stats_of(const SharedStats& stats);

}  // namespace kvtrie::binding
