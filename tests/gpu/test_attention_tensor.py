"""What attention with tensor cores promises beyond its plays: bits, NaN, softcap, all head sizes, what a key costs."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

import compilers
import ptx
from plays_tensor import BOUNDS, OF_FLOATS, Merges, Tile, Work, check_merging, near, small, split_up, variant
from variants import TensorForm, Variant
from variants import tensor_forms as forms_of

FLOAT32, HALVES = BOUNDS[2], BOUNDS[1]
ONE, FOUR = TensorForm(1, True), TensorForm(4, False)


@cache
def program(dim: int, form: TensorForm, terms: int = 2, merges: bool = False, floats: bool = False) -> ptx.Program:
    return ptx.Program(compilers.ptx_of(variant(dim, form, terms, merges, floats)).read_text(), "attend_tiles")


def cells_of(floats: bool) -> type:
    return np.float32 if floats else np.float16


@cache
def merge_program(dim: int) -> ptx.Program:
    merge = Variant("attention_merge", (f"V_DIM={dim}", "LANES=64"), ("attend_merge",), 64)
    return ptx.Program(compilers.ptx_of(merge).read_text(), "attend_merge")


# With KVTRIE_PLAY_ALL every size; else the smallest, the largest, and one that is no power of two.
SIZES = (64, 80, 96, 112, 128, 192, 256) if "KVTRIE_PLAY_ALL" in os.environ else (64, 112, 256)
CASES = [(dim, form, terms) for dim in SIZES for terms in (1, 2) for form in forms_of(dim, terms)]


@pytest.mark.parametrize(("dim", "form", "terms"), CASES)
def test_every_size_and_form_computes_what_numpy_does(dim: int, form: TensorForm, terms: int) -> None:
    """Three query heads over each of two K/V heads, so that heads of one row lie in different warps."""
    work, tiles = small(dim, 3, kv_heads=2)
    written = work.run(program(dim, form, terms), form, tiles)
    work.check(written, tiles, FLOAT32 if terms == 2 else HALVES)


FLOATS = [(dim, form) for dim in SIZES for form in forms_of(dim, 2, True)]


@pytest.mark.parametrize(("dim", "form"), FLOATS)
def test_every_size_and_form_of_float32_cells(dim: int, form: TensorForm) -> None:
    work, tiles = small(dim, 3, kv_heads=2, dtype=np.float32)
    work.check(work.run(program(dim, form, floats=True), form, tiles), tiles, OF_FLOATS)


@pytest.mark.parametrize(("form", "floats"), [(ONE, False), (FOUR, False), (ONE, True)])
def test_scores_are_capped(form: TensorForm, floats: bool) -> None:
    work, tiles = small(64, 2, dtype=cells_of(floats))
    work.softcap, work.scale = 3.0, np.float32(0.9)
    work.check(work.run(program(64, form, floats=floats), form, tiles), tiles, 2e-6)


@pytest.mark.parametrize("form", [ONE, TensorForm(4, True)])
def test_float32_cells_of_every_size(form: TensorForm) -> None:
    """Keys and values of 2^-100 to 2^80, each by a power of its own: what a line sees has its accuracy."""
    work, _ = small(64, 2, dtype=np.float32)
    tiles = [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 100), (100, 200), (200, 256)]
    position = {cell: p for p, cell in work.cell.items()}
    for cells, power in ((work.k, 1), (work.v, -1)):
        for cell, p in position.items():
            cells[:, cell] *= np.float32(2.0) ** (power * (-100, 0, 80)[min(p // 100, 2)])
    work.q[0] *= np.float32(2.0**60)
    work.scale = np.float32(2.0**-3)
    work.q[2] *= np.float32(2.0**-80)
    work.check(work.run(program(64, form, floats=True), form, tiles), tiles, OF_FLOATS)


def test_float32_values_that_weights_outweigh() -> None:
    """Values of 2^40 whose weights are 2^-40 count as much as those of 1: a line's weights have a power of two."""
    work = Work(64, 1, [(0, 64)], spans=((7, 64, 0),), dtype=np.float32)
    tiles = [Tile((0,), 0, 64)]
    work.k[:, 7:71] = 0
    work.q[0] = 1
    work.k[:, 7:39, 0] = -40 * np.log(2)
    work.v[:, 7:39] *= np.float32(2.0**40)
    work.scale = np.float32(1)
    work.check(work.run(program(64, ONE, floats=True), ONE, tiles), tiles, 20 * OF_FLOATS)


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


def bits_of(
    work: Work, dim: int, form: TensorForm, rows: tuple[int, ...], seed: int, terms: int, floats: bool = False
) -> tuple[np.ndarray, ...]:
    """Outputs of rows that walk all splits, and partials of the same rows by split."""
    splits = [(0, 128), (128, 256), (384, 487)]
    tiles = [Tile(rows, 0, 487)]
    tiles += [Tile(rows, begin, end, i * len(rows)) for i, (begin, end) in enumerate(splits)]
    written = work.run(program(dim, form, terms, floats=floats), form, tiles, seed)
    shape = (3, len(rows), work.heads)
    return written.out[list(rows)], written.partials.reshape(*shape, dim), written.stats.reshape(*shape, 2)


ALIKE = [(64, 4, 1, False), (128, 5, 1, False), (64, 4, 2, False), (128, 5, 2, False), (256, 4, 2, False)]


@pytest.mark.parametrize(("dim", "group", "terms", "floats"), [*ALIKE, (64, 4, 2, True), (128, 5, 2, True)])
def test_bits_depend_on_nothing_beside_a_row(dim: int, group: int, terms: int, floats: bool) -> None:
    """Of every form, in another order of warps: rows together, and one of them alone."""
    rows = tuple(range(9))
    work = Work(dim, group, [(max(0, 30 * i - 60), 479 + i) for i in rows], dtype=cells_of(floats))
    forms = forms_of(dim, terms, floats)
    wanted = bits_of(work, dim, forms[-1], rows, 1, terms, floats)
    assert np.isfinite(wanted[0]).all() and np.isfinite(wanted[1]).all()
    for form in forms:
        for got, all_ in zip(bits_of(work, dim, form, rows, 2, terms, floats), wanted):
            assert np.array_equal(got.view(np.int32), all_.view(np.int32)), form
        alone = bits_of(work, dim, form, (5,), 3, terms, floats)
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
    merges = Merges({row: ids[merged[row] : merged[row + 1]] for row in rows}, len(rows))
    out = work.merged(written._replace(stats=np.nan_to_num(written.stats, nan=0.0)), merges, merge_program(dim))
    assert np.array_equal(out.view(np.int32), written.out[:3].view(np.int32))


# Of every form one size, and the last form of the others; with KVTRIE_PLAY_ALL all of them.
MERGING = [(64, 7, 3, form, terms, False) for terms in (1, 2) for form in forms_of(64, terms)]
MERGING += [(64, 7, 3, form, 2, True) for form in forms_of(64, 2, True)]
MERGING += [
    (dim, group, rows, form, terms, False)
    for dim, group, rows in ((112, 3, 9), (256, 8, 2))
    for terms in (1, 2)
    for form in forms_of(dim, terms)[0 if "KVTRIE_PLAY_ALL" in os.environ else -1 :]
]


@pytest.mark.parametrize(("dim", "group", "rows", "form", "terms", "floats"), MERGING)
def test_merging_in_tiles_has_the_bits_of_a_launch_of_its_own(
    dim: int, group: int, rows: int, form: TensorForm, terms: int, floats: bool
) -> None:
    """Of tiles in parts that cut through the heads of a row, too, in any order of groups."""
    work, tiles, merges = split_up(dim, group, 2 if dim == 64 else 1, rows, cells_of(floats))
    wanted = work.merged(work.run(program(dim, form, terms, False, floats), form, tiles), merges, merge_program(dim))
    seen = sorted(merges.partials)
    assert np.isfinite(wanted[seen]).all()
    got = work.run(program(dim, form, terms, True, floats), form, tiles, form.lines, merges=merges)
    check_merging(work, tiles, merges, got, BOUNDS[terms])
    assert np.array_equal(got.out[seen].view(np.int32), wanted[seen].view(np.int32))
    assert (got.out[rows] == 0).all(), "the row that sees nothing has a tile without partials"


def test_a_merged_row_has_the_same_bits_alone() -> None:
    """Row 0, of which a copy has the first split, in tiles of its own and of another order, and among 8 rows."""
    work, tiles, merges = split_up(64, 4, rows=7)
    alone = [Tile((0,), 128, 256, 0), Tile((0,), 384, 487, 1), Tile((8,), 0, 128, 2)]
    one = work.run(program(64, ONE, merges=True), ONE, alone, 5, merges=Merges({0: [2, 0, 1]}, 8, (0,)))
    every = work.run(program(64, FOUR, merges=True), FOUR, tiles, 6, merges=merges)
    assert np.isfinite(one.out[0]).all()
    assert np.array_equal(one.out[0].view(np.int32), every.out[0].view(np.int32))


def test_groups_that_merge_need_what_orders_them() -> None:
    """Both barriers around the addition and both halves of its order, of groups of two warps."""
    form = TensorForm(2, True)
    work, tiles, merges = split_up(64, 12)
    whole = program(64, form, merges=True)
    text = compilers.ptx_of(variant(64, form, merges=True)).read_text()
    assert text.count("atom.acq_rel.gpu") == 1
    lacking = [(whole.without(each), "race|outside of all buffers") for each in whole.barriers()[-2:]]
    for order in ("acquire", "release", "relaxed"):
        lacking.append((ptx.Program(text.replace("atom.acq_rel", f"atom.{order}"), "attend_tiles"), "race: global"))
    for each, why in lacking:
        with pytest.raises(ptx.Finding, match=why):
            work.run(each, form, tiles, merges=merges)


@pytest.mark.parametrize(("form", "floats"), [(ONE, False), (FOUR, False), (ONE, True), (TensorForm(4, True), True)])
@pytest.mark.parametrize("what", ["k", "v", "infinite v"])
def test_hidden_nan_is_not_multiplied_in(form: TensorForm, floats: bool, what: str) -> None:
    """A key of which one row of a tile sees that it is NaN: that row is NaN, the others are what they were."""
    work, _ = small(64, 2, dtype=cells_of(floats))
    rows, tiles = (0, 1, 2), [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 150), (10, 256), (151, 200)]
    before = work.run(program(64, form, floats=floats), form, tiles)
    cells = work.k if what == "k" else work.v
    cells[:, work.cell[150], 5] = np.inf if what == "infinite v" else np.nan
    after = work.run(program(64, form, floats=floats), form, tiles)
    assert np.isnan(after.out[1]).all()
    for row in set(rows) - {1}:
        assert np.array_equal(after.out[row].view(np.int32), before.out[row].view(np.int32))
    if floats:  # one so large that it would leave nothing of others, had they a power of two together
        cells[:, work.cell[150]] = np.float32(2.0**100)
        after = work.run(program(64, form, floats=floats), form, tiles)
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
COSTS = {(FOUR, 2, False): 1.35, (FOUR, 1, False): 0.79, (ONE, 2, False): 1.95, (ONE, 1, False): 1.6,
         (TensorForm(1, False), 1, False): 0.95, (ONE, 2, True): 12, (TensorForm(4, True), 2, True): 6}  # fmt: skip


@pytest.mark.parametrize(("form", "terms", "floats"), COSTS)
def test_what_a_key_costs(form: TensorForm, terms: int, floats: bool) -> None:
    """Of blocks that all rows see: instructions per key and line; local memory without bank conflicts."""
    work = Work(128, 4, [(0, 256)] * (form.lines // 4), spans=((7, 256, 0),), dtype=cells_of(floats))
    rows = tuple(range(len(work.bounds)))
    short, long = (
        work.run(program(128, form, terms, False, floats), form, [Tile(rows, 0, end)], counting=True, split=512)
        for end in (64, 256)
    )
    instructions = long.report.total - short.report.total
    each = instructions / form.lines / 192
    assert each <= COSTS[form, terms, floats], f"instructions a key and line: {each:.2f}"
    for report in (short.report, long.report):
        assert report.counts["ldmatrix wavefronts"] == report.counts["ldmatrix matrices"]
    copies = long.report.counts["wavefronts of copies"] - short.report.counts["wavefronts of copies"]
    assert copies == 192 * 2 * 128 * (4 if floats else 2) // 128, "one for each 128 bytes of K and V"


def test_near_is_no_excuse() -> None:
    with pytest.raises(AssertionError):
        near(np.array([np.nan]), np.array([1.0]), 1.0)
