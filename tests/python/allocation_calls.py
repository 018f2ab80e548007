"""Every public call of the core whose allocations are made to fail: a line for each.

A line names the call as ``Class.method``, the worlds that it is made in (allocation_worlds.py), and a function that
prepares it: it takes the world and gives what is then called, with nothing left to do but the call itself.
``LEFT_OUT`` names what is not here, with the reason; properties are read by themselves (``read``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvtrie as kv
from allocation_worlds import CACHES, CELLS, KNOWN, OTHER, SLOTS, TAIL, TEXTS, World
from kvtrie import _core

Prepare = Callable[[World], Callable[[], Any]]


class Then(enum.Enum):
    """What holds of a call that was short of memory, besides all that holds of its world."""

    SAME = "it was refused with nothing changed, or did all: the same call gives its answer"
    LESS = "it was refused, or did without: its answer may be less, and the same call gives all of it"
    PART = "part of what it does may be done: the same call does the rest"
    ONCE = "what it was given may be used up: it is not made again"
    MODEL = "the same, and most of it is a model's Python code, for whose memory it is not swept"


@dataclass(frozen=True)
class Call:
    name: str
    worlds: tuple[str, ...]
    prepare: Prepare
    then: Then = Then.SAME


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def forget(world: World, *names: str) -> Callable[[], None]:
    """Drops the last references to objects of the world."""

    def dropping() -> None:
        for name in names:
            setattr(world, name, None)

    return dropping


DENSE = tuple(name for name in CACHES if name.startswith("dense"))
STATES = tuple(name for name in CACHES if name.startswith("states"))
DISK = tuple(name for name in CACHES if name.endswith("disk"))
WITH_LOWER = tuple(name for name in CACHES if not name.endswith("host"))


# ---- prefix caches ----------------------------------------------------------------------------------------------------


def put_rows(world: World) -> Callable[[], Any]:
    step = world.with_step()
    k, v = world.rows(step)
    return lambda: step.put(0, k, v)


def got(world: World) -> Any:
    step = world.with_step()
    step.put(0, *world.rows(step))
    return step


def attend(world: World) -> Callable[[], Any]:
    step = world.with_step()
    k, v = world.rows(step)
    return lambda: step.attend(0, ones(2, 2, 4), k, v)


def put_states(world: World) -> Callable[[], Any]:
    step = got(world)
    conv, delta = world.states(step)
    return lambda: step.put_states(1, conv, delta)


def conv(world: World) -> Callable[[], Any]:
    step, world.strange = got(world), True
    return lambda: step.conv(1, ones(2, 4), ones(4, 4))


def gated_delta(world: World) -> Callable[[], Any]:
    step, world.strange = got(world), True
    return lambda: step.gated_delta(1, ones(2, 2, 3), ones(2, 2, 3), ones(2, 2, 2), -ones(2, 2), ones(2, 2))


def whole_step(world: World) -> Callable[[], Any]:
    """The last layer completes a step: its session advances, and what was computed is published."""
    step = world.with_step()
    return lambda: (world.model(step), step.complete)[1]


def prefill(world: World) -> Callable[[], Any]:
    steps = iter(world.with_other().prefill(chunk=3))
    return lambda: next(steps)


def batch(world: World) -> Callable[[], Any]:
    world.live.append([50])
    sessions = [world.live, world.with_other()]
    return lambda: world.cache.batch(sessions)


def decode(world: World) -> Callable[[], Any]:
    world.live.append([50, 51])
    return world.live.decode


def paged_out(world: World, to: str = "host") -> list[int]:
    world.cache.page_out(KNOWN, to=to)
    return KNOWN


def restore(world: World) -> Callable[[], Any]:
    paged_out(world)
    return lambda: world.cache.restore(KNOWN)


def begin_below(world: World) -> Callable[[], Any]:
    paged_out(world, "disk" if world.cache.stats()["disk"] else "host")
    return lambda: world.cache.begin([*KNOWN, 9])


def saved(world: World) -> str:
    path = f"{world.folder}/saved"
    world.cache.save(path)
    return path


def opened(world: World) -> Callable[[], Any]:
    path, options = saved(world), {"fingerprint": "allocations", "disk_bytes": "4MiB", "host_bytes": "256KiB"}
    world.cache.close()
    return lambda: kv.PrefixCache.open(path, world.parts, **options)


def constructed(world: World) -> Callable[[], Any]:
    world.cache.close()
    return lambda: world.made(**world.options("store" if world.store else "host"))


def unpin(world: World) -> Callable[[], Any]:
    world.cache.pin(KNOWN)
    return lambda: world.cache.unpin(KNOWN)


def remove_quota(world: World) -> Callable[[], Any]:
    world.cache.set_quota("default", most=0.9)
    return lambda: world.cache.remove_quota("default")


def respell(world: World) -> Callable[[], Any]:
    texts = kv.TokenTexts(TEXTS)
    return lambda: world.cache.respell([*KNOWN, 9], texts)


def flush(world: World) -> Callable[[], Any]:
    return world.cache.flush


def dropped_step(world: World) -> Callable[[], Any]:
    world.with_step()
    return forget(world, "step")


def everything_dropped(world: World) -> Callable[[], Any]:
    world.with_step()
    return forget(world, "step", "live", "cache")


def entered(world: World) -> Callable[[], Any]:
    session = world.with_other()

    def leaving() -> None:
        with session:
            pass

    return leaving


PREFIX_CACHE = [
    Call("PrefixCache.__init__", CACHES, constructed),
    Call("PrefixCache.begin", CACHES, lambda w: lambda: w.cache.begin([*KNOWN, 9]), Then.LESS),
    Call("PrefixCache.begin", CACHES, begin_below, Then.LESS),
    Call("PrefixCache.begin", CACHES, lambda w: lambda: w.cache.begin(np.arange(30, dtype=np.int64), atomic=[(2, 5)]), Then.LESS),
    Call("PrefixCache.batch", CACHES, batch),
    Call("PrefixCache.plan", CACHES, lambda w: lambda: w.cache.plan([*KNOWN, 9])),
    Call("PrefixCache.respell", DENSE, respell),
    Call("PrefixCache.summary", DENSE, lambda w: lambda: w.cache.summary()),
    Call("PrefixCache._explain", CACHES, lambda w: lambda: w.cache.explain([*KNOWN[:9], 9])),
    Call("PrefixCache.restore", CACHES, restore, Then.LESS),
    Call("PrefixCache.page_out", CACHES, lambda w: lambda: w.cache.page_out(KNOWN), Then.PART),
    Call("PrefixCache.page_out", CACHES, lambda w: lambda: w.cache.page_out(nbytes=64), Then.PART),
    Call("PrefixCache.page_out", DISK, lambda w: lambda: w.cache.page_out(KNOWN, to="disk"), Then.PART),
    Call("PrefixCache.evict", CACHES, lambda w: lambda: w.cache.evict(KNOWN), Then.PART),
    Call("PrefixCache.evict", CACHES, lambda w: lambda: w.cache.evict(nbytes=64), Then.PART),
    Call("PrefixCache._set_quota", DENSE, lambda w: lambda: w.cache.set_quota("default", most=0.9, least=0.1)),
    Call("PrefixCache.remove_quota", DENSE, remove_quota),
    Call("PrefixCache.usage", DENSE, lambda w: lambda: w.cache.usage()),
    Call("PrefixCache.set_limits", CACHES, lambda w: lambda: w.cache.set_limits(held_cells=60, host_bytes=240_000)),
    Call("PrefixCache.pin", CACHES, lambda w: lambda: w.cache.pin(KNOWN, ttl=5.0)),
    Call("PrefixCache.unpin", CACHES, unpin),
    Call("PrefixCache.stats", CACHES, lambda w: lambda: sorted(w.cache.stats())),
    Call("PrefixCache.check", CACHES, lambda w: lambda: w.cache.check()),
    Call("PrefixCache.flush", WITH_LOWER, flush, Then.LESS),
    Call("PrefixCache._save", CACHES, lambda w: lambda: w.cache.save(f"{w.folder}/saved")),
    Call("PrefixCache._save", DENSE, opened),
    Call("PrefixCache._nodes", DENSE, lambda w: lambda: w.cache.nodes()),
    Call("PrefixCache.close", CACHES, lambda w: lambda: w.cache.close()),
    Call("Session.prefill", CACHES, lambda w: w.with_other().prefill),
    Call("Prefill.__iter__", DENSE, lambda w: w.with_other().prefill().__iter__),
    Call("Prefill.__next__", CACHES, prefill),
    Call("Session.append", CACHES, lambda w: lambda: (w.live.append([50, 51]), w.live.recorded)),
    Call("Session.decode", CACHES, decode),
    Call("Session.branch", CACHES, lambda w: lambda: w.live.branch()),
    Call("Session.__copy__", DENSE, lambda w: lambda: w.live.__copy__()),
    Call("Session.rewind", CACHES, lambda w: lambda: (w.live.rewind(14), w.live.length)),
    Call("Session.can_rewind", CACHES, lambda w: lambda: w.live.can_rewind(13)),
    Call("Session.checkpoint", CACHES, lambda w: lambda: w.live.checkpoint()),
    Call("Session.shift", DENSE, lambda w: lambda: w.live.shift(2, limit=14)),
    Call("Session.kv", DENSE, lambda w: lambda: w.live.kv(0)),
    Call("Session.kv_all", DENSE, lambda w: lambda: w.live.kv_all()),
    Call("Session._kv_with_spare", DENSE, lambda w: lambda: [k.shape for k, _ in w.live._kv_with_spare(None, None, [0], 2).values()]),
    Call("Session.close", CACHES, lambda w: lambda: w.live.close()),
    Call("Session.__enter__", DENSE, entered),
    Call("Session.__exit__", DENSE, lambda w: lambda: w.live.__exit__(None, None, None)),
    Call("Step.put", CACHES, put_rows),
    Call("Step.get", CACHES, lambda w: (lambda step: lambda: step.get(0))(got(w))),
    Call("Step.attend", CACHES, attend, Then.ONCE),  # the rows are stored by then: without k and v it goes on
    Call("Step.set_causal", DENSE, lambda w: (lambda step: lambda: step.set_causal([0, 1]))(w.with_step())),
    Call("Step.conv", STATES, conv, Then.ONCE),
    Call("Step.gated_delta", STATES, gated_delta, Then.ONCE),
    Call("Step.states", STATES, lambda w: (lambda step: lambda: step.states(1))(got(w))),
    Call("Step.boundaries", STATES, lambda w: (lambda step: lambda: step.boundaries())(w.with_step())),
    Call("Step.put_states", STATES, put_states),
    Call("a whole step", CACHES, whole_step, Then.MODEL),
    Call("dropping a cache", CACHES, everything_dropped),
    Call("dropping a session", CACHES, lambda w: forget(w, "live")),
    Call("dropping a step", CACHES, dropped_step),
]


# ---- caches without a tree --------------------------------------------------------------------------------------------

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


def layer_of(world: World) -> int:
    return 1 if world.kind == "hybrid" else 0


EDITING: list[tuple[str, tuple[str, ...], Prepare]] = [
    ("copy_prefix", ALONE, lambda w: lambda: w.cache.copy_prefix(0, 2, 4)),
    ("remove", ALONE, lambda w: lambda: (w.cache.remove(1, 0), w.cache.length(1))),
    ("can_resume", ALONE, lambda w: lambda: w.cache.can_resume(0, 4)),
    ("length", ALONE, lambda w: lambda: w.cache.length(0)),
    ("held_from", ("causal",), lambda w: lambda: w.cache.held_from(0)),
    ("item", ("encoder",), lambda w: lambda: w.cache.item(0)),
    ("check", ("causal", "recurrent", "encoder"), lambda w: lambda: w.cache.check()),
    ("defrag", ("causal", "encoder", "hybrid"), lambda w: lambda: w.cache.defrag()),
    ("snapshot", ALONE, lambda w: lambda: w.cache.snapshot(0)),
    ("restore", ALONE, lambda w: (lambda s: lambda: w.cache.restore(9, s, 4))(w.cache.snapshot(0))),
    ("split", ("causal",), lambda w: (lambda s: lambda: w.cache.split(s, 2))(w.cache.snapshot(0))),
    ("split", ("recurrent", "encoder", "hybrid"), lambda w: (lambda s: lambda: w.cache.split(s, 4))(w.cache.snapshot(0))),
    ("merge", ("causal",), merged),
    ("merge", ("recurrent", "encoder", "hybrid"), lambda w: (lambda s: lambda: w.cache.merge(s, None))(w.cache.snapshot(0))),
    ("prepare_snapshots", ALONE, lambda w: lambda: w.cache.prepare_snapshots(0, [5, 6])),
    ("take_snapshots", ALONE, taken),
    ("start_forward", ALONE, lambda w: lambda: w.cache.start_forward([4, 5], [0, 0])),
    ("put", ("causal", "encoder", "hybrid"), put_alone),
    ("get", ("causal", "encoder", "hybrid"), lambda w: (lambda v: lambda: v.cache.get(0))(stored(w))),
    ("attend", ("causal", "encoder", "hybrid"), lambda w: (lambda v: lambda: v.cache.attend(0, ones(2, 2, 4)))(stored(w))),
    ("set_causal", ("causal", "hybrid"), lambda w: (lambda v: lambda: v.cache.set_causal([0, 1]))(started(w))),
    ("conv", ("recurrent", "hybrid"), lambda w: (lambda v: lambda: v.cache.conv(layer_of(v), ones(2, 4), ones(4, 4)))(stored(w))),
    ("gated_delta", ("recurrent", "hybrid"), lambda w: (lambda v: lambda: v.cache.gated_delta(layer_of(v), ones(2, 2, 3), ones(2, 2, 3), ones(2, 2, 2), -ones(2, 2), ones(2, 2)))(stored(w))),
    ("states", ("recurrent", "hybrid"), lambda w: (lambda v: lambda: v.cache.states(layer_of(v)))(stored(w))),
    ("boundaries", ("recurrent", "hybrid"), lambda w: (lambda v: lambda: v.cache.boundaries())(stored(w))),
    ("row_starts", ("recurrent", "hybrid"), lambda w: (lambda v: lambda: v.cache.row_starts())(stored(w))),
    ("put_states", ("recurrent", "hybrid"), lambda w: stored(w).put_states),
]  # fmt: skip

CONSTRUCTED = {
    "causal": lambda: kv.CausalCache([3, 5], 1, 4, CELLS, dtype="float32", window=8, rope={}, device="host"),
    "recurrent": lambda: kv.RecurrentCache([3, 5], 3, 4, 2, 2, 3, SLOTS, device="host"),
    "encoder": lambda: kv.EncoderCache([3, 5], 1, 4, CELLS, device="host"),
    "hybrid": lambda: kv.HybridCache([CONSTRUCTED["causal"](), kv.RecurrentCache([4], 3, 4, 2, 2, 3, SLOTS, device="host")]),
}  # fmt: skip


# What these take is in what they give, and goes with it where Python has no object for that; and states of a step are
# written before what it gives is made.
USED_UP = ("split", "merge", "take_snapshots", "conv", "gated_delta")


def alone() -> Iterator[Call]:
    for kind, owner in CLASSES.items():
        yield Call(f"{owner}.__init__", (kind,), lambda w, kind=kind: CONSTRUCTED[kind])  # type: ignore[misc]
        yield Call(f"dropping a {owner}", (kind,), lambda w: forget(w, "cache"))
        for name, kinds, prepare in EDITING:
            if kind in kinds:
                yield Call(f"{owner}.{name}", (kind,), prepare, Then.ONCE if name in USED_UP else Then.SAME)


# ---- tensors, operations, tries ---------------------------------------------------------------------------------------

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
    ("PrefixTrie.__init__", lambda w: lambda: len(kv.PrefixTrie())),
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
    ("TokenTexts.__init__", lambda w: lambda: len(kv.TokenTexts(TEXTS))),
    ("TokenTexts.__len__", lambda w: lambda: len(w.texts)),
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
    ("fingerprints", lambda w: lambda: kv.fingerprints(range(130))),
    ("media", lambda w: lambda: kv.media("an image", 3).shape),
]  # fmt: skip

GIVEN = {"PrefixTrie.evict": Then.PART, "Replay.serve": Then.ONCE}

OPERATIONS: list[tuple[str, Prepare]] = [
    ("ops.matmul", lambda w: lambda: kv.ops.matmul(w.x, w.w)),
    ("ops.scale_rows", lambda w: lambda: kv.ops.scale_rows(w.x, ones(3, 1))),
    ("ops.weighted_sum", lambda w: lambda: kv.ops.weighted_sum(w.heads, ones(3, 2))),
    ("ops.route", lambda w: lambda: kv.ops.route(w.x, 2, "softmax")),
    ("ops.rope", lambda w: lambda: kv.ops.rope(w.heads, [0, 1, 2])),
    ("ops.silu", lambda w: lambda: kv.ops.silu(w.x)),
    ("ops.sigmoid", lambda w: lambda: kv.ops.sigmoid(w.x)),
    ("ops.softplus", lambda w: lambda: kv.ops.softplus(w.x)),
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
    ("ops.causal_conv1d", lambda w: lambda: kv.ops.causal_conv1d(w.x, ones(8, 4))),
    ("ops.gated_delta", lambda w: lambda: kv.ops.gated_delta(w.heads, w.heads, w.heads, -ones(3, 2), ones(3, 2))),
    ("ops.concat", lambda w: lambda: kv.ops.concat([w.x, w.y])),
    ("ops.split", lambda w: lambda: kv.ops.split(w.x, [3, 5])),
    ("ops.argmax", lambda w: lambda: kv.ops.argmax(w.x)),
    ("ops.sample", lambda w: lambda: kv.ops.sample(w.x, 1.0, 4, 0.9, 7)),
]  # fmt: skip

# ---- properties -------------------------------------------------------------------------------------------------------

# How a world makes an object of a class whose properties are read.
EXAMPLES: dict[str, tuple[str, Callable[[World], Any]]] = {
    "PrefixCache": ("dense host", lambda w: w.cache),
    "Session": ("dense host", lambda w: w.live),
    "Step": ("dense host", lambda w: w.with_step()),
    "ReusePlan": ("dense host", lambda w: w.cache.plan([*KNOWN, 9])),
    "CausalCache": ("causal", lambda w: w.cache),
    "RecurrentCache": ("recurrent", lambda w: w.cache),
    "EncoderCache": ("encoder", lambda w: w.cache),
    "HybridCache": ("hybrid", lambda w: w.cache),
    "Snapshot": ("causal", lambda w: w.cache.snapshot(0)),
    "RecurrentSnapshot": ("recurrent", lambda w: w.cache.snapshot(0)),
    "EncoderSnapshot": ("encoder", lambda w: w.cache.snapshot(0)),
    "HybridSnapshot": ("hybrid", lambda w: w.cache.snapshot(0)),
    "Tensor": ("values", lambda w: w.x),
    "PrefixTrie": ("values", lambda w: w.trie),
    "TrieNode": ("values", lambda w: w.leaf),
    "Evicted": ("values", lambda w: w.trie.evict(count=1)[0]),
    "StepGraphs": ("values", lambda w: w.graphs),
}
UNREAD = {
    "Tensor.cl_mem": "of tensors on a device",
    "Tensor.cl_offset": "of tensors on a device",
}


def properties_of(owner: type) -> list[str]:
    return [name for name, value in vars(owner).items() if isinstance(value, property)]


def read(owner: str) -> Iterator[Call]:
    """A call for each property of a class."""
    world, example = EXAMPLES[owner]
    for name in properties_of(getattr(_core, owner)):
        if f"{owner}.{name}" not in UNREAD:
            yield Call(
                f"{owner}.{name}", (world,), lambda w, name=name: (lambda o: lambda: getattr(o, name))(example(w))  # type: ignore[misc]
            )  # fmt: skip


CALLS: list[Call] = [
    *PREFIX_CACHE,
    *alone(),
    *(Call(name, ("values",), prepare, GIVEN.get(name, Then.SAME)) for name, prepare in VALUES),
    *(Call(name, ("device",), prepare) for name, prepare in OPERATIONS),
    *(call for owner in EXAMPLES for call in read(owner)),
]

_ON_A_DEVICE = "needs a device, whose driver allocates for itself: swept in C++ (cl_fault_test, ops_launch_graph_test)"
LEFT_OUT: dict[str, str] = {
    **{
        name: _ON_A_DEVICE
        for name in (
            "Device",
            "devices",
            "MappedTensor",
            "Tensor.mapped",
            "Tensor.from_opencl",
            "Step.attend_qkv",
            "StepGraphs.compute",
            "ops.PackedWeight",
            "ops.PackedPair",
            "ops.PackedSet",
            "ops.RopeTable",
            "ops.can_route",
            "ops.pack",
            "ops.pack_blocks",
            "ops.pack_pair",
            "ops.pack_pair_blocks",
            "ops.matmul_gated",
            "ops.matmul_routed",
            "ops.vector_width",
            "ops.warm_up",
        )
    },
    "_log_from": "set once, while the package is imported",
    "_inspect_folder": "reads what is on a disk, for people: a list of what it found",
    "_SharedTier": "for tests",
    "_Ending": "made by a cache, which is swept",
}
