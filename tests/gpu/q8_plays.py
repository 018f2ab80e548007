"""Plays of cells in blocks: quantised, read, copied and turned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import plays
import ptx
from cell_blocks import Q8, Kept, numbers_of
from plays import Case, History, Play, attention, launch, qkv
from state_plays import CELLS, HEADS, LANES, RUNS, _table
from variants import Variant

_GROUP = ("LANES=64", "ROW_VW=4")
K_DIM, V_DIM = 64, 32
_AT = [cell + i for cell, length in RUNS for i in range(length)]


def history_of(kept: Kept) -> Callable[[int, Any], History]:
    """The history of the attention plays, of what is left of its numbers."""

    class BlockHistory(History):
        def __init__(self, dim: int, dtype: Any) -> None:
            super().__init__(dim, dtype)
            self.kept, self.words = tuple(map(kept.blocks_of, (self.k, self.v))), dim // 32 * kept.block_bytes // 2
            self.k, self.v = map(kept.numbers_of, self.kept)

    return BlockHistory


def _rows(random: Any, count: int, dim: int) -> Any:
    """[HEADS, count, dim]: usual ones, halves between two integers, small ones."""
    rows = random.standard_normal((HEADS, count, dim)).astype(np.float32)
    rows[:, 1, :32] = (random.integers(-127, 127, (HEADS, 32)) + 0.5) * 0.25
    rows[:, 1, 0] = 127 * 0.25
    rows[:, 2] *= 1e-7
    return rows


Sides = tuple[Kept, Kept]  # of K and of V


def _pools(random: Any, sides: Sides) -> list[Any]:
    return [each.blocks_of(random.standard_normal((HEADS, CELLS, dim))) for each, dim in zip(sides, (K_DIM, V_DIM))]


def load_cells(program: ptx.Program, seed: int, sides: Sides = (Q8, Q8)) -> ptx.Report:
    random = np.random.default_rng(44)
    rows, before = [_rows(random, len(_AT), dim) for dim in (K_DIM, V_DIM)], _pools(random, sides)
    memory = ptx.GlobalMemory()
    pools = [memory.put(each) for each in before]
    given = [rows[0], 0, rows[1], 0, pools[0], 0, pools[1], 0, _table(len(_AT), 1), 1, CELLS, K_DIM, V_DIM]
    report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
    for at, pool, row, kept in zip(pools, before, rows, sides):
        pool[:, _AT] = kept.blocks_of(row)
        assert (memory.get(at, pool.shape, np.uint8) == pool).all()
    return report


def store_cells(program: ptx.Program, seed: int, sides: Sides = (Q8, Q8)) -> ptx.Report:
    pools = _pools(np.random.default_rng(45), sides)
    wanted = [kept.numbers_of(each[:, _AT]).astype(np.float32) for each, kept in zip(pools, sides)]
    memory = ptx.GlobalMemory()
    places = [memory.put(np.zeros_like(each)) for each in wanted]
    given = [pools[0], 0, pools[1], 0, places[0], 0, places[1], 0, _table(len(_AT), 1), 1, CELLS, K_DIM, V_DIM]
    report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
    for at, each in zip(places, wanted):
        assert (memory.get(at, each.shape, np.float32) == each).all()
    return report


def rotated(program: ptx.Program, seed: int, before: Any, form: Kept) -> tuple[ptx.Report, Any, Any]:
    """12 pairs, in the first of two blocks, turned where RUNS are: the numbers that cells have then, and those
    that they should have, before they are kept. The second block and other cells keep their bytes."""
    pairs, angles = 12, 0.8 ** np.arange(12) * 11
    turns = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    memory = ptx.GlobalMemory()
    pool = memory.put(before)
    given = [pool, 0, _table(0, 1), turns, pairs, 0, CELLS, K_DIM]
    report = launch(program, (1, len(RUNS), HEADS), LANES, memory, given, seed)
    got, numbers = memory.get(pool, before.shape, np.uint8), form.numbers_of(before)
    x, y = numbers[..., :pairs].copy(), numbers[..., pairs : 2 * pairs].copy()
    numbers[..., :pairs] = x * turns[:, 0] - y * turns[:, 1]
    numbers[..., pairs : 2 * pairs] = y * turns[:, 0] + x * turns[:, 1]
    kept = before.copy()
    kept[:, _AT, : form.block_bytes] = got[:, _AT, : form.block_bytes]
    assert (got == kept).all()
    return report, form.numbers_of(got)[:, _AT, :32], numbers[:, _AT, :32]


def rotate_cells(program: ptx.Program, seed: int) -> ptx.Report:
    before, _ = _pools(np.random.default_rng(46), (Q8, Q8))
    report, numbers, wanted = rotated(program, seed, before, Q8)
    step = np.abs(wanted).max(-1, keepdims=True) / 127
    assert (np.abs(numbers - wanted) <= 0.51 * step).all()
    return report


_CELLS = Variant("cells", ("CELL_FORMAT=3", "LINEAR=0", *_GROUP), ("load_cells", "store_cells"), LANES)
_EDITS = Variant("cells_edit", ("CELL_FORMAT=3", "K_DIM=64", *_GROUP), ("rotate_cells",), LANES)
_QKV = Variant("qkv", ("K_DIM=64", "CELL_FORMAT=3", *_GROUP), ("put_qkv",), LANES)
_READ: Play = attention(64, np.float32, 1e-6, 2, history_of(Q8))
Q8_PLAYS: list[Case] = [
    Case(_CELLS, "load_cells", load_cells),
    Case(_CELLS, "store_cells", store_cells),
    Case(_EDITS, "rotate_cells", rotate_cells),
    Case(_QKV, "put_qkv", qkv(64, np.uint8, 1e-2, numbers_of), plays._OF_QKV),
    Case(plays.tiles(64, 3, 2), "attend_tiles", _READ),
]
