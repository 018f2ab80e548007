"""The calls of caches by themselves, tensors, operations and tries whose allocations fail (allocation_calls.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kvtrie as kv
from allocation_table import Call, Prepare, Then, after, forget, ones
from allocation_worlds import CELLS, KNOWN, OTHER, SLOTS, TAIL, TEXTS, World
from kvtrie import _core

# ---- caches by themselves ----

ALONE = ("causal", "recurrent", "encoder", "hybrid")
CLASSES = {"causal": "CausalCache", "recurrent": "RecurrentCache", "encoder": "EncoderCache", "hybrid": "HybridCache"}


def merged(world: World) -> Callable[[], Any]:
    parts = world.cache.split(world.cache.snapshot(0), 2)
    return lambda: world.cache.merge(*parts)


def taken(world: World) -> Callable[[], Any]:
    world.cache.prepare_snapshots(0, [5])
    world.grow(2)
    return lambda: world.cache.take_snapshots(0)


def started(world: World, rows: int = 2) -> World:
    world.start(rows)
    return world


def stored(world: World) -> World:
    """The rows of a step are put; of an encoder, those of an item."""
    if world.kind == "encoder":
        world.cache.start_forward([0, 1], [5, 5], items=[(5, 0, 3)])
        world.cache.put(0, ones(3, 1, 4), ones(3, 1, 4))
    else:
        world.start(2)
        if world.kind != "recurrent":
            world.cache.put(0, ones(2, 1, 4), ones(2, 1, 4))
    return world


def put_alone(world: World) -> Callable[[], Any]:
    rows = 2
    if world.kind == "encoder":
        world.cache.start_forward([0, 1], [5, 5], items=[(5, 0, 3)])
        rows = 3
    else:
        world.start(rows)
    return lambda: world.cache.put(0, ones(rows, 1, 4), ones(rows, 1, 4))


def held(world: World) -> Any:
    return world.cache, world.cache.snapshot(0)


def layer_of(world: World) -> int:
    return 1 if world.kind == "hybrid" else 0


def gated_delta(world: World) -> Any:
    q, v, g = ones(2, 2, 3), ones(2, 2, 2), -ones(2, 2)
    return world.cache.gated_delta(layer_of(world), q, q, v, g, ones(2, 2))


def ssd(world: World) -> Any:
    b = ones(2, 2, 3)
    return world.cache.ssd(layer_of(world), ones(2, 2, 2), ones(2, 2), -ones(2), b, b, ones(2))


EDITING: list[tuple[str, tuple[str, ...], Prepare]] = [
    ("copy_prefix", ALONE, lambda w: lambda: w.cache.copy_prefix(0, 2, 4)),
    ("remove", ALONE, lambda w: lambda: (w.cache.remove(1, 0), w.cache.length(1))),
    ("can_resume", ALONE, lambda w: lambda: w.cache.can_resume(0, 4)),
    ("length", ALONE, lambda w: lambda: w.cache.length(0)),
    ("held_from", ("causal",), lambda w: lambda: w.cache.held_from(0)),
    ("item", ("encoder",), lambda w: lambda: w.cache.item(0)),
    ("check", ALONE, lambda w: lambda: w.cache.check()),
    ("defrag", ("causal", "encoder", "hybrid"), lambda w: lambda: w.cache.defrag()),
    ("snapshot", ALONE, lambda w: lambda: w.cache.snapshot(0)),
    ("restore", ALONE, after(held, lambda of: of[0].restore(9, of[1], 4))),
    ("split", ("causal",), after(held, lambda of: of[0].split(of[1], 2))),
    ("split", ("recurrent", "encoder", "hybrid"), after(held, lambda of: of[0].split(of[1], 4))),
    ("merge", ("causal",), merged),
    ("merge", ("recurrent", "encoder", "hybrid"), after(held, lambda of: of[0].merge(of[1], None))),
    ("prepare_snapshots", ALONE, lambda w: lambda: w.cache.prepare_snapshots(0, [5, 6])),
    ("take_snapshots", ALONE, taken),
    ("start_forward", ALONE, lambda w: lambda: w.cache.start_forward([4, 5], [0, 0])),
    ("put", ("causal", "encoder", "hybrid"), put_alone),
    ("get", ("causal", "encoder", "hybrid"), after(stored, lambda w: w.cache.get(0))),
    ("attend", ("causal", "encoder", "hybrid"), after(stored, lambda w: w.cache.attend(0, ones(2, 2, 4)))),
    ("set_causal", ("causal", "hybrid"), after(started, lambda w: w.cache.set_causal([0, 1]))),
    ("conv", ("recurrent", "hybrid"), after(stored, lambda w: w.cache.conv(layer_of(w), ones(2, 4), ones(4, 4)))),
    ("gated_delta", ("recurrent", "hybrid"), after(stored, gated_delta)),
    ("ssd", ("recurrent", "hybrid"), after(stored, ssd)),
    ("states", ("recurrent", "hybrid"), after(stored, lambda w: w.cache.states(layer_of(w)))),
    ("boundaries", ("recurrent", "hybrid"), after(stored, lambda w: w.cache.boundaries())),
    ("row_starts", ("recurrent", "hybrid"), after(stored, lambda w: w.cache.row_starts())),
    ("put_states", ("recurrent", "hybrid"), lambda w: stored(w).put_states),
]  # fmt: skip

CONSTRUCTED: dict[str, Callable[[], Any]] = {
    "causal": lambda: kv.caches.CausalCache([3, 5], 1, 4, CELLS, dtype="float32", window=8, rope={}, device="host"),
    "recurrent": lambda: kv.caches.RecurrentCache([3, 5], 3, 4, 2, 2, 3, SLOTS, device="host"),
    "encoder": lambda: kv.caches.EncoderCache([3, 5], 1, 4, CELLS, device="host"),
    "hybrid": lambda: kv.caches.HybridCache(
        [CONSTRUCTED["causal"](), kv.caches.RecurrentCache(1, 3, 4, 2, 2, 3, 4, device="host")]
    ),
}  # fmt: skip


# What these take is in what they give, and goes with it where Python has no object for that; and states of a step are
# written before what it gives is made.
USED_UP = ("split", "merge", "take_snapshots", "conv", "gated_delta", "ssd")


def alone() -> Iterator[Call]:
    for kind, owner in CLASSES.items():
        yield Call(f"{owner}.__init__", (kind,), lambda w, kind=kind: CONSTRUCTED[kind])  # type: ignore[misc]
        yield Call(f"dropping a {owner}", (kind,), lambda w: forget(w, "cache"))
        for name, kinds, prepare in EDITING:
            if kind in kinds:
                yield Call(f"{owner}.{name}", (kind,), prepare, Then.ONCE if name in USED_UP else Then.SAME)


# ---- tensors, operations, tries ----

VALUES: list[tuple[str, Prepare]] = [
    ("tensor", lambda w: lambda: kv.tensor(ones(3, 8), device="host")),
    ("_from_dlpack", lambda w: lambda: _core._from_dlpack(w.x, "here", "x")[0].shape),
    ("Tensor.numpy", lambda w: w.x.numpy),
    ("Tensor.__array__", lambda w: lambda: np.asarray(w.x)),
    ("Tensor.__dlpack__", lambda w: lambda: np.from_dlpack(w.x).shape),
    ("Tensor.__dlpack_device__", lambda w: w.x.__dlpack_device__),
    ("Tensor.__getitem__", lambda w: lambda: w.x[1:2]),
    ("Tensor.reshape", lambda w: lambda: w.x.reshape(8, 3)),
    ("Tensor.astype", lambda w: lambda: w.x.astype("float16")),
    ("Tensor.__len__", lambda w: lambda: len(w.x)),
    ("Tensor.__repr__", lambda w: w.x.__repr__),
    ("dropping a Tensor", lambda w: forget(w, "w")),
    ("PrefixTrie.__init__", lambda w: lambda: len(kv.trie.PrefixTrie())),
    ("PrefixTrie.insert", lambda w: lambda: w.trie.insert([*KNOWN[:5], *OTHER], 9).end),
    ("PrefixTrie.insert", lambda w: lambda: w.trie.insert(OTHER, 9, "another").end),
    ("PrefixTrie.match", lambda w: lambda: w.trie.match(KNOWN)[0]),
    ("PrefixTrie.lock", lambda w: lambda: w.trie.lock(w.node)),
    ("PrefixTrie.unlock", lambda w: (w.trie.lock(w.node), lambda: w.trie.unlock(w.node))[1]),
    ("PrefixTrie.touch", lambda w: lambda: w.trie.touch(w.node)),
    ("PrefixTrie.evict", lambda w: lambda: [each.nbytes for each in w.trie.evict(count=2)]),
    ("PrefixTrie.evict", lambda w: lambda: [each.nbytes for each in w.trie.evict(nbytes=100)]),
    ("PrefixTrie.remove", lambda w: lambda: w.trie.remove(w.leaf)),
    ("PrefixTrie.__len__", lambda w: lambda: len(w.trie)),
    ("PrefixTrie.check", lambda w: w.trie.check),
    ("PrefixTrie.__repr__", lambda w: w.trie.__repr__),
    ("TrieNode.__eq__", lambda w: lambda: w.node == w.leaf),
    ("TrieNode.__repr__", lambda w: w.node.__repr__),
    ("dropping a PrefixTrie", lambda w: forget(w, "node", "leaf", "trie")),
    ("TokenTexts.__init__", lambda w: lambda: len(kv.trie.TokenTexts(TEXTS))),
    ("TokenTexts.__len__", lambda w: lambda: len(w.texts)),
    ("TokenTexts.__iter__", lambda w: lambda: len(list(w.texts))),
    ("TokenTexts.__getitem__", lambda w: lambda: w.texts[3]),
    ("dropping TokenTexts", lambda w: forget(w, "texts")),
    ("Replay.__init__", lambda w: lambda: _core.Replay(64, "cost").stats()),
    ("Replay.serve", lambda w: lambda: w.replay.serve([*KNOWN[:7], *OTHER], TAIL)),
    ("Replay.stats", lambda w: w.replay.stats),
    ("Replay.summary", lambda w: w.replay.summary),
    ("Replay.check", lambda w: w.replay.check),
    ("dropping a Replay", lambda w: forget(w, "replay")),
    ("StepGraphs.__init__", lambda w: lambda: _core.StepGraphs().stats),
    ("dropping StepGraphs", lambda w: forget(w, "graphs")),
    ("fingerprints", lambda w: lambda: kv.trie.fingerprints(range(130))),
    ("media", lambda w: lambda: kv.media("an image", 3).shape),
]  # fmt: skip

GIVEN = {"PrefixTrie.evict": Then.PART, "Replay.serve": Then.ONCE}

CHOSEN = np.array([[0, 2], [1, -1], [0, 1]], np.int32)

OPERATIONS: list[tuple[str, Prepare]] = [
    ("ops.matmul", lambda w: lambda: kv.ops.matmul(w.x, w.w)),
    ("ops.scale_rows", lambda w: lambda: kv.ops.scale_rows(w.x, ones(3, 1))),
    ("ops.weighted_sum", lambda w: lambda: kv.ops.weighted_sum(w.heads, ones(3, 2))),
    ("ops.route", lambda w: lambda: kv.ops.route(w.x, 2, "softmax")),
    ("ops.rope", lambda w: lambda: kv.ops.rope(w.heads, [0, 1, 2])),
    ("ops.silu", lambda w: lambda: kv.ops.silu(w.x)),
    ("ops.sigmoid", lambda w: lambda: kv.ops.sigmoid(w.x)),
    ("ops.softplus", lambda w: lambda: kv.ops.softplus(w.x)),
    ("ops.relu_squared", lambda w: lambda: kv.ops.relu_squared(w.x)),
    ("ops.signed_root", lambda w: lambda: kv.ops.signed_root(w.x)),
    ("ops.clamp", lambda w: lambda: kv.ops.clamp(w.x, -1.0, 1.0, 2.0, 0.5)),
    ("ops.softmax", lambda w: lambda: kv.ops.softmax(w.x)),
    ("ops.silu_mul", lambda w: lambda: kv.ops.silu_mul(w.x, w.y)),
    ("ops.gelu_mul", lambda w: lambda: kv.ops.gelu_mul(w.x, w.y)),
    ("ops.add", lambda w: lambda: kv.ops.add(w.x, w.y)),
    ("ops.mul", lambda w: lambda: kv.ops.mul(w.x, w.y)),
    ("ops.rms_norm", lambda w: lambda: kv.ops.rms_norm(w.x, w.row, 1e-6)),
    ("ops.layer_norm", lambda w: lambda: kv.ops.layer_norm(w.x, w.row, w.row, 1e-6)),
    ("ops.l2_norm", lambda w: lambda: kv.ops.l2_norm(w.x, 1e-6)),
    ("ops.embedding", lambda w: lambda: kv.ops.embedding(w.w, [0, 3])),
    ("ops.attention", lambda w: lambda: kv.ops.attention(w.heads, w.keys, w.keys)),
    ("ops.choose_keys", lambda w: lambda: kv.ops.choose_keys(w.heads, w.keys, ones(3, 2), ones(3, 3), 2)),
    ("ops.attend_chosen", lambda w: lambda: kv.ops.attend_chosen(w.heads, w.keys, CHOSEN, 4)),
    ("ops.causal_conv1d", lambda w: lambda: kv.ops.causal_conv1d(w.x, ones(8, 4))),
    ("ops.gated_delta", lambda w: lambda: kv.ops.gated_delta(w.heads, w.heads, w.heads, -ones(3, 2), ones(3, 2))),
    ("ops.ssd", lambda w: lambda: kv.ops.ssd(w.heads, ones(3, 2), -ones(2), w.heads, w.heads, ones(2))),
    ("ops.concat", lambda w: lambda: kv.ops.concat([w.x, w.y])),
    ("ops.split", lambda w: lambda: kv.ops.split(w.x, [3, 5])),
    ("ops.argmax", lambda w: lambda: kv.ops.argmax(w.x)),
    ("ops.sample", lambda w: lambda: kv.ops.sample(w.x, 1.0, 4, 0.9, 7)),
]  # fmt: skip


def values() -> Iterator[Call]:
    for name, prepare in VALUES:
        yield Call(name, ("values",), prepare, GIVEN.get(name, Then.SAME))
    for name, prepare in OPERATIONS:
        yield Call(name, ("device",), prepare)
