"""choose_blocks of caches and steps: the blocks that a twin chooses among copies of what the rows see.

The twin copies (``get``), walks each row's path on the host and makes every block's key by operations of their own.
Queries and keys are normal numbers, so no scores tie but those of blocks that no query points to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv

HEADS, DIM, EPS, OFFSET = 5, 12, 1e-5, 1.0
ROPE = {"base": 100.0, "dims": 6}
FORMATS = ("float32", "float16", ("q8_0", "float32"))


class Index:
    """What a layer with an index has, and who chooses by it."""

    def __init__(self, random: Any, dim: int, ratio: int, count: int) -> None:
        self.dim, self.ratio, self.count = dim, ratio, count
        self.rope = kv.ops.RopeTable(dim, base=ROPE["base"], dims=6, interleaved=bool(random.integers(2)))
        self.norm = kv.tensor(random.standard_normal(dim).astype(np.float32))
        self.weights = kv.tensor(random.standard_normal(HEADS).astype(np.float32))

    def check(self, given: Any, layer: int, sequences: Any, random: Any) -> None:
        """``given``: a cache or a step that was put; ``sequences``: of its rows."""
        q = random.standard_normal((len(sequences), HEADS, self.dim)).astype(np.float32)
        made = (self.rope, self.norm, EPS, OFFSET)
        got = np.asarray(given.choose_blocks(layer, q, self.weights, self.ratio, self.count, *made))
        keys, _, mask = given.get(layer)
        wanted = self.twin(np.asarray(keys.astype("float32"))[:, 0], np.isfinite(np.asarray(mask)), sequences, q)
        for row, cells in zip(got, wanted):
            np.testing.assert_array_equal(row[row >= 0], cells)

    def twin(self, keys: Any, sees: Any, sequences: Any, q: Any) -> list[Any]:
        found = []
        for row in range(len(q)):
            path = np.flatnonzero(sees[row])
            complete = len(path) // self.ratio
            best = np.arange(complete)
            if complete > self.count:
                factors, none = np.asarray(self.weights)[None], np.zeros((1, complete), np.float32)
                best = np.asarray(
                    kv.ops.choose_keys(q[row : row + 1], self.keys(keys, path), factors, none, self.count)
                )[0]
            inside = (best[:, None] * self.ratio + np.arange(self.ratio)).ravel()
            found.append(path[[*inside, *range(complete * self.ratio, len(path))]])
        return found

    def keys(self, keys: Any, path: Any) -> Any:
        count = len(path) // self.ratio
        blocks = keys[path[: count * self.ratio]].reshape(count, self.ratio, self.dim)
        mean = kv.ops.clamp(kv.ops.weighted_sum(blocks), scale=1 / self.ratio)
        normed = kv.ops.rms_norm(mean, self.norm, EPS, OFFSET).reshape(count, 1, self.dim)
        return kv.ops.rope(normed, np.arange(count, dtype=np.int32) * self.ratio, table=self.rope)


@pytest.mark.parametrize("seed", range(8))
def test_edited_sequences(seed: int) -> None:
    """Copies, removals at the end and in the middle (keys that have moved), compaction, and several rows of several."""
    random = np.random.default_rng(seed)
    dim = 32 if seed % 3 == 2 else DIM
    cache = kv.caches.CausalCache([3], 1, dim, 500, v_head_dim=0, rope=ROPE, dtype=FORMATS[seed % 3])
    lengths = [0, 0, 0]

    def edit() -> None:
        one, other = random.permutation(3)[:2]
        begin, kind = int(random.integers(0, lengths[one] + 1)), random.integers(4)
        if kind == 0 and lengths[one]:
            cache.copy_prefix(int(one), int(other), begin)
            lengths[other] = begin
        elif kind == 1 and lengths[one]:
            cache.remove(int(one), begin)
            lengths[one] = begin
        elif kind == 2 and begin + 3 < lengths[one] and seed % 2:
            cache.remove(int(one), begin, begin + 2)
            lengths[one] -= 2
        elif kind == 3:
            cache.defrag()

    for _ in range(25):
        edit()
        counts = random.integers(0, 8, 3)
        counts[random.integers(3)] += 1
        sequences = np.repeat(np.arange(3), counts)
        cache.start_forward(np.concatenate([lengths[i] + np.arange(counts[i]) for i in range(3)]), sequences)
        cache.put(3, random.standard_normal((len(sequences), 1, dim)).astype(np.float32), None)
        lengths = [length + int(count) for length, count in zip(lengths, counts)]
        index = Index(random, dim, int(random.integers(1, 7)), int(random.integers(1, 8)))
        index.check(cache, 3, sequences, random)
        assert not cache.check()


def test_steps_of_sessions_that_branch() -> None:
    random = np.random.default_rng(3)
    index = Index(random, DIM, 4, 3)
    with kv.PrefixCache([kv.caches.CausalCache([0], 1, DIM, 200, v_head_dim=0, dtype="float16")]) as cache:
        live = [cache.begin(list(range(30)))]
        for turn in range(12):
            if turn % 4 == 1:
                live.append(live[-1].branch())
            for session in live:
                if len(session.remaining) == 0:
                    session.append(int(random.integers(30)))
            step = cache.batch(live)
            step.put(0, random.standard_normal((len(step.tokens), 1, DIM)).astype(np.float32), None)
            index.check(step, 0, np.asarray(step.sequences), random)


def test_many_blocks_are_as_many_as_the_cache_has_cells_for() -> None:
    """A budget beyond the cache asks for no more memory, and all keys come."""
    index = Index(np.random.default_rng(4), DIM, 3, 2**30)
    cache = kv.caches.CausalCache([0], 1, DIM, 16, v_head_dim=0, dtype="float32")
    cache.start_forward(list(range(8)), [0] * 8)
    cache.put(0, np.ones((8, 1, DIM), np.float32), None)
    q, made = np.ones((8, HEADS, DIM), np.float32), (index.rope, index.norm)
    got = np.asarray(cache.choose_blocks(0, q, index.weights, 3, 2**30, *made))
    assert got.shape == (8, 5 * 3 + 2)
    for row, keys in enumerate(got):
        np.testing.assert_array_equal(keys[keys >= 0], np.arange(row + 1))


def test_refusals() -> None:
    index = Index(np.random.default_rng(5), DIM, 2, 2)
    caches = {
        "two": kv.caches.CausalCache([0], 2, DIM, 16, dtype="float32"),
        "host": kv.caches.CausalCache([0], 1, DIM, 16, dtype="float32", device="host"),
        "window": kv.caches.CausalCache([0], 1, DIM, 16, dtype="float32", window=4),
        "plain": kv.caches.CausalCache([0], 1, DIM, 16, dtype="float32"),
    }
    q = np.ones((1, HEADS, DIM), np.float32)

    def choose(cache: Any, ratio: int = 2, count: int = 2, **changed: Any) -> Any:
        given = {"q": q, "weights": index.weights, "rope": index.rope, "norm": index.norm, **changed}
        return cache.choose_blocks(0, given["q"], given["weights"], ratio, count, given["rope"], given["norm"])

    for cache in caches.values():
        cache.start_forward([0], [0])
        with pytest.raises(kv.errors.ArgumentError, match="layer: got 0, which was not put"):
            choose(cache)
        with pytest.raises(kv.errors.ArgumentError, match=r"v: got .*\[1, [12], 0\], allowed \[1, [12], 12\]"):
            cache.put(0, np.ones((1, cache.kv_heads, DIM), np.float32), None)
        cache.put(0, *(np.ones((1, cache.kv_heads, DIM), np.float32) for _ in range(2)))
    for name, message in {
        "two": "kv_heads: got 2, allowed 1",
        "host": "device: got a cache without one",
        "window": "visibility: got a window or chunks",
    }.items():
        with pytest.raises(kv.errors.NotSupportedError, match=message):
            choose(caches[name])
    plain = caches["plain"]
    for changed, message in (
        ({"ratio": 0}, "ratio: got 0, allowed 1 to 16"),
        ({"ratio": 17}, "ratio: got 17, allowed 1 to 16"),
        ({"count": 0}, "count: got 0, allowed 1 or more"),
        ({"weights": np.ones(4, np.float32)}, r"weights: got float32 \[4\], allowed \[5\]"),
        ({"norm": np.ones(4, np.float32)}, r"norm: got float32 \[4\], allowed \[12\]"),
        ({"rope": kv.ops.RopeTable(8)}, "rope: got a table for heads of 8 numbers, allowed 12"),
        ({"q": np.ones((2, HEADS, DIM), np.float32)}, r"q: got shape \[2, 5, 12\]"),
    ):
        with pytest.raises(kv.errors.ArgumentError, match=message):
            choose(plain, **changed)
    with pytest.raises(kv.errors.ArgumentTypeError, match="rope: got"):
        choose(plain, rope=None)
    assert np.asarray(choose(plain)).tolist() == [[-1, -1, -1, -1, 0]]
