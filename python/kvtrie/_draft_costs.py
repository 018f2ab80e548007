"""The seconds that steps of so many rows take, by those that were made, and how many drafts pay then (_drafting.py).

    rows       1, 2, 3, 4     5 .. 8     9 .. 16     17 .. 24     ...    each block has an estimate, as products
    seconds    s1 ... s4      s8         s16         s24                 take rows in blocks

What drafting may lose is bounded by a credit, which all answers of a step share. Its unit is a step without drafts:

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

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from operator import mul

__all__ = ["GAIN", "KEPT", "Costs", "counts", "lower_quartile"]

KEPT = 9  # measurements of each; the lower quartile counts, so that what disturbs some of them does not
GAIN = 1.03  # least, for which it is worth it
_SINGLE = 4  # rows: up to so many each number has an estimate of its own
_BLOCK = 8  # rows: of more, those of one block share one
_FIRST, _EARNED, _MOST_CREDIT = 1.0, 0.01, 16.0  # steps; see above
_GUESS = 0.4  # steps take the number of rows to this power as long as nothing is measured


class Costs:
    """The seconds that steps of so many rows take. One for all answers that share steps.

    ``credit``: how many steps' time drafts may lose at first.
    """

    def __init__(self, credit: float = _FIRST) -> None:
        self._credit = credit
        self._won = 0  # right drafts of the step that is under way
        self._paid = 0.0  # seconds that looks for its drafts took
        self._seconds: dict[int, deque[float]] = {}
        self._low: dict[int, float] = {}  # of each of them, what counts
        self._begun: set[int] = set()
        self._unit: float | None = None  # seconds of one row by the quickest step so far and the guess; None: no step

    def won(self, tokens: int) -> None:
        """So many drafts of the step that is under way were right."""
        self._won += tokens

    def paid(self, seconds: float) -> None:
        """Looks for drafts of the next step took so long."""
        self._paid += seconds

    def stepped(self, rows: int, drafts: int, decoding: int, seconds: float) -> None:
        """A step of so many rows took ``seconds``, looks for its drafts left out; ``decoding``: answers that had a
        token of it anyway."""
        self.measured(rows, seconds)
        self.settle(max(self.of(rows) - self.of(rows - drafts), 0.0), decoding)

    def settle(self, extra: float, decoding: int) -> None:
        """The step is over, and its drafts took ``extra`` seconds more."""
        change = _EARNED + self._won / decoding - (extra + self._paid) / self.of(decoding)
        self._credit = min(self._credit + change, max(_MOST_CREDIT, self._credit))
        self._won, self._paid = 0, 0.0

    def most_beside(self, rows: int) -> int:
        """Rows of drafts that may be tried in a step beside so many ``rows``: 16, or up to twice the rows of the
        largest step that was measured. What more take is a guess, and what fewer take would be guessed from those."""
        return max(2 * _BLOCK, 2 * max(self._low, default=0) - rows)

    def affords(self, extra: float, decoding: int) -> bool:
        """Whether drafts that take so many seconds more may all be wrong."""
        return extra <= self._credit * self.of(decoding)

    def measured(self, rows: int, seconds: float) -> None:
        """The first step of each number of rows compiles and records, and counts only as long as there is no other."""
        rows = _class_of(rows)
        unit = seconds / _guess(rows)
        self._unit = unit if self._unit is None else min(self._unit, unit)
        if rows not in self._begun:
            self._begun.add(rows)
            return
        own = self._seconds.setdefault(rows, deque(maxlen=KEPT))
        own.append(seconds)
        self._low[rows] = lower_quartile(own)

    def of(self, rows: int) -> float:
        """Seconds, of some unit as long as nothing is measured.

        Between two numbers that were measured they lie on the line through them, and beyond all on that through the
        first and the last, or, of blocks, as far above the last as is guessed, where that is more: where rows were free
        so far, those of the next block need not be.
        """
        rows = _class_of(rows)
        if rows in self._low:
            return self._low[rows]
        known = sorted(self._low)
        if len(known) < 2 or rows < known[0]:
            unit = self._low[known[0]] / _guess(known[0]) if known else 1.0 if self._unit is None else self._unit
            return unit * _guess(rows)
        if rows > known[-1]:
            first, last = known[0], known[-1]
            guessed = self._low[last] * _guess(rows) / _guess(last) if rows > _SINGLE else 0.0
            return max(guessed, self._between(first, last, rows))
        at = bisect_left(known, rows)
        return self._between(known[at - 1], known[at], rows)

    def _between(self, first: int, last: int, rows: int) -> float:
        low, high = self._low[first], self._low[last]
        return low + max(high - low, 0.0) * (rows - first) / (last - first)

    def shares(
        self, chances: Sequence[float], limits: Sequence[int], rows: int, decoding: int, prices: Sequence[float] = ()
    ) -> list[int]:
        """How many drafts of each answer a step checks; all 0 where that does not pay, or the credit is used up.

        ``chances``: how likely a draft of each is right; ``limits``: how many each may have. ``rows``: of the step
        without drafts, of which ``decoding`` give a token each, and all others are of prompts. ``prices``: the seconds
        that each answer's drafter takes for one; empty: none.
        """
        most = min(sum(limits), self.most_beside(rows))
        owners, worths = _likeliest(chances, limits, most)
        tokens = list(accumulate(worths, initial=float(decoding)))
        paid = [0.0] * (most + 1)
        if prices and self._unit is not None:
            paid = list(accumulate((prices[at] for at in owners), initial=0.0))
        plain, all_plain = self.of(decoding), self.of(rows)
        best, highest = 0, GAIN * decoding / plain
        for count in counts(most, rows):
            extra = max(self.of(rows + count) - all_plain, 0.0) + paid[count]
            rate = tokens[count] / (plain + extra)
            if rate >= highest and self.affords(extra, decoding):
                best, highest = count, rate
        given = [0] * len(chances)
        for at in owners[:best]:
            given[at] += 1
        return given


def _likeliest(chances: Sequence[float], limits: Sequence[int], most: int) -> tuple[list[int], list[float]]:
    """The ``most`` drafts that are likeliest to be right, in order: whose each is, and how likely."""
    if len(chances) == 1:
        return [0] * most, list(accumulate([chances[0]] * most, mul))
    waiting = [(-chance, at) for at, chance in enumerate(chances) if limits[at] > 0]
    heapify(waiting)
    left = list(limits)
    owners: list[int] = []
    worths: list[float] = []
    while len(owners) < most:
        worth, at = waiting[0]
        owners.append(at)
        worths.append(-worth)
        left[at] -= 1
        if left[at] > 0:
            heapreplace(waiting, (worth * chances[at], at))
        else:
            heappop(waiting)
    return owners, worths


def lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _class_of(rows: int) -> int:
    """The number of rows that stands for it: the last of its block."""
    return rows if rows <= _SINGLE else _BLOCK if rows <= _BLOCK else -(-rows // _BLOCK) * _BLOCK


def _guess(rows: int) -> float:
    return float(rows**_GUESS)


def counts(most: int, rows: int = 1) -> Iterator[int]:
    """Of drafts beside so many rows that are worth a look: about 1, 3, 7, 15 ..., those that fill a block of rows, and
    all. They are few, as steps of each number of rows are measured, and small ones recorded."""
    count = _class_of(rows + 1) - rows
    while count < most:
        yield count
        count = _class_of(rows + 2 * count + 1) - rows
    if most > 0:
        yield most
