"""EncoderCache and HybridCache from Python: cross attention to media items, and several caches as one."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import kvtrie as kv
from bounds import ATTENTION, close

HEADS, DIM = 2, 8


def rows(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((count, HEADS, DIM)).astype(np.float32)


def dense(q: Any, k: Any, v: Any) -> Any:
    """Attention of every row to every key, in double."""
    scores = np.einsum("qhd,khd->hqk", q.astype(float), k.astype(float)) / np.sqrt(DIM)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v.astype(float))


def encoder(place: Any, capacity: int = 64, dtype: str = "float32") -> Any:
    return kv.caches.EncoderCache([2, 7], HEADS, DIM, capacity, dtype=dtype, device=place)


def put_item(cache: Any, count: int, seed: int) -> None:
    for layer in cache.layers:
        cache.put(layer, rows(count, seed + layer), rows(count, seed + layer + 100))


def expect_item(cache: Any, count: int, seed: int) -> None:
    """Every row of the present step, all of one sequence, attends to this item."""
    for layer in cache.layers:
        k, v, mask = (np.asarray(each) for each in cache.get(layer))
        np.testing.assert_array_equal(k, rows(count, seed + layer))
        np.testing.assert_array_equal(v, rows(count, seed + layer + 100))
        assert (mask == 0).all()
        q = rows(mask.shape[0], 5)
        close(cache.attend(layer, q), dense(q, k, v), ATTENTION, each=True)


# ---- EncoderCache ---------------------------------------------------------------------------------------------------


def test_an_item_is_seen_by_every_query(place: Any) -> None:
    cache = encoder(place)
    cache.start_forward([0, 1, 2], [0, 0, 0])
    assert cache.length(0) == 3
    put_item(cache, 10, 1)  # the first put brings an item, at the first row's position
    expect_item(cache, 10, 1)
    assert (cache.item(0), cache.length(0), cache.free_cells) == ((0, 10), 3, 54)
    cache.start_forward([3], [0])
    expect_item(cache, 10, 1)
    cache.start_forward([0], [1])
    assert (np.asarray(cache.attend(2, rows(1, 3))) == 0).all()
    assert np.asarray(cache.get(2)[2]).shape == (1, 0)
    assert cache.check() == []


def test_items_of_several_sequences(place: Any) -> None:
    cache = encoder(place)
    cache.start_forward([0, 0, 1], [4, 9, 4], items=[(9, 0, 3), (4, 1, 5)])
    put_item(cache, 8, 1)
    assert (cache.item(4), cache.item(9)) == ((1, 5), (0, 3))
    q = rows(3, 6)
    for layer in cache.layers:
        k, v = rows(8, 1 + layer), rows(8, 101 + layer)
        out = np.asarray(cache.attend(layer, q))
        close(out[1:2], dense(q[1:2], k[:3], v[:3]), ATTENTION, each=True)
        close(out[::2], dense(q[::2], k[3:], v[3:]), ATTENTION, each=True)
        mask = np.asarray(cache.get(layer)[2])
        assert (np.isinf(mask) == [[0] * 5 + [1] * 3, [1] * 5 + [0] * 3, [0] * 5 + [1] * 3]).all()


def test_an_item_is_replaced_when_all_layers_were_put(place: Any) -> None:
    cache = encoder(place, 24)
    cache.start_forward([0], [0])
    put_item(cache, 10, 1)
    cache.start_forward([1], [0], items=[(0, 1, 12)])
    cache.put(2, rows(12, 40), rows(12, 41))
    assert (cache.item(0), cache.length(0)) == ((0, 10), 1)
    cache.start_forward([1], [0])  # the incomplete step is gone
    expect_item(cache, 10, 1)
    with pytest.raises(kv.errors.CacheFullError):
        cache.start_forward([2], [0], items=[(0, 2, 15)])
    with pytest.raises(kv.errors.CacheFullError):
        cache.start_forward([2], [0], True, [(0, 2, 15)])
    cache.start_forward([2], [0], items=[(0, 2, 14)])
    put_item(cache, 14, 50)
    expect_item(cache, 14, 50)
    assert (cache.item(0), cache.free_cells) == ((2, 14), 10)


def test_removals_take_the_item_or_move_it(place: Any) -> None:
    cache = encoder(place)
    for begin, end, left in ((0, 2, (2, 6)), (4, 5, None), (5, None, (4, 6)), (2, 4, (2, 6)), (3, None, None)):
        cache.remove(0, 0)
        cache.start_forward(range(8), [0] * 8, items=[(0, 4, 6)])
        put_item(cache, 6, 9)
        cache.remove(0, begin, end)
        assert cache.item(0) == left
        assert cache.free_cells == (64 if left is None else 58)
        assert all(cache.can_resume(0, at) for at in range(cache.length(0) + 1))
        assert not cache.can_resume(0, cache.length(0) + 1)
        cache.copy_prefix(0, 1, cache.length(0))
        assert cache.item(1) == left
        cache.remove(1, 0)


def test_snapshots_of_items(place: Any) -> None:
    cache = encoder(place)
    cache.prepare_snapshots(0, [2, 6])
    cache.start_forward(range(8), [0] * 8, items=[(0, 4, 6)])
    put_item(cache, 6, 9)
    bytes_of_item = cache.nbytes // 64 * 6
    first, second = cache.take_snapshots(0)
    assert (first.nbytes + first.shared_nbytes, second.shared_nbytes) == (0, bytes_of_item)
    assert (second.start, second.end, second.tier) == (2, 6, "device")
    whole = cache.merge(first, second)
    assert first.consumed and second.consumed
    cache.remove(0, 0)
    assert whole.nbytes == bytes_of_item
    for target in range(7):
        assert cache.restore(3, whole, target)
        assert (cache.length(3), cache.item(3)) == (target, (4, 6) if target > 4 else None)
    assert not cache.restore(3, whole, 7)
    assert not cache.restore(3, whole, -1)
    cache.restore(3, whole, 6)
    lower, upper = cache.split(whole, 4)
    assert (lower.nbytes, upper.shared_nbytes) == (0, bytes_of_item)
    assert not cache.restore(5, lower, 5)
    assert cache.restore(5, upper, 6)
    cache.defrag()
    cache.start_forward([6], [5])
    expect_item(cache, 6, 9)


def test_arguments_of_encoder_caches() -> None:
    cache = encoder("host")
    bad: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: kv.caches.EncoderCache([1, 1], HEADS, DIM, 8, device="host")),
        (ValueError, lambda: kv.caches.EncoderCache([], HEADS, DIM, 8, device="host")),
        (ValueError, lambda: kv.caches.EncoderCache(1, HEADS, DIM, 0, device="host")),
        (ValueError, lambda: kv.caches.EncoderCache(1, HEADS, DIM, 8, dtype="int32", device="host")),
        (ValueError, lambda: cache.start_forward([1], [0])),
        (ValueError, lambda: cache.start_forward([0], [0], items=[(1, 0, 2)])),
        (ValueError, lambda: cache.start_forward([0], [0], items=[(0, 1, 2)])),
        (ValueError, lambda: cache.start_forward([0], [0], items=[(0, 0, 0)])),
        (TypeError, lambda: cache.start_forward([0], [0], items=[(0, 0)])),
        (TypeError, lambda: cache.start_forward([0], [0], items=7)),
        (TypeError, lambda: cache.start_forward([0], [0], items=[(0, 0, 1.5)])),
        (ValueError, lambda: cache.put(2, rows(3, 1), rows(3, 1))),
        (TypeError, lambda: cache.restore(0, 3, 0)),
        (kv.errors.ArgumentError, lambda: cache.remove(0, 1)),
    ]
    for kind, call in bad:
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, kv.Error)
    cache.start_forward([0, 0], [0, 1])
    with pytest.raises(ValueError, match="items"):
        cache.put(2, rows(3, 1), rows(3, 1))
    null = kv.caches.EncoderCache(2, HEADS, DIM, 8, device="null")
    null.start_forward([0], [0], items=[(0, 0, 5)])
    put_item(null, 5, 1)
    assert (null.free_cells, null.device, null.item(0)) == (3, "null", (0, 5))
    assert "EncoderCache 2 layers" in repr(null)


# ---- HybridCache ----------------------------------------------------------------------------------------------------

TAIL, CHANNELS = 2, 4


class Parts:
    """Attention in layers 0 and 3, recurrent states in 1, items in 2; and the steps of a model with all of them."""

    def __init__(self, place: Any, cells: int = 32, slots: int = 8, items: int = 16, **kinds: Any) -> None:
        rope = {"base": 10000.0}
        self.causal = kv.caches.CausalCache(
            [0, 3], HEADS, DIM, cells, dtype="float32", rope=rope, device=place, **kinds
        )
        self.states = kv.caches.RecurrentCache([1], TAIL, CHANNELS, 0, 0, 0, slots, device=place)
        self.items = kv.caches.EncoderCache([2], HEADS, DIM, items, dtype="float32", device=place)
        self.cache = kv.caches.HybridCache([self.causal, self.states, self.items])
        self.weight = np.random.default_rng(3).standard_normal((CHANNELS, TAIL + 1)).astype(np.float32)

    def step(self, seq: int, tokens: list[int], item: int = 0, layers: int = 4) -> list[Any]:
        """K, V and inputs follow from the tokens; the outputs of the layers that were written."""
        at = self.cache.length(seq)
        items = [(seq, at, item)] if item else None
        self.cache.start_forward(range(at, at + len(tokens)), [seq] * len(tokens), items=items)
        out = []
        for layer in range(layers):
            x = np.stack([rows(1, 1000 * layer + token)[0] for token in tokens])
            if layer == 1:
                out.append(np.asarray(self.cache.conv(1, x.reshape(len(tokens), -1)[:, :CHANNELS], self.weight)))
                continue
            if layer == 2 and item:
                self.cache.put(2, rows(item, 70), rows(item, 71))
            elif layer != 2:
                self.cache.put(layer, x, x[::-1])
            out.append(np.asarray(self.cache.attend(layer, x)))
        return out

    def same(self, seq: int, tokens: list[int], item: int = 0) -> None:
        """The next step of the sequence gives what it gives after a fresh evaluation."""
        fresh = Parts("host", 64, 16, 64)
        if tokens:
            fresh.step(0, tokens[:1], item)
            for token in tokens[1:]:
                fresh.step(0, [token])
        for got, wanted in zip(self.step(seq, [99]), fresh.step(0, [99])):
            close(got, wanted, ATTENTION, each=True)


def test_layers_decide_who_answers(place: Any) -> None:
    parts = Parts(place)
    assert [type(each) for each in parts.cache.caches] == [
        kv.caches.CausalCache,
        kv.caches.RecurrentCache,
        kv.caches.EncoderCache,
    ]
    assert parts.cache.caches[0] is parts.causal
    assert parts.cache.layers == [0, 1, 2, 3]
    parts.step(0, [1], 4)
    parts.step(0, [2])
    parts.step(0, [3])
    assert parts.cache.complete
    parts.same(0, [1, 2, 3], 4)
    with pytest.raises(kv.errors.ArgumentError, match="layer: got 1, allowed 0, 2, 3"):
        parts.cache.put(1, rows(1, 1), rows(1, 1))
    with pytest.raises(kv.errors.ArgumentError, match="layer: got 9, allowed 0, 2, 3"):
        parts.cache.attend(9, rows(1, 1))
    with pytest.raises(kv.errors.ArgumentError, match="layer: got 0, allowed 1"):
        parts.cache.states(0)
    parts.cache.start_forward([4, 5], [0, 0])
    assert parts.cache.boundaries() == parts.cache.boundaries(1) == [[]]
    assert parts.cache.row_starts() == [0, 2]
    conv, delta = parts.cache.states(1)
    assert conv.shape == (1, TAIL, CHANNELS)
    assert delta is None
    parts.cache.put_states(1, np.zeros((1, TAIL, CHANNELS), np.float32))
    assert parts.cache.check() == []


def test_hybrids_are_flattened() -> None:
    parts = Parts("host")
    more = kv.caches.CausalCache([8], HEADS, DIM, 16, device="host")
    outer = kv.caches.HybridCache([more, parts.cache])
    assert outer.caches == [more, *parts.cache.caches]
    assert outer.layers == [0, 1, 2, 3, 8]
    assert outer.free_cells == 16
    assert outer.free_slots == 8
    assert outer.nbytes == sum(each.nbytes for each in outer.caches)
    assert kv.caches.HybridCache(more).caches == [more]
    assert kv.caches.HybridCache(more).free_slots is None
    with pytest.raises(kv.errors.ArgumentError, match="layer 0 in caches 0 and 1"):
        kv.caches.HybridCache([parts.causal, parts.cache])
    with pytest.raises(kv.errors.ArgumentError):
        kv.caches.HybridCache([])
    for wrong in (3, "cache", [None]):
        with pytest.raises(kv.errors.ArgumentTypeError):
            kv.caches.HybridCache(wrong)  # type: ignore[arg-type]
    with pytest.raises(kv.errors.NotSupportedError):
        kv.caches.HybridCache(more).boundaries()


@pytest.mark.parametrize(
    ("sizes", "tokens", "item"),
    [((4, 8, 16), 3, 0), ((32, 1, 16), 1, 0), ((32, 8, 5), 1, 4)],
    ids=["cells", "slots", "items"],
)
def test_a_full_cache_leaves_all_as_they_were(sizes: tuple[int, int, int], tokens: int, item: int) -> None:
    parts = Parts("host", *sizes)
    parts.step(0, [1, 2], min(2, sizes[2]))

    def standing() -> list[Any]:
        caches = [parts.causal, parts.states, parts.items]
        free = [parts.causal.free_cells, parts.states.free_slots, parts.items.free_cells]
        return [[each.length(seq) for each in caches for seq in (0, 1)], free, parts.items.item(0)]

    before = standing()
    for reserve in (True, False):
        items = [(1, 0, item)] if item else None
        with pytest.raises(kv.errors.CacheFullError):
            parts.cache.start_forward(range(tokens), [1] * tokens, reserve, items)
        assert standing() == before
        assert parts.cache.complete
        parts.cache.get(3)  # the step before is untouched
    assert parts.cache.check() == []


def test_a_model_that_fails_half_way(place: Any) -> None:
    for written in range(1, 4):
        parts = Parts(place)
        parts.step(0, [1, 2], 4)
        parts.step(0, [50, 51], 5, layers=written)
        assert parts.cache.length(0) == 2
        assert parts.cache.can_resume(0, 2)
        parts.step(0, [3])
        assert parts.items.item(0) == (0, 4)
        assert parts.cache.length(0) == 3
        assert parts.cache.check() == []
        fresh = Parts("host")
        fresh.step(0, [1, 2], 4)
        for got, wanted in zip(parts.step(0, [9]), (fresh.step(0, [3]), fresh.step(0, [9]))[1]):
            close(got, wanted, ATTENTION, each=True)


def test_only_where_all_agree(place: Any) -> None:
    parts = Parts(place)
    for token in (1, 2, 3, 4):
        parts.step(0, [token], 3 if token == 1 else 0)
    assert [parts.cache.can_resume(0, at) for at in range(6)] == [True, False, False, False, True, False]
    with pytest.raises(kv.errors.NotRestorableError) as caught:
        parts.cache.remove(0, 2)
    assert caught.value.nearest == 0
    with pytest.raises(kv.errors.NotRestorableError):
        parts.cache.copy_prefix(0, 1, 3)
    with pytest.raises(kv.errors.NotSupportedError):
        parts.cache.remove(0, 1, 2)
    assert parts.causal.length(0) == parts.states.length(0) == parts.items.length(0) == 4
    parts.cache.copy_prefix(0, 1, 4)
    parts.same(1, [1, 2, 3, 4], 3)
    parts.same(0, [1, 2, 3, 4], 3)
    parts.cache.remove(0, 0)
    assert parts.causal.length(0) == parts.states.length(0) == parts.items.length(0) == 0


def test_snapshots_of_a_hybrid(place: Any) -> None:
    parts = Parts(place)
    cache = parts.cache
    parts.step(0, [1], 3)
    cache.prepare_snapshots(0, [2, 4])
    for token in (2, 3, 4, 5):
        parts.step(0, [token])
    two, four = cache.take_snapshots(0)
    whole = cache.snapshot(0)
    assert (two.start, two.end, four.start, four.end, whole.start, whole.end) == (1, 2, 2, 4, 0, 5)
    assert whole.tier == "device"
    sizes = (parts.causal.nbytes // 32, parts.states.nbytes // 8, parts.items.nbytes // 16)
    assert whole.nbytes + whole.shared_nbytes == 5 * sizes[0] + sizes[1] + 3 * sizes[2]
    assert cache.restore(0, two, 2)
    parts.same(0, [1, 2], 3)
    assert cache.restore(1, whole, 5)
    assert not cache.restore(1, four, 3)
    assert cache.restore(1, four, 4)
    parts.same(1, [1, 2, 3, 4], 3)
    lower, upper = cache.split(whole, 3)
    assert not cache.restore(2, lower, 3), "the recurrent state is in the upper half"
    assert cache.restore(2, cache.merge(lower, upper), 5)
    parts.same(2, [1, 2, 3, 4, 5], 3)
    assert lower.consumed and upper.consumed and whole.consumed
    with pytest.raises(kv.errors.ClosedError):
        cache.split(whole, 1)
    with pytest.raises(kv.errors.ArgumentTypeError):
        cache.restore(0, parts.causal.snapshot(0), 1)  # type: ignore[arg-type]
    cache.defrag()
    assert cache.check() == []


def test_two_layer_kinds_without_states(place: Any) -> None:
    """A wrapper of full and windowed attention: a removal in the middle goes through all caches or none."""
    full = kv.caches.CausalCache([0], HEADS, DIM, 32, dtype="float32", rope={"base": 10000.0}, device=place)
    window = kv.caches.CausalCache([1], HEADS, DIM, 32, dtype="float32", rope={"base": 10000.0}, window=4, device=place)
    both = kv.caches.HybridCache([full, window])
    both.start_forward(range(10), [0] * 10)
    both.set_causal([3])
    for layer in (0, 1):
        both.put(layer, rows(10, layer), rows(10, layer))
        assert np.asarray(both.get(layer)[2])[3, -1] == 0
    with pytest.raises(kv.errors.NotSupportedError):
        both.remove(0, 8, 9)  # the window would be incomplete
    assert full.length(0) == 10
    both.remove(0, 2, 4)
    assert full.length(0) == window.length(0) == 8
    assert both.check() == []
