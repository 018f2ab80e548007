"""How many drafts the answers of a batch have: as many as pay, and those that are likeliest to be right.

Without a model and without a clock: steps take what a test says.
"""

from __future__ import annotations

import gc
import itertools
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest

from kvtrie import _step_seconds
from kvtrie._batch_drafts import find_drafts
from kvtrie._draft_chance import Chance
from kvtrie._drafting import MOST, Costs, Drafting
from kvtrie._step_seconds import StepSeconds


def likely(chance: Chance, drafts: int) -> float:
    """How many of so many drafts are right, by the moments of the beta distribution."""
    right, total = chance.right, chance.right + chance.wrong
    return sum(
        math.exp(math.lgamma(right + n) - math.lgamma(right) + math.lgamma(total) - math.lgamma(total + n))
        for n in range(1, drafts + 1)
    )


def certain(chance: float) -> Chance:
    """Of drafts that are right so often, whatever was before."""
    return Chance(chance * 1e9, (1 - chance) * 1e9)


def naive_shares(costs: Costs, chances: list[Chance], limits: list[int], rows: int, decoding: int) -> float:
    """The most tokens a second that any division of the rows gives."""
    best = decoding / costs.steps.of(decoding)
    for given in itertools.product(*(range(limit + 1) for limit in limits)):
        tokens = decoding + sum(likely(each, n) for each, n in zip(chances, given))
        seconds = costs.steps.of(decoding) + max(costs.steps.of(rows + sum(given)) - costs.steps.of(rows), 0.0)
        best = max(best, tokens / seconds)
    return best


def test_rows_go_where_they_are_likeliest_to_be_right() -> None:
    """Nearly as good as the best of all divisions, and never more than is allowed."""
    print("seed 41")
    random = np.random.default_rng(41)
    for _ in range(200):
        answers = int(random.integers(1, 4))
        chances = [Chance(*random.uniform(0.1, 9, 2).tolist()) for _ in range(answers)]
        limits = random.integers(0, 6, answers).tolist()
        decoding = answers + int(random.integers(0, 3))
        rows = decoding + int(random.integers(0, 2)) * int(random.integers(0, 40))
        costs, slope = Costs(credit=math.inf), float(random.choice([0.01, 0.1, 1.0]))
        for total in range(1, 64):
            for _ in range(4):  # the first counts for nothing, and one alone is doubted
                costs.steps.measured(total, 1 + slope * total)
        given = costs.shares(chances, limits, rows, decoding)
        assert all(0 <= n <= limit for n, limit in zip(given, limits))
        tokens = decoding + sum(likely(each, n) for each, n in zip(chances, given))
        seconds = costs.steps.of(decoding) + costs.steps.of(rows + sum(given)) - costs.steps.of(rows)
        best = naive_shares(costs, chances, limits, rows, decoding)
        assert tokens / seconds >= 0.8 * best
        if best < 1.03 * decoding / costs.steps.of(decoding):
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
        for _ in range(4):
            costs.steps.measured(rows, float(rows))
    assert costs.shares([certain(0.9)] * 4, [15] * 4, 4, 4) == [0] * 4
    cheap = Costs()
    for rows in (4, 8, 16, 32, 64):
        for _ in range(4):
            cheap.steps.measured(rows, 1.0)
    assert cheap.shares([certain(0.9)] * 4, [15] * 4, 4, 4) == [15] * 4
    given = cheap.shares([certain(each) for each in (0.9, 0.1, 0.9, 0.1)], [15, 15, 15, 0], 4, 4)
    assert given[3] == 0 and given[0] >= given[1]


def test_one_slow_step_does_not_bar_its_block() -> None:
    """What was measured once is tried again where less would pay, but no step loses more than the credit by it."""
    costs = Costs(credit=4.0)
    for rows, seconds in ((1, 1.0), (16, 5.0)):
        for _ in range(2):
            costs.steps.measured(rows, seconds)
    assert costs.steps.of(16) == 5.0 and costs.steps.hoped(16) == pytest.approx(16**0.4)
    assert costs.shares([certain(0.9)], [15], 1, 1) == [15]
    assert Costs(costs.steps, credit=3.9).shares([certain(0.9)], [15], 1, 1)[0] < 8
    costs.steps.measured(16, 5.0)
    assert costs.steps.hoped(16) == 5.0


def test_what_was_measured_while_the_machine_was_slow_bars_nothing_later() -> None:
    """And the other way round: what is known of a block that has not come for long is its ratio to the others."""
    for slow in (3.0, 1 / 3):
        steps = StepSeconds()
        for rows in (1, 1, 1, 1, 8, 8, 8, 16, 16, 16):
            steps.measured(rows, slow * rows**0.5)
        for _ in range(5):
            steps.measured(1, 1.0)
        assert [steps.of(rows) for rows in (1, 8, 16)] == pytest.approx([1.0, 8**0.5, 4.0])


def edited(changes: bool, answers: int, seed: int) -> list[float]:
    """Drafted over plain pace of each of so many answers of one model, of 600 tokens: stretches that are known, 22
    tokens on average, and between them three that nobody knows. ``changes``: the machine's speed does, up to 1.7 times,
    every few seconds. Rows take what a processor takes; one step in 25 is disturbed, and the first of its kind
    compiles."""
    random, clock, steps = np.random.default_rng(seed), Clock(), StepSeconds()
    speed, until, begun, paces = 1.0, 0.0, set[int](), []
    for _ in range(answers):
        left, unknown, made, plain, began = 0, 0, 0, 0.0, clock.now
        drafting = Drafting([lambda _session, most: [0] * most], Costs(steps), clock=clock)
        while made < 600:
            if left == 0 and unknown == 0:
                left, unknown = 1 + int(random.exponential(22)), 3
            drafts = drafting.drafts(None, 600 - made) if left else []  # type: ignore[arg-type]  # nobody looks at it
            right, rows = min(len(drafts), left), 1 + len(drafts)
            if clock.now > until and changes:
                speed, until = float(random.choice([1.0, 1.0, 1.4, 1.7])), clock.now + random.uniform(50, 400)
            seconds = (
                speed * (blocks(rows) if rows > 1 else 0.55) * (random.uniform(1.5, 4) if random.random() < 0.04 else 1)
            )
            seconds *= 1 if rows in begun else 5
            begun.add(rows)
            clock.now += seconds
            plain += 0.56 * speed * (right + 1)
            if drafts:
                drafting.verified([drafts], 0, right)
            drafting.stepped(rows, seconds)
            made += right + 1
            left, unknown = (max(left - right - 1, 0), unknown) if left else (0, unknown - 1)
        paces.append(plain / (clock.now - began))
    return paces


def test_a_machine_whose_speed_changes_drafts_as_well() -> None:
    """Answers behind the first of a model, on a machine that is 1.7 times as slow now and then, and on a steady one."""
    print("seeds 0 to 19")
    changing, steady = (
        sorted(pace for seed in range(20) for pace in edited(changes, 6, seed)[1:]) for changes in (True, False)
    )
    assert changing[50] >= 0.9 * steady[50] and changing[10] >= 0.9 * steady[10], (
        changing[10],
        changing[50],
        steady[50],
    )
    assert steady[50] >= 1.5


class Model:
    """Nothing but an object that may be dropped."""


@pytest.mark.parametrize("shared", [False, True])
def test_the_next_answer_of_a_model_begins_with_what_steps_took(shared: bool) -> None:
    """As long as the model lives; what the next one measures is its own until it is kept."""
    model, other = Model(), Model()
    first = StepSeconds.known(model, shared)
    assert not first.any
    for rows in (1, 1, 16, 16):
        first.measured(rows, float(rows))
    first.keep()
    assert not StepSeconds.known(other, shared).any and not StepSeconds.known(model, not shared).any
    second, third = StepSeconds.known(model, shared), StepSeconds.known(model, shared)
    assert (second.of(1), second.of(16), second.most_measured) == (1.0, 16.0, 16)
    second.measured(16, 8.0)  # counts, as one of 16 rows was begun
    assert (first.of(16), second.of(16), third.of(16)) == (16.0, 8.0, 16.0)
    second.keep()
    assert StepSeconds.known(model, shared).of(16) == 8.0
    before = len(_step_seconds._kept)
    del model
    gc.collect()
    assert len(_step_seconds._kept) == before - 1
    third.keep()  # of a model that is gone
    assert len(_step_seconds._kept) == before - 1


def test_what_takes_no_weak_references_has_nothing_kept() -> None:
    steps = StepSeconds.known(object(), False)
    steps.measured(1, 1.0)
    before = len(_step_seconds._kept)
    steps.keep()
    assert len(_step_seconds._kept) == before


def test_copies_are_whole_while_another_thread_measures() -> None:
    """An answer may begin in one thread while another one of the same model goes on."""
    model = Model()
    steps = StepSeconds.known(model, False)
    steps.keep()
    done = threading.Event()

    def measures() -> None:
        for at in range(20_000):
            steps.measured(1 + at % 2000, 1.0)
        done.set()

    thread = threading.Thread(target=measures)
    thread.start()
    copies = 0
    while not done.is_set() or copies == 0:
        found = StepSeconds.known(model, False)
        assert found.any or not found._ratios
        assert all(found.of(rows) == 1.0 for rows in found._ratios)  # beyond those, it is a guess
        copies += 1
    thread.join()
