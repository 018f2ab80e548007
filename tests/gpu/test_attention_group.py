"""What attention by work-groups promises beyond its plays: bits, NaN, softcap, what a key costs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import compilers
import plays
import ptx
from plays_tensor import Tile, Work, Written, small
from variants import GroupForm

FORMS = [GroupForm(lines) for lines in (1, 2, 4, 8)]
BOUND = 2e-6


@cache
def program(dim: int, form: GroupForm) -> ptx.Program:
    return ptx.Program(compilers.ptx_of(plays.tiles(dim, 1, form.lines)).read_text(), "attend_tiles")


def same(got: Written, wanted: Written) -> bool:
    pairs = ((got.out, wanted.out), (got.partials, wanted.partials), (got.stats, wanted.stats))
    return all((a.view(np.uint32) == b.view(np.uint32)).all() for a, b in pairs)


@pytest.mark.parametrize("dim", [64, 112])
def test_every_form_gives_a_line_the_same_bits(dim: int) -> None:
    """Three query heads over each of two K/V heads: groups have lines of several rows, and lines that nobody has."""
    work, tiles = small(dim, 3, kv_heads=2)
    work.v[:, work.cell[486], 3] = 1.0
    wanted = work.run(program(dim, FORMS[0]), FORMS[0], tiles)
    work.check(wanted, tiles, BOUND)
    for form in FORMS[1:]:
        assert same(work.run(program(dim, form), form, tiles, seed=2), wanted), form


def test_values_that_are_not_finite_reach_no_row_that_does_not_see_them() -> None:
    work, tiles = small(64, 2)
    work.v[:, work.cell[486], 3] = 1.0
    wanted = work.run(program(64, FORMS[-1]), FORMS[-1], tiles)
    work.v[:, work.cell[486], 3] = np.inf
    work.k[:, work.cell[486]] = np.nan
    got = work.run(program(64, FORMS[-1]), FORMS[-1], tiles)
    assert (got.out[:8].view(np.uint32) == wanted.out[:8].view(np.uint32)).all()
    assert np.isnan(got.out[8]).all()


def test_scores_are_capped() -> None:
    work, tiles = small(64, 2)
    work.v[:, work.cell[486], 3] = 1.0
    work.softcap, work.scale = 3.0, np.float32(0.9)
    work.check(work.run(program(64, FORMS[-1]), FORMS[-1], tiles), tiles, BOUND)


# Warp instructions for each key and line: what is allowed. Of a head of 128, 8 are multiply-adds.
COSTS = {1: 62.0, 2: 36.0, 4: 24.0, 8: 17.5}


@pytest.mark.parametrize("lines", COSTS)
def test_what_a_key_costs(lines: int) -> None:
    """Of blocks that all rows see, without what a launch costs."""
    form, group = GroupForm(lines), min(lines, 4)
    work = Work(128, group, [(0, 256)] * (lines // group), spans=((7, 256, 0),))
    rows = tuple(range(len(work.bounds)))
    short, long = (work.run(program(128, form), form, [Tile(rows, 0, end)], split=512) for end in (64, 256))
    each = (long.report.total - short.report.total) / lines / 192
    assert each <= COSTS[lines], f"instructions a key and line: {each:.2f}"
