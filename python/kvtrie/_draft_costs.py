"""The seconds that steps of so many rows take, by those that were made, and how many drafts pay then (_drafting.py).

    rows       4      8     16     32
    seconds    s4     s8    s16    s32

Threads: that of the answer, or of the batch. Units: seconds, rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

__all__ = ["GAIN", "KEPT", "Costs", "counts", "lower_quartile"]

KEPT = 9  # measurements of each; the lower quartile counts, so that what disturbs some of them does not
GAIN = 1.03  # least, for which it is worth it
_FINE = 16  # rows; of more the costs are known in steps of half of it
_GUESS = 0.4  # steps take the number of rows to this power as long as nothing is measured


class Costs:
    """The seconds that steps of so many rows take. One for all answers that share steps."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._low: dict[int, float] = {}  # of each of them, what counts
        self._begun: set[int] = set()
        self._unit: float | None = None  # seconds of one row by the quickest step so far and the guess; None: no step

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
        first and the last.
        """
        rows = _class_of(rows)
        if rows in self._low:
            return self._low[rows]
        known = sorted(self._low)
        if len(known) < 2 or rows < known[0]:
            unit = self._low[known[0]] / _guess(known[0]) if known else 1.0 if self._unit is None else self._unit
            return unit * _guess(rows)
        at = bisect_left(known, rows)
        first, last = (known[at - 1], known[at]) if at < len(known) else (known[0], known[-1])
        low, high = self._low[first], self._low[last]
        return low + max(high - low, 0.0) * (rows - first) / (last - first)

    def shares(
        self, chances: Sequence[float], limits: Sequence[int], rows: int, decoding: int, prices: Sequence[float] = ()
    ) -> list[int]:
        """How many drafts of each answer a step checks; all 0 where that does not pay.

        ``chances``: how likely a draft of each is right; ``limits``: how many each may have. ``rows``: of the step
        without drafts, of which ``decoding`` give a token each, and all others are of prompts. ``prices``: the seconds
        that each answer's drafter takes for one; empty: none.
        """
        places = sorted(
            ((chance**place, -at) for at, chance in enumerate(chances) for place in range(1, limits[at] + 1)),
            reverse=True,
        )
        tokens = list(accumulate((worth for worth, _ in places), initial=float(decoding)))
        paid = (
            list(accumulate((prices[-at] for _, at in places), initial=0.0))
            if prices and self._unit is not None
            else None
        )
        plain, all_plain = self.of(decoding), self.of(rows)
        best, most = 0, GAIN * decoding / plain
        for count in counts(len(places)):
            seconds = plain + max(self.of(rows + count) - all_plain, 0.0) + (0.0 if paid is None else paid[count])
            rate = tokens[count] / seconds
            if rate >= most:
                best, most = count, rate
        given = [0] * len(chances)
        for _, at in places[:best]:
            given[-at] += 1
        return given


def lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _class_of(rows: int) -> int:
    """The number of rows that stands for it."""
    half = _FINE // 2
    return rows if rows <= _FINE else -(-rows // half) * half


def _guess(rows: int) -> float:
    return float(rows**_GUESS)


def counts(most: int) -> Iterator[int]:
    """Of drafts that are worth a look: few, as steps of each number of rows are measured, and small ones recorded."""
    count = 1
    while count < most:
        yield count
        count = 2 * count + 1
    if most > 0:
        yield most
