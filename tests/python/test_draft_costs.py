"""How many drafts the answers of a batch have: as many as pay, and those that are likeliest to be right.

Without a model and without a clock: steps take what a test says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from kvtrie._batch_drafts import find_drafts
from kvtrie._drafting import MOST, Costs, Drafting


def naive_shares(costs: Costs, chances: list[float], limits: list[int], rows: int, decoding: int) -> float:
    """The most tokens a second that any division of the rows gives."""
    best = decoding / costs.of(decoding)
    for given in itertools.product(*(range(limit + 1) for limit in limits)):
        tokens = decoding + sum(sum(p**i for i in range(1, n + 1)) for p, n in zip(chances, given))
        seconds = costs.of(decoding) + max(costs.of(rows + sum(given)) - costs.of(rows), 0.0)
        best = max(best, tokens / seconds)
    return best


def test_rows_go_where_they_are_likeliest_to_be_right() -> None:
    """Nearly as good as the best of all divisions, and never more than is allowed."""
    print("seed 41")
    random = np.random.default_rng(41)
    for _ in range(200):
        answers = int(random.integers(1, 4))
        chances, limits = random.random(answers).tolist(), random.integers(0, 6, answers).tolist()
        decoding = answers + int(random.integers(0, 3))
        rows = decoding + int(random.integers(0, 2)) * int(random.integers(0, 40))
        costs, slope = Costs(credit=math.inf), float(random.choice([0.01, 0.1, 1.0]))
        for total in range(1, 64):
            for _ in range(2):
                costs.measured(total, 1 + slope * total)
        given = costs.shares(chances, limits, rows, decoding)
        assert all(0 <= n <= limit for n, limit in zip(given, limits))
        tokens = decoding + sum(sum(p**i for i in range(1, n + 1)) for p, n in zip(chances, given))
        seconds = costs.of(decoding) + costs.of(rows + sum(given)) - costs.of(rows)
        best = naive_shares(costs, chances, limits, rows, decoding)
        assert tokens / seconds >= 0.8 * best
        if best < 1.03 * decoding / costs.of(decoding):
            assert sum(given) == 0


class Clock:
    """Seconds, as a test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Guessed:
    """An answer without a model, as far as drafts are asked for: of them ``right`` in 100 are."""

    in_prompt, most_drafts, live = False, 1000, None

    def __init__(self, costs: Costs, right: int, clock: Clock, look: float, known: int = MOST) -> None:
        def drafter(_session: object, most: int) -> list[int]:
            clock.now += look
            return [0] * min(most, known)

        self.drafting = Drafting([drafter], costs, clock=clock)
        self.right, self.drafted = right, 0


def played(
    rights: list[int], seconds: Callable[[int], float], steps: int, look: float = 0.0, known: int = MOST
) -> tuple[list[float], list[Guessed]]:
    """So many steps of a batch of such answers: behind each their tokens a second so far, with drafts over without.
    ``look``: seconds that a drafter takes; ``known``: drafts that it gives at most."""
    print("seed 43")
    costs, random, clock = Costs(), np.random.default_rng(43), Clock()
    answers = [Guessed(costs, right, clock, look, known) for right in rights]
    tokens, ratios = 0, []
    for _ in range(steps):
        drafts = find_drafts(answers, len(answers), costs, pytest.fail)  # type: ignore[arg-type]  # what it looks at
        count = sum(map(len, drafts.values()))
        rows = len(answers) + count
        tokens += len(answers)
        for each, own in drafts.items():
            right = next((at for at in range(len(own)) if random.integers(100) >= each.right), len(own))  # type: ignore[attr-defined]
            each.drafting.verified([own], 0, right)  # type: ignore[union-attr]
            each.drafted += len(own)  # type: ignore[attr-defined]
            tokens += right
        clock.now += seconds(rows)
        costs.stepped(rows, count, len(answers), seconds(rows))
        ratios.append(tokens / clock.now / (len(answers) / seconds(len(answers))))
    return ratios, answers


def blocks(rows: int) -> float:
    """Seconds of steps whose products take rows in blocks of 4, 8, 16: measured ratios of SmolLM2 on a processor."""
    return 1.0 if rows <= 4 else 1.55 if rows <= 8 else 2.4 if rows <= 16 else 2.4 * rows / 16


def sloping(slope: float) -> Callable[[int], float]:
    return lambda rows: 1 + slope * (rows - 1)


@pytest.mark.parametrize("look", [0.0, 0.005, 0.05])
@pytest.mark.parametrize("seconds", [blocks, sloping(0.02), sloping(0.25)])
@pytest.mark.parametrize("answers", [1, 2, 4])
def test_drafts_that_are_never_right_cost_next_to_nothing(
    answers: int, seconds: Callable[[int], float], look: float
) -> None:
    """Never slower than 0.97 of plain decoding behind 100 steps or more; ``look``: of a step without drafts."""
    for right, known in ((0, 0), (0, 1), (0, MOST), (15, 2), (15, MOST)):
        ratios, _ = played([right] * answers, seconds, 300, look * seconds(answers), known)
        assert min(ratios[99:]) >= 0.97, (right, known)


def test_those_that_are_right_draft_and_the_others_rest() -> None:
    ratios, answers = played([95, 0, 95, 0], sloping(0.02), 400)
    assert ratios[-1] > 2
    assert min(answers[0].drafted, answers[2].drafted) > 20 * max(answers[1].drafted, answers[3].drafted)


def test_where_rows_are_dear_there_are_no_drafts() -> None:
    """On a machine that takes as long for two rows as for two steps."""
    costs = Costs()
    for rows in (4, 8, 16, 32):
        for _ in range(3):
            costs.measured(rows, float(rows))
    assert costs.shares([0.9] * 4, [15] * 4, 4, 4) == [0] * 4
    cheap = Costs()
    for rows in (4, 8, 16, 32, 64):
        for _ in range(3):
            cheap.measured(rows, 1.0)
    assert cheap.shares([0.9] * 4, [15] * 4, 4, 4) == [15] * 4
    given = cheap.shares([0.9, 0.1, 0.9, 0.1], [15, 15, 15, 0], 4, 4)
    assert given[3] == 0 and given[0] >= given[1]
