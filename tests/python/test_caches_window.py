"""Windows and chunks of the causal cache by itself: every step against numpy, and what a sequence may still do."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
import pytest

import kvtrie as kv
from bounds import ATTENTION, ROTATION, close

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KV_HEADS, HEADS, DIM, V_DIM = 2, 4, 16, 8
LAYERS = (5, 2)
ROPE: dict[str, Any] = {"base": 10000.0, "dims": 8}
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def make(place: Any, capacity: int = 128, dtype: str = "float32", **limits: Any) -> Any:
    return kv.caches.CausalCache(
        LAYERS, KV_HEADS, DIM, capacity, v_head_dim=V_DIM, dtype=dtype, rope=ROPE, device=place, **limits
    )


def visible(cache: Any, position: int, end: int) -> Mask:
    """Which positions below `end` the causal query at `position` sees."""
    keys = np.arange(end)
    seen = keys <= position
    if cache.window is not None:
        seen &= position - keys < cache.window
    if cache.chunk is not None:
        seen &= keys // cache.chunk == position // cache.chunk
    return np.asarray(seen)


class Sequence:
    """One sequence of a cache and the K and V of all its tokens, also those that the cache let go of."""

    def __init__(self, cache: Any, seq: int, seed: int = 0) -> None:
        self.cache, self.seq = cache, seq
        self.random = np.random.default_rng(seed)
        self.k: Floats = np.zeros((0, len(LAYERS), KV_HEADS, DIM), np.float32)
        self.v: Floats = np.zeros((0, len(LAYERS), KV_HEADS, V_DIM), np.float32)

    def __len__(self) -> int:
        return len(self.k)

    def draw(self, *shape: int) -> Floats:
        return self.random.standard_normal(shape).astype(np.float16).astype(np.float32)

    def at(self, length: int) -> Sequence:
        self.k, self.v = self.k[:length], self.v[:length]
        return self

    def grow(self, count: int, except_: tuple[int, ...] = ()) -> None:
        """One step of `count` rows; attention and the mask of every layer are checked, also after the last put."""
        begin, end = len(self), len(self) + count
        self.cache.start_forward(range(begin, end), [self.seq] * count)
        if except_:
            self.cache.set_causal(except_=except_)
        self.k = np.concatenate([self.k, self.draw(count, len(LAYERS), KV_HEADS, DIM)])
        self.v = np.concatenate([self.v, self.draw(count, len(LAYERS), KV_HEADS, V_DIM)])
        seen = np.stack([visible(self.cache, position, end) for position in range(begin, end)])
        for row in except_:
            seen[row, begin + row :] = True
        for index, layer in enumerate(LAYERS):
            self.cache.put(layer, self.k[begin:, index], self.v[begin:, index])
            self.check(layer, self.k[:, index], self.v[:, index], seen)
        assert self.cache.length(self.seq) == len(self)

    def check(self, layer: int, k: Floats, v: Floats, seen: Mask) -> None:
        q = self.draw(len(seen), HEADS, DIM)
        out = np.asarray(self.cache.attend(layer, q))
        close(out, attention(q, k, v, seen), ATTENTION, each=True)
        got_k, got_v, mask = (np.asarray(part) for part in self.cache.get(layer))
        columns = seen.any(0)
        assert np.array_equal(mask == 0, seen[:, columns])
        assert np.isneginf(mask[mask != 0]).all()
        np.testing.assert_array_equal(got_k, k[columns])
        np.testing.assert_array_equal(got_v, v[columns])


def attention(q: Floats, k: Floats, v: Floats, seen: Mask) -> npt.NDArray[Any]:
    group = HEADS // KV_HEADS
    scores = np.einsum("qhd,nhd->hqn", q.astype(np.float64), k.repeat(group, 1)) / math.sqrt(DIM)
    weights = np.exp(np.where(seen, scores, -np.inf))
    return np.asarray(np.einsum("hqn,nhd->qhd", weights / weights.sum(-1, keepdims=True), v.repeat(group, 1)))


@pytest.mark.parametrize("count", [1, 6, 7, 8, 40])
@pytest.mark.parametrize("window", [1, 6, 7, 8])
def test_windows_agree_with_numpy(window: int, count: int, place: Any) -> None:
    sequence = Sequence(make(place, window=window), 3)
    for rows in (count, 1, 2, count):
        sequence.grow(rows)
        assert sequence.cache.held_from(3) == max(0, len(sequence) - window + 1)
    assert sequence.cache.check() == []


@pytest.mark.parametrize(
    "limits",
    [{"chunk": 7}, {"chunk": 1}, {"chunk": 8, "window": 3}, {"window": 3, "memory": 9}, {"window": 300}, {"memory": 5}],
)
def test_chunks_and_memory_agree_with_numpy(limits: dict[str, Any], place: Any) -> None:
    cache = make(place, **limits)
    assert (cache.window, cache.memory, cache.chunk) == tuple(
        limits.get(name) for name in ("window", "memory", "chunk")
    )
    sequences = [Sequence(cache, seq, seq) for seq in range(2)]
    for rows in (5, 2, 1, 14, 1, 1):
        for sequence in sequences:
            sequence.grow(rows)
    assert cache.check() == []


def test_long_windows_over_many_tiles(device: Any) -> None:
    """Splits of 512 keys, and rows that begin in different ones."""
    sequence = Sequence(make(device, 4096, "float16", window=600), 0)
    for rows in (700, 1, 530, 3):
        sequence.grow(rows)


def test_rows_that_are_not_causal(place: Any) -> None:
    worlds: list[dict[str, Any]] = [{}, {"window": 4}, {"chunk": 4}]
    for limits in worlds:
        sequence = Sequence(make(place, **limits), 0)
        sequence.grow(5)
        sequence.grow(6, except_=(1, 2, 5))
        sequence.grow(3)
        with pytest.raises(kv.errors.ArgumentError, match="attended"):
            sequence.cache.set_causal([0])
        sequence.cache.start_forward([14], [0])
        with pytest.raises(kv.errors.ArgumentError, match="row 1"):
            sequence.cache.set_causal([1])
        sequence.cache.remove(0, 14 if "window" in limits else 12)


def test_idle_sequences_keep_no_leftovers(place: Any) -> None:
    """SWASeparateBatches: three sequences share a pool that could not hold two of their histories."""
    cache = make(place, 24, window=4)
    sequences = [Sequence(cache, seq, seq) for seq in range(3)]
    for sequence in sequences:
        sequence.grow(10)
    for _ in range(20):
        sequences[0].grow(1)
    for sequence in sequences:
        sequence.grow(1)
        assert cache.held_from(sequence.seq) == len(sequence) - 3
    assert cache.free_cells == 24 - 3 * 3 - 1


def resumable(cache: Any, length: int) -> list[int]:
    return [
        position
        for position in range(-1 if length else 0, length + 2)
        if position >= 0 and cache.can_resume(0, position)
    ]


@pytest.mark.parametrize(
    ("limits", "length", "expected"),
    [
        ({"window": 5}, 4, [0, 1, 2, 3, 4]),
        ({"window": 5}, 5, [0, 5]),
        ({"window": 5}, 6, [0, 6]),
        ({"window": 5, "memory": 6}, 5, [0, 1, 2, 3, 4, 5]),
        ({"window": 5, "memory": 6}, 9, [0, 8, 9]),
        ({"window": 5, "memory": 8}, 20, [0, 17, 18, 19, 20]),
        ({"window": 5, "memory": 128}, 20, list(range(21))),
        ({"window": 1}, 4, [0, 1, 2, 3, 4]),
        ({"chunk": 4}, 10, [0, 4, 8, 9, 10]),
        ({}, 6, list(range(7))),
    ],
)
def test_where_a_sequence_can_go_on(limits: dict[str, Any], length: int, expected: list[int], place: Any) -> None:
    """CanResume, CanResumeSWAMem: exactly where the whole window is still held, in one step or in many."""
    for steps in (1, length):
        cache = make(place, **limits)
        sequence = Sequence(cache, 0)
        for _ in range(steps):
            sequence.grow(length // steps)
        assert resumable(cache, length) == expected
        for position in range(length + 1):
            cache.copy_prefix(0, 1, length)
            if position in expected:
                assert cache.restore(1, None, position)
                continue
            assert not cache.restore(1, None, position)
            with pytest.raises(kv.errors.NotRestorableError) as info:
                cache.remove(1, position)
            with pytest.raises(kv.errors.NotRestorableError):
                cache.copy_prefix(0, 2, position)
            assert info.value.nearest == max(each for each in expected if each < position)
        assert (cache.length(0), cache.length(2)) == (length, 0)
        sequence.at(expected[-2] if len(expected) > 1 else 0)
        cache.remove(0, len(sequence))
        sequence.grow(3)


def test_copies_share_then_diverge(place: Any) -> None:
    cache = make(place, 32, window=4, memory=8)
    trunk = Sequence(cache, 0)
    trunk.grow(12)
    cache.copy_prefix(0, 1, 10)
    twin = Sequence(cache, 1, 9)
    twin.k, twin.v = trunk.k[:10], trunk.v[:10]
    trunk.grow(2)
    free = cache.free_cells
    twin.grow(3)
    trunk.grow(1)
    assert cache.free_cells >= free - 4
    assert cache.check() == []


def test_removals(place: Any) -> None:
    """Remove: at the end, in the middle of what is held, of what is gone; never so that a window has a hole."""
    cache = make(place, window=4, memory=8)
    sequence = Sequence(cache, 0)
    sequence.grow(20)  # holds [13, 20)
    with pytest.raises(kv.errors.NotSupportedError, match="window"):
        cache.remove(0, 14, 19)
    assert (cache.length(0), cache.held_from(0)) == (20, 13)
    cache.remove(0, 14, 16)
    turned = np.stack(
        [np.asarray(kv.ops.rope(sequence.k[16:, i], np.full(4, -2, np.int32), **ROPE)) for i in range(len(LAYERS))], 1
    )
    sequence.k = np.concatenate([sequence.k[:14], turned])
    sequence.v = np.delete(sequence.v, slice(14, 16), 0)
    cache.start_forward([18], [0])
    k, v = sequence.draw(1, KV_HEADS, DIM), sequence.draw(1, KV_HEADS, V_DIM)
    cache.put(LAYERS[0], k, v)
    got = [np.asarray(part) for part in cache.get(LAYERS[0])]
    close(got[0], np.concatenate([sequence.k[15:, 0], k]), ROTATION, each=True)
    np.testing.assert_array_equal(got[1], np.concatenate([sequence.v[15:, 0], v]))
    chunks = make(place, chunk=4)
    Sequence(chunks, 0).grow(7)
    with pytest.raises(kv.errors.NotSupportedError, match="chunks"):
        chunks.remove(0, 4, 5)
    assert chunks.length(0) == 7


def test_snapshots_keep_windows(place: Any) -> None:
    """SnapshotPreservesWindow, RestoreFromSnapshot, RestoreOutsideWindow, ScheduledSnapshotParity."""
    cache = make(place, window=4)
    sequence = Sequence(cache, 0)
    cache.prepare_snapshots(0, [6, 9])
    sequence.grow(12)
    first, second = cache.take_snapshots(0)
    assert ((first.start, first.end), (second.start, second.end)) == ((0, 6), (6, 9))
    last = cache.snapshot(0)
    sequence.grow(30)
    per_token = cache.nbytes // 128
    assert last.nbytes + last.shared_nbytes == 3 * per_token
    whole = cache.merge(first, second)
    for snapshot, targets in ((whole, range(10)), (last, (12,))):
        for target in range(13):
            assert cache.restore(1, snapshot, target) == (target in targets or target == 0)
    lower, upper = cache.split(whole, 7)
    assert cache.restore(1, upper, 7) is False
    assert cache.restore(1, lower, 7)
    assert cache.restore(1, upper, 9)
    again = Sequence(cache, 1, 5)
    again.k, again.v = sequence.k[:9], sequence.v[:9]
    again.grow(5)
    assert cache.restore(2, last, 12)
    other = Sequence(cache, 2, 6)
    other.k, other.v = sequence.k[:12], sequence.v[:12]
    other.grow(2)
    assert cache.check() == []


@pytest.mark.parametrize("seed", range(4))
def test_moves_combined_with_compaction(seed: int, place: Any) -> None:
    """After any copies, cuts, removals and compactions, what is held is what belongs there."""
    print("seed", seed)
    random = np.random.default_rng(seed)
    cache = make(place, 48, window=5, memory=9)
    sequences: list[Optional[Sequence]] = [None] * 3
    for _ in range(40):
        seq = int(random.integers(3))
        sequence = sequences[seq] = sequences[seq] or Sequence(cache, seq, int(random.integers(1 << 20)))
        kind = int(random.integers(6))
        if kind <= 2:
            sequence.grow(int(random.integers(1, 7)))
        elif kind == 3 and len(sequence) > 1:
            length = len(sequence) - int(random.integers(1, 3))
            if cache.restore(seq, None, length):
                sequence.at(length)
        elif kind == 4 and len(sequence) > 0:
            to = (seq + 1) % 3
            cache.copy_prefix(seq, to, len(sequence))
            copied = sequences[to] = Sequence(cache, to, int(random.integers(1 << 20)))
            copied.k, copied.v = sequence.k, sequence.v
        else:
            cache.start_forward([0], [77], reserve=True)
            cache.remove(seq, len(sequence))
            sequence.grow(1)
            cache.defrag()
        assert cache.check() == []
