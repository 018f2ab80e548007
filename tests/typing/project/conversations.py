"""A prefix cache and its sessions."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kvtrie as kv

Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32 | np.float16]


def make_cache(folder: Path) -> kv.PrefixCache:
    layers = kv.caches.CausalCache(range(2), 2, 16, 128, dtype="float32")
    cache = kv.PrefixCache(
        [layers],
        fingerprint="mine",
        host_bytes="64MiB",
        disk=folder,
        disk_bytes=1 << 30,
        disk_after=2,
        store="redis://localhost/0",
        store_deadline=1.5,
        tokenizer=None,
        policy="cost",
        load="always",
        checkpoint_every=256,
        growth=128,
        clock=time.monotonic,
        ttl=3600.0,
        keys={"new": b"0" * 32},
        quotas={"anna": {"most": 0.5, "least": {"cells": 100, "host_bytes": "1MiB"}}},
    )
    save(cache, folder / "saved")
    return kv.PrefixCache.open(folder / "saved", layers, fingerprint="mine")


def save(cache: kv.PrefixCache, folder: Path) -> None:
    cache.save(folder)


def read_cache(cache: kv.PrefixCache) -> None:
    assert_type(cache.fingerprint, str)
    assert_type(cache.host_bytes, int)
    assert_type(cache.disk_after, int)
    assert_type(cache.checkpoint_every, int)
    assert_type(cache.growth, int)
    assert_type(cache.closed, bool)
    assert_type(cache.policy, str)
    assert_type(cache.nodes(), list[kv.results.Node])
    assert_type(cache.check(), list[str])
    assert_type(cache.summary(most=10), npt.NDArray[np.uint64])
    bytes_per_token: object = cache.stats()["tokens"]
    print(cache.caches[0], bytes_per_token)


def use_cache(cache: kv.PrefixCache, tokens: list[int], array: Ints) -> kv.Session:
    assert_type(cache.plan(tokens, "anna", atomic=[(1, 3)]), kv.results.ReusePlan)
    assert_type(cache.explain(array, decode=str), kv.results.Explanation)
    assert_type(cache.explain("a text"), kv.results.Explanation)
    assert_type(cache.match_text(tokens, kv.trie.TokenTexts([b"a", b"b"])), Ints)
    assert_type(cache.pin(tokens, ttl=2.0) + cache.unpin(tokens), int)
    assert_type(cache.page_out(tokens, to="host") + cache.page_out(nbytes="1MiB"), int)
    assert_type(cache.restore(tokens) + cache.evict(array) + cache.evict(nbytes=100), int)
    assert_type(cache.flush(), bool)
    cache.set_limits(held_cells=[100, None], held_slots=2, host_bytes="1GiB", disk_bytes=0)
    cache.set_quota("anna", most={"slots": [1, None]}, least=0.25)
    print(cache.usage("anna")["cells"][0]["used"])
    cache.remove_quota("anna")
    with cache.begin(tokens, namespace="anna", reuse_all=True, use=True, publish=False, atomic=[(0, 2)]) as session:
        step = cache.batch([session, session.branch()], chunk=64)
        assert_type(step, kv.Step)
    cache.close()
    with cache:
        return cache.begin(array)


def draw_cache(cache: kv.PrefixCache) -> str:
    return cache.tree(str, width=80) + cache.to_dot(max_nodes=10) + cache.to_svg(decode=str, title="mine")


def read_session(session: kv.Session) -> None:
    assert_type(session.matched, int)
    assert_type(session.reused, int)
    assert_type(session.reason, kv.results.Reason)
    assert_type(session.tier, str)
    assert_type(session.bytes_moved, int)
    assert_type(session.namespace, str)
    assert_type(session.length, int)
    assert_type(session.recorded, int)
    assert_type(session.tokens, Ints)
    assert_type(session.remaining, Ints)
    assert_type(session.closed, bool)
    k, v = session.kv(0, start=1, stop=2, heads_first=True)
    assert_type(session.kv_all()[0], tuple[Rows, Rows])
    assert_type(session.kv_all(1, 2, layers=[0], heads_first=True)[0], tuple[Rows, Rows])
    assert_type(k, Rows)
    assert_type(v, Rows)


def use_session(session: kv.Session) -> kv.Session:
    for step in session.prefill(chunk=128):
        assert_type(step, kv.Step)
    session.append(5)
    session.append([6, 7])
    session.append(np.array([8], np.int32))
    assert_type(session.decode(), kv.Step)
    session.rewind(3)
    assert_type(session.can_rewind(2), bool)
    assert_type(session.checkpoint(), int)
    moved = session.shift(4, limit=100)
    if moved is not None:
        assert_type(moved, kv.results.Reprocess)
    other = session.branch()
    session.close()
    return other


def read_step(step: kv.Step) -> None:
    assert_type(step.tokens, Ints)
    assert_type(step.positions, Ints)
    assert_type(step.sequences, Ints)
    assert_type(step.last_rows, Ints)
    assert_type(step.sessions, list[kv.Session])
    assert_type(step.complete, bool)
    assert_type(step.dropped, bool)


def use_step(step: kv.Step, x: npt.NDArray[np.float32], tensor: kv.Tensor) -> None:
    assert_type(step.attend(0, x, x, tensor, scale=0.5, softcap=30.0, sinks=x), kv.Tensor)
    assert_type(step.attend(0, x), kv.Tensor)
    table = kv.ops.RopeTable(16, 10000.0)
    assert_type(step.attend_qkv(0, tensor, table, x, x, eps=1e-6, offset=1.0, scale=None), kv.Tensor)
    step.put(1, x, x)
    k, v, mask = step.get(1)
    assert_type((k, v, mask), tuple[kv.Tensor, kv.Tensor, kv.Tensor])
    step.set_causal([0, 1])
    assert_type(step.conv(2, x, x), kv.Tensor)
    assert_type(step.gated_delta(2, x, x, x, x, x), kv.Tensor)
    assert_type(step.ssd(2, x, x, x, x, x, x, dt_max=0.5), kv.Tensor)
    conv, delta = step.states(2)
    step.put_states(2, conv, delta)
    assert_type(step.boundaries(), list[list[int]])


def record(graphs: kv.ops.StepGraphs, step: kv.Step, logits: kv.Tensor) -> object:
    assert_type(graphs.compute(step, lambda: logits), kv.Tensor)
    return graphs.stats["replayed"], kv.ops.StepGraphs()


def read_plan(plan: kv.results.ReusePlan, reason: kv.results.Reason, again: kv.results.Reprocess) -> None:
    assert_type(plan.matched + plan.reusable + plan.bytes_moved, int)
    assert_type(plan.tier, str)
    assert_type(plan.reason, kv.results.Reason)
    assert_type(reason.code + reason.text + reason.upper(), str)
    assert_type(again.tokens, Ints)


def read_node(node: kv.results.Node) -> None:
    assert_type(node.age, float)
    assert_type(node.children, list[kv.results.Node])
    assert_type(node.start + node.end + node.live + node.nbytes, int)
    assert_type(node.namespace + node.point + node.tier, str)
    assert_type(node.parent, kv.results.Node | None)
    assert_type(node.pinned, bool)
    assert_type(node.user, bool)
    assert_type(node.tokens, Ints)


def read_explanation(why: kv.results.Explanation) -> None:
    assert_type(why.tokens, Ints)
    assert_type(why.known, Ints)
    assert_type(why.before, Ints)
    assert_type(why.instead, Ints)
    assert_type(why.namespace + why.tier + why.end, str)
    assert_type(why.matched + why.reusable + why.bytes_moved + why.branches + why.computed, int)
    assert_type(why.reason, kv.results.Reason)
    assert_type(why.rejoin.tokens + why.rejoin.prompt + why.rejoin.known, int)
    assert_type(why.caches, list[kv.results.CacheReach])
    assert_type(why.compute_seconds, float | None)
    assert_type(why.load_seconds, float | None)
    assert_type(why.advice() + why.details(str), list[str])
    assert_type(why.text(decode=str) + why.to_svg(width=800), str)


def read_reach(reach: kv.results.CacheReach) -> None:
    assert_type(reach.kind + reach.name, str)
    assert_type(reach.layers + reach.kept, tuple[int, ...])
    assert_type(reach.window + reach.chunk + reach.deepest, int)


def name_tokens() -> None:
    assert_type(kv.media("sha256 of a cat", 3), Ints)
    assert_type(kv.media(b"digest", 1), Ints)
    assert_type(kv.trie.fingerprints([1, 2], namespace="anna"), npt.NDArray[np.uint64])
    assert_type(kv.trie.TokenTexts([b"a"])[0], bytes)
    assert_type(kv.__version__, str)
