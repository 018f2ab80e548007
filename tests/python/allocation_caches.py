"""The calls of prefix caches, sessions and steps whose allocations fail: a line for each (allocation_calls.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from allocation_table import Call, Then, after, forget, ones
from allocation_worlds import CACHES, KNOWN, TEXTS, World

LASTING = tuple(name for name in CACHES if not name.endswith("ttl"))  # where something is left to be freed
DENSE = tuple(name for name in CACHES if name.startswith("dense"))
STATES = tuple(name for name in CACHES if name.startswith("states"))
DISK = tuple(name for name in CACHES if name.endswith("disk"))
WITH_LOWER = tuple(name for name in CACHES if name.endswith(("disk", "store")))


def put_rows(world: World) -> Callable[[], Any]:
    step = world.with_step()
    k, v = world.rows(step)
    return lambda: step.put(0, k, v)


def opened(world: World) -> Any:
    return world.with_step()


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


def ssd(world: World) -> Callable[[], Any]:
    step, world.strange = got(world), True
    return lambda: step.ssd(1, ones(2, 2, 2), ones(2, 2), -ones(2), ones(2, 2, 3), ones(2, 2, 3), ones(2))


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
    return lambda: world.live.decode()


def propose(world: World) -> Callable[[], Any]:
    world.live.append([50])
    return lambda: world.live.propose([51, 52])


def propose_tree(world: World) -> Callable[[], Any]:
    world.live.append([50])
    return lambda: world.live.propose_tree([[51, 52], [51, 53], [54]])


def accept_a_path(world: World) -> Callable[[], Any]:
    world.live.append([50])
    world.step = step = world.live.propose_tree([[51, 52], [53]])
    world.model.drafts = {id(step): [[51, 52], [53]]}
    world.model(step)
    world.model.drafts = {}
    return lambda: (step.accept(1, [([], 53)], path=1), step.complete)[1]


def accept_drafts(world: World) -> Callable[[], Any]:
    world.live.append([50])
    world.step = step = world.live.propose([51, 52])
    world.model.drafts = {id(step): [[51, 52]]}
    world.model(step)
    world.model.drafts = {}
    return lambda: (step.accept(1, [([], 51)]), step.complete)[1]


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


def opened_again(world: World) -> Callable[[], Any]:
    path, options = saved(world), {"fingerprint": "allocations", "disk_bytes": "4MiB", "host_bytes": "256KiB"}
    world.cache.close()
    return lambda: kv.PrefixCache.open(path, world.parts, **options)


def constructed(world: World) -> Callable[[], Any]:
    world.cache.close()
    return world.making(**world.options("store" if world.store else "host"))


def unpin(world: World) -> Callable[[], Any]:
    world.cache.pin(KNOWN)
    return lambda: world.cache.unpin(KNOWN)


def remove_quota(world: World) -> Callable[[], Any]:
    world.cache.set_quota("default", most=0.9)
    return lambda: world.cache.remove_quota("default")


def match_text(world: World) -> Callable[[], Any]:
    texts = kv.trie.TokenTexts(TEXTS)
    return lambda: world.cache.match_text([*KNOWN, 9], texts)


def dropped_step(world: World) -> Callable[[], Any]:
    world.with_step()
    return forget(world, "step")


def everything_dropped(world: World) -> Callable[[], Any]:
    world.with_step()
    return forget(world, "step", "live", "cache")


def closed_by_its_store(world: World) -> Callable[[], Any]:
    """On the thread that sends, which is where the closing ends, too."""
    world.store.then = lambda: world.cache.close()

    def flushing() -> None:
        with contextlib.suppress(kv.errors.ClosedError):
            world.cache.flush()

    return flushing


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
    Call(
        "PrefixCache.begin",
        CACHES,
        lambda w: lambda: w.cache.begin(np.arange(30, dtype=np.int64), atomic=[(2, 5)]),
        Then.LESS,
    ),
    Call("PrefixCache.batch", CACHES, batch),
    Call("PrefixCache.plan", CACHES, lambda w: lambda: w.cache.plan([*KNOWN, 9])),
    Call("PrefixCache.match_text", DENSE, match_text),
    Call("PrefixCache.summary", DENSE, lambda w: lambda: w.cache.summary()),
    Call("PrefixCache._explain", CACHES, lambda w: lambda: w.cache.explain([*KNOWN[:9], 9])),
    Call("PrefixCache.restore", CACHES, restore, Then.LESS),
    Call("PrefixCache.page_out", CACHES, lambda w: lambda: w.cache.page_out(KNOWN), Then.PART),
    Call("PrefixCache.page_out", LASTING, lambda w: lambda: w.cache.page_out(nbytes=64), Then.PART),
    Call("PrefixCache.page_out", DISK, lambda w: lambda: w.cache.page_out(KNOWN, to="disk"), Then.PART),
    Call("PrefixCache.evict", CACHES, lambda w: lambda: w.cache.evict(KNOWN), Then.PART),
    Call("PrefixCache.evict", LASTING, lambda w: lambda: w.cache.evict(nbytes=64), Then.PART),
    Call("PrefixCache._set_quota", DENSE, lambda w: lambda: w.cache.set_quota("default", most=0.9, least=0.1)),
    Call("PrefixCache.remove_quota", DENSE, remove_quota),
    Call("PrefixCache.usage", DENSE, lambda w: lambda: w.cache.usage(), Then.LESS),  # a clock that fails stands still
    Call("PrefixCache.set_limits", CACHES, lambda w: lambda: w.cache.set_limits(held_cells=60, host_bytes=240_000)),
    Call("PrefixCache.pin", CACHES, lambda w: lambda: w.cache.pin(KNOWN, ttl=5.0)),
    Call("PrefixCache.unpin", CACHES, unpin),
    Call("PrefixCache.stats", CACHES, lambda w: lambda: sorted(w.cache.stats())),
    Call("PrefixCache.check", CACHES, lambda w: lambda: w.cache.check()),
    Call("PrefixCache.flush", WITH_LOWER, lambda w: lambda: w.cache.flush(), Then.LESS),
    Call("PrefixCache._save", CACHES, lambda w: lambda: w.cache.save(f"{w.folder}/saved")),
    Call("PrefixCache._save", DENSE, opened_again),
    Call("PrefixCache._nodes", DENSE, lambda w: lambda: w.cache.nodes()),
    Call("PrefixCache.close", CACHES, lambda w: lambda: w.cache.close()),
    Call("Session.prefill", CACHES, lambda w: w.with_other().prefill),
    Call("Prefill.__iter__", DENSE, lambda w: w.with_other().prefill().__iter__),
    Call("Prefill.__next__", CACHES, prefill),
    Call("Session.append", CACHES, lambda w: lambda: (w.live.append([50, 51]), w.live.recorded)),
    Call("Session.accept", CACHES, lambda w: lambda: (w.live.accept(50, 15, [([], 50)]), w.live.recorded)),
    Call("Session.recompute", CACHES, lambda w: lambda: w.live.recompute()),
    Call("Session.decode", CACHES, decode),
    Call("Session.propose", CACHES, propose),
    Call("Session.continuation", DENSE, lambda w: (w.live.rewind(6), lambda: w.live.continuation(4))[1]),
    Call("Session.continuation", CACHES, lambda w: lambda: w.live.continuation(4, suffix=True).tolist()),
    Call("Session.propose_tree", CACHES, propose_tree),
    Call("Session.continuations", DENSE, lambda w: (w.live.rewind(6), lambda: w.live.continuations(4, 3))[1]),
    Call("Session.continuations", CACHES, lambda w: lambda: len(w.live.continuations(4, 3, suffix=True))),
    Call("Session.rollback", CACHES, lambda w: lambda: (w.live.rollback(2), w.live.recorded)),
    Call("Step.accept", CACHES, accept_drafts),
    Call("Step.accept", CACHES, accept_a_path),
    Call("Session.branch", CACHES, lambda w: lambda: w.live.branch()),
    Call("Session.__copy__", DENSE, lambda w: lambda: w.live.__copy__()),
    Call("Session.rewind", CACHES, lambda w: lambda: (w.live.rewind(14), w.live.length)),
    Call("Session.can_rewind", CACHES, lambda w: lambda: w.live.can_rewind(13)),
    Call("Session.checkpoint", CACHES, lambda w: lambda: w.live.checkpoint()),
    Call("Session.shift", DENSE, lambda w: lambda: w.live.shift(2, limit=14)),
    Call("Session.kv", DENSE, lambda w: lambda: w.live.kv(0)),
    Call("Session.kv_all", DENSE, lambda w: lambda: w.live.kv_all()),
    Call(
        "Session._kv_with_spare",
        DENSE,
        lambda w: lambda: [k.shape for k, _ in w.live._kv_with_spare(None, None, [0], 2).values()],
    ),
    Call("Session.close", CACHES, lambda w: lambda: w.live.close()),
    Call("Session.__enter__", DENSE, entered),
    Call("Session.__exit__", DENSE, lambda w: lambda: w.live.__exit__(None, None, None)),
    Call("Step.put", CACHES, put_rows),
    Call("Step.get", CACHES, after(got, lambda step: step.get(0))),
    Call("Step.attend", CACHES, attend, Then.ONCE),  # the rows are stored by then: without k and v it goes on
    Call("Step.set_causal", DENSE, after(opened, lambda step: step.set_causal([0, 1]))),
    Call("Step.conv", STATES, conv, Then.ONCE),
    Call("Step.gated_delta", STATES, gated_delta, Then.ONCE),
    Call("Step.ssd", STATES, ssd, Then.ONCE),
    Call("Step.states", STATES, after(got, lambda step: step.states(1))),
    Call("Step.boundaries", STATES, after(opened, lambda step: step.boundaries())),
    Call("Step.put_states", STATES, put_states),
    Call("a whole step", CACHES, whole_step, Then.MODEL),
    Call("an indexed step", DENSE, lambda w: (w.live.continuation(1, suffix=True), whole_step(w))[1], Then.MODEL),
    Call("closing a cache on its store's thread", ("dense store",), closed_by_its_store, Then.ONCE),
    Call("dropping a cache", CACHES, everything_dropped),
    Call("dropping a session", CACHES, lambda w: forget(w, "live")),
    Call("dropping a step", CACHES, dropped_step),
]
