"""What attention with tensor cores promises beyond its plays: bits, NaN, softcap, all head sizes, what a key costs."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

import compilers
import ptx
from plays_tensor import BOUNDS, CELLS, OF_OTHERS, Merges, Tile, Work, check_merging, near, small, split_up, variant
from variants import TensorForm, Variant
from variants import tensor_forms as forms_of

FLOAT32, HALVES = BOUNDS[2], BOUNDS[1]
ONE, FOUR = TensorForm(1, True), TensorForm(4, False)


@cache
def program(dim: int, form: TensorForm, terms: int = 2, merges: bool = False, cells: str = "float16") -> ptx.Program:
    return ptx.Program(compilers.ptx_of(variant(dim, form, terms, merges, cells)).read_text(), "attend_tiles")


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


OTHERS = ("float32", "q8_0")
OF_CELLS = [(cells, dim, form) for cells in OTHERS for dim in (*SIZES, 128) for form in forms_of(dim, 2, cells)]


@pytest.mark.parametrize(("cells", "dim", "form"), OF_CELLS)
def test_every_size_and_form_of_other_cells(cells: str, dim: int, form: TensorForm) -> None:
    work, tiles = small(dim, 3, kv_heads=2, cells=cells)
    work.check(work.run(program(dim, form, cells=cells), form, tiles), tiles, OF_OTHERS)


@pytest.mark.parametrize(("form", "cells"), [(ONE, "float16"), (FOUR, "float16"), (ONE, "float32"), (ONE, "q8_0")])
def test_scores_are_capped(form: TensorForm, cells: str) -> None:
    work, tiles = small(64, 2, cells=cells)
    work.softcap, work.scale = 3.0, np.float32(0.9)
    work.check(work.run(program(64, form, cells=cells), form, tiles), tiles, 2e-6)


@pytest.mark.parametrize("form", [ONE, TensorForm(4, True)])
def test_float32_cells_of_every_size(form: TensorForm) -> None:
    """Keys and values of 2^-100 to 2^80, each by a power of its own: what a line sees has its accuracy."""
    work, _ = small(64, 2, cells="float32")
    tiles = [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 100), (100, 200), (200, 256)]
    position = {cell: p for p, cell in work.cell.items()}
    for cells, power in ((work.k, 1), (work.v, -1)):
        for cell, p in position.items():
            cells[:, cell] *= np.float32(2.0) ** (power * (-100, 0, 80)[min(p // 100, 2)])
    work.q[0] *= np.float32(2.0**60)
    work.scale = np.float32(2.0**-3)
    work.q[2] *= np.float32(2.0**-80)
    work.check(work.run(program(64, form, cells="float32"), form, tiles), tiles, OF_OTHERS)


@pytest.mark.parametrize("form", [ONE, TensorForm(4, True)])
def test_blocks_of_every_size(form: TensorForm) -> None:
    """Scales of 2^-24, below the normal halves, to 2^15, beside each other in rows and among rows: 32 numbers have an
    accuracy of their own."""
    work, _ = small(64, 2, cells="q8_0")
    tiles = [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 100), (100, 200), (200, 256)]
    for cell, p in ((cell, p) for p, cell in work.cell.items()):
        work.k[:, cell] *= np.float32(2.0) ** (-17, 0, 20)[min(p // 100, 2)]
        work.v[:, cell, 32:] *= np.float32(2.0) ** (20, -17, 0)[min(p // 100, 2)]
    work.q[0] *= np.float32(2.0**17)
    work.q[2] *= np.float32(2.0**-20)
    written = work.run(program(64, form, cells="q8_0"), form, tiles)
    for row in tiles[0].rows:
        for head in range(work.heads):
            values, sum_, _ = work.attended(row, head, 0, 256, float(work.sinks[head]))
            near(written.out[row, head, :32], values[:32] / sum_, OF_OTHERS)
            near(written.out[row, head, 32:], values[32:] / sum_, OF_OTHERS)


def test_float32_values_that_weights_outweigh() -> None:
    """Values of 2^40 whose weights are 2^-40 count as much as those of 1: a line's weights have a power of two."""
    work = Work(64, 1, [(0, 64)], spans=((7, 64, 0),), cells="float32")
    tiles = [Tile((0,), 0, 64)]
    work.k[:, 7:71] = 0
    work.q[0] = 1
    work.k[:, 7:39, 0] = -40 * np.log(2)
    work.v[:, 7:39] *= np.float32(2.0**40)
    work.scale = np.float32(1)
    work.check(work.run(program(64, ONE, cells="float32"), ONE, tiles), tiles, 20 * OF_OTHERS)


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
    work: Work, dim: int, form: TensorForm, rows: tuple[int, ...], seed: int, terms: int, cells: str = "float16"
) -> tuple[np.ndarray, ...]:
    """Outputs of rows that walk all splits, and partials of the same rows by split."""
    splits = [(0, 128), (128, 256), (384, 487)]
    tiles = [Tile(rows, 0, 487)]
    tiles += [Tile(rows, begin, end, i * len(rows)) for i, (begin, end) in enumerate(splits)]
    written = work.run(program(dim, form, terms, cells=cells), form, tiles, seed)
    shape = (3, len(rows), work.heads)
    return written.out[list(rows)], written.partials.reshape(*shape, dim), written.stats.reshape(*shape, 2)


ALIKE = [(*each, "float16") for each in ((64, 4, 1), (128, 5, 1), (64, 4, 2), (128, 5, 2), (256, 4, 2))]


@pytest.mark.parametrize(
    ("dim", "group", "terms", "cells"),
    [*ALIKE, *((*each, cells) for cells in OTHERS for each in ((64, 4, 2), (128, 5, 2)))],
)
def test_bits_depend_on_nothing_beside_a_row(dim: int, group: int, terms: int, cells: str) -> None:
    """Of every form, in another order of warps: rows together, and one of them alone."""
    rows = tuple(range(9))
    work = Work(dim, group, [(max(0, 30 * i - 60), 479 + i) for i in rows], cells=cells)
    forms = forms_of(dim, terms, cells)
    wanted = bits_of(work, dim, forms[-1], rows, 1, terms, cells)
    assert np.isfinite(wanted[0]).all() and np.isfinite(wanted[1]).all()
    for form in forms:
        for got, all_ in zip(bits_of(work, dim, form, rows, 2, terms, cells), wanted):
            assert np.array_equal(got.view(np.int32), all_.view(np.int32)), form
        alone = bits_of(work, dim, form, (5,), 3, terms, cells)
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
MERGING = [(64, 7, 3, form, terms, "float16") for terms in (1, 2) for form in forms_of(64, terms)]
MERGING += [(64, 7, 3, form, 2, cells) for cells in OTHERS for form in forms_of(64, 2, cells)]
MERGING += [
    (dim, group, rows, form, terms, "float16")
    for dim, group, rows in ((112, 3, 9), (256, 8, 2))
    for terms in (1, 2)
    for form in forms_of(dim, terms)[0 if "KVTRIE_PLAY_ALL" in os.environ else -1 :]
]


@pytest.mark.parametrize(("dim", "group", "rows", "form", "terms", "cells"), MERGING)
def test_merging_in_tiles_has_the_bits_of_a_launch_of_its_own(
    dim: int, group: int, rows: int, form: TensorForm, terms: int, cells: str
) -> None:
    """Of tiles in parts that cut through the heads of a row, too, in any order of groups."""
    work, tiles, merges = split_up(dim, group, 2 if dim == 64 else 1, rows, cells)
    wanted = work.merged(work.run(program(dim, form, terms, False, cells), form, tiles), merges, merge_program(dim))
    seen = sorted(merges.partials)
    assert np.isfinite(wanted[seen]).all()
    got = work.run(program(dim, form, terms, True, cells), form, tiles, form.lines, merges=merges)
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


HIDDEN = [
    (ONE, "float16"),
    (FOUR, "float16"),
    *((form, cells) for cells in OTHERS for form in (ONE, TensorForm(4, True))),
]


@pytest.mark.parametrize(("form", "cells"), HIDDEN)
@pytest.mark.parametrize("what", ["k", "v", "infinite v"])
def test_hidden_nan_is_not_multiplied_in(form: TensorForm, cells: str, what: str) -> None:
    """A key of which one row of a tile sees that it is NaN: that row is NaN, the others are what they were."""
    work, _ = small(64, 2, cells=cells)
    rows, tiles = (0, 1, 2), [Tile((0, 1, 2), 0, 256)]
    work.bounds[:3] = [(0, 150), (10, 256), (151, 200)]
    before = work.run(program(64, form, cells=cells), form, tiles)
    pool = work.k if what == "k" else work.v
    pool[:, work.cell[150], 5] = np.inf if what == "infinite v" else np.nan
    after = work.run(program(64, form, cells=cells), form, tiles)
    assert np.isnan(after.out[1]).all()
    for row in set(rows) - {1}:
        assert np.array_equal(after.out[row].view(np.int32), before.out[row].view(np.int32))
    if cells != "float16":  # one so large that it would leave nothing of others, had they a power of two together
        pool[:, work.cell[150]] = np.float32(2.0 ** (100 if cells == "float32" else 22))
        after = work.run(program(64, form, cells=cells), form, tiles)
        for row in set(rows) - {1}:
            assert np.array_equal(after.out[row].view(np.int32), before.out[row].view(np.int32))


@pytest.mark.parametrize("form", [ONE, TensorForm(4, True)])
def test_hidden_blocks_may_be_any_bytes(form: TensorForm) -> None:
    """Of cells that no row sees, and of one that others do not see: negative scales, infinite ones, NaN."""
    work, _ = small(64, 2, cells="q8_0")
    tiles = [Tile((0, 2), 0, 256)]
    work.bounds[:3] = [(0, 150), (0, 0), (151, 200)]
    before = work.run(program(64, form, cells="q8_0"), form, tiles)
    hidden = [work.cell[150], *(cell for cell in range(CELLS) if cell not in work.cell.values())]
    kept, random = {id(rows): work.format.keep(rows) for rows in (work.k, work.v)}, np.random.default_rng(5)
    for rows in kept.values():
        rows[:, hidden] = random.integers(0, 256, rows[:, hidden].shape)
        rows[:, work.cell[150], 1] = 0x7C if rows is kept[id(work.k)] else 0xBC
    work.format = work.format._replace(keep=lambda rows: kept[id(rows)])
    after = work.run(program(64, form, cells="q8_0"), form, tiles)
    for row in (0, 2):
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


def wavefronts(report: ptx.Report) -> int:
    """Of loads and stores of local memory, where none waits for a bank: 4 for 16 bytes a lane, 2 for 8."""
    times = {"v4": 4, "v2": 2}
    each = {op: count for op, count in report.instructions.items() if ".shared." in op and op[:3] in ("ld.", "st.")}
    return sum(count * next((times[word] for word in op.split(".") if word in times), 1) for op, count in each.items())


# Warp instructions per key and line of the inner loop, and for all else of a block: what is allowed.
COSTS = {(FOUR, 2, "float16"): 1.35, (FOUR, 1, "float16"): 0.79, (ONE, 2, "float16"): 1.95,
         (ONE, 1, "float16"): 1.6, (TensorForm(1, False), 1, "float16"): 0.95, (ONE, 2, "float32"): 12,
         (TensorForm(4, True), 2, "float32"): 6, (ONE, 2, "q8_0"): 5.4,
         (TensorForm(4, True), 2, "q8_0"): 3.6}  # fmt: skip


@pytest.mark.parametrize(("form", "terms", "cells"), COSTS)
def test_what_a_key_costs(form: TensorForm, terms: int, cells: str) -> None:
    """Of blocks that all rows see: instructions per key and line; local memory without bank conflicts."""
    work = Work(128, 4, [(0, 256)] * (form.lines // 4), spans=((7, 256, 0),), cells=cells)
    rows = tuple(range(len(work.bounds)))
    short, long = (
        work.run(program(128, form, terms, False, cells), form, [Tile(rows, 0, end)], counting=True, split=512)
        for end in (64, 256)
    )
    instructions = long.report.total - short.report.total
    each = instructions / form.lines / 192
    assert each <= COSTS[form, terms, cells], f"instructions a key and line: {each:.2f}"
    for report in (short.report, long.report):
        assert report.counts["ldmatrix wavefronts"] == report.counts["ldmatrix matrices"]
        assert report.counts.get("shared wavefronts", 0) == wavefronts(report)
    copies = long.report.counts["wavefronts of copies"] - short.report.counts["wavefronts of copies"]
    row = work.format.keep(work.k[:, :1]).nbytes
    assert copies == 192 * 2 * row // 128, "one for each 128 bytes of K and V"


def test_near_is_no_excuse() -> None:
    with pytest.raises(AssertionError):
        near(np.array([np.nan]), np.array([1.0]), 1.0)
