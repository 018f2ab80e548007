"""Where bench_restore_points.py places states, and that the order in which states go keeps what it saved."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from bench_restore_points import again, day, forms, histories, workload
from partings import Depths, cheapest, hindsight


class Asked(NamedTuple):
    tokens: list[int]
    answer: list[int]


def cost(weights: list[int], before: float, chosen: tuple[int, ...]) -> float:
    """Bins that partings compute again, one by one."""
    last, total = -before, 0.0
    for bin_, weight in enumerate(weights):
        last = bin_ if bin_ in chosen else last
        total += weight * (bin_ - last)
    return total


def test_placed_bins_are_the_cheapest_of_all() -> None:
    draw = random.Random(38)
    for _ in range(200):
        weights = [draw.randrange(6) for _ in range(draw.randint(1, 8))]
        before, count = draw.randint(1, 8) / 4, draw.randint(1, len(weights))
        chosen = cheapest(np.array(weights, np.float64), before, count)
        assert len(chosen) == count
        assert chosen == sorted(set(chosen))
        every = itertools.combinations(range(len(weights)), count)
        least = min(cost(weights, before, each) for each in every)
        assert cost(weights, before, tuple(chosen)) == pytest.approx(least, rel=1e-12, abs=1e-12)


def test_states_stand_before_the_depths_of_earlier_partings() -> None:
    depths = Depths(every=512, step=16)
    for _ in range(20):
        depths.learn(700)
        depths.learn(1500)
    assert 688 in depths.place(100, 1200)
    assert 1488 in depths.place(699, 1700)
    assert depths.place(100, 101) == []


def test_hindsight_keeps_what_is_needed_next() -> None:
    a, b = list(range(100, 130)), list(range(200, 230))
    asked = [Asked(each, [1]) for each in (a, b, [*a[:20], 5], [*b[:10], 5], [*a[:20], 6])]
    known = [0, 0, 20, 10, 20]
    assert hindsight(asked, known, 2) == 0
    assert hindsight(asked, known, 1) == 10  # that of b, which is needed later than that of a and less often


@pytest.mark.parametrize("prompts", [day, histories, forms])
def test_no_placing_does_better_than_hindsight(prompts: object) -> None:
    load = workload(prompts(8, 3))  # type: ignore[operator]
    assert hindsight(load.prompts, load.known, 1 << 20) == 0
    assert hindsight(load.prompts, load.known, 16) <= min(again(load, 16, 512, name) for name in load.placed)


def test_a_day_computes_a_quarter_of_what_it_did_when_old_states_were_equal() -> None:
    """89,337 known tokens were computed again when the least recently used end went first (60 chats, 256 slots)."""
    assert again(workload(day(60, 1)), 256, 512) < 89_337 // 4


@pytest.mark.parametrize("slots", [256, 1024])
def test_ends_of_messages_save_half_of_the_grid(slots: int) -> None:
    load = workload(histories(60, 1))
    assert 2 * again(load, slots, 512, "ends") < again(load, slots, 512)


@pytest.mark.parametrize("slots", [512, 1024])
def test_fields_of_forms_are_found_without_a_word(slots: int) -> None:
    load = workload(forms(60, 1))
    assert 2 * again(load, slots, 512, contexts=True) < again(load, slots, 512)
