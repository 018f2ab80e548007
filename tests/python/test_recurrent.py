"""The recurrent cache by itself against numpy: steps, padding, exact restores, rollback, compact snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from recurrent_reference import CHANNELS, K_DIM, TAIL, V_DIM, V_HEADS, Rows, close

pytestmark = pytest.mark.usefixtures("nothing_left_over")

LAYERS = (2, 5)
SLOT_BYTES = len(LAYERS) * (TAIL * CHANNELS + V_HEADS * V_DIM * K_DIM) * 4


def make(place: Any, capacity: int = 16, **options: Any) -> Any:
    return kv.caches.RecurrentCache(LAYERS, TAIL, CHANNELS, V_HEADS, V_DIM, K_DIM, capacity, device=place, **options)


def start(cache: Any, *sequences: tuple[int, int], padding: int = 0) -> None:
    """Opens a step of (sequence, rows) pairs."""
    positions: list[int] = []
    numbers: list[int] = []
    for seq, count in sequences:
        positions += range(cache.length(seq), cache.length(seq) + count)
        numbers += [seq] * count
    cache.start_forward(positions + [0] * padding, numbers + [-1] * padding)


def compute(cache: Any, rows: Rows) -> tuple[list[Any], list[Any]]:
    """Every layer's operations (layer i on rows scaled by i + 1): (convolutions, gated deltas)."""
    y, out = [], []
    for i, layer in enumerate(LAYERS):
        y.append(np.asarray(cache.conv(layer, rows.x * np.float32(i + 1), rows.weight)))
        out.append(np.asarray(cache.gated_delta(layer, rows.q, rows.k, rows.v * np.float32(i + 1), rows.g, rows.beta)))
    return y, out


def append(cache: Any, seq: int, rows: Rows) -> tuple[list[Any], list[Any]]:
    start(cache, (seq, len(rows.x)))
    return compute(cache, rows)


def check_state(cache: Any, seq: int, rows: Rows) -> None:
    """Whether `seq` holds the states after all of `rows`."""
    assert cache.length(seq) == len(rows.x)
    start(cache, (seq, 1))
    for i, layer in enumerate(LAYERS):
        conv, delta = cache.states(layer)
        close(conv, (i + 1) * rows.conv_reference()[1][-1:])
        close(delta, (i + 1) * rows.delta_reference()[1][-1:])
    cache.start_forward([0], [999], reserve=True)
    assert cache.check() == []


def test_properties(place: Any) -> None:
    cache = make(place, dtype="float16")
    assert cache.layers == list(LAYERS)
    assert (cache.conv_tail, cache.conv_dim) == (TAIL, CHANNELS)
    assert (cache.v_heads, cache.v_dim, cache.k_dim) == (V_HEADS, V_DIM, K_DIM)
    assert (cache.dtype, cache.capacity, cache.free_slots, cache.device) == ("float16", 16, 16, place)
    assert cache.nbytes == 16 * len(LAYERS) * (TAIL * CHANNELS * 2 + V_HEADS * V_DIM * K_DIM * 4)
    assert repr(cache) == "<kvtrie.RecurrentCache 2 layers, conv 3 x 20, delta 4 x 6 x 12, 16 of 16 slots free>"
    assert make("null").device == "null"


def test_lazy_zero_start(place: Any) -> None:
    cache = make(place, dtype="float16")
    start(cache, (3, 2), (0, 1))
    conv, delta = cache.states(LAYERS[1])
    assert (conv.shape, conv.dtype) == ((2, TAIL, CHANNELS), "float16")
    assert (delta.shape, delta.dtype) == ((2, V_HEADS, V_DIM, K_DIM), "float32")
    assert not np.asarray(conv).any()
    assert not np.asarray(delta).any()
    assert cache.length(3) == 0
    assert cache.free_slots == 14


def test_steps_agree_with_numpy(place: Any) -> None:
    cache = make(place)
    a, b = Rows(9, 1), Rows(4, 2)
    y, out = append(cache, 0, a[:3])
    start(cache, (0, 6), (7, 4))
    assert cache.row_starts() == [0, 6, 10]
    y_more, out_more = compute(cache, a[3:] + b)
    for i in range(len(LAYERS)):
        close(np.concatenate([y[i], y_more[i][:6]]), (i + 1) * a.conv_reference()[0])
        close(np.concatenate([out[i], out_more[i][:6]]), (i + 1) * a.delta_reference()[0])
        close(out_more[i][6:], (i + 1) * b.delta_reference()[0])
    check_state(cache, 0, a)
    check_state(cache, 7, b)
    assert cache.free_slots == 13  # the open step of check_state has one


def test_padded_rows_change_nothing(place: Any) -> None:
    """CausalConv1DPaddedRowParity: padding gives numbers, and no other bit depends on it."""
    rows, junk = Rows(5, 3), Rows(3, 4)
    plain, padded = make(place), make(place)
    y, out = append(plain, 0, rows)
    start(padded, (0, 5), padding=3)
    y_padded, out_padded = compute(padded, rows + junk)
    for i in range(len(LAYERS)):
        assert y_padded[i].shape == (8, CHANNELS)
        assert (y_padded[i][:5] == y[i]).all()
        assert (out_padded[i][:5] == out[i]).all()
        assert np.isfinite(y_padded[i]).all()
        assert np.isfinite(out_padded[i]).all()
    assert padded.free_slots == 15
    check_state(padded, 0, rows)


def test_states_put_by_the_model(place: Any) -> None:
    """Wanted offsets come from boundaries(), in rows; put_states takes one entry for each, and one for the end."""
    cache = make(place)
    rows = Rows(7, 5)
    append(cache, 0, rows[:2])
    cache.prepare_snapshots(0, [3, 5, 7])
    start(cache, (0, 5), (1, 2))
    assert cache.boundaries() == [[1, 3], []]
    starts, other = cache.row_starts(), Rows(2, 6)
    both = rows[2:] + other
    for i, layer in enumerate(LAYERS):
        scale = np.float32(i + 1)
        tails, states = cache.states(layer)
        _, tails = kv.ops.causal_conv1d(both.x * scale, both.weight, np.asarray(tails), starts, cache.boundaries())
        _, states = kv.ops.gated_delta(
            both.q, both.k, both.v * scale, both.g, both.beta, np.asarray(states), starts, cache.boundaries()
        )
        with pytest.raises(kv.errors.ArgumentError, match="allowed \\[4, 3, 20\\]"):
            cache.put_states(layer, np.asarray(tails)[1:], np.asarray(states))
        cache.put_states(layer, np.asarray(tails), np.asarray(states))
    snapshots = cache.take_snapshots(0)
    for snapshot, length in zip(snapshots, (3, 5, 7)):
        assert cache.restore(9, snapshot, length)
        check_state(cache, 9, rows[:length])
    check_state(cache, 1, other)


def test_restore_needs_the_exact_offset(place: Any) -> None:
    cache = make(place)
    rows = Rows(6, 7)
    append(cache, 0, rows[:4])
    snapshot = cache.snapshot(0, start=1)
    assert (snapshot.start, snapshot.end, snapshot.tier) == (1, 4, "device")
    append(cache, 0, rows[4:])
    for target in (-1, 0, 3, 5, 6):
        assert not cache.restore(0, snapshot, target)
        assert cache.restore(0, None, target) == (target == 6)
    check_state(cache, 0, rows)
    assert cache.restore(0, snapshot, 4)
    check_state(cache, 0, rows[:4])
    append(cache, 0, rows[4:])
    check_state(cache, 0, rows)
    assert (cache.can_resume(0, 0), cache.can_resume(0, 5), cache.can_resume(0, 6)) == (True, False, True)


def test_the_last_tokens_are_rolled_back(place: Any) -> None:
    """Speculation: one step over k drafted tokens, and the state of however many were accepted."""
    cache = make(place)
    history, drafted = Rows(3, 8), 4
    append(cache, 0, history)
    for accepted in range(drafted + 1):
        length = cache.length(0)
        draft = Rows(drafted, 10 + accepted)
        cache.prepare_snapshots(0, range(length, length + drafted + 1))
        append(cache, 0, draft)
        assert cache.length(0) == length + drafted
        assert cache.restore(0, cache.take_snapshots(0)[accepted], length + accepted)
        history = history + draft[:accepted]
        check_state(cache, 0, history)


def test_snapshots_are_compact(place: Any) -> None:
    """One slot, however long the history, and shared as long as somebody else has it."""
    cache = make(place)
    append(cache, 0, Rows(200, 9))
    snapshot = cache.snapshot(0)
    assert (snapshot.nbytes, snapshot.shared_nbytes) == (0, SLOT_BYTES)
    cache.remove(0, 0)
    assert (snapshot.nbytes, snapshot.shared_nbytes) == (SLOT_BYTES, 0)
    assert cache.free_slots == 15
    again = cache.merge(None, snapshot)
    assert snapshot.consumed
    assert (snapshot.nbytes, again.nbytes) == (0, SLOT_BYTES)
    lower, upper = cache.split(again, 150)
    assert (lower, upper.start, upper.end) == (None, 150, 200)
    del again, upper, snapshot
    assert cache.free_slots == 16
    assert cache.nbytes == 16 * SLOT_BYTES


def test_copies_and_removals(place: Any) -> None:
    cache = make(place)
    rows = Rows(5, 11)
    append(cache, 0, rows)
    cache.copy_prefix(0, 1, 5)
    assert cache.free_slots == 15
    with pytest.raises(kv.errors.NotRestorableError) as refused:
        cache.copy_prefix(0, 2, 3)
    assert refused.value.nearest == 0
    with pytest.raises(kv.errors.NotSupportedError):
        cache.remove(0, 1, 3)
    with pytest.raises(kv.errors.NotRestorableError):
        cache.remove(0, 3)
    with pytest.raises(kv.errors.ArgumentError):
        cache.remove(0, 6)
    cache.remove(0, 0)
    assert (cache.length(0), cache.length(1)) == (0, 5)
    check_state(cache, 1, rows)


def test_a_step_that_does_not_fit(place: Any) -> None:
    cache = make(place, capacity=3)
    append(cache, 0, Rows(2, 12))
    cache.prepare_snapshots(0, [3, 4])
    with pytest.raises(kv.errors.CacheFullError):
        start(cache, (0, 3))
    assert (cache.free_slots, cache.length(0), cache.check()) == (2, 2, [])
    start(cache, (0, 1))  # 3 is its end: no more than one slot
    cache.take_snapshots(0)
    with pytest.raises(kv.errors.CacheFullError):
        cache.start_forward([0, 0, 0], [1, 2, 3], reserve=True)
    start(cache, (0, 3))
    compute(cache, Rows(3, 13))
    assert cache.length(0) == 5


def test_a_schedule_drops_the_open_step(place: Any) -> None:
    cache = make(place)
    start(cache, (0, 4))
    cache.prepare_snapshots(0, [2])
    with pytest.raises(kv.errors.ClosedError):
        cache.states(2)
    append(cache, 0, Rows(4, 16))
    assert cache.take_snapshots(0)[0].end == 2


def test_wrong_calls_are_refused(place: Any) -> None:
    cache, other = make(place), make(place)
    with pytest.raises(kv.errors.ArgumentError, match="no forward was started"):
        cache.states(2)
    start(cache, (0, 2))
    rows = Rows(2, 14)
    with pytest.raises(kv.errors.ArgumentError, match="layer: got 3"):
        cache.conv(3, rows.x, rows.weight)
    with pytest.raises(kv.errors.ArgumentError, match="x: got shape"):
        cache.conv(2, rows.x[:1], rows.weight)
    cache.conv(2, rows.x, rows.weight)
    with pytest.raises(kv.errors.ArgumentError, match="written in this forward already"):
        cache.conv(2, rows.x, rows.weight)
    append(other, 0, rows)
    with pytest.raises(kv.errors.ClosedError):
        other.states(2)
    with pytest.raises(kv.errors.ArgumentError, match="another cache"):
        cache.restore(0, other.snapshot(0), 2)
    with pytest.raises(kv.errors.ArgumentTypeError, match="RecurrentSnapshot"):
        cache.restore(0, 5, 2)
    with pytest.raises(kv.errors.ArgumentError, match="once"):
        kv.caches.RecurrentCache([1, 1], TAIL, CHANNELS, 0, 0, 0, 4, device=place)
    with pytest.raises(kv.errors.ArgumentError, match="conv_dim"):
        kv.caches.RecurrentCache(2, TAIL, 0, 0, 0, 0, 4, device=place)
    with pytest.raises(kv.errors.ArgumentTypeError, match="dtype"):
        make(place, dtype="bfloat16")


def test_one_kind_of_state(place: Any) -> None:
    rows = Rows(3, 15)
    cache = kv.caches.RecurrentCache(1, TAIL, CHANNELS, 0, 0, 0, 4, device=place)
    start(cache, (0, 3))
    cache.conv(0, rows.x, rows.weight)
    assert cache.length(0) == 3
    start(cache, (0, 1))
    conv, delta = cache.states(0)
    assert delta is None
    close(conv, rows.conv_reference()[1][-1:])
    with pytest.raises(kv.errors.NotSupportedError):
        cache.gated_delta(0, rows.q[:1], rows.k[:1], rows.v[:1], rows.g[:1], rows.beta[:1])
