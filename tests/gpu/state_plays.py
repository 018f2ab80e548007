"""Plays of what changes the state of a conversation: cells copied, turned and filled; recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptx
from plays import Case, Play, assert_near, empty, launch
from variants import RECURRENT, Variant, channel_delta

LANES = 64
_VECTORS = ("ROW_VW=4",)
_GROUP = ("LANES=64", *_VECTORS)
CELLS, K_DIM, V_DIM, HEADS = 9, 70, 10, 2
RUNS = ((6, 3), (1, 2))  # (cell, length) of the places 0, 1, 2 and 3, 4
_AT = [cell + i for cell, length in RUNS for i in range(length)]


def _table(head_stride: int, token_stride: int) -> Any:
    made, row = [], 0
    for cell, length in RUNS:
        made += [cell, length, row, head_stride]
        row += length * token_stride
    return np.array(made, np.int32)


def _pools(random: Any) -> list[Any]:
    return [random.standard_normal((HEADS, CELLS, dim)).astype(np.float16) for dim in (K_DIM, V_DIM)]


def _layouts(k: Any, v: Any) -> list[tuple[int, int, Any, Any]]:
    """Strides of heads and tokens, K and V [heads][places][dim] as a tensor has them, and as an image has them."""
    turned = tuple(np.ascontiguousarray(each.transpose(1, 0, 2)) for each in (k, v))
    return [(1, HEADS, *turned), (len(_AT), 1, k, v)]


def load_cells(linear: Any) -> Play:
    """Rows of a tensor, then of an image, into cells of a pool; the other cells stay."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random = np.random.default_rng(40)
        k, v = (random.standard_normal((HEADS, len(_AT), dim)).astype(linear) for dim in (K_DIM, V_DIM))
        for head_stride, token_stride, k_given, v_given in _layouts(k, v):
            before = _pools(random)
            memory = ptx.GlobalMemory()
            pools = [memory.put(each) for each in before]
            given = [k_given, 0, v_given, 0, pools[0], 0, pools[1], 0, _table(head_stride, token_stride), token_stride,
                     CELLS, K_DIM, V_DIM]  # fmt: skip
            report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
            for at, pool, rows in zip(pools, before, (k, v)):
                wanted = pool.copy()
                wanted[:, _AT] = rows.astype(np.float16)
                assert (memory.get(at, pool.shape, np.float16) == wanted).all()
        return report

    return play


def store_cells(linear: Any) -> Play:
    """Cells of a pool into a tensor, then into an image."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        k_pool, v_pool = _pools(np.random.default_rng(41))
        wanted = _layouts(k_pool[:, _AT].astype(linear), v_pool[:, _AT].astype(linear))
        for head_stride, token_stride, *rows in wanted:
            memory = ptx.GlobalMemory()
            places = [memory.put(np.zeros_like(each)) for each in rows]
            given = [k_pool, 0, v_pool, 0, places[0], 0, places[1], 0, _table(head_stride, token_stride), token_stride,
                     CELLS, K_DIM, V_DIM]  # fmt: skip
            report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
            for at, each in zip(places, rows):
                assert (memory.get(at, each.shape, linear) == each).all()
        return report

    return play


def rotate_cells(program: ptx.Program, seed: int) -> ptx.Report:
    """33 pairs of 70 numbers, halves and then neighbours; the other cells and numbers stay."""
    pairs, angles = 33, 0.8 ** np.arange(33) * 11
    turns = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    for interleaved in (0, 1):
        before, _ = _pools(np.random.default_rng(42))
        memory = ptx.GlobalMemory()
        pool = memory.put(before)
        given = [pool, 0, _table(0, 1), turns, pairs, interleaved, CELLS, K_DIM]
        report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
        a = np.arange(0, 2 * pairs, 2) if interleaved else np.arange(pairs)
        b = a + (1 if interleaved else pairs)
        got, kept = memory.get(pool, before.shape, np.float16), before.copy()
        x, y = (before[:, _AT][..., each].astype(np.float64) for each in (a, b))
        assert_near(got[:, _AT][..., a], x * turns[:, 0] - y * turns[:, 1], 4e-4)
        assert_near(got[:, _AT][..., b], y * turns[:, 0] + x * turns[:, 1], 4e-4)
        for at in _AT:
            kept[:, at, : 2 * pairs] = got[:, at, : 2 * pairs]
        assert (got == kept).all()
    return report


def fill_cells(program: ptx.Program, seed: int) -> ptx.Report:
    before = np.random.default_rng(43).integers(0, 1 << 16, (HEADS, CELLS, 7), np.uint16)
    memory = ptx.GlobalMemory()
    words = memory.put(before)
    report = launch(program, (3, HEADS, 1), 1, memory, [words, 0, 4, CELLS, 7, 0x7E00], seed)
    wanted = before.copy()
    wanted[:, 4:7] = 0x7E00
    assert (memory.get(words, before.shape, np.uint16) == wanted).all()
    return report


# ---- recurrent layers ------------------------------------------------------------------------------------------------

# Two sequences, of 11 rows from zeros and of 3 from slot 1; states wanted after 5 and 11, and after 3.
_SEQUENCES = ((0, 11, -1, ((5, 0), (11, 3))), (11, 3, 1, ((3, 2),)))
_ROWS, _SLOTS = 14, 4


def _writes() -> Any:
    """The table of csrc/ops/recurrent.h."""
    heads, writes = [], []
    for row, count, source, wanted in _SEQUENCES:
        begin = 5 * len(_SEQUENCES) + len(writes)
        for rows, slot in wanted:
            writes += [rows, slot]
        heads += [row, count, source, begin, 5 * len(_SEQUENCES) + len(writes)]
    return np.array([*heads, *writes], np.int32)


def causal_conv1d(program: ptx.Program, seed: int) -> ptx.Report:
    random, dim, width = np.random.default_rng(44), 70, 4
    x, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((_ROWS, dim), (dim, width)))
    states = random.standard_normal((_SLOTS, width - 1, dim)).astype(np.float32)
    memory = ptx.GlobalMemory()
    y, out = memory.put(empty(_ROWS, dim)), memory.put(np.full(states.shape, 9, np.float32))
    given = [x, 0, weight, 0, states, 0, out, 0, _writes(), y, 0, dim]
    report = launch(program, (2, len(_SEQUENCES), 1), LANES, memory, given, seed)
    wanted, kept = np.zeros((_ROWS, dim)), np.full(states.shape, 9, np.float32)
    for row, count, source, writes in _SEQUENCES:
        before = np.zeros((width - 1, dim), np.float32) if source < 0 else states[source]
        inputs = np.concatenate([before, x[row : row + count]])
        for t in range(count):
            wanted[row + t] = (weight.T.astype(np.float64) * inputs[t : t + width]).sum(0)
        for rows, slot in writes:
            kept[slot] = inputs[rows : rows + width - 1]
    assert_near(memory.get(y, (_ROWS, dim), np.float32), wanted, 3e-7)
    assert (memory.get(out, states.shape, np.float32) == kept).all()
    return report


def gated_delta(dim: int, decays: int = 1) -> Play:
    """One key head for two value heads of 70 rows of S: two groups, the second one with lanes that only help.

    ``decays``: of a head; 1, or ``dim``."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, heads, v_dim = np.random.default_rng(45), 2, 70
        q, k = ((random.standard_normal((_ROWS, 1, dim)) / np.sqrt(dim)).astype(np.float32) for _ in range(2))
        v = random.standard_normal((_ROWS, heads, v_dim)).astype(np.float32)
        g = -random.random((_ROWS, heads, decays)).astype(np.float32)
        beta = random.random((_ROWS, heads)).astype(np.float32)
        states = random.standard_normal((_SLOTS, heads, v_dim, dim)).astype(np.float32)
        memory = ptx.GlobalMemory()
        y, out = memory.put(empty(_ROWS, heads, v_dim)), memory.put(np.full(states.shape, 9, np.float32))
        given = [q, 0, k, 0, v, 0, g, 0, beta, 0, states, 0, out, 0, _writes(), y, 0, 1, heads, v_dim]
        report = launch(program, (2, heads, len(_SEQUENCES)), LANES, memory, given, seed)
        got = memory.get(out, states.shape, np.float32)
        wanted = np.zeros((_ROWS, heads, v_dim))
        for row, count, source, writes in _SEQUENCES:
            s = np.zeros(states.shape[1:]) if source < 0 else states[source].astype(np.float64)
            for t in range(row, row + count):
                s = np.exp(g[t].astype(np.float64))[:, None, :] * s
                u = beta[t][:, None] * (v[t] - s @ k[t, 0])
                s = s + u[..., None] * k[t, 0]
                wanted[t] = s @ q[t, 0]
                for rows, slot in writes:
                    if rows == t - row + 1:
                        assert_near(got[slot], s, 1e-6)
        assert_near(memory.get(y, wanted.shape, np.float32), wanted, 1e-6)
        assert (got[1] == 9).all()
        return report

    return play


def ssd(state: int) -> Play:
    """Two groups of B and C for two heads of 70 rows of S; steps below, between and above their bounds."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, groups, heads, head_dim, least, most = np.random.default_rng(46), 2, 2, 70, 0.1, 0.8
        x = random.standard_normal((_ROWS, heads, head_dim)).astype(np.float32)
        dt, a, d = random.random((_ROWS, heads)).astype(np.float32), -random.random(heads), random.random(heads)
        a, d = a.astype(np.float32), d.astype(np.float32)
        b, c = ((random.standard_normal((_ROWS, groups, state)) / np.sqrt(state)).astype(np.float32) for _ in range(2))
        states = random.standard_normal((_SLOTS, heads, head_dim, state)).astype(np.float32)
        memory = ptx.GlobalMemory()
        y, out = memory.put(empty(_ROWS, heads, head_dim)), memory.put(np.full(states.shape, 9, np.float32))
        given = [x, 0, dt, 0, a, 0, b, 0, c, 0, d, 0, states, 0, out, 0, _writes(), y, 0, groups, heads, head_dim,
                 least, most]  # fmt: skip
        report = launch(program, (2, heads, len(_SEQUENCES)), LANES, memory, given, seed)
        got, wanted = memory.get(out, states.shape, np.float32), np.zeros((_ROWS, heads, head_dim))
        for row, count, source, writes in _SEQUENCES:
            s = np.zeros(states.shape[1:]) if source < 0 else states[source].astype(np.float64)
            for t in range(row, row + count):
                step = np.clip(dt[t].astype(np.float64), least, most)
                s = np.exp(step * a)[:, None, None] * s + (step[:, None] * x[t])[..., None] * b[t][:, None]
                wanted[t] = np.einsum("hrn,hn->hr", s, c[t]) + d[:, None] * x[t]
                for rows, slot in writes:
                    if rows == t - row + 1:
                        assert_near(got[slot], s, 1e-6)
        assert_near(memory.get(y, wanted.shape, np.float32), wanted, 1e-6)
        assert (got[1] == 9).all()
        return report

    return play


# ---- the list --------------------------------------------------------------------------------------------------------


def _cells(linear: int) -> Variant:
    return Variant("cells", ("CELL_FORMAT=1", f"LINEAR={linear}", *_GROUP), ("load_cells", "store_cells"), LANES)


_EDITS = Variant("cells_edit", ("CELL_FORMAT=1", *_GROUP), ("rotate_cells", "fill_cells"), LANES)
_CONV = Variant("recurrent", ("CONV_STATE=0", "CONV_WIDTH=4", "CONV_BLOCK=1", *_VECTORS), ("causal_conv1d",), LANES)


def _delta(dim: int) -> Variant:
    return Variant("recurrent", (f"DELTA_DIM={dim}", "DELTA_ROWS=1", "DELTA_TILE=8", *_GROUP), RECURRENT, LANES)


STATE_PLAYS: list[Case] = [
    *[
        Case(_cells(code), entry, make(linear))
        for code, linear in ((0, np.float32), (1, np.float16))
        for entry, make in (("load_cells", load_cells), ("store_cells", store_cells))
    ],
    Case(_EDITS, "rotate_cells", rotate_cells),
    Case(_EDITS, "fill_cells", fill_cells),
    Case(_CONV, "causal_conv1d", causal_conv1d),
    *[Case(_delta(dim), "gated_delta", gated_delta(dim)) for dim in (64, 128)],
    Case(channel_delta(128, _GROUP), "gated_delta", gated_delta(128, decays=128)),
    *[Case(_delta(dim), "ssd", ssd(dim)) for dim in (64, 128)],
]
