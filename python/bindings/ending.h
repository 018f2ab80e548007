// The end of a cache that the collector takes apart, seen from its callbacks.
//
// The collector first runs the finalizers of all that is garbage, and then clears objects one after the other; a
// function of Python that was cleared must not be called any more. So every callback that a C++ cache keeps (its clock,
// its store) has an `Ending`, an object of Python that only it keeps: it is garbage exactly when the callback is, and
// its finalizer closes the cache while all is whole, and then says that the callback is over. (The cache's own class
// could not do that: a class derived from it may have a finalizer of its own.)
//
// Threads: `over` from any; all else with the GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>

#include "gil.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie::binding {

class Ending {
 public:
  bool over() const noexcept { return over_; }
  void set_cache(const PrefixCachePtr& cache) { cache_ = cache; }
  void end() noexcept;  // closes the cache; lets go of the GIL meanwhile

 private:
  std::weak_ptr<PrefixCache> cache_;
  std::atomic<bool> over_{false};
};

// An ending, and the reference to its object of Python that a callback keeps.
struct KeptEnding {
  KeptEnding();
  PyObject* object() const noexcept { return static_cast<PyObject*>(reference.get()); }

  std::shared_ptr<Ending> ending;
  std::shared_ptr<void> reference;
};

}  // namespace kvtrie::binding
