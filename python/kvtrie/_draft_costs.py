"""How many drafts pay, by what steps of so many rows take (_step_seconds.py), and what drafting may lose.

That is bounded by a credit, which all answers of a step share. Its unit is a step without drafts:

    at first                                     1
    a step                                     + 0.01
    a right draft of one of n answers          + 1 / n
    a look for drafts, rows of drafts          - what they took
    a step that would lose more than there is    has fewer drafts, or none

So n steps take at most 1.01 n + 1 of the time that they take without drafts, by what is known of the costs, whatever
is drafted. What was won is counted up to 16: a step with the longest draft takes that of 12 without on a processor.

Threads: that of the answer, or of the batch. Units: seconds, rows; of the credit, steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

from ._draft_chance import Chance
from ._step_seconds import BLOCK, StepSeconds, class_of

__all__ = ["GAIN", "Costs", "counts"]

GAIN = 1.03  # least, for which it is worth it
_FIRST, _EARNED, _MOST_CREDIT = 1.0, 0.01, 16.0  # steps; see above


class Costs:
    """One for all answers that share steps.

    ``steps``: what they take, and begins with what is known. ``credit``: how many steps' time drafts may lose at first.
    """

    def __init__(self, steps: StepSeconds | None = None, credit: float = _FIRST) -> None:
        self.steps = StepSeconds() if steps is None else steps
        self._credit = credit
        self._won = 0  # right drafts of the step that is under way
        self._paid = 0.0  # seconds that looks for its drafts took

    def won(self, tokens: int) -> None:
        """So many drafts of the step that is under way were right."""
        self._won += tokens

    def paid(self, seconds: float) -> None:
        """Looks for drafts of the next step took so long."""
        self._paid += seconds

    def stepped(self, rows: int, drafts: int, decoding: int, seconds: float) -> None:
        """A step of so many rows took ``seconds``, looks for its drafts left out; ``decoding``: answers that had a
        token of it anyway."""
        self.steps.measured(rows, seconds)
        self.settle(max(self.steps.of(rows) - self.steps.of(rows - drafts), 0.0), decoding)

    def settle(self, extra: float, decoding: int) -> None:
        """The step is over, and its drafts took ``extra`` seconds more."""
        change = _EARNED + self._won / decoding - (extra + self._paid) / self.steps.of(decoding)
        self._credit = min(self._credit + change, max(_MOST_CREDIT, self._credit))
        self._won, self._paid = 0, 0.0

    def most_beside(self, rows: int) -> int:
        """Rows of drafts that may be tried in a step beside so many ``rows``: 16, or up to twice the rows of the
        largest step that was measured. What more take is a guess, and what fewer take would be guessed from those."""
        return max(2 * BLOCK, 2 * self.steps.most_measured - rows)

    def affords(self, extra: float, decoding: int) -> bool:
        """Whether drafts that take so many seconds more may all be wrong."""
        return extra <= self._credit * self.steps.of(decoding)

    def shares(
        self, chances: Sequence[Chance], limits: Sequence[int], rows: int, decoding: int, prices: Sequence[float] = ()
    ) -> list[int]:
        """How many drafts of each answer a step checks; all 0 where that does not pay, or the credit is used up. Where
        nothing is known of an answer's drafts they are tried, as nothing else would tell.

        ``chances``: how likely drafts of each are right; ``limits``: how many each may have. ``rows``: of the step
        without drafts, of which ``decoding`` give a token each, and all others are of prompts. ``prices``: the seconds
        that each answer's drafter takes for one; empty: none.
        """
        most = min(sum(limits), self.most_beside(rows))
        owners, worths = _likeliest(chances, limits, most)
        tokens = list(accumulate(worths, initial=float(decoding)))
        paid = [0.0] * (most + 1)
        if prices and self.steps.any:
            paid = list(accumulate((prices[at] for at in owners), initial=0.0))
        plain, all_plain = self.steps.of(decoding), self.steps.of(rows)
        tried = any(chance.is_unknown for chance, limit in zip(chances, limits) if limit > 0)
        best, highest = 0, 0.0 if tried else GAIN * decoding / plain
        for count in counts(most, rows):
            hoped, feared = (
                max(seconds - all_plain, 0.0) + paid[count]
                for seconds in (self.steps.hoped(rows + count), self.steps.of(rows + count))
            )
            rate = tokens[count] / (plain + hoped)
            if rate >= highest and self.affords(feared, decoding):
                best, highest = count, rate
        given = [0] * len(chances)
        for at in owners[:best]:
            given[at] += 1
        return given


def _likeliest(chances: Sequence[Chance], limits: Sequence[int], most: int) -> tuple[list[int], list[float]]:
    """The ``most`` drafts that are likeliest to be right, in order: whose each is, and how likely."""
    if len(chances) == 1:
        return [0] * most, list(chances[0].runs(most))
    waiting = [(-chance.first, at) for at, chance in enumerate(chances) if limits[at] > 0]
    heapify(waiting)
    given = [0] * len(chances)
    owners: list[int] = []
    worths: list[float] = []
    while len(owners) < most:
        worth, at = waiting[0]
        owners.append(at)
        worths.append(-worth)
        given[at] += 1
        if given[at] < limits[at]:
            heapreplace(waiting, (worth * chances[at].behind(given[at]), at))
        else:
            heappop(waiting)
    return owners, worths


def counts(most: int, rows: int = 1) -> Iterator[int]:
    """Of drafts beside so many rows that are worth a look: about 1, 3, 7, 15 ..., those that fill a block of rows, and
    all. They are few, as steps of each number of rows are measured, and small ones recorded."""
    count = class_of(rows + 1) - rows
    while count < most:
        yield count
        count = class_of(rows + 2 * count + 1) - rows
    if most > 0:
        yield most
