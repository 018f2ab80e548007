// The prefix cache. python/kvtrie/prefix_cache.py derives the public class from this one.
#include "prefix_cache/prefix_cache.h"

#include <pybind11/stl.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base_class.h"
#include "clock.h"
#include "collector.h"
#include "convert.h"
#include "errors.h"
#include "explain.h"
#include "hybrid.h"
#include "keys.h"
#include "path_argument.h"
#include "prefix_cache_stats.h"
#include "quotas.h"
#include "reason.h"
#include "remote_store.h"
#include "tree/demand.h"
#include "trie/suffix_index.h"
#include "trie/token_texts.h"

namespace kvtrie::binding {
namespace {

std::optional<double> to_seconds(const py::object& value, const char* where, const char* name) {
  if (value.is_none()) return std::nullopt;
  const bool number =
      PyFloat_Check(value.ptr()) != 0 || (PyIndex_Check(value.ptr()) != 0 && !PyBool_Check(value.ptr()));
  if (!number) refuse_type(value, where, name, "seconds as a number, or None");
  const double seconds = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0)
      refuse_raised(value, where, name, "seconds as a number, or None");
    PyErr_Clear();
    fail(ErrorKind::kArgument, where, name, ": got more than a float can hold, allowed seconds above 0");
  }
  return seconds;
}

// One cap for each of `count` caches: none, the same for all, or a list with one (or None) for each.
std::vector<std::optional<std::uint32_t>> to_caps(const py::object& value, std::size_t count, const char* name) {
  const auto one = [&](const py::handle each) -> std::optional<std::uint32_t> {
    if (each.is_none()) return std::nullopt;
    return static_cast<std::uint32_t>(to_int32(each, "set_limits", name));
  };
  if (value.is_none()) return {};
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value))
    return std::vector<std::optional<std::uint32_t>>(count, one(value));
  std::vector<std::optional<std::uint32_t>> caps;
  for (const py::object& each : to_items(value, "set_limits", name, "a list of ints")) caps.push_back(one(each));
  return caps;
}

void set_limits(PrefixCache& self, const Typed<"int | Sequence[int | None] | None">& held_cells,
                const Typed<"int | Sequence[int | None] | None">& held_slots, const Typed<"Bytes | None">& host_bytes,
                const Typed<"Bytes | None">& disk_bytes) {
  Limits limits;
  limits.held_cells = to_caps(held_cells, self.caches().size(), "held_cells");
  limits.held_slots = to_caps(held_slots, self.states().size(), "held_slots");
  if (!host_bytes.is_none()) limits.host_bytes = to_bytes(host_bytes, "set_limits", "host_bytes");
  if (!disk_bytes.is_none()) limits.disk_bytes = to_bytes(disk_bytes, "set_limits", "disk_bytes");
  without_gil([&] { self.set_limits(limits); });
}

void add_cache(CacheSet& set, py::handle cache) {
  if (py::isinstance<CausalCache>(cache)) {
    set.attention.push_back(cache.cast<std::shared_ptr<CausalCache>>());
  } else if (py::isinstance<RecurrentCache>(cache)) {
    set.states.push_back(cache.cast<std::shared_ptr<RecurrentCache>>());
  } else if (py::isinstance<HybridCache>(cache)) {
    for (const HybridCache::Component& each : cache.cast<HybridCache&>().caches())
      add_cache(set, component_to_python(each));
  } else if (py::isinstance<EncoderCache>(cache)) {
    fail(ErrorKind::kNotSupported, "PrefixCache",
         "caches: got an EncoderCache, whose state follows from an image and not from tokens: use it by itself");
  } else {
    refuse_type(cache, "PrefixCache", "caches", "CausalCache, RecurrentCache and HybridCache objects");
  }
}

CacheSet to_caches(const py::object& caches) {
  CacheSet set;
  if (!py::isinstance<py::list>(caches) && !py::isinstance<py::tuple>(caches)) {
    add_cache(set, caches);
    return set;
  }
  for (const py::object& cache : to_items(caches, "PrefixCache", "caches", "a list of caches")) add_cache(set, cache);
  return set;
}

LoadPolicy to_load_policy(const py::object& load) {
  const std::string_view name = to_text(load, "PrefixCache", "load");
  if (name == "auto") return LoadPolicy::kAuto;
  if (name == "always") return LoadPolicy::kAlways;
  fail(ErrorKind::kArgument, "PrefixCache", "load: got '", name, "', allowed auto, always");
}

PrefixCachePtr make_cache(
    const Typed<"CausalCache | RecurrentCache | HybridCache | Sequence[CausalCache | RecurrentCache | HybridCache]">&
        caches,
    const Typed<"str">& fingerprint, const Typed<"Bytes">& host_bytes, const Typed<"str | None">& disk,
    const Typed<"Bytes">& disk_bytes, const Typed<"object">& store, const Typed<"Bytes | None">& store_max_value,
    const Typed<"float | None">& store_deadline, const Typed<"str">& policy, const Typed<"str">& load,
    const Typed<"int">& checkpoint_every, const Typed<"int">& growth, const Typed<"Callable[[], float] | None">& clock,
    const Typed<"float | None">& ttl, const Typed<"Keys">& keys, bool quotas, const Typed<"int">& disk_after,
    const Typed<"int | None">& suffix_index_tokens) {
  PrefixCacheOptions options;
  options.fingerprint = to_text(fingerprint, "PrefixCache", "fingerprint");
  options.host_bytes = to_bytes(host_bytes, "PrefixCache", "host_bytes");
  if (!disk.is_none()) options.disk = to_folder(disk, "PrefixCache", "disk");
  options.disk_bytes = to_bytes(disk_bytes, "PrefixCache", "disk_bytes");
  options.disk_after =
      static_cast<std::uint32_t>(to_integer(disk_after, "PrefixCache", "disk_after", 1, Demand::kMost));
  if (!store.is_none()) options.store = remote_store(store, "PrefixCache");
  if (!store_max_value.is_none())
    options.store_options.max_value = to_bytes(store_max_value, "PrefixCache", "store_max_value");
  options.store_deadline = to_seconds(store_deadline, "PrefixCache", "store_deadline").value_or(HUGE_VAL);
  options.policy = policy_from_name(to_text(policy, "PrefixCache", "policy"));
  options.load = to_load_policy(load);
  options.checkpoint_every = to_int32(checkpoint_every, "PrefixCache", "checkpoint_every", 1);
  options.growth = static_cast<std::uint32_t>(to_int32(growth, "PrefixCache", "growth"));
  options.clock = to_clock(clock);
  options.device_times = clock.is_none();
  options.ttl = to_seconds(ttl, "PrefixCache", "ttl");
  options.keys = to_keys(keys, "PrefixCache");
  options.quotas = quotas;
  if (!suffix_index_tokens.is_none()) {
    options.suffix_index_tokens = static_cast<std::size_t>(
        to_integer(suffix_index_tokens, "PrefixCache", "suffix_index_tokens", 0, SuffixIndex::kMost));
  }
  CacheSet set = to_caches(caches);
  PrefixCachePtr made = without_gil([&] { return PrefixCache::create(std::move(set), std::move(options)); });
  if (const auto* timed = made->options().clock.target<PythonClock>()) timed->end().ending->set_cache(made);
  set_cache_of(made->options().store.get(), made);
  return made;
}

Typed<"Session"> begin(const PrefixCachePtr& self, const Typed<"Integers">& tokens, const Typed<"str">& name_space,
                       bool reuse_all, bool use, bool publish, const Typed<"Spans | None">& atomic,
                       const Typed<"Integers">& message_ends) {
  const TokenArgument prompt(tokens, "begin");
  const std::string_view name = to_text(name_space, "begin", "namespace");
  const BeginOptions options{.reuse_all = reuse_all,
                             .use = use,
                             .publish = publish,
                             .atomic = to_spans(atomic, "begin"),
                             .message_ends = IntegerArgument(message_ends, "begin", "message_ends", 1).vector()};
  return keeping(without_gil([&] { return self->begin(name, prompt.span(), options); }), self);
}

// Of each session; views into `arguments`, which reads them.
std::vector<std::span<const Token>> to_drafts(const py::object& drafts, std::vector<TokenArgument>& arguments) {
  std::vector<std::span<const Token>> spans;
  if (drafts.is_none()) return spans;
  constexpr const char* kAllowed = "a list of lists of token ids, or None";
  for (const py::object& each : to_items(drafts, "batch", "drafts", kAllowed))
    arguments.emplace_back(each, "batch", /*or_one=*/false, /*media=*/false);
  for (const TokenArgument& each : arguments) spans.push_back(each.span());
  return spans;
}

Typed<"Step"> batch(const PrefixCachePtr& self, const Typed<"Sequence[Session]">& sessions, const Typed<"int">& chunk,
                    const Typed<"Sequence[Integers] | None">& drafts) {
  if (!py::isinstance<py::list>(sessions) && !py::isinstance<py::tuple>(sessions)) {
    refuse_type(sessions, "batch", "sessions", "a list of sessions");
  }
  std::vector<SessionPtr> list;
  for (const py::object& session : to_items(sessions, "batch", "sessions", "a list of sessions")) {
    if (!py::isinstance<Session>(session)) refuse_type(session, "batch", "sessions", "Session objects");
    list.push_back(session.cast<SessionPtr>());
  }
  const auto rows = static_cast<std::uint32_t>(to_int32(chunk, "batch", "chunk", 1));
  std::vector<TokenArgument> arguments;
  const std::vector<std::span<const Token>> each_drafts = to_drafts(drafts, arguments);
  return keeping(without_gil([&] { return self->batch(list, rows, each_drafts); }), self);
}

// The common part of page_out and evict: `tokens` or `nbytes`, one of the two.
using ByBytes = std::function<std::uint64_t(std::uint64_t)>;
using ByTokens = std::function<std::uint64_t(std::string_view, std::span<const Token>)>;

std::uint64_t free_state(const py::object& tokens, const py::object& nbytes, const py::object& name_space,
                         const py::object& atomic, const char* where, const ByTokens& by_tokens,
                         const ByBytes& by_bytes) {
  require(tokens.is_none() != nbytes.is_none(), where, "tokens, nbytes: got ", tokens.is_none() ? "neither" : "both",
          ", allowed one of them");
  if (tokens.is_none()) {
    const std::uint64_t bytes = to_bytes(nbytes, where, "nbytes");
    return without_gil([&] { return by_bytes(bytes); });
  }
  const PathArgument path(tokens, atomic, where);
  const std::string_view name = to_text(name_space, where, "namespace");
  return without_gil([&] { return by_tokens(name, path.span()); });
}

std::uint64_t page_out(PrefixCache& self, const Typed<"Integers | None">& tokens, const Typed<"Bytes | None">& nbytes,
                       const Typed<"str">& to, const Typed<"str">& name_space, const Typed<"Spans | None">& atomic) {
  const std::string_view name = to_text(to, "page_out", "to");
  require(name == "host" || name == "disk" || name == "store", "page_out", "to: got '", name,
          "', allowed 'host', 'disk' or 'store'");
  const Tier tier = name == "disk" ? Tier::kDisk : name == "store" ? Tier::kStore : Tier::kHost;
  return free_state(
      tokens, nbytes, name_space, atomic, "page_out",
      [&](std::string_view space, std::span<const Token> path) { return self.page_out(space, path, tier); },
      [&](std::uint64_t bytes) { return self.page_out_bytes(bytes, tier); });
}

std::uint64_t evict(PrefixCache& self, const Typed<"Integers | None">& tokens, const Typed<"Bytes | None">& nbytes,
                    const Typed<"str">& name_space, const Typed<"Spans | None">& atomic) {
  return free_state(
      tokens, nbytes, name_space, atomic, "evict",
      [&](std::string_view space, std::span<const Token> path) { return self.evict(space, path); },
      [&](std::uint64_t bytes) { return self.evict_bytes(bytes); });
}

// A method over (tokens, namespace) that returns a number of tokens.
template <class Method>
auto by_path(const char* where, Method method) {
  return [where, method](PrefixCache& self, const Typed<"Integers">& tokens, const Typed<"str">& name_space,
                         const Typed<"Spans | None">& atomic) {
    const PathArgument path(tokens, atomic, where);
    const std::string_view name = to_text(name_space, where, "namespace");
    return without_gil([&] { return (self.*method)(name, path.span()); });
  };
}

void init_plan(py::module_& m) {
  py::class_<ReusePlan> c(m, "ReusePlan", "What ``begin`` would find for a prompt now; made by ``PrefixCache.plan``.");
  c.def_readonly("matched", &ReusePlan::matched, "Tokens of the prompt that the tree knows.");
  c.def_readonly("reusable", &ReusePlan::reusable, "Tokens that need not be computed.");
  c.def_property_readonly(
      "tier", [](const ReusePlan& self) { return name_of(self.tier); },
      "Lowest tier it reads from: \"device\", \"host\", \"disk\", or \"none\" when nothing is reusable.");
  c.def_readonly("bytes_moved", &ReusePlan::bytes_moved, "Bytes that would be paged in from lower tiers.");
  c.def_property_readonly(
      "reason", [](const ReusePlan& self) { return reason_to_python(self.reason); },
      "Why less is reusable than matched: a str with ``code`` and ``text``, empty when nothing is left out.");
  c.def("__repr__", [](const ReusePlan& self) {
    return cat("<kvtrie.ReusePlan ", self.reusable, " of ", self.matched, " matched, tier ", name_of(self.tier), ", ",
               self.bytes_moved, " bytes to move>");
  });
  refuse_pickling(c, "keeping its fields");
  allow_in_forks(c);
}

std::int32_t pin(PrefixCache& self, const Typed<"Integers">& tokens, const Typed<"str">& name_space,
                 const Typed<"float | None">& ttl, const Typed<"Spans | None">& atomic) {
  const PathArgument path(tokens, atomic, "pin");
  const std::string_view name = to_text(name_space, "pin", "namespace");
  const std::optional<double> seconds = to_seconds(ttl, "pin", "ttl");
  return without_gil([&] { return self.pin(name, path.span(), seconds); });
}

Int32Array match_text(const PrefixCache& self, const Typed<"Integers">& tokens, const Typed<"TokenTexts">& texts,
                      const Typed<"str">& name_space) {
  const TokenArgument prompt(tokens, "match_text");
  if (!py::isinstance<TokenTexts>(texts)) refuse_type(texts, "match_text", "texts", "a kvtrie.trie.TokenTexts");
  const auto& spelled = texts.cast<const TokenTexts&>();
  const std::string_view name = to_text(name_space, "match_text", "namespace");
  return int32_array(without_gil([&] { return self.match_text(name, prompt.span(), spelled); }));
}

using PrefixCacheClass = py::class_<PrefixCache, PrefixCachePtr>;

void add_sessions(PrefixCacheClass& c) {
  c.def("begin", &begin, py::arg("tokens"), py::arg("namespace") = "default", py::kw_only(),
        py::arg("reuse_all") = false, py::arg("use") = true, py::arg("publish") = true, py::arg("atomic") = py::none(),
        py::arg("message_ends") = py::tuple(),
        "``kvtrie.PrefixCache.begin``, for which an empty ``message_ends`` says that there are none.");
  c.def("batch", &batch, py::arg("sessions"), py::arg("chunk") = 512, py::arg("drafts") = py::none(),
        R"(One step for several sessions: the next ``chunk`` of each one's remaining or recorded tokens.

``drafts``: for each session a list of token ids, some or all empty, as of ``Session.propose``; all that a session with drafts
has recorded must fit into ``chunk``.)");
  c.def(
      "plan", by_path("plan", &PrefixCache::plan), py::arg("tokens"), py::arg("namespace") = "default", py::kw_only(),
      py::arg("atomic") = py::none(),
      "What ``begin`` would reuse, from which tier, how many bytes it would move, and why not more. Changes nothing.");
  c.def("match_text", &match_text, py::arg("tokens"), py::arg("texts"), py::arg("namespace") = "default",
        R"(The same text in the tokens that the tree knows it by: int32, to begin a session with.

A text that a model wrote need not be cut into the tokens that it chose when it comes back as a part of the next prompt, and
what was computed is known by its tokens. ``texts``: what each token spells (``kvtrie.trie.TokenTexts``; ``model.token_texts``).
The tokens change at a border of both spellings, so the rest is as it was given. Changes nothing, asks no store.)");
}

void add_memory(PrefixCacheClass& c) {
  c.def("restore", by_path("restore", &PrefixCache::restore), py::arg("tokens"), py::arg("namespace") = "default",
        py::kw_only(), py::arg("atomic") = py::none(),
        "Pages a prefix in before it is used; returns how many of its tokens are on the device now.");
  c.def("page_out", &page_out, py::arg("tokens") = py::none(), py::arg("nbytes") = py::none(), py::arg("to") = "host",
        py::arg("namespace") = "default", py::kw_only(), py::arg("atomic") = py::none(),
        R"(Moves state from the device to host memory; returns the bytes freed.

``to="disk"``: on to the disk tier, so that it leaves host memory as well and is in files when the call returns.
``to="store"``: it stays in host memory, and is in the store when the call returns, as far as that accepted it.
``tokens``: the tail of that path that no other branch or session uses. ``nbytes`` (an int, or a str such as "64MiB"):
at least that much, unless other threads take some meanwhile, oldest first, or ``CacheFullError`` with nothing changed.)");
  c.def("evict", &evict, py::arg("tokens") = py::none(), py::arg("nbytes") = py::none(),
        py::arg("namespace") = "default", py::kw_only(), py::arg("atomic") = py::none(),
        R"(Forgets state; returns the bytes freed. ``tokens`` and ``nbytes`` as in ``page_out``.)");
  c.def("set_limits", &set_limits, py::kw_only(), py::arg("held_cells") = py::none(),
        py::arg("held_slots") = py::none(), py::arg("host_bytes") = py::none(), py::arg("disk_bytes") = py::none(),
        R"(Changes caps while everything runs: all that are named, or none.

``held_cells``: the most cells that may be held of each attention cache, an int for all or a list with one for each, in
the order of ``stats()["caches"]``. Pools are sized at creation; a cap below that leaves the rest unused, and 0, or more
than the capacity, means the capacity. ``held_slots``: the same for recurrent caches. ``host_bytes``, ``disk_bytes``: of
existing tiers. None: unchanged. A lower cap first makes room in the order of eviction, to the host where it fits; a
higher one takes effect at once. Raises ``CacheFullError``, with nothing changed, when live sessions and pins hold more.)");
  c.def(
      "flush", [](PrefixCache& self) { return without_gil([&] { return self.flush(); }); },
      R"(Writes everything that is known when it is called to the disk tier, and returns when it is written and when the store has
what was on its way. What others compute meanwhile may wait for its own time.

False: some of it did not fit or could not be written; ``stats()["disk"]`` and the log say why. Raises ``NotSupportedError``
without a disk tier or a store.)");
  c.def(
      "_save",
      [](PrefixCache& self, const Typed<"str">& path) {
        const std::string folder = to_folder(path, "save", "path");
        without_gil([&] { self.save(folder); });
      },
      py::arg("path"));
  c.def("pin", &pin, py::arg("tokens"), py::arg("namespace") = "default", py::kw_only(), py::arg("ttl") = py::none(),
        py::arg("atomic") = py::none(),
        R"(Keeps a prefix where it is; returns the tokens kept: those that are known and fit under the cap for pins.

``ttl``: seconds of the cache's clock after which the pin ends by itself, at the next call; None: never. Raises
``ArgumentError`` for one that is not above 0.)");
  c.def("unpin", by_path("unpin", &PrefixCache::unpin), py::arg("tokens"), py::arg("namespace") = "default",
        py::kw_only(), py::arg("atomic") = py::none(),
        "Removes one pin; returns how many tokens it kept, 0 when there was none.");
}

UInt64Array summary(const PrefixCache& self, const Typed<"int">& most) {
  const auto count = static_cast<std::size_t>(to_int32(most, "summary", "most"));
  return uint64_array(without_gil([&] { return self.summary(count); }));
}

void add_inspection(PrefixCacheClass& c) {
  c.def("stats", &stats_to_python,
        R"(Numbers of the moment and totals since creation, as a dict; docs/stats.md explains each.

Now: ``nodes``, ``tokens``, ``device_tokens``, ``host_tokens``, ``disk_tokens``, ``sessions``, ``device_bytes``, ``host_bytes``,
``host_cap_bytes``, ``host_peak_bytes`` (the most there ever was), ``pending_writes``, ``pending_bytes``, ``restore_points``,
``user_points``, ``pins``, ``pinned_tokens``, ``suffix_tokens``, ``suffix_bytes``, ``seconds_per_token``, ``seconds_per_decoded_token``,
``seconds_per_store_call``; and these, which hold more:
``seconds_per_byte``, ``caches``, ``recurrent``, ``disk``, ``store``.

Totals: ``begins``, ``hits``, ``matched_tokens``, ``reused_tokens``, ``computed_tokens``, ``adopted_tokens``,
``recomputed_instead`` (tokens left in lower tiers, as computing them is measured to be faster), ``steps``, ``dropped_steps``, ``proposed_tokens`` and
``accepted_tokens`` (drafts that were checked, and those that were right),
``branches``, ``rewinds``, ``page_outs``, ``page_out_bytes``, ``page_ins``, ``page_in_bytes``, ``evicted_tokens``,
``expired_tokens``, ``expired_pins``, ``captures`` (restore points made), ``skipped_captures`` (wanted, but there was no free
slot), ``dropped_points``, ``checksum_failures``, ``unusable_snapshots``, ``keyless_sessions`` (closed, in a namespace without a key).

``seconds_per_byte``: ``host``, ``disk``, ``store``.

``caches``: a list of dicts with ``capacity_cells``, ``limit_cells``, ``free_cells``, ``reserved_cells``, ``held_cells``, ``pieces``,
``bytes``.

``recurrent``: a list of dicts with ``capacity_slots``, ``limit_slots``, ``free_slots``, ``bytes``.

``disk``: None without a disk tier, else ``files``, ``bytes``, ``cap_bytes``, ``peak_bytes``, ``writes``, ``written_bytes``, ``reads``,
``read_bytes``, ``failed_writes``, ``failed_reads``, ``failed_removes``, ``last_failure``, ``writing``, ``refused``, ``dropped``,
``strays_removed``.

``store``: None without a store, else ``name``, ``state``, ``gets``, ``hits``, ``misses``, ``puts``, ``removes``, ``bytes_in``,
``bytes_out``, ``sent``, ``unsent``, ``pending``, ``received``, ``received_bytes``, ``faults``, ``calls``, ``failures``,
``last_failure``, ``late``, ``skipped``, ``opened``, ``too_large``, ``least_tokens``, ``not_worth``.)");
  c.def(
      "check", [](const PrefixCache& self) { return without_gil([&] { return self.check(); }); },
      "Every invariant that does not hold, as sentences; an empty list is good.");
  c.def("_explain", &explain_to_python, py::arg("tokens"), py::arg("namespace") = "default", py::kw_only(),
        py::arg("atomic") = py::none(), "Its fields as a dict; see ``kvtrie.PrefixCache.explain``.");
  c.def(
      "summary", &summary, py::arg("most") = 512,
      R"(What it knows, in short: fingerprints of the paths that were used last, as uint64 [at most ``most``], in no order.

They are among what ``kv.trie.fingerprints`` gives for a prompt that begins like one of these paths: of each node the last whole
block of 64 tokens, and those 1, 2, 4, ... blocks in front of it. For choosing one of several caches; what it knows may have
changed since. Takes time that
grows with the number of nodes, during which other calls wait: about 0.2 us each.)");
  c.def("_nodes", &node_tuples, "The nodes as tuples; see ``kvtrie.PrefixCache.nodes``.");
}

}  // namespace

void init_prefix_cache(py::module_& m) {
  init_plan(m);
  // The last reference may wait for threads that log, and so need the GIL.
  PrefixCacheClass c(m, "PrefixCache", "Every conversation's tokens in one tree; see ``kvtrie.PrefixCache``.",
                     py::release_gil_before_calling_cpp_dtor(), shows_clock_and_store());
  c.def(py::init(&make_cache), py::arg("caches"), py::kw_only(), py::arg("fingerprint") = "", py::arg("host_bytes") = 0,
        py::arg("disk") = py::none(), py::arg("disk_bytes") = 0, py::arg("store") = py::none(),
        py::arg("store_max_value") = py::none(), py::arg("store_deadline") = py::none(), py::arg("policy") = "lru",
        py::arg("load") = "auto", py::arg("checkpoint_every") = 512, py::arg("growth") = 256,
        py::arg("clock") = py::none(), py::arg("ttl") = py::none(), py::arg("keys") = py::none(),
        py::arg("quotas") = false, py::arg("disk_after") = 1, py::arg("suffix_index_tokens") = py::none());
  add_sessions(c);
  add_memory(c);
  add_quotas(c);
  add_inspection(c);
  c.def_property_readonly(
      "fingerprint", [](const PrefixCache& self) { return self.options().fingerprint; },
      "Which weights the K/V come from.");
  c.def_property_readonly(
      "host_bytes", [](const PrefixCache& self) { return self.host_cap(); },
      "Cap of the host tier in bytes now; 0: there is none.");
  c.def_property_readonly(
      "disk_after", [](const PrefixCache& self) { return self.options().disk_after; },
      "Sessions that have to ask for tokens before they are written behind.");
  c.def_property_readonly(
      "checkpoint_every", [](const PrefixCache& self) { return self.options().checkpoint_every; },
      "Distance of spaced restore points in tokens.");
  c.def_property_readonly(
      "growth", [](const PrefixCache& self) { return self.options().growth; },
      "Cells reserved ahead of a growing session.");
  c.def_property_readonly("longest", &PrefixCache::longest,
                          "Tokens that a session may have: the cells of the smallest cache without a window.");
  c.def_property_readonly("closed", &PrefixCache::closed, "Whether it was closed.");
  c.def(
      "close", [](PrefixCache& self) { without_gil_even_forked([&] { self.close(); }); },
      R"(Closes every session and gives back all cells, host memory and the folder. May be called again, from any thread.

Waits for calls of other threads that wait for something themselves: they raise ``ClosedError`` when that is over. In a callback
of a clock or a store it returns at once, and the rest is done when the call that it interrupts has ended.)");
  refuse_pickling(c, "keeping it in the process: the K/V stay on the device");
}

}  // namespace kvtrie::binding
