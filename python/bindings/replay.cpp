// Replaying traces on caches without bytes.
#include "replay/trace_replay.h"

#include <pybind11/stl.h>

#include <string>

#include "base/error.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

std::uint32_t to_count(const py::object& value, const char* name, std::int64_t least) {
  return static_cast<std::uint32_t>(to_integer(value, "Replay", name, least, kMaxInt32));
}

std::unique_ptr<Replay> make(const Typed<"int">& capacity, const Typed<"str">& policy, bool whole,
                             const Typed<"int">& window, const Typed<"int">& window_capacity, const Typed<"int">& slots,
                             const Typed<"int">& checkpoint_every, const Typed<"int">& host_capacity,
                             const Typed<"int">& chunk, bool find_partings) {
  ReplayOptions options;
  options.capacity = to_count(capacity, "capacity", 1);
  options.policy = policy_from_name(to_text(policy, "Replay", "policy"));
  options.whole = whole;
  options.window = to_count(window, "window", 0);
  options.window_capacity = to_count(window_capacity, "window_capacity", 0);
  options.slots = to_count(slots, "slots", 0);
  options.checkpoint_every = to_int32(checkpoint_every, "Replay", "checkpoint_every", 1);
  options.host_capacity = to_count(host_capacity, "host_capacity", 0);
  options.chunk = to_count(chunk, "chunk", 0);
  options.find_partings = find_partings;
  return std::make_unique<Replay>(options);
}

Typed<"tuple[int, int, int]"> serve(Replay& self, const Typed<"Integers">& tokens, const Typed<"Integers">& output,
                                    const Typed<"str">& name_space, double time,
                                    const Typed<"Integers">& message_ends) {
  const IntegerArgument prompt(tokens, "Replay.serve", "tokens");
  const IntegerArgument answer(output, "Replay.serve", "output");
  const std::string name(to_text(name_space, "Replay.serve", "namespace"));
  const std::vector<std::int32_t> ends = IntegerArgument(message_ends, "Replay.serve", "message_ends", 1).vector();
  const Served served = without_gil([&] { return self.serve(name, prompt.span(), answer.span(), time, ends); });
  return py::make_tuple(served.requested, served.matched, served.reused);
}

UInt64Array summary(const Replay& self, const Typed<"int">& most) {
  const auto count = static_cast<std::size_t>(to_integer(most, "Replay.summary", "most", 0, kMaxInt32));
  return uint64_array(without_gil([&] { return self.summary(count); }));
}

Typed<"dict[str, int]"> stats(const Replay& self) {
  const PrefixCacheStats now = self.stats();
  py::dict found;
  found["nodes"] = now.nodes;
  found["device_tokens"] = now.device_tokens;
  found["host_tokens"] = now.host_tokens;
  found["evicted_tokens"] = now.evicted_tokens;
  found["computed_tokens"] = now.computed_tokens;
  found["reused_tokens"] = now.reused_tokens;
  found["page_outs"] = now.page_outs;
  found["page_ins"] = now.page_ins;
  return found;
}

}  // namespace

void init_replay(py::module_& m) {
  py::class_<Replay> c(m, "Replay", R"(A prefix cache without bytes, fed with the requests of a trace one after another.

The trie, the planner, publishing and eviction are those of ``PrefixCache``; nothing is computed and no device is
needed. Counts are in symbols: tokens, or ids of blocks, each of which takes one cell.)");
  c.def(py::init(&make), py::arg("capacity"), py::arg("policy") = "lru", py::arg("whole") = false,
        py::arg("window") = 0, py::arg("window_capacity") = 0, py::arg("slots") = 0, py::arg("checkpoint_every") = 512,
        py::arg("host_capacity") = 0, py::arg("chunk") = 0, py::arg("find_partings") = true);
  c.def("serve", &serve, py::arg("tokens"), py::arg("output") = py::tuple(), py::arg("namespace") = "default",
        py::arg("time") = 0.0, py::arg("message_ends") = py::tuple(),
        R"((requested, matched, reused) of a prompt that arrives at ``time`` seconds; it is computed, then ``output``.

``message_ends``: as of ``PrefixCache.begin``. What does not fit into ``capacity`` is not kept; the whole prompt counts as requested. ``ArgumentError`` for an empty
prompt or negative symbols.)");
  c.def("summary", &summary, py::arg("most") = 512,
        "What it knows now, as ``PrefixCache.summary`` has it: uint64 [at most ``most``]; a block is 64 symbols.");
  c.def("stats", &stats, "Totals and what is held now, in symbols, as a dict.");
  c.def("check", &Replay::check, "Every invariant that does not hold, as sentences; an empty list is good.");
  c.def("__repr__", [](const Replay& self) {
    return cat("<kvtrie.Replay ", self.options().capacity, " cells, ", name_of(self.options().policy), ">");
  });
  refuse_pickling(c, "replaying the trace again");
}

}  // namespace kvtrie::binding
