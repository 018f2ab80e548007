#include "explain.h"

#include <pybind11/stl.h>

#include "convert.h"
#include "gil.h"
#include "path_argument.h"
#include "reason.h"

namespace kvtrie::binding {
namespace {

py::dict reach_to_python(const CacheReach& reach) {
  const bool full = !reach.states && reach.window == 0 && reach.chunk == 0;
  const char* kind = reach.states ? "states" : full ? "full" : reach.window > 0 ? "window" : "chunk";
  py::dict made;
  made["kind"] = kind;
  made["layers"] = reach.layers;
  made["window"] = reach.window;
  made["chunk"] = reach.chunk;
  made["deepest"] = reach.deepest;
  made["kept"] = reach.kept;
  return made;
}

}  // namespace

Typed<"ExplanationFields"> explain_to_python(const PrefixCache& self, const Typed<"Integers">& tokens,
                                             const Typed<"str">& name_space, const Typed<"Spans | None">& atomic) {
  const PathArgument path(tokens, atomic, "explain");
  const std::string_view name = to_text(name_space, "explain", "namespace");
  const Explanation found = without_gil([&] { return self.explain(name, path.span()); });
  py::list caches;
  for (const CacheReach& reach : found.caches) caches.append(reach_to_python(reach));
  py::dict made;
  made["matched"] = found.plan.matched;
  made["reusable"] = found.plan.reusable;
  made["tier"] = name_of(found.plan.tier);
  made["bytes_moved"] = found.plan.bytes_moved;
  made["reason"] = reason_to_python(found.plan.reason);
  made["end"] = name_of(found.end);
  made["branches"] = found.branches;
  made["known"] = int32_array(found.known);
  made["rejoin"] = py::make_tuple(found.rejoin.prompt, found.rejoin.known, found.rejoin.tokens);
  made["caches"] = caches;
  made["compute_seconds"] = found.compute_seconds;
  made["load_seconds"] = found.load_seconds;
  return made;
}

}  // namespace kvtrie::binding
