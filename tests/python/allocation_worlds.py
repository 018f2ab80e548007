"""Small worlds in host memory in which allocations fail, and what has to hold in each a moment later.

A world has what a call needs, and says two things: ``whole()``, what is wrong with it right now (nothing, as a list),
and ``goes_on()``, which uses everything on to the end and raises where something is not as it was. K and V name their
tokens (kinds_fakes.py), so rows that do not belong are recognised.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from fakes import DictStore, run
from kinds_fakes import History, KindsModel, keys_of, values_of

KNOWN = list(range(1, 25))  # what the tree knows from the beginning
TAIL = [40, 41, 42]  # of the session that lives, behind half of that
OTHER = [60, 61, 62, 63, 64]  # of a second one, in front of which nothing is known
CELLS, SLOTS = 128, 12
PATIENCE = 20.0  # seconds for a thread of a cache to come to its end
TEXTS = [bytes([65 + token % 26]) * (1 + token % 3) for token in range(97)]


def caches_of(kind: str) -> list[Any]:
    """The caches of a model of one or two layers."""

    def causal(layer: int, v_head_dim: int = 3, **sees: Any) -> Any:
        sees["v_head_dim"] = v_head_dim
        return kv.caches.CausalCache([layer], 1, 4, CELLS, dtype="float32", device="host", **sees)

    def recurrent(layer: int) -> Any:
        return kv.caches.RecurrentCache([layer], 3, 4, 2, 2, 3, SLOTS, device="host")

    if kind == "dense":
        return [causal(0)]
    if kind == "window":
        return [causal(0, v_head_dim=0, latent_dim=2), causal(1, window=8)]
    return [causal(0), recurrent(1)]


def all_free(part: Any) -> bool:
    """Whether it gives everything back, which a thread of the cache may still be doing."""
    until = time.monotonic() + PATIENCE
    while (part.free_slots if isinstance(part, kv.caches.RecurrentCache) else part.free_cells) < part.capacity:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


class ClosingStore(DictStore):
    """A store whose ``put`` may do something else, too."""

    then: Callable[[], None] | None = None

    def put(self, key: str, value: bytes) -> None:
        super().put(key, value)
        if self.then is not None:
            self.then()


class CacheWorld:
    """A prefix cache with a conversation that has ended, one that lives, and a model that checks what it reads."""

    def __init__(self, kind: str, tier: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="allocations-")
        self.seconds = 1.0
        self.parts = caches_of(kind)
        self.model = KindsModel(self.parts)
        self.store = ClosingStore() if tier == "store" else None
        self.cache: Any = self.made(**self.options(tier))
        run(self.cache, KNOWN, self.model)
        self.live: Any = self.cache.begin([*KNOWN[:12], *TAIL])
        self.compute(self.live)
        self.other: Any = None
        self.step: Any = None
        self.kept: list[Any] = []  # what calls gave
        self.strange = False  # whether the live session stored what the model does not know

    def options(self, tier: str) -> dict[str, Any]:
        found: dict[str, Any] = {"host_bytes": "256KiB", "quotas": {}}
        if tier == "disk":
            found |= {"disk": f"{self.folder}/disk", "disk_bytes": "4MiB"}
        if tier == "store":
            found |= {"store": self.store, "clock": lambda: 1.0}
        if tier == "ttl":
            found |= {"ttl": 5.0, "clock": lambda: self.seconds}
        return found

    def about_to_call(self) -> None:
        """Where there is a time to live, it is over for what nobody uses: the call finds that first."""
        self.seconds = 100.0

    def making(self, **options: Any) -> Callable[[], Any]:
        """The call that makes a cache, with nothing left to allocate for its arguments: where Python 3.11 fails to
        merge those of a call, it keeps them for ever."""
        return functools.partial(kv.PrefixCache, self.parts, fingerprint="allocations", **options)

    def made(self, **options: Any) -> Any:
        return self.making(**options)()

    def compute(self, session: Any) -> None:
        for step in session.prefill():
            self.model(step)

    def rows(self, step: Any, layer: int = 0) -> tuple[Any, Any]:
        """K and V of an open step of the live session."""
        positions = np.asarray(step.positions, np.int64)
        rows = History(self.live.namespace, self.live.tokens).rows(positions, layer)
        return keys_of(rows, 1, 4), values_of(rows, 1, dict(self.model.layers)[layer].v_head_dim)

    def states(self, step: Any, layer: int = 1) -> tuple[Any, Any]:
        """The states that such a step has to give."""
        history = History(self.live.namespace, self.live.tokens)
        lengths = [*step.boundaries()[0], int(step.positions[-1]) + 1]
        conv = np.stack([history.state(length, layer, (3, 4)) for length in lengths])
        return conv, -np.stack([history.state(length, layer, (2, 2, 3)) for length in lengths])

    def with_other(self) -> Any:
        """A second session, of which nothing is computed yet."""
        self.other = self.cache.begin(OTHER)
        return self.other

    def with_step(self) -> Any:
        """A step of the live session that is open."""
        self.live.append([50, 51])
        self.step = self.live.decode()
        return self.step

    def whole(self) -> list[str]:
        return [] if self.cache is None or self.cache.closed else list(self.cache.check())

    def goes_on(self) -> None:
        self.let_the_store_be()
        if self.cache is not None and not self.cache.closed:
            run(self.cache, [*KNOWN[:6], 70, 71], self.model)
            if self.strange and self.live is not None:
                self.live.close()
            if self.live is not None and not self.live.closed:
                self.live.append([72])
                self.compute(self.live)
            assert run(self.cache, [*KNOWN[:6], 70, 71, 73], self.model).reused == 8
            assert self.cache.check() == []

    def let_the_store_be(self) -> None:
        """It does nothing but store from now on; what is on its way to it has come."""
        if self.store is not None and self.store.then is not None:
            with contextlib.suppress(kv.errors.ClosedError):
                self.cache.flush()
            self.store.then = None

    def end(self) -> None:
        """Closes all; nothing may be held then. The folder, if it has one, opens again with what was in it."""
        if self.cache is not None:
            self.cache.close()
        self.live = self.other = self.step = self.cache = None
        self.kept.clear()
        gc.collect()
        for part in self.parts:
            assert all_free(part), "places are held by nobody"
            assert part.check() == []
        self.parts = []
        shutil.rmtree(self.folder, ignore_errors=True)


class AloneWorld:
    """One cache of each kind without a tree: two sequences, of which one is copied from the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == "causal":
            self.cache: Any = kv.caches.CausalCache([0], 1, 4, 64, dtype="float32", rope={}, device="host")
        elif kind == "recurrent":
            self.cache = kv.caches.RecurrentCache([0], 3, 4, 2, 2, 3, SLOTS, device="host")
        elif kind == "encoder":
            self.cache = kv.caches.EncoderCache([0], 1, 4, 64, dtype="float32", device="host")
        else:
            parts: list[Any] = [
                kv.caches.CausalCache([0], 1, 4, 64, dtype="float32", device="host"),
                kv.caches.RecurrentCache([1], 3, 4, 2, 2, 3, SLOTS, device="host"),
            ]
            self.cache = kv.caches.HybridCache(parts)
        self.grow(4)
        self.cache.copy_prefix(0, 1, 4)
        self.kept: list[Any] = []

    def start(self, rows: int, seq: int = 0) -> None:
        length = self.cache.length(seq)
        items = {"items": [(seq, length, 3)]} if self.kind == "encoder" and length == 0 else {}
        self.cache.start_forward(range(length, length + rows), [seq] * rows, **items)

    def grow(self, rows: int, seq: int = 0) -> None:
        first = self.cache.length(seq) == 0
        self.start(rows, seq)
        if self.kind == "encoder":
            if first:
                self.put(3)
        else:
            self.put(rows)

    def put(self, rows: int) -> None:
        if self.kind != "recurrent":
            self.cache.put(0, np.ones((rows, 1, 4), np.float32), np.ones((rows, 1, 4), np.float32))
        if self.kind in ("recurrent", "hybrid"):
            self.put_states()

    def put_states(self) -> None:
        layer = 1 if self.kind == "hybrid" else 0
        wanted = self.cache.boundaries(layer) if self.kind == "hybrid" else self.cache.boundaries()
        count = sum(len(each) + 1 for each in wanted)
        self.cache.put_states(layer, np.ones((count, 3, 4), np.float32), np.ones((count, 2, 2, 3), np.float32))

    def about_to_call(self) -> None:
        pass

    def whole(self) -> list[str]:
        return [] if self.cache is None else list(self.cache.check())

    def goes_on(self) -> None:
        if self.cache is None:
            return
        self.cache.remove(7, 0)
        if self.kind != "encoder":
            self.grow(2, 7)
            assert self.cache.length(7) == 2
        assert self.whole() == []

    def end(self) -> None:
        self.kept.clear()
        self.cache = None
        gc.collect()


class ValueWorld:
    """Tensors, a trie, the texts of a vocabulary, a replay: what needs no cache."""

    def __init__(self, place: Any) -> None:
        random = np.random.default_rng(3)
        self.x, self.y, self.w, self.row, self.heads, self.keys = (
            kv.tensor(random.standard_normal(shape).astype(np.float32), device=place)
            for shape in ((3, 8), (3, 8), (4, 8), (8,), (3, 2, 4), (3, 1, 4))
        )
        self.trie: Any = kv.trie.PrefixTrie()
        self.node: Any = self.trie.insert(KNOWN, 240)
        self.leaf: Any = self.trie.insert([*KNOWN[:12], *TAIL], 30)
        self.texts: Any = kv.trie.TokenTexts(TEXTS)
        self.replay: Any = kv._core.Replay(64)
        self.replay.serve(KNOWN)
        self.graphs: Any = kv._core.StepGraphs()
        self.kept: list[Any] = []

    def about_to_call(self) -> None:
        pass

    def whole(self) -> list[str]:
        return list(self.trie.check() if self.trie is not None else []) + list(
            self.replay.check() if self.replay is not None else []
        )

    def goes_on(self) -> None:
        if self.trie is not None:
            self.trie.insert(OTHER, 5)
            assert self.trie.match(OTHER)[0] == len(OTHER)
        if self.replay is not None:
            self.replay.serve([*KNOWN, 9])
        if self.x.device != "host":
            np.testing.assert_array_equal(np.asarray(kv.ops.add(self.x, self.y)), self.x.numpy() + self.y.numpy())

    def end(self) -> None:
        self.kept.clear()
        self.trie = self.node = self.leaf = self.texts = self.replay = self.graphs = None
        gc.collect()


World = Any
WORLDS: dict[str, Callable[[], World]] = {
    **{
        f"{kind} {tier}": lambda kind=kind, tier=tier: CacheWorld(kind, tier)  # type: ignore[misc]
        for kind in ("dense", "window", "states")
        for tier in ("host", "disk", "store")
    },
    "dense ttl": lambda: CacheWorld("dense", "ttl"),
    **{kind: lambda kind=kind: AloneWorld(kind) for kind in ("causal", "recurrent", "encoder", "hybrid")},  # type: ignore[misc]
    "values": lambda: ValueWorld("host"),
    "device": lambda: ValueWorld(None),  # opened by the process that plays it, as it does not survive a fork
}
CACHES = tuple(name for name in WORLDS if " " in name)
