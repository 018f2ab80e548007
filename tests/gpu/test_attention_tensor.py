"""What attention with tensor cores promises beyond its plays: bits, NaN, softcap, all head sizes, what a key costs."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

import compilers
import ptx
from plays_tensor import Tile, Work, near, small, variant
from variants import TENSOR_FORMS, TensorForm, Variant

FLOAT32, HALVES = 8e-7, 1e-3  # relative errors, with two terms and with one
ONE, FOUR = TensorForm(1, True), TensorForm(4, False)


@cache
def program(dim: int, form: TensorForm, terms: int = 2) -> ptx.Program:
    return ptx.Program(compilers.ptx_of(variant(dim, form, terms)).read_text(), "attend_tiles")


def forms_of(dim: int) -> list[TensorForm]:
    return [form for form in TENSOR_FORMS if form.paired or dim <= 128]


# With KVTRIE_PLAY_ALL every size; else the smallest, the largest, and one that is no power of two.
SIZES = (64, 80, 96, 112, 128, 192, 256) if "KVTRIE_PLAY_ALL" in os.environ else (64, 112, 256)
CASES = [(dim, form, 2) for dim in SIZES for form in forms_of(dim)]
CASES += [(dim, FOUR, 1) for dim in (64, 128)]


@pytest.mark.parametrize(("dim", "form", "terms"), CASES)
def test_every_size_and_form_computes_what_numpy_does(dim: int, form: TensorForm, terms: int) -> None:
    """Three query heads over each of two K/V heads, so that heads of one row lie in different warps."""
    work, tiles = small(dim, 3, kv_heads=2)
    written = work.run(program(dim, form, terms), form, tiles)
    work.check(written, tiles, FLOAT32 if terms == 2 else HALVES)


@pytest.mark.parametrize("form", [ONE, FOUR])
def test_scores_are_capped(form: TensorForm) -> None:
    work, tiles = small(64, 2)
    work.softcap, work.scale = 3.0, np.float32(0.9)
    work.check(work.run(program(64, form), form, tiles), tiles, 2e-6)


@pytest.mark.parametrize("split", [32, 48, 64, 200])
def test_splits_of_any_length(split: int) -> None:
    """Blocks end where splits do; tiles of partials begin and end inside of blocks."""
    work, _ = small(64, 2)
    tiles = [Tile((0, 1, 2), 0, 256), Tile((0, 3), 0, split, 0), Tile((0, 3), split, 2 * split, 2)]
    work.bounds[0] = (0, 256)
    work.bounds[3] = (0, 256)
    work.bounds[2] = (190, 201)
    written = work.run(program(64, ONE), ONE, tiles, split=split, sinks=False)
    work.check(written, tiles, FLOAT32, sinks=False)


def bits_of(work: Work, dim: int, form: TensorForm, rows: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Outputs of rows that walk all splits, and partials of the same rows by split."""
    splits = [(0, 128), (128, 256), (384, 487)]
    tiles = [Tile(rows, 0, 487)]
    tiles += [Tile(rows, begin, end, i * len(rows)) for i, (begin, end) in enumerate(splits)]
    written = work.run(program(dim, form), form, tiles, seed)
    shape = (3, len(rows), work.heads)
    return written.out[list(rows)], written.partials.reshape(*shape, dim), written.stats.reshape(*shape, 2)


@pytest.mark.parametrize(("dim", "group"), [(64, 4), (128, 5), (256, 4)])
def test_bits_depend_on_nothing_beside_a_row(dim: int, group: int) -> None:
    """Of every form, in another order of warps: rows together, and one of them alone."""
    rows = tuple(range(9))
    work = Work(dim, group, [(max(0, 30 * i - 60), 479 + i) for i in rows])
    wanted = bits_of(work, dim, FOUR if dim <= 128 else TensorForm(4, True), rows, 1)
    assert np.isfinite(wanted[0]).all() and np.isfinite(wanted[1]).all()
    for form in forms_of(dim):
        for got, all_ in zip(bits_of(work, dim, form, rows, 2), wanted):
            assert np.array_equal(got.view(np.int32), all_.view(np.int32)), form
        alone = bits_of(work, dim, form, (5,), 3)
        assert np.array_equal(alone[0].view(np.int32), wanted[0][5:6].view(np.int32)), form
        for got, all_ in zip(alone[1:], wanted[1:]):
            assert np.array_equal(got.view(np.int32), all_[:, 5:6].view(np.int32)), form


def test_a_walk_gives_the_bits_of_merged_partials() -> None:
    """attention_merge.cl merges, played as a kernel of its own; rows that see no key of a split are among them."""
    dim, rows, splits = 64, (0, 1, 2), [(0, 128), (128, 256), (384, 487)]
    work = Work(dim, 2, [(0, 487), (130, 200), (100, 400)])
    tiles, merged, ids = [Tile(rows, 0, 487)], [0], []
    for row in rows:
        first, end = work.bounds[row]
        seen = [i for i, (begin, last) in enumerate(splits) if max(first, begin) < min(end, last)]
        ids += [i * len(rows) + row for i in seen]
        merged.append(len(ids))
    tiles += [Tile(rows, begin, end, i * len(rows)) for i, (begin, end) in enumerate(splits)]
    written = work.run(program(dim, FOUR), FOUR, tiles)
    merge = compilers.ptx_of(Variant("attention_merge", (f"V_DIM={dim}", "LANES=64"), ("attend_merge",), 64))
    memory = ptx.GlobalMemory()
    out = memory.put(np.full((3, 2, dim), np.nan, np.float32))
    table = np.array([*merged, *ids], np.int32)
    given = [
        written.partials,
        np.nan_to_num(written.stats, nan=0.0),
        table,
        0,
        len(merged),
        2,
        work.sinks,
        0,
        1,
        out,
        0,
    ]
    arguments = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
    ptx.Launch(ptx.Program(merge.read_text(), "attend_merge"), (3, 2, 1), (64, 1, 1), arguments, 1).run(memory)
    assert np.array_equal(memory.get(out, (3, 2, dim), np.int32), written.out[:3].view(np.int32))


@pytest.mark.parametrize("form", [ONE, FOUR])
@pytest.mark.parametrize("what", ["k", "v", "infinite v"])
def test_hidden_nan_is_not_multiplied_in(form: TensorForm, what: str) -> None:
    """A key of which one row of a tile sees that it is NaN: that row is NaN, the others are what they were."""
    work, _ = small(64, 2)
    rows, tiles = (0, 1, 2), [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 150), (10, 256), (151, 200)]
    before = work.run(program(64, form), form, tiles)
    cells = work.k if what == "k" else work.v
    cells[:, work.cell[150], 5] = np.inf if what == "infinite v" else np.nan
    after = work.run(program(64, form), form, tiles)
    assert np.isnan(after.out[1]).all()
    for row in set(rows) - {1}:
        assert np.array_equal(after.out[row].view(np.int32), before.out[row].view(np.int32))


def test_large_and_small_queries() -> None:
    """Queries by a power of two beyond the range of halves, and rows of zeros."""
    work, tiles = small(64, 2)
    work.q[0] *= np.float32(2.0**20)
    work.k *= np.float16(2.0**-10)
    work.scale = np.float32(2.0**-13)
    work.q[1] = 0
    work.q[2] *= np.float32(2.0**-60)
    work.check(work.run(program(64, ONE), ONE, tiles), tiles, FLOAT32)


# Warp instructions per key and line of the inner loop, and for all else of a block: what is allowed.
COSTS = {(FOUR, 2): 1.35, (FOUR, 1): 0.9, (ONE, 2): 1.95}


@pytest.mark.parametrize(("form", "terms"), COSTS)
def test_what_a_key_costs(form: TensorForm, terms: int) -> None:
    """Of blocks that all rows see: instructions per key and line; local memory without bank conflicts."""
    work = Work(128, 4, [(0, 256)] * (form.lines // 4), spans=((7, 256, 0),))
    rows = tuple(range(len(work.bounds)))
    short, long = (
        work.run(program(128, form, terms), form, [Tile(rows, 0, end)], counting=True, split=512) for end in (64, 256)
    )
    instructions = long.report.total - short.report.total
    each = instructions / form.lines / 192
    assert each <= COSTS[form, terms], f"instructions a key and line: {each:.2f}"
    for report in (short.report, long.report):
        assert report.counts["ldmatrix wavefronts"] == report.counts["ldmatrix matrices"]
    copies = long.report.counts["wavefronts of copies"] - short.report.counts["wavefronts of copies"]
    assert copies == 192 * 2 * 128 * 2 // 128, "one for each 128 bytes of K and V"


def test_near_is_no_excuse() -> None:
    with pytest.raises(AssertionError):
        near(np.array([np.nan]), np.array([1.0]), 1.0)
