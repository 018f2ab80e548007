// Sessions and steps: the path of every token, so nothing is done here that need not be.
#include "prefix_cache/session.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "caches.h"
#include "chosen.h"
#include "collector.h"
#include "convert.h"
#include "operands.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/step.h"
#include "reason.h"
#include "recurrent.h"
#include "session_accept.h"
#include "session_prefill.h"
#include "session_rows.h"

namespace kvtrie::binding {
namespace {

std::uint32_t to_chunk(const py::object& chunk, const char* where) {
  return static_cast<std::uint32_t>(to_int32(chunk, where, "chunk", 1));
}

// ---- steps --------------------------------------------------------------------------------------------------------

// Where the cache of `layer` takes its tensors. An unknown layer is refused by the step itself.
Placement placement_of(const Step& step, std::int32_t layer) {
  for (const auto& cache : step.cache()->caches()) {
    if (cache->has_layer(layer)) return binding::placement_of(*cache);
  }
  return {true, nullptr};
}

Placement state_placement_of(const Step& step, std::int32_t layer) {
  for (const auto& cache : step.cache()->states()) {
    auto* const recurrent = dynamic_cast<RecurrentCache*>(cache.get());
    if (recurrent != nullptr && recurrent->has_layer(layer)) return binding::placement_of(*recurrent);
  }
  return {true, nullptr};
}

Tensor conv(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& weight) {
  const std::int32_t number = to_int32(layer, "conv", "layer");
  const Placement place = state_placement_of(self, number);
  const Tensor rows = to_tensor(x, place, "conv", "x", DType::kFloat32);
  const Tensor taps = to_tensor(weight, place, "conv", "weight", DType::kFloat32);
  return without_gil([&] { return self.conv(number, rows, taps); });
}

Tensor gated_delta(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q, const Typed<"ArrayLike">& k,
                   const Typed<"ArrayLike">& v, const Typed<"ArrayLike">& g, const Typed<"ArrayLike">& beta) {
  const std::int32_t number = to_int32(layer, "gated_delta", "layer");
  const Placement place = state_placement_of(self, number);
  const auto take = [&](const py::object& value, const char* name) {
    return to_tensor(value, place, "gated_delta", name, DType::kFloat32);
  };
  const Tensor a = take(q, "q"), b = take(k, "k"), c = take(v, "v"), d = take(g, "g"), e = take(beta, "beta");
  return without_gil([&] { return self.gated_delta(number, a, b, c, d, e); });
}

Tensor ssd(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& x, const Typed<"ArrayLike">& dt,
           const Typed<"ArrayLike">& a, const Typed<"ArrayLike">& b, const Typed<"ArrayLike">& c,
           const Typed<"ArrayLike">& d, const Typed<"float">& dt_min, const Typed<"float | None">& dt_max) {
  const std::int32_t number = to_int32(layer, "ssd", "layer");
  const ops::SsdInputs in = to_ssd({x, dt, a, b, c, d}, dt_min, dt_max, state_placement_of(self, number), "ssd");
  return without_gil([&] { return self.ssd(number, in); });
}

Typed<"tuple[Tensor | None, Tensor | None]"> states(Step& self, const Typed<"int">& layer) {
  const std::int32_t number = to_int32(layer, "states", "layer");
  RecurrentCache::States now = without_gil([&] { return self.states(number); });
  return py::make_tuple(optional_to_python(std::move(now.conv)), optional_to_python(std::move(now.delta)));
}

void put_states(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike | None">& conv,
                const Typed<"ArrayLike | None">& delta) {
  const std::int32_t number = to_int32(layer, "put_states", "layer");
  const Placement place = state_placement_of(self, number);
  const Tensor convs = to_optional_tensor(conv, place, "put_states", "conv");
  const Tensor deltas = to_optional_tensor(delta, place, "put_states", "delta");
  without_gil([&] { self.put_states(number, convs, deltas); });
}

void set_causal(Step& self, const Typed<"Integers">& except) {
  const IntegerArgument rows(except, "set_causal", "except_");
  const std::vector<std::uint32_t> wanted(rows.span().begin(), rows.span().end());
  without_gil([&] { self.set_causal(wanted); });
}

Tensor attend(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& q, const Typed<"ArrayLike | None">& k,
              const Typed<"ArrayLike | None">& v, const Typed<"float | None">& scale,
              const Typed<"float | None">& softcap, const Typed<"ArrayLike | None">& sinks,
              const Typed<"str">& precision) {
  const std::int32_t number = to_int32(layer, "attend", "layer");
  const Placement place = placement_of(self, number);
  const Tensor query = to_tensor(q, place, "attend", "q", DType::kFloat32);
  const Tensor keys = to_optional_tensor(k, place, "attend", "k"), values = to_optional_tensor(v, place, "attend", "v");
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, "attend");
  if (k.is_none() && v.is_none()) return without_gil([&] { return self.attend_stored(number, query, options); });
  return without_gil([&] { return self.attend(number, query, keys, values, options); });
}

Tensor attend_qkv(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& qkv,
                  const Typed<"ops.RopeTable | None">& rope, const Typed<"ArrayLike | None">& q_norm,
                  const Typed<"ArrayLike | None">& k_norm, const Typed<"float">& eps, const Typed<"float">& offset,
                  const Typed<"float | None">& scale, const Typed<"float | None">& softcap,
                  const Typed<"ArrayLike | None">& sinks,
                  const Typed<"ops.PackedWeight | Sequence[ops.PackedWeight] | None">& weight,
                  const Typed<"ArrayLike | None">& bias, const Typed<"tuple[ArrayLike, float, float] | None">& norm,
                  const Typed<"str">& precision) {
  constexpr const char* kWhere = "attend_qkv";
  const std::int32_t number = to_int32(layer, kWhere, "layer");
  const Placement place = placement_of(self, number);
  const Tensor rows = to_tensor(qkv, place, kWhere, "qkv", DType::kFloat32);
  const ops::QkvOptions projection = to_qkv({rope, q_norm, k_norm, eps, offset}, place, kWhere);
  const ops::AttentionOptions options = to_attention(scale, softcap, sinks, precision, place, kWhere);
  const std::optional<Projection> product = to_projection(rows, weight, bias, norm, place, kWhere);
  return without_gil([&] {
    if (product) return self.attend_qkv(number, product->product, projection, options);
    return self.attend_qkv(number, rows, projection, options);
  });
}

void put(Step& self, const Typed<"int">& layer, const Typed<"ArrayLike">& k, const Typed<"ArrayLike | None">& v,
         const Typed<"bool">& heads_first) {
  const std::int32_t number = to_int32(layer, "put", "layer");
  const Placement place = placement_of(self, number);
  const Tensor keys = to_tensor(k, place, "put", "k"), values = to_values(v, keys, place, "put");
  const RowOrder order = to_row_order(heads_first, "put");
  without_gil([&] { self.put(number, keys, values, order); });
}

Typed<"tuple[Tensor, Tensor, Tensor]"> get(Step& self, const Typed<"int">& layer, const Typed<"bool">& heads_first) {
  const std::int32_t number = to_int32(layer, "get", "layer");
  const RowOrder order = to_row_order(heads_first, "get");
  CausalCache::History history = without_gil([&] { return self.get(number, order); });
  return py::make_tuple(std::move(history.k), std::move(history.v), std::move(history.mask));
}

Typed<"list[Session]"> sessions(const Step& self) {
  py::list made;
  const py::object cache = py::cast(self.cache());
  for (const SessionPtr& each : self.sessions()) {
    made.append(each);
    keep_cache(made[made.size() - 1], cache);
  }
  return made;
}

// A read-only view of one of the step's arrays, which the array keeps alive.
template <class Values>
auto view(const Values& (Step::*values)() const noexcept) {
  return [values](const py::object& self) { return int32_view((self.cast<Step&>().*values)(), self); };
}

void init_step(py::module_& m) {
  py::class_<Step, StepPtr> c(m, "Step", R"(One forward pass for one or several sessions.

The model calls ``attend`` (or ``put`` and ``get``) once for each layer; when every layer of every cache was put, the
step is ``complete``: its sessions advance, and what they computed is published. A step is dropped, and leaves no trace,
when its session is asked for anything else before that.)",
                              py::release_gil_before_calling_cpp_dtor(), shows_its_cache<Step>());
  c.def_property_readonly("tokens", view(&Step::tokens), "int32 [rows], read-only.");
  c.def_property_readonly("positions", view(&Step::positions), "int32 [rows], read-only.");
  c.def_property_readonly("sequences", view(&Step::sequences),
                          "int32 [rows], read-only: which of ``sessions`` a row belongs to.");
  c.def_property_readonly("sessions", &sessions, "The sessions, as a list.");
  c.def_property_readonly(
      "last_rows", [](const Step& self) { return int32_array(self.last_rows()); },
      "int32 [sessions]: the row whose logits continue each session.");
  c.def_property_readonly("complete", &Step::complete, "Whether every layer was put.");
  c.def_property_readonly("dropped", &Step::dropped, "Whether it was dropped before it was complete.");
  c.def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("k") = py::none(), py::arg("v") = py::none(),
        py::arg("scale") = py::none(), py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(),
        py::arg("precision") = "auto",
        R"(Stores K and V of one layer and attends to the whole history, this step's rows included.

q float32 [rows, heads, head_dim], k [rows, kv_heads, head_dim], v [rows, kv_heads, v_head_dim] -> float32 [rows, heads,
v_head_dim]. Without k and v: attends to what ``put`` stored. ``scale``: None for 1 / sqrt(head_dim); ``softcap``,
``sinks``, ``precision`` as in ``ops.attention``. Raises ``ArgumentError`` or ``ArgumentTypeError`` with nothing stored,
``ClosedError`` once dropped.)");
  c.def("attend_qkv", &attend_qkv, py::arg("layer"), py::arg("qkv"), py::arg("rope") = py::none(),
        py::arg("q_norm") = py::none(), py::arg("k_norm") = py::none(), py::arg("eps") = 1e-6, py::arg("offset") = 0.0,
        py::arg("scale") = py::none(), py::arg("softcap") = py::none(), py::arg("sinks") = py::none(), py::kw_only(),
        py::arg("weight") = py::none(), py::arg("bias") = py::none(), py::arg("norm") = py::none(),
        py::arg("precision") = "auto",
        R"(``attend`` for q, k and v that come out of one product: norms, rotates, stores and attends in few launches.

qkv float32 [rows, heads * head_dim + kv_heads * (head_dim + v_head_dim)]: the heads of q, those of k, those of v ->
float32 [rows, heads * v_head_dim]. Heads of q and k are normed as ``ops.rms_norm(head, q_norm, eps, offset)`` does where
a weight [head_dim] is given, then rotated to the step's positions by the ``ops.RopeTable`` ``rope``, if any. ``scale``,
``softcap``, ``sinks`` and ``precision`` as in ``attend``. With ``weight``, ``qkv`` is x [rows, in], and what is attended is
``ops.matmul(x, weight, add=bias, norm=norm)``: some devices then norm, multiply, rotate and store in one launch. The bits
are those of the separate calls. Raises like ``attend``, and ``NotSupportedError`` where the cache is on the host.)");
  c.def("put", &put, py::arg("layer"), py::arg("k"), py::arg("v"), py::kw_only(), py::arg("heads_first") = false,
        R"(Stores K and V of one layer, once in each step.

k [rows, kv_heads, head_dim], v [rows, kv_heads, v_head_dim] (None: no values), or [kv_heads, rows, dim] with ``heads_first``.)");
  c.def("get", &get, py::arg("layer"), py::kw_only(), py::arg("heads_first") = false,
        R"(The history of this step's rows after ``put``, as (k, v, mask), for models that do their own attention.

k and v are copies [n, kv_heads, dim], or [kv_heads, n, dim] with ``heads_first``, in the cache's dtype; mask float32 [rows, n] is 0 where a row sees a key, else
-inf.)");
  const auto place = [](const Step& self, std::int32_t layer) { return placement_of(self, layer); };
  add_blocks(c, place, [](Step& self, auto&&... given) { return self.choose_blocks(given...); });
  add_chosen(
      c, place, [](Step& self, auto&&... given) { return self.choose_keys(given...); },
      [](Step& self, auto&&... given) { return self.attend_chosen(given...); });
  c.def(
      "set_causal", &set_causal, py::arg("except_"),
      R"(The rows ``except_`` see all rows of their session in this step, later ones too: an image whose patches see each
other. A window's or chunk's lower end stays. Before the first ``attend``.)");
  c.def("conv", &conv, py::arg("layer"), py::arg("x"), py::arg("weight"),
        R"(The causal convolution of a recurrent layer, going on from each session's state (see ``ops.causal_conv1d``).

x float32 [rows, conv_dim], weight float32 [conv_dim, conv_tail + 1] -> float32 [rows, conv_dim]. States at scheduled
restore points come out of the same call. Once for each layer in a step.)");
  c.def("gated_delta", &gated_delta, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("g"),
        py::arg("beta"),
        R"(The gated delta rule of a recurrent layer, going on from each session's state (see ``ops.gated_delta``).

q, k float32 [rows, k_heads, k_dim], v float32 [rows, v_heads, v_dim], g (log decay) and beta float32 [rows, v_heads] ->
float32 [rows, v_heads, v_dim]. Once for each layer in a step.)");
  c.def("ssd", &ssd, py::arg("layer"), py::arg("x"), py::arg("dt"), py::arg("a"), py::arg("b"), py::arg("c"),
        py::arg("d"), py::arg("dt_min") = 0.0, py::arg("dt_max") = py::none(),
        R"(The scan of Mamba-2 of a recurrent layer, going on from each session's state (see ``ops.ssd``).

x float32 [rows, v_heads, v_dim], dt [rows, v_heads], a and d [v_heads], b and c [rows, groups, k_dim] -> float32 [rows,
v_heads, v_dim]. Once for each layer in a step.)");
  c.def("states", &states, py::arg("layer"),
        R"(The states of a recurrent layer before this step, (conv, delta), one entry for each session.

conv [sessions, conv_tail, conv_dim] in the cache's dtype, delta float32 [sessions, v_heads, v_dim, k_dim]; None where
the cache has none. For models that update states themselves; see ``boundaries`` and ``put_states``.)");
  c.def(
      "boundaries", [](const Step& self) { return self.boundaries(); },
      "For each session, the lengths inside this step at which ``put_states`` has to give states.");
  c.def(
      "put_states", &put_states, py::arg("layer"), py::arg("conv"), py::arg("delta"),
      "States of one layer, session after session: one entry for each of its ``boundaries``, then the one at its end.");
  c.def("__repr__", [](const Step& self) {
    const char* state = self.complete()    ? "complete"
                        : self.dropped()   ? "dropped"
                        : self.undecided() ? "undecided"
                                           : "open";
    return cat("<kvtrie.Step ", self.tokens().size(), " rows, ", self.sessions().size(), " sessions, ", state, ">");
  });
  add_step_accept(c);
  refuse_pickling(c, "keeping it in the process: it is part of a live forward pass");
}

// ---- sessions -----------------------------------------------------------------------------------------------------

using Class = py::class_<Session, SessionPtr>;

void add_report(Class& c) {
  c.def_property_readonly("matched", &Session::matched, "Tokens of the prompt that the tree knew.");
  c.def_property_readonly("reused", &Session::reused, "Tokens of the prompt that need not be computed.");
  c.def_property_readonly(
      "reason", [](const Session& self) { return reason_to_python(self.reason()); },
      "Why less was reused than matched: a str that is empty when nothing was left out; has ``code`` and ``text``.");
  c.def_property_readonly(
      "tier", [](const Session& self) { return name_of(self.tier()); },
      "Lowest tier that was read from: \"device\", \"host\", \"disk\", \"store\", or \"none\" when nothing was "
      "reused.");
  c.def_property_readonly("bytes_moved", &Session::bytes_moved, "Bytes that were paged in from lower tiers.");
  c.def_property_readonly("namespace", &Session::name_space, "The namespace whose state it shares.");
}

void add_state(Class& c) {
  c.def_property_readonly(
      "length", [](const Session& self) { return without_gil([&] { return self.length(); }); }, "Computed tokens.");
  c.def_property_readonly(
      "recorded", [](const Session& self) { return without_gil([&] { return self.recorded(); }); },
      "Computed and recorded tokens.");
  c.def_property_readonly(
      "room", [](const Session& self) { return without_gil([&] { return self.room(); }); },
      "Tokens that may still be recorded: those up to the cells of the smallest cache without a window.");
  c.def_property_readonly(
      "publishes", [](const Session& self) { return without_gil([&] { return self.publishes(); }); },
      "Whether others may reuse what it computes; False after ``begin(publish=False)`` and ``shift``.");
  c.def_property_readonly("has_states", &Session::has_states,
                          "Whether layers keep states at single lengths: a step takes a slot for each draft then.");
  c.def_property_readonly(
      "tokens", [](const Session& self) { return int32_array(without_gil([&] { return self.tokens(); })); },
      "All tokens, computed and recorded, int32.");
  c.def_property_readonly(
      "remaining", [](const Session& self) { return int32_array(without_gil([&] { return self.remaining(); })); },
      "Recorded tokens that are still to be computed, int32.");
  c.def_property_readonly("closed", &Session::closed, "Whether it was closed.");
}

void add_steps(Class& c) {
  c.def(
      "prefill", [](const SessionPtr& self, const Typed<"int">& chunk) -> Typed<"Prefill"> {
        return keeping(std::make_unique<Prefill>(Prefill{self, to_chunk(chunk, "prefill"), nullptr}), self);
      },
      py::arg("chunk") = 512, R"(An iterator of steps of at most ``chunk`` rows, until nothing remains to be computed.

The model has to complete each step before the next one is asked for. What others published meanwhile is adopted, so
there may be fewer steps than expected. Leaving the loop early keeps every complete step. Raises ``CacheFullError`` when a
step does not fit.)");
  c.def(
      "append",
      [](Session& self, const Typed<"int | Integers">& tokens) {
        const TokenArgument added(tokens, "append", /*or_one=*/true);
        without_gil([&] { self.append(added.span()); });
      },
      py::arg("tokens"), "Records one token or several; ``decode`` computes them.");
  c.def(
      "decode", [](const SessionPtr& self) -> Typed<"Step"> {
        return keeping(without_gil([&] { return self->decode(); }), self);
      },
      "One step over everything recorded and not yet computed.");
}

// The new one keeps the cache, not the session that it came from.
Typed<"Session"> branch(const SessionPtr& self, const Typed<"bool">& publish) {
  const bool shared = to_flag(publish, "branch", "publish");
  py::object made = py::cast(without_gil([&] { return self->branch(shared); }));
  keep_same(made, py::cast(self));
  return made;
}

void add_moves(Class& c) {
  c.def("branch", &branch, py::kw_only(), py::arg("publish") = true,
        R"(A second session at the same place. No K/V moves.

``publish``: whether others may reuse what the branch computes, as far as they may of this session. Raises ``CacheFullError``.)");
  c.def(
      "rewind",
      [](Session& self, const Typed<"int">& length) {
        const auto target =
            static_cast<std::int32_t>(to_integer(length, "rewind", "length", -kMaxInt32 - 1, kMaxInt32));
        without_gil([&] { self.rewind(target); });
      },
      py::arg("length"),
      R"(Leaves the first ``length`` tokens and drops those behind them, computed or not.

Right after ``begin`` the whole prompt is recorded, so that of a prompt, too, the first ``length`` tokens are left; those
beyond ``reused`` remain to be computed. Raises ``NotRestorableError`` (with ``nearest``) where no state goes on from there, as
happens with windows and recurrent layers, and for more tokens than are recorded.)");
  c.def(
      "can_rewind",
      [](const Session& self, const Typed<"int">& length) {
        const auto target =
            static_cast<std::int32_t>(to_integer(length, "can_rewind", "length", -kMaxInt32 - 1, kMaxInt32));
        return without_gil([&] { return self.can_rewind(target); });
      },
      py::arg("length"), "Whether ``rewind(length)`` would succeed.");
  c.def(
      "recompute", [](Session& self) { return without_gil([&] { return self.recompute(); }); },
      R"(Where nothing remains to be computed: has the last token computed once more, for its logits.

Where a cache has no state just before it, so have those back to the nearest length at which every cache has. Returns
how many tokens remain; nothing changes where some do. Raises ``ArgumentError`` for a session of no tokens.)");
  c.def(
      "rollback",
      [](Session& self, const Typed<"int">& count) {
        const std::int32_t last = to_int32(count, "rollback", "count");
        return without_gil([&] { return self.rollback(last); });
      },
      py::arg("count"),
      R"(Drops the last ``count`` tokens, computed or not, in every kind of cache; returns how many then remain to be computed.

Where a cache has no state just there (recurrent layers, what left a window), tokens back to the nearest length at which every
cache has are computed once more; ``rewind`` refuses that. Raises ``ArgumentError`` for more tokens than there are, and
inside a span that goes as one.)");
  c.def(
      "checkpoint", [](Session& self) { return without_gil([&] { return self.checkpoint(); }); },
      "Marks the present length, so that it can be resumed and is evicted last; returns it.");
  c.def(
      "shift",
      [](Session & self, const Typed<"int">& keep, const Typed<"int | None">& limit) -> Typed<"Reprocess | None"> {
        const std::int32_t kept = to_int32(keep, "shift", "keep");
        const std::int32_t most = limit.is_none() ? 0 : to_int32(limit, "shift", "limit", 1);
        std::optional<Tokens> again = without_gil([&] { return self.shift(kept, most); });
        if (!again) return py::none();
        return py::module_::import("kvtrie._values").attr("Reprocess")(int32_array(std::move(*again)));
      },
      py::arg("keep"), py::kw_only(), py::arg("limit") = py::none(),
      R"(Context shift: keeps the first ``keep`` tokens, drops the oldest half of the rest and moves what follows down.

``limit``: the model's context in tokens; None: as many as are recorded now. Nothing happens while half of what is not
kept is free below it. Returns None, and the session is private from then on: its state no longer follows from its tokens
alone. Where stored keys cannot move (chunks, recurrent layers, an incomplete window, RoPE that depends on the length)
nothing changes, and the ``Reprocess`` returned names the tokens to begin a new session with. Raises
``ArgumentError`` for ``keep`` outside 0 to limit - 1 or inside an atomic span.)");
  c.def(
      "close", [](Session& self) { without_gil_even_forked([&] { self.close(); }); },
      R"(Ends the session; what it computed and published stays. May be called again, from any thread.

A call that another thread is making on the session raises ``ClosedError`` when it next uses it, and releases what the session
holds; ``close`` does not wait for that.)");
  c.def("__enter__", [](const SessionPtr& self) { return self; });
  c.def("__exit__", [](Session& self, const py::args&) { without_gil_even_forked([&] { self.close(); }); });
  c.def(
      "__copy__", [](const SessionPtr& self) { return branch(self, py::bool_(true)); }, "The same as ``branch()``.");
}

std::string representation(const Session& self) {
  if (self.closed()) return "<kvtrie.Session, closed>";
  try {
    return without_gil([&] {
      return cat("<kvtrie.Session ", self.length(), " of ", self.recorded(), " tokens computed, ", self.reused(),
                 " of ", self.matched(), " matched reused>");
    });
  } catch (const Error& error) {
    return cat("<kvtrie.Session, ", error.what(), ">");
  }
}

}  // namespace

Typed<"Reason"> reason_to_python(const Reason& reason) {
  return py::module_::import("kvtrie._values").attr("Reason")(name_of(reason.code), reason.text);
}

void init_session(py::module_& m) {
  init_step(m);
  init_prefill(m);
  Class c(m, "Session", R"(One live conversation; made by ``PrefixCache.begin`` and ``branch``.

It stands at ``length`` computed tokens; recorded ones beyond that are computed by the next step. A session takes one
call at a time: a second thread gets ``BusyError``. After ``close`` everything but the report of ``begin`` raises
``ClosedError``.)",
          py::release_gil_before_calling_cpp_dtor(), shows_its_cache<Session>());
  add_report(c);
  add_state(c);
  add_steps(c);
  add_accept(c);
  add_moves(c);
  add_rows(c);
  c.def("__repr__", &representation);
  refuse_pickling(c, "keeping session.tokens and calling begin() with them");
}

}  // namespace kvtrie::binding
