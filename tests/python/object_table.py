"""How an object of each class of the package is made, and what Python may do with it.

Classes are of three kinds. What *lives* (a place on a device, a session, a thread) is one: it cannot be copied, and a
forked process is refused. *Values* are as good as their copies. *Plain* objects are data of the process: copies are
independent, or are refused. ``object_worker.py`` plays the table, in processes that open no device.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Optional

import numpy as np

import kvtrie as kv
from fakes import DIM, KV_HEADS, CodingModel, compute, make_cache
from kvtrie import _core
from kvtrie._answer import Answer
from kvtrie._closing import AsyncClosing
from kvtrie._decoding import Beginning, Decoding, Origin
from kvtrie._draft_model import Companion
from kvtrie._live import Live
from kvtrie._whole import Slotted, Whole
from kvtrie.awaited import BothWays
from kvtrie.draws import Draw
from kvtrie.explain import Rejoin
from kvtrie.generate import begin_text
from kvtrie.models.chat_template import ChatTemplate
from kvtrie.models.prompts import Rendered
from kvtrie.models.special_tokens import SpecialTokens
from kvtrie.models.template_probe import Reads
from kvtrie.models.token_bytes import TokenBytes
from kvtrie.request import _Reader
from kvtrie.sampling import Choice

LIVE, VALUE, PLAIN = "live", "value", "plain"
PROMPT = [5, 6, 7, 8]


class World:
    """What objects are made from: all of it on the host."""

    def fresh(self) -> World:
        """Another one, with the same model."""
        other = World()
        other.__dict__["model"] = self.model
        return other

    @cached_property
    def model(self) -> Any:
        from scale_engine import plain_model

        return plain_model(check=False)

    @cached_property
    def cache(self) -> Any:
        return kv.PrefixCache(self.model.caches(256), host_bytes="1MiB", fingerprint="none")

    @cached_property
    def small(self) -> Any:
        """A prefix cache that knows ``PROMPT``, and the session that computed it."""
        cache = make_cache(64, device="host")
        session = cache.begin(PROMPT)
        compute(session, CodingModel())
        return cache, session

    @cached_property
    def batcher(self) -> Any:
        return kv.Batcher(self.model, self.cache)

    def filled(self, cache: Any) -> Any:
        """With two tokens of sequence 0."""
        cache.start_forward([0, 1], [0, 0])
        rows = np.ones((2, KV_HEADS, DIM), np.float32)
        cache.put(0, rows, rows)
        return cache


def causal(_: World) -> Any:
    return kv.caches.CausalCache([0], KV_HEADS, DIM, 8, dtype="float32", device="host")


def recurrent(_: World) -> Any:
    return kv.caches.RecurrentCache([0], 1, 2, 1, 2, 2, 8, device="host")


def with_states(world: World) -> Any:
    cache = recurrent(world)
    cache.start_forward([0, 1], [0, 0])
    conv, delta = cache.states(0)
    cache.put_states(0, np.zeros(tuple(conv.shape)), np.zeros(tuple(delta.shape)))
    return cache


def encoder(_: World) -> Any:
    return kv.caches.EncoderCache([0], KV_HEADS, DIM, 8, dtype="float32", device="host")


def with_item(world: World) -> Any:
    cache = encoder(world)
    cache.start_forward([0], [0], items=[(0, 0, 2)])
    rows = np.ones((2, KV_HEADS, DIM), np.float32)
    cache.put(0, rows, rows)
    return cache


def hybrid(world: World) -> Any:
    return kv.caches.HybridCache([causal(world)])


def evicted(_: World) -> Any:
    trie = kv.trie.PrefixTrie()
    trie.insert(PROMPT, 5)
    return trie.evict(count=1)[0]


def node(_: World) -> Any:
    trie = kv.trie.PrefixTrie()
    made = trie.insert(PROMPT, 5)
    _kept.append(trie)  # a node does not keep its trie
    return made


_kept: list[Any] = []


class Entry(NamedTuple):
    """``make``: an object. ``again``: arguments of its ``__init__``, which is called a second time with them. ``well``:
    what an untouched object answers; it must be the same afterwards."""

    cls: type
    make: Callable[[World], Any]
    kind: str
    again: tuple[Any, ...] = ()
    well: Callable[[Any], object] = repr


def tensor(_: World) -> Any:
    return kv.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device="host")


def length(session: Any) -> object:
    return (session.length, session.tokens.tolist(), session.closed)


CORE = [
    Entry(_core.PrefixCache, lambda w: w.small[0], LIVE, ([],), lambda x: (x.stats()["tokens"], x.check())),
    Entry(_core.Session, lambda w: w.small[1], LIVE, (), length),
    Entry(_core.Step, lambda w: next(w.small[0].begin([9, 9, 9]).prefill()), LIVE),
    Entry(_core.Prefill, lambda w: w.small[0].begin([8, 8]).prefill(), LIVE, (), lambda x: iter(x) is x),
    Entry(_core.StepGraphs, lambda _: kv.ops.StepGraphs(), LIVE, (), lambda x: x.stats["graphs"]),
    Entry(_core.CausalCache, lambda w: w.filled(causal(w)), LIVE, ([0], 1, 4, 8), lambda x: (x.length(0), x.check())),
    Entry(_core.RecurrentCache, with_states, LIVE, ([0], 1, 2, 1, 2, 2, 4), lambda x: (x.length(0), x.check())),
    Entry(_core.EncoderCache, with_item, LIVE, ([0], 1, 4, 8), lambda x: (x.length(0), x.check())),
    Entry(_core.HybridCache, lambda w: w.filled(hybrid(w)), LIVE, ([],), lambda x: (x.length(0), x.check())),
    Entry(_core.Snapshot, lambda w: w.filled(causal(w)).snapshot(0), LIVE),
    Entry(_core.RecurrentSnapshot, lambda w: with_states(w).snapshot(0), LIVE),
    Entry(_core.EncoderSnapshot, lambda w: with_item(w).snapshot(0), LIVE),
    Entry(_core.HybridSnapshot, lambda w: w.filled(hybrid(w)).snapshot(0), LIVE),
    Entry(_core.Replay, lambda _: _core.Replay(8), LIVE, (9,), lambda x: (x.stats(), x.check())),
    Entry(_core._SharedTier, lambda _: _core._SharedTier(Dict(), 1024), LIVE, (None, 3), lambda x: x.stats()["puts"]),
    Entry(_core.PrefixTrie, lambda _: kv.trie.PrefixTrie(), PLAIN),
    Entry(_core.TrieNode, node, PLAIN),
    Entry(_core.Evicted, evicted, PLAIN),
    Entry(_core.ReusePlan, lambda w: w.small[0].plan([*PROMPT, 1]), PLAIN),
    Entry(_core.TokenTexts, lambda _: kv.trie.TokenTexts([b"a", b"b"]), PLAIN, ([b"c"],), list),
    Entry(_core.Tensor, tensor, PLAIN, (), lambda x: x.numpy().tolist()),
    Entry(_core.MappedTensor, lambda w: tensor(w).mapped(), PLAIN, (), lambda _: 0),
    Entry(_core.Device, lambda _: kv.devices()[0], PLAIN, ("no such device",), lambda x: x.name),
]


# Those that are on a device, in a process that may open one; after that its forks are refused whatever they ask.
DEVICE = [
    Entry(_core.ops.RopeTable, lambda _: kv.ops.RopeTable(8, length=4), PLAIN, (4,), lambda x: x.dims),
    Entry(_core.ops.PackedWeight, lambda _: packed(), PLAIN, (), lambda x: x.shape),
    Entry(_core.ops.PackedPair, lambda _: kv.ops.pack_pair(*[on_device()] * 2), PLAIN, (), lambda x: x.shape),
    Entry(_core.ops.PackedSet, lambda _: kv.ops.PackedSet(packed(), 2), PLAIN, (None, 3), lambda x: x.shape),
    Entry(kv.Tensor, lambda _: on_device(), PLAIN, (), lambda x: x.numpy().tolist()),
    Entry(_core.MappedTensor, lambda _: on_device().mapped(), PLAIN, (), lambda _: 0),
    Entry(_core.CausalCache, lambda w: w.filled(kv.caches.CausalCache([0], KV_HEADS, DIM, 8, dtype="float32")), LIVE),
]


def on_device() -> Any:
    return kv.tensor(np.ones((32, 32), np.float32))


def packed() -> Any:
    return kv.ops.pack(on_device())


class Dict:
    """A store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> Optional[bytes]:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


# ---- the Python package ----------------------------------------------------------------------------------------------


def generation(world: World) -> Any:
    made = kv.generate(world.model, world.cache.begin(PROMPT), max_tokens=4)
    next(made)
    return made


def explanation(world: World) -> Any:
    return world.small[0].explain([*PROMPT[:2], 1])


def prediction_head(world: World) -> Any:
    return kv.PredictionHead(SimpleNamespace(mtp=world.cache), world.cache)  # type: ignore[arg-type]


def watch(world: World) -> Any:
    return kv.viz.watch(world.small[0])


def report(_: World) -> Any:
    trace = kv.replay.of_requests([kv.replay.Request(0.0, np.array([1, 2], np.int32))])
    return kv.replay.simulate(trace, 8, "lru")


PACKAGE = [
    Entry(kv.PrefixCache, lambda w: w.small[0], LIVE, ([],), lambda x: (x.stats()["tokens"], x.check())),
    Entry(kv.Generation, generation, LIVE, (), lambda x: (x.tokens, x.finish_reason)),
    Entry(
        kv.Generation,
        lambda w: begin_text(w.model, PROMPT, {"cache": w.cache, "max_tokens": 3}),
        LIVE,
        (),
        lambda x: (x.text, x.tokens, x.finish_reason),
    ),
    Entry(kv.Batch, lambda w: kv.Batch(w.model, w.cache), LIVE, (None,), lambda x: (len(x), x.step(), x.max_sessions)),
    Entry(kv.Batcher, lambda w: w.batcher, LIVE, (None,), lambda x: (x.closed, x.submit(PROMPT, 2).result())),
    Entry(kv.DraftModel, lambda w: kv.DraftModel(w.model, w.cache), LIVE, (None,), lambda x: x.cache.check()),
    Entry(kv.DraftTree, lambda _: kv.DraftTree("tree", 3), PLAIN, ("tree", 3), lambda x: (x.source, x.breadth)),
    Entry(kv.PredictionHead, prediction_head, LIVE, (None,), lambda x: x.cache.check()),
    Entry(kv.Request, lambda w: w.batcher.submit(PROMPT, 3), LIVE, (None,), lambda x: x.result()),
    Entry(kv.Request, lambda w: w.batcher.complete("a", 3), LIVE, (None,), lambda x: x.result()),
    Entry(kv.viz.Watch, watch, LIVE, (None,), lambda x: x.closed),
    Entry(kv.Sampler, lambda _: kv.Sampler(kv.Sampling(seed=3)), PLAIN, (kv.Sampling(seed=4),), lambda x: x.sampling),
    Entry(kv.results.Explanation, explanation, PLAIN, (), lambda x: x.text()),
    Entry(kv.results.Node, lambda w: w.small[0].nodes()[0], VALUE),
    Entry(kv.results.Reprocess, lambda _: kv.results.Reprocess(np.array([1, 2], np.int32)), VALUE),
    Entry(kv.results.Reason, lambda w: w.small[0].plan(PROMPT).reason, VALUE),
    Entry(kv.results.CacheReach, lambda w: explanation(w).caches[0], VALUE),
    Entry(kv.Sampling, lambda _: kv.Sampling(temperature=0.5, seed=1), VALUE),
    Entry(kv.results.Score, lambda w: kv.score(w.model, PROMPT, [[1, 2]], cache=w.cache)[0], VALUE),
    Entry(kv.results.RankedLogprob, lambda _: kv.results.RankedLogprob(kv.results.TokenLogprob(1, -0.5, []), 2), VALUE),
    Entry(kv.results.TokenLogprob, lambda _: kv.results.TokenLogprob(1, -0.5, [(1, -0.5)]), VALUE),
    Entry(kv.models.Tokenizer, lambda w: copy.copy(w.model.tokenizer), PLAIN, (), lambda x: x.encode("a word")),
    Entry(kv.models.Detokenizer, lambda w: w.model.tokenizer.stream(), PLAIN, (), lambda x: x.finish()),
    Entry(TokenBytes, lambda w: w.model.tokenizer.token_bytes, PLAIN, (), lambda x: x.of(65)),
    Entry(Rejoin, lambda w: explanation(w).rejoin, VALUE),
    Entry(Choice, lambda _: Choice(1, None), VALUE),
    Entry(ChatTemplate, lambda w: w.model.tokenizer.template(), PLAIN, (), lambda x: x.source),
    Entry(SpecialTokens, lambda w: w.model.tokenizer.special_tokens, PLAIN, (), lambda x: len(repr(x)) > 0),
    Entry(kv.replay.Report, report, PLAIN, (), lambda x: x.policies),
]

# Of the public names, and of what public calls give, those without an entry.
LEFT_OUT = {
    _core._Ending: "made and kept by callbacks of caches alone",
    kv.models.Model: "most of its calls compile or compute; a test of its own (test_objects)",
    kv.models.ModelConfig: "a frozen dataclass, and one for each family",
    kv.models.Settled: "a NamedTuple of texts",
    kv.results.Quality: "a frozen dataclass of numbers and texts",
    kv.results.FormatQuality: "the same",
    kv.results.NamespaceUsage: "a dict",
    kv.stores.RedisStore: "refuses to be copied for its password (test_stores)",
    kv.stores.Store: "a protocol",
    kv.replay.FleetReport: "as Report",
    Companion: "a DraftModel's session of one answer, which that answer closes (test_draft_model)",
    Rendered: "a NamedTuple of a text and its marks",
    Beginning: "a NamedTuple of numbers and texts",
    Draw: "a NamedTuple of numbers",
    Reads: "a NamedTuple of flags and texts",
    Decoding: "what an answer has inside, which its driver alone uses",
    Origin: "a NamedTuple of what a batch was given",
    **dict.fromkeys((Live, Whole, Slotted, AsyncClosing, Answer, BothWays), "a base without contents"),
    _Reader: "a reader of a request, which is the one that refuses",
    **dict.fromkeys(
        (
            kv.replay.FleetOptions,
            kv.replay.FleetRow,
            kv.replay.Lengths,
            kv.replay.Request,
            kv.replay.Row,
            kv.replay.Trace,
            kv.replay.Workload,
        ),
        "a frozen dataclass of numbers and texts",
    ),
}


def by_name(entries: list[Entry]) -> dict[str, Entry]:
    return {f"{entry.cls.__module__}.{entry.cls.__name__}": entry for entry in entries}


GROUPS = {"core": by_name(CORE), "package": by_name(PACKAGE), "device": by_name(DEVICE)}


def public_classes() -> Iterator[type]:
    """Of the package's public modules that need no other packages than numpy, and all of the core."""
    public: list[ModuleType] = [kv, kv.models, kv.ops, kv.stores, kv.viz, kv.replay, kv.caches, kv.trie, kv.results]
    named = itertools.chain.from_iterable((getattr(m, name) for name in m.__all__) for m in public)
    core = itertools.chain(vars(_core).values(), vars(_core.ops).values())
    for value in itertools.chain(named, core):
        if inspect.isclass(value) and value.__module__.startswith("kvtrie") and not issubclass(value, BaseException):
            yield value
