"""choose_keys and attend_chosen of caches and steps read cells where they lie: the bits of copies of them.

The twin copies what the rows see (``get``) for ``ops.choose_keys`` and ``ops.attend_chosen``, which test_chosen.py
holds against numpy. Index keys are whole numbers, so scores tie, and whose cell wins a tie can be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv

HEADS, DIM, LATENT, INDEX = 4, 40, 24, 8
ROPE = {"base": 10000.0, "dims": 8}
FORMATS = ("float32", "float16", ("q8_0", "float32"))


def whole(random: Any, *shape: int) -> Any:
    return random.integers(-2, 3, shape).astype(np.float32)


def normal(random: Any, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def check(given: Any, random: Any, rows: int, layers: tuple[Any, ...], most: int) -> None:
    """``given``: a cache or a step for each of two layers, of the index and of what is attended to."""
    (index, own), (number, other) = given, layers
    q, weights = whole(random, rows, 3, INDEX), whole(random, rows, 3)
    copied, _, mask = index.get(number)
    wanted = np.asarray(kv.ops.choose_keys(q, np.asarray(copied.astype("float32")), weights, mask, most))
    chosen = index.choose_keys(number, q, weights, most)
    listed = np.asarray(chosen)
    np.testing.assert_array_equal(listed[:, : wanted.shape[1]], wanted)
    assert listed.shape[1] == most
    assert (listed[:, wanted.shape[1] :] == -1).all()
    keys, values, _ = own.get(other)
    for scale in (None, 0.3):
        q = normal(random, rows, HEADS, keys.shape[2])
        got = np.asarray(own.attend_chosen(other, q, chosen, scale))
        np.testing.assert_array_equal(got, attended(q, keys, values, wanted, scale))


def attended(q: Any, keys: Any, values: Any, chosen: Any, scale: float | None) -> Any:
    """Of copies: a latent key is its own value; else K and V stand beside each other, a head at a time."""
    if values.shape[2] == 0:
        return np.asarray(kv.ops.attend_chosen(q, keys, chosen, LATENT, scale))
    scale = scale or q.shape[2] ** -0.5
    keys, values = (np.asarray(each.astype("float32")) for each in (keys, values))
    parts = []
    for head, group in enumerate(np.split(q, keys.shape[1], axis=1)):
        wide = np.concatenate([group, np.zeros((*group.shape[:2], values.shape[2]), np.float32)], axis=2)
        cells = np.concatenate([keys[:, head], values[:, head]], axis=1)[:, None]
        parts.append(np.asarray(kv.ops.attend_chosen(wide, cells, chosen, values.shape[2], scale)))
    return np.concatenate(parts, axis=1)


def causal(capacity: int, latent: bool, **options: Any) -> Any:
    if latent:
        return kv.caches.CausalCache([1], 1, DIM, capacity, latent_dim=LATENT, v_head_dim=0, **options)
    return kv.caches.CausalCache([1], 2, 32, capacity, **options)


def keys_of(cache: Any, random: Any, tokens: int, numbers: Any) -> tuple[Any, Any]:
    shape = (tokens, cache.kv_heads)
    return numbers(random, *shape, cache.head_dim), numbers(random, *shape, cache.v_head_dim)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("seed", range(6))
def test_edited_sequences(seed: int, window: int | None) -> None:
    """Copies, removals at the end and in the middle (keys that have moved), compaction, and several rows of several."""
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {"window": window, "rope": ROPE, "dtype": FORMATS[seed % 2]}
    caches = [kv.caches.CausalCache([0], 1, INDEX, 600, v_head_dim=0, **options), causal(600, seed % 3 > 0, **options)]
    lengths = [0, 0, 0]

    def edit() -> None:
        one, other = random.permutation(3)[:2]
        if lengths[one] == 0:
            return
        begin = int(random.integers(0, lengths[one] + 1))
        kind = random.integers(4)
        if kind == 0 and all(cache.can_resume(int(one), begin) for cache in caches):
            for cache in caches:
                cache.copy_prefix(int(one), int(other), begin)
            lengths[other] = begin
        elif kind == 1 and all(cache.can_resume(int(one), begin) for cache in caches):
            for cache in caches:
                cache.remove(int(one), begin)
            lengths[one] = begin
        elif kind == 2 and window is None and begin + 3 < lengths[one]:
            for cache in caches:
                cache.remove(int(one), begin, begin + 2)
            lengths[one] -= 2
        elif kind == 3:
            for cache in caches:
                cache.defrag()

    for _ in range(25):
        edit()
        counts = random.integers(0, 8, 3)
        counts[random.integers(3)] += 1
        sequences = np.repeat(np.arange(3), counts)
        positions = np.concatenate([lengths[i] + np.arange(counts[i]) for i in range(3)])
        for cache, layer, numbers in zip(caches, (0, 1), (whole, normal)):
            cache.start_forward(positions, sequences)
            cache.put(layer, *keys_of(cache, random, len(positions), numbers))
            assert not cache.check()
        lengths = [length + int(count) for length, count in zip(lengths, counts)]
        check(caches, random, len(positions), (0, 1), int(random.integers(1, 30)))


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_sessions(seed: int, tmp_path: Path) -> None:
    """Sessions that share, branch, go on from lower tiers, and read cells of one cache in several formats."""
    random = np.random.default_rng(seed)
    dtype = FORMATS[seed % 3]
    caches = [kv.caches.CausalCache([0], 1, INDEX, 300, v_head_dim=0, dtype="float32" if seed % 3 == 2 else dtype)]
    caches.append(causal(300, seed % 2 == 0 and seed % 3 < 2, dtype=dtype))
    text = list(range(60))
    options: dict[str, Any] = {"host_bytes": "1MiB", "disk": tmp_path, "disk_bytes": "4MiB", "fingerprint": "chosen"}
    with kv.PrefixCache(caches, **options) as cache:
        live: list[Any] = []
        for turn in range(12):
            if turn % 4 == 3:
                live = []
                cache.page_out(text, to=("host", "disk")[turn // 4 % 2])
            live.append(live[-1].branch() if live and turn % 3 else cache.begin(text[: 20 + 2 * turn]))
            for session in live:
                if len(session.remaining) == 0:
                    session.append(int(random.integers(60, 90)))
            step = cache.batch(live)
            for number, (own, numbers) in enumerate(zip(caches, (whole, normal))):
                step.put(number, *keys_of(own, random, len(step.tokens), numbers))
            check((step, step), random, len(step.tokens), (0, 1), int(random.integers(1, 40)))
            assert not cache.check()


def test_refusals() -> None:
    two = kv.caches.CausalCache([0], 2, INDEX, 16, dtype="float32")
    host = kv.caches.CausalCache([0], 1, INDEX, 16, dtype="float32", device="host")
    none = kv.caches.CausalCache([0], 1, INDEX, 16, dtype="float32", v_head_dim=0)
    for cache in (two, host, none):
        cache.start_forward([0], [0])
        with pytest.raises(kv.errors.ArgumentError, match="layer: got 0, which was not put"):
            cache.choose_keys(0, np.ones((1, 2, INDEX)), np.ones((1, 2)), 2)
        cache.put(
            0,
            np.ones((1, cache.kv_heads, INDEX), np.float32),
            np.ones((1, cache.kv_heads, cache.v_head_dim), np.float32),
        )
    q, chosen = np.ones((1, 2, INDEX), np.float32), np.zeros((1, 1), np.int32)
    with pytest.raises(kv.errors.NotSupportedError, match="kv_heads: got 2, allowed 1"):
        two.choose_keys(0, q, np.ones((1, 2)), 2)
    for call in (lambda: host.choose_keys(0, q, np.ones((1, 2)), 2), lambda: host.attend_chosen(0, q, chosen)):
        with pytest.raises(kv.errors.NotSupportedError, match="device: got a cache without one"):
            call()
    with pytest.raises(kv.errors.NotSupportedError):
        none.attend_chosen(0, q, chosen)
    with pytest.raises(kv.errors.ArgumentError, match=r"q: got shape \[2, 2, 8\], allowed \[1, a multiple of 1, 8\]"):
        none.choose_keys(0, np.ones((2, 2, INDEX)), np.ones((2, 2)), 2)
    with pytest.raises(kv.errors.ArgumentError, match=r"weights: got float32 \[1, 3\]"):
        none.choose_keys(0, q, np.ones((1, 3)), 2)
    with pytest.raises(kv.errors.ArgumentError, match="count: got 0, allowed 1 or more"):
        none.choose_keys(0, q, np.ones((1, 2)), 0)
    with pytest.raises(kv.errors.ArgumentError, match=r"chosen: got int32 \[2, 1\]"):
        two.attend_chosen(0, q, np.zeros((2, 1), np.int32))
    assert (np.asarray(two.attend_chosen(0, q, np.array([[-1, 1]], np.int32))) == 0).all()
