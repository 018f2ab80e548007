"""A decode step as one launch (kernels/launch_groups.cl): any number of groups, every type of step, and what the order
of memory between groups depends on."""

from __future__ import annotations

import pytest

import ptx
from circles import CIRCLE
from step_plays import Step, play, program_of, text_of


@pytest.mark.parametrize("groups", [1, 2, 7])
def test_any_number_of_groups(groups: int) -> None:
    """Bits of launches one by one, also where only three of seven groups run at a time."""
    step = Step(4, 3)
    play(step, groups, program_of(step), groups)


# Rows, weights, terms, whether cells are float32. The further ones are played by `./dev kernels --play`, and not in CI.
STEPS = [(1, 1, 2, False), (3, 1, 1, False), (4, 2, 2, True)]
FURTHER = [(1, 2, 2, False), (3, 2, 1, False), (4, 2, 2, False), (1, 2, 2, True), (1, 1, 2, True), (4, 3, 2, True)]


@pytest.mark.parametrize(
    ("rows", "stored", "terms", "floats"), STEPS if CIRCLE == "ci" else [*STEPS, *FURTHER], ids=str
)
def test_kinds_of_steps(rows: int, stored: int, terms: int, floats: bool) -> None:
    """One row, halves, one half for a number of x; weights of bfloat16, and cells of float32."""
    step = Step(rows, stored, terms, floats)
    play(step, 3, program_of(step), 1)


def _found(step: Step, program: ptx.Program) -> str:
    """The first finding of several orders of the groups."""
    for seed in range(1, 7):
        try:
            play(step, 3, program, seed)
        except ptx.Finding as finding:
            return str(finding)
    return ""


@pytest.mark.parametrize(
    ("whole", "weaker"),
    [("red.release.gpu", "red.relaxed.gpu"), ("ld.acquire.gpu", "ld.relaxed.gpu"), ("atom.acq_rel", "atom.relaxed")],
)
def test_orders_between_groups_are_missed(whole: str, weaker: str) -> None:
    """Of the counters of an operation, and of those that say which lines attention may merge."""
    step = Step(4, 3)
    text = text_of(step)
    assert whole in text
    assert "race: global" in _found(step, ptx.Program(text.replace(whole, weaker), "run_groups"))


def test_nobody_waits_for_a_group_that_has_not_begun() -> None:
    """With one group at a time, each goes through the whole list before the next begins."""
    step = Step(4, 3)
    play(step, 3, program_of(step), 1, resident=1)
