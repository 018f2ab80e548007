"""The seconds that steps of so many rows take, by those that were made.

    rows       1, 2, 3, 4     5 .. 8     9 .. 16     17 .. 24     ...    each block has an estimate, as products
    seconds    s1 ... s4      s8         s16         s24                 take rows in blocks

What one answer measured is kept with its model, and the next one begins with it. The lower quartile of the last nine
counts, so that what disturbs some of them does not; where there is only one, ``hoped`` doubts it.

Threads: measured and read by one; others may make copies meanwhile, and keep it. Units: seconds, rows.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["BLOCK", "KEPT", "StepSeconds", "class_of", "lower_quartile"]

KEPT = 9  # measurements of each
BLOCK = 8  # rows: of more, those of one block share one estimate
_SINGLE = 4  # rows: up to so many each number has an estimate of its own
_GUESS = 0.4  # steps take the number of rows to this power as long as nothing is measured

_kept: dict[tuple[int, bool], StepSeconds] = {}  # by the id of a model that lives, and whether answers share steps


class StepSeconds:
    """What steps of one model take."""

    def __init__(self) -> None:
        # Tuples, and sets that only grow: a copy of either is whole, whatever another thread does.
        self._measured: dict[int, tuple[float, ...]] = {}
        self._begun: set[int] = set()
        self._low: dict[int, float] = {}  # of each of them, what counts
        self._unit: float | None = None  # seconds of one row by the quickest step so far and the guess; None: no step
        self._model: weakref.ref[object] | None = None  # that it is kept with
        self._shared = False

    @classmethod
    def known(cls, model: object, shared: bool) -> StepSeconds:
        """A copy of what is kept of ``model``; ``shared``: of steps that several answers share. Of models that take no
        weak references nothing is."""
        found = cls()
        found._shared = shared
        try:
            found._model = weakref.ref(model)
        except TypeError:
            return found
        kept = _kept.get((id(model), shared))
        if kept is not None:
            found._measured, found._begun, found._unit = kept._measured.copy(), kept._begun.copy(), kept._unit
            found._low = {rows: lower_quartile(seconds) for rows, seconds in found._measured.items()}
        return found

    def keep(self) -> None:
        """Lets the next answer of the same model begin with it, as long as the model lives."""
        model = None if self._model is None else self._model()
        if model is None:
            return
        key = (id(model), self._shared)
        if key not in _kept:
            weakref.finalize(model, _kept.pop, key, None).atexit = False
        _kept[key] = self

    @property
    def any(self) -> bool:
        """Whether a step was made."""
        return self._unit is not None

    @property
    def most_measured(self) -> int:
        """Rows of the largest step that was measured; 0: none was."""
        return max(self._low, default=0)

    def measured(self, rows: int, seconds: float) -> None:
        """The first step of each number of rows compiles and records, and counts only as long as there is no other."""
        rows = class_of(rows)
        unit = seconds / _guess(rows)
        self._unit = unit if self._unit is None else min(self._unit, unit)
        if rows not in self._begun:
            self._begun.add(rows)
            return
        own = self._measured[rows] = (*self._measured.get(rows, ()), seconds)[-KEPT:]
        self._low[rows] = lower_quartile(own)

    def of(self, rows: int) -> float:
        """Seconds, of some unit as long as nothing is measured.

        Between two numbers that were measured they lie on the line through them, and beyond all on that through the
        first and the last, or, of blocks, as far above the last as is guessed, where that is more: where rows were free
        so far, those of the next block need not be.
        """
        rows = class_of(rows)
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

    def hoped(self, rows: int) -> float:
        """As ``of``, but where one step of a block was measured, which may have been disturbed, no more than is
        guessed from the next smaller one: so that one slow step does not bar a block for good."""
        rows = class_of(rows)
        seconds = self.of(rows)
        if len(self._measured.get(rows, ())) != 1:
            return seconds
        below = max((each for each in self._low if each < rows), default=0)
        return min(seconds, self._low[below] * _guess(rows) / _guess(below)) if below else seconds

    def _between(self, first: int, last: int, rows: int) -> float:
        low, high = self._low[first], self._low[last]
        return low + max(high - low, 0.0) * (rows - first) / (last - first)


def lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def class_of(rows: int) -> int:
    """The number of rows that stands for it: the last of its block."""
    return rows if rows <= _SINGLE else -(-rows // BLOCK) * BLOCK


def _guess(rows: int) -> float:
    return float(rows**_GUESS)
