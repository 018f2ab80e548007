"""The seconds that steps of so many rows take, by those that were made.

    rows       1, 2, 3, 4     5 .. 8     9 .. 16     17 .. 24     ...    each block has an estimate, as products
    ratio      r1 ... r4      r8         r16         r24                 take rows in blocks
    seconds    level * ratio      level: what the last steps took, each over its ratio

A machine that others use, too, is quick now and slow then, and a long history makes all steps longer. So what is known
of a block that has not come for long is its ratio to the others, not its time. What one answer measured is kept with
its model, and the next one begins with it. The lower quartile of the last nine ratios counts, so that what disturbs
some of them does not; where there is only one, ``hoped`` doubts it.

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
_LEVELS = 5  # steps
_GUESS = 0.4  # steps take the number of rows to this power as long as nothing is measured

_kept: dict[tuple[int, bool], StepSeconds] = {}  # by the id of a model that lives, and whether answers share steps


class StepSeconds:
    """What steps of one model take."""

    def __init__(self) -> None:
        # Tuples, and sets that only grow: a copy of either is whole, whatever another thread does.
        self._ratios: dict[int, tuple[float, ...]] = {}
        self._begun: set[int] = set()
        self._low: dict[int, float] = {}  # of each of them, what counts
        self._levels: tuple[float, ...] = ()  # seconds of one row by each of the last steps
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
            found._ratios, found._begun, found._levels = kept._ratios.copy(), kept._begun.copy(), kept._levels
            found._low = {rows: lower_quartile(ratios) for rows, ratios in found._ratios.items()}
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
        return bool(self._levels)

    @property
    def most_measured(self) -> int:
        """Rows of the largest step that was measured; 0: none was."""
        return max(self._low, default=0)

    def measured(self, rows: int, seconds: float) -> None:
        """The first step of each number of rows compiles and records, and counts only as long as there is no other."""
        rows = class_of(rows)
        if rows in self._low or not self._levels:
            self._levels = (*self._levels, seconds / self._ratio(rows))[-_LEVELS:]
        if rows not in self._begun:
            self._begun.add(rows)
            return
        own = self._ratios[rows] = (*self._ratios.get(rows, ()), seconds / self._level)[-KEPT:]
        self._low[rows] = lower_quartile(own)

    @property
    def _level(self) -> float:
        """Seconds of one row now; of some unit as long as nothing is measured."""
        return lower_quartile(self._levels) if self._levels else 1.0

    def of(self, rows: int) -> float:
        """Seconds, of some unit as long as nothing is measured."""
        return self._level * self._ratio(class_of(rows))

    def _ratio(self, rows: int) -> float:
        """To a step of one row.

        Between two numbers that were measured they lie on the line through them, and beyond all on that through the
        first and the last, or, of blocks, as far above the last as is guessed, where that is more: where rows were free
        so far, those of the next block need not be.
        """
        if rows in self._low:
            return self._low[rows]
        known = sorted(self._low)
        if len(known) < 2 or rows < known[0]:
            return (self._low[known[0]] / _guess(known[0]) if known else 1.0) * _guess(rows)
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
        ratio = self._ratio(rows)
        below = max((each for each in self._low if each < rows), default=0)
        if len(self._ratios.get(rows, ())) == 1 and below:
            ratio = min(ratio, self._low[below] * _guess(rows) / _guess(below))
        return self._level * ratio

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
