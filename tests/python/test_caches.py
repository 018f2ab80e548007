"""The causal cache by itself: put, get and attend against numpy, several sequences, removals, snapshots."""

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
LAYERS = (3, 7)
ROPE = {"base": 10000.0, "dims": 8}
Floats = npt.NDArray[np.float32]


@pytest.fixture(params=["device", "host"])
def cache(request: pytest.FixtureRequest, device: Any) -> Any:
    return make(device if request.param == "device" else "host")


def make(device: Any, capacity: int = 64, dtype: str = "float32", rope: Any = ROPE) -> Any:
    return kv.caches.CausalCache(
        LAYERS, KV_HEADS, DIM, capacity, v_head_dim=V_DIM, dtype=dtype, rope=rope, device=device
    )


class History:
    """What a sequence should hold: K and V rows per layer, in position order."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.k: dict[int, Floats] = {layer: np.zeros((0, KV_HEADS, DIM), np.float32) for layer in LAYERS}
        self.v: dict[int, Floats] = {layer: np.zeros((0, KV_HEADS, V_DIM), np.float32) for layer in LAYERS}

    def __len__(self) -> int:
        return len(self.k[LAYERS[0]])

    def copy(self, length: Optional[int] = None) -> History:
        other = History(int(self.random.integers(1 << 30)))
        other.k = {layer: rows[:length] for layer, rows in self.k.items()}
        other.v = {layer: rows[:length] for layer, rows in self.v.items()}
        return other

    def grow(self, cache: Any, seq: int, count: int) -> None:
        """One step of `count` rows, with every layer's attention checked."""
        cache.start_forward(range(len(self), len(self) + count), [seq] * count)
        for layer in LAYERS:
            k = self.random.standard_normal((count, KV_HEADS, DIM)).astype(np.float32)
            v = self.random.standard_normal((count, KV_HEADS, V_DIM)).astype(np.float32)
            cache.put(layer, k, v)
            self.k[layer] = np.concatenate([self.k[layer], k])
            self.v[layer] = np.concatenate([self.v[layer], v])
            q = self.random.standard_normal((count, HEADS, DIM)).astype(np.float32)
            out = np.asarray(cache.attend(layer, q))
            close(out, causal_attention(q, self.k[layer], self.v[layer]), ATTENTION, each=True)
        assert cache.length(seq) == len(self)


def causal_attention(
    q: Floats, k: Floats, v: Floats, scale: Optional[float] = None, softcap: float = 0.0, sinks: Any = None
) -> npt.NDArray[Any]:
    """The last len(q) rows of a history, in float64."""
    q64, group = q.astype(np.float64), HEADS // KV_HEADS
    k64, v64 = k.astype(np.float64).repeat(group, 1), v.astype(np.float64).repeat(group, 1)
    scores = np.einsum("qhd,nhd->hqn", q64, k64) * (scale or 1 / math.sqrt(DIM))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    first = len(k) - len(q)
    hidden = np.arange(len(k))[None, :] > first + np.arange(len(q))[:, None]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    extra = 0.0 if sinks is None else np.exp(np.asarray(sinks, np.float64))[:, None]
    return np.einsum("hqn,nhd->qhd", weights / (weights.sum(-1) + extra)[..., None], v64)


def check_stored(cache: Any, seq: int, history: History, rotated: bool = False) -> None:
    """Opens a step of one row to read what `seq` holds, and drops it."""
    cache.start_forward([len(history)], [seq])
    for layer in LAYERS:
        zero_k, zero_v = np.zeros((1, KV_HEADS, DIM), np.float32), np.zeros((1, KV_HEADS, V_DIM), np.float32)
        if layer == LAYERS[-1]:
            break  # the last layer would complete the step
        cache.put(layer, zero_k, zero_v)
        k, v, mask = (np.asarray(part) for part in cache.get(layer))
        if rotated:
            close(k[:-1], history.k[layer], ROTATION, each=True)
        else:
            np.testing.assert_array_equal(k[:-1], history.k[layer])
        np.testing.assert_array_equal(v[:-1], history.v[layer])
        assert (mask == 0).all()
    cache.start_forward([0], [999], reserve=True)
    cache.remove(seq, len(history))
    assert cache.length(seq) == len(history)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attend_agrees_with_numpy(dtype: str, device: Any) -> None:
    cache = make(device, dtype=dtype)
    assert (cache.layers, cache.kv_heads, cache.head_dim, cache.v_head_dim) == (list(LAYERS), KV_HEADS, DIM, V_DIM)
    assert (cache.dtype, cache.capacity, cache.free_cells, cache.device) == (dtype, 64, 64, device)
    assert cache.nbytes == 64 * len(LAYERS) * KV_HEADS * (DIM + V_DIM) * (4 if dtype == "float32" else 2)
    random = np.random.default_rng(5)
    k, v, q = (random.standard_normal((9, heads, dim)).astype(np.float16).astype(np.float32)
               for heads, dim in ((KV_HEADS, DIM), (KV_HEADS, V_DIM), (HEADS, DIM)))  # fmt: skip
    for begin, end in ((0, 5), (5, 6), (6, 9)):
        cache.start_forward(np.arange(begin, end), np.zeros(end - begin, np.int64))
        for layer in LAYERS:
            cache.put(layer, k[begin:end], v[begin:end])
            out = cache.attend(layer, q[begin:end])
            assert (out.dtype, out.shape, out.device) == ("float32", (end - begin, HEADS, V_DIM), device)
            close(out, causal_attention(q[:end], k[:end], v[:end])[begin:], ATTENTION, each=True)
    assert cache.check() == []


def test_options_of_attend(cache: Any) -> None:
    random = np.random.default_rng(6)
    k, v = random.standard_normal((4, KV_HEADS, DIM)), random.standard_normal((4, KV_HEADS, V_DIM))
    q, sinks = random.standard_normal((4, HEADS, DIM)), random.standard_normal(HEADS)
    cache.start_forward(range(4), [0] * 4)
    for layer in LAYERS:
        cache.put(layer, k, v)
        for options in (
            {"scale": 0.5},
            {"softcap": 2.0},
            {"sinks": sinks},
            {"scale": 0.1, "softcap": 1.0, "sinks": sinks},
        ):
            close(cache.attend(layer, q, **options), causal_attention(q, k, v, **options), ATTENTION, each=True)


def test_several_sequences_in_one_step(cache: Any) -> None:
    random = np.random.default_rng(7)
    lengths = {0: 0, 4: 0, 9: 0}
    stored: dict[int, list[Any]] = {seq: [] for seq in lengths}
    for rows in ([0, 0, 4], [4, 0, 9, 4, 9, 0]):  # also alternating
        positions = []
        for seq in rows:
            positions.append(lengths[seq])
            lengths[seq] += 1
        cache.start_forward(positions, rows)
        for layer in LAYERS:
            k, v = (random.standard_normal((len(rows), KV_HEADS, d)).astype(np.float32) for d in (DIM, V_DIM))
            q = random.standard_normal((len(rows), HEADS, DIM)).astype(np.float32)
            cache.put(layer, k, v)
            out = np.asarray(cache.attend(layer, q))
            for seq in set(rows):
                mine = np.flatnonzero(np.array(rows) == seq)
                before = [entry for entry in stored[seq] if entry[0] == layer]
                past_k = np.concatenate([entry[1] for entry in before] + [k[mine]])
                past_v = np.concatenate([entry[2] for entry in before] + [v[mine]])
                close(out[mine], causal_attention(q[mine], past_k, past_v), ATTENTION, each=True)
                stored[seq].append((layer, k[mine], v[mine]))
    assert {seq: cache.length(seq) for seq in lengths} == lengths == {0: 4, 4: 3, 9: 2}
    assert cache.free_cells == 64 - 9


def test_branches_share_cells(cache: Any) -> None:
    trunk = History(1)
    trunk.grow(cache, 0, 10)
    cache.copy_prefix(0, 1, 6)
    assert (cache.length(1), cache.free_cells) == (6, 54)
    branch = trunk.copy(6)
    branch.grow(cache, 1, 3)
    trunk.grow(cache, 0, 2)
    check_stored(cache, 0, trunk)
    check_stored(cache, 1, branch)
    cache.copy_prefix(0, 1, 0)
    assert (cache.length(1), cache.length(0), cache.free_cells) == (0, 12, 52)


def test_removing_the_end(cache: Any) -> None:
    history = History(2)
    history.grow(cache, 0, 8)
    cache.remove(0, 5)
    history = history.copy(5)
    history.grow(cache, 0, 4)
    check_stored(cache, 0, history)
    cache.remove(0, 0)
    assert (cache.length(0), cache.free_cells) == (0, 64)


@pytest.mark.parametrize("shared", [False, True])
def test_removing_the_middle_rotates_what_follows(cache: Any, shared: bool) -> None:
    history = History(3)
    history.grow(cache, 0, 10)
    if shared:
        cache.copy_prefix(0, 1, 10)
    cache.remove(0, 2, 5)
    expected = history.copy()
    for layer in LAYERS:
        tail = np.asarray(
            kv.ops.rope(history.k[layer][5:], np.full(5, -3, np.int32), base=ROPE["base"], dims=ROPE["dims"])
        )
        expected.k[layer] = np.concatenate([history.k[layer][:2], tail])
        expected.v[layer] = np.delete(history.v[layer], slice(2, 5), 0)
    check_stored(cache, 0, expected, rotated=True)
    if shared:
        check_stored(cache, 1, history)
    assert cache.check() == []


def test_the_middle_needs_rope(device: Any) -> None:
    cache = make("host", rope=None)
    History().grow(cache, 0, 6)
    with pytest.raises(kv.errors.NotSupportedError, match="rope"):
        cache.remove(0, 1, 3)
    scaling = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8}
    dynamic = make("host", rope=[{"scaling": scaling}] * 2)
    History().grow(dynamic, 0, 6)
    with pytest.raises(kv.errors.NotSupportedError, match="length"):
        dynamic.remove(0, 1, 3)
    assert (cache.length(0), dynamic.length(0)) == (6, 6)


def test_snapshots_split_merge_and_restore(cache: Any) -> None:
    history = History(4)
    history.grow(cache, 0, 12)
    snapshot = cache.snapshot(0, 3)
    assert (snapshot.start, snapshot.end, snapshot.tier, snapshot.consumed) == (3, 12, "device", False)
    per_token = cache.nbytes // 64
    assert (snapshot.nbytes, snapshot.shared_nbytes) == (0, 9 * per_token)
    cache.remove(0, 3)
    assert (snapshot.nbytes, snapshot.shared_nbytes, cache.free_cells) == (9 * per_token, 0, 52)
    lower, upper = cache.split(snapshot, 7)
    assert (snapshot.consumed, (lower.start, lower.end), (upper.start, upper.end)) == (True, (3, 7), (7, 12))
    assert not cache.restore(0, upper, 9)  # nothing at 3 to 6
    assert cache.restore(0, lower, 6)
    assert cache.length(0) == 6
    assert cache.restore(0, cache.merge(lower, upper), 11)
    check_stored(cache, 0, history.copy(11))
    with pytest.raises(kv.errors.ClosedError):
        cache.restore(0, snapshot, 5)
    assert cache.restore(0, None, 4)
    assert not cache.restore(0, None, 5)
    assert not cache.restore(0, None, -1)
    assert cache.length(0) == 4
    assert cache.snapshot(0, 4) is None
    assert cache.snapshot(77) is None


def test_scheduled_captures(cache: Any) -> None:
    history = History(8)
    history.grow(cache, 0, 2)
    cache.prepare_snapshots(0, [4, 6, 20])
    history.grow(cache, 0, 5)
    first, second, missing = cache.take_snapshots(0)
    assert ((first.start, first.end), (second.start, second.end), missing) == ((2, 4), (4, 6), None)
    assert cache.take_snapshots(0) == []


def test_defrag_changes_labels_and_data_together(cache: Any) -> None:
    histories = {seq: History(seq) for seq in range(4)}
    for _ in range(3):
        for seq, history in histories.items():
            history.grow(cache, seq, 3)
    snapshot = cache.snapshot(2, 4)
    for seq in (0, 2):
        cache.remove(seq, 0)
    cache.defrag()
    assert cache.check() == []
    for seq in (1, 3):
        check_stored(cache, seq, histories[seq])
    assert not cache.restore(2, snapshot, 9)
    cache.copy_prefix(1, 2, 4)
    assert cache.restore(2, snapshot, 9)
    mixed = histories[1].copy(4)
    for layer in LAYERS:
        mixed.k[layer] = np.concatenate([mixed.k[layer], histories[2].k[layer][4:]])
        mixed.v[layer] = np.concatenate([mixed.v[layer], histories[2].v[layer][4:]])
    check_stored(cache, 2, mixed)


def test_a_step_that_does_not_fit_changes_nothing(device: Any) -> None:
    cache = make(device, capacity=8)
    history = History(9)
    history.grow(cache, 0, 6)
    for reserve in (True, False):
        with pytest.raises(kv.errors.CacheFullError) as info:
            cache.start_forward(range(6, 9), [0] * 3, reserve=reserve)
        assert (info.value.needed, info.value.free) == (3, 2)
        assert isinstance(info.value, MemoryError)
    cache.start_forward([6, 7], [0, 0], reserve=True)
    assert (cache.length(0), cache.free_cells) == (6, 2)
    with pytest.raises(kv.Error):  # reserve opens nothing to put into
        cache.put(LAYERS[0], np.zeros((2, KV_HEADS, DIM)), np.zeros((2, KV_HEADS, V_DIM)))
    history.grow(cache, 0, 2)
    check = cache.check()
    assert check == []


def test_a_step_not_completed_leaves_no_trace(cache: Any) -> None:
    history = History(10)
    history.grow(cache, 0, 3)
    cache.start_forward([3, 4], [0, 0])
    cache.put(LAYERS[0], np.ones((2, KV_HEADS, DIM)), np.ones((2, KV_HEADS, V_DIM)))
    assert cache.length(0) == 3
    history.grow(cache, 0, 1)
    check_stored(cache, 0, history)


def test_tensors_of_every_float_dtype_are_taken(device: Any) -> None:
    cache = make(device)
    values = np.array([0.5, -1.25], np.float32)
    rows_k = np.broadcast_to(values[:, None, None], (2, KV_HEADS, DIM))
    rows_v = np.broadcast_to(values[:, None, None], (2, KV_HEADS, V_DIM))
    for seq, dtype in enumerate(("float32", "float16", "bfloat16")):
        cache.start_forward([0, 1], [seq, seq])
        for layer in LAYERS:
            cache.put(layer, kv.tensor(rows_k, dtype), kv.tensor(rows_v, dtype))
            np.testing.assert_array_equal(np.asarray(cache.get(layer)[0])[:, 0, 0], values)
