"""How long drafts are: as long as they pay, by how many were right lately and by what drafting and checking them takes.

A step that checks k drafts has 1 + k rows and gives 1 + p + p^2 + ... + p^k tokens, where p is how often a draft is
right behind right ones. It takes longer than a step of one row, and the drafts take what their drafter takes. By how
much is measured:

    drafts   0      1       3       7       15
    rows     1      2       4       8       16
    seconds  s1     s2+d1   s4+d3   s8+d7   s16+d15    the k with the most tokens a second; none where that is 0 drafts

Where nothing pays, drafting rests for 16 tokens, then is tried again, and rests twice as long each time that this
fails, so that a text without repetitions is made about as fast as without drafts. Times decide how many drafts there
are, never what they become.

Threads: of one answer. Units: seconds, tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from . import _core
from ._protocols import StepModel
from .draft import Drafter, close_drafter, watched
from .errors import CacheFullError

__all__ = ["Drafting"]

_LENGTHS = (1, 3, 7, 15)  # few, since steps of each number of rows are recorded and warmed up
_KEPT = 9  # measurements of each; the lower quartile counts, so that what disturbs some of them does not
_FORGET = 0.9  # what is left of earlier verdicts after each
_GAIN = 1.03  # least, for which it is worth it
_LONGEST_REST = 128
_GUESS = 0.25  # of a step, that a row more takes as long as nothing is measured


class _Times:
    """The seconds that something of so many rows or tokens takes. The first of each number compiles, records or catches
    up, and does not count."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._begun: set[int] = set()

    def measured(self, count: int, seconds: float) -> None:
        if count in self._begun:
            self._seconds.setdefault(count, deque(maxlen=_KEPT)).append(seconds)
        self._begun.add(count)

    def of(self, count: int) -> float | None:
        own = self._seconds.get(count)
        return _low(own) if own else None

    def nearest(self, count: int, least: int) -> int | None:
        """The number from ``least`` on that is next to ``count``, of those that were measured."""
        return min((each for each in self._seconds if each >= least), key=lambda each: abs(each - count), default=None)


class Costs:
    """The seconds that steps of so many rows take, and so many drafts."""

    def __init__(self) -> None:
        self._steps = _Times()
        self._drafts = _Times()

    def measured(self, rows: int, seconds: float) -> None:
        """A step."""
        self._steps.measured(rows, seconds)

    def drafted(self, count: int, seconds: float) -> None:
        """Asking drafters for ``count`` tokens, whatever came of it."""
        self._drafts.measured(count, seconds)

    def of(self, rows: int) -> float:
        """In steps of one row; guessed from the nearest number of rows that was measured."""
        one, own = self._steps.of(1), self._steps.of(rows)
        if rows == 1 or one is None:
            return 1.0 + _GUESS * (rows - 1)
        if own is not None:
            return own / one
        near = self._steps.nearest(rows, 2)
        if near is None:
            return 1.0 + _GUESS * (rows - 1)
        return 1.0 + ((self._steps.of(near) or 0.0) / one - 1.0) * (rows - 1) / (near - 1)

    def of_drafts(self, count: int) -> float:
        """In steps of one row; a number that was not measured in proportion to the nearest that was. 0 at first."""
        one, near = self._guessed_one(), self._drafts.nearest(count, 1)
        if one is None or near is None:
            return 0.0
        return (self._drafts.of(near) or 0.0) / one * count / near

    def _guessed_one(self) -> float | None:
        """Seconds of a step of one row, also where all had drafts."""
        near = self._steps.nearest(1, 1)
        return None if near is None else (self._steps.of(near) or 0.0) / (1.0 + _GUESS * (near - 1))


def _low(seconds: Iterable[float]) -> float:
    each = sorted(seconds)
    return each[len(each) // 4]


class Drafting:
    """The drafts of one answer. ``proposed`` and ``accepted`` count tokens. ``clock``: seconds."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: Costs | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafters = drafters
        self._clock = clock
        self._spent = 0.0  # seconds on the drafts of the next step
        self.costs = Costs() if costs is None else costs
        self._tried = self._right = 0.0
        self._rest = 0  # tokens until it is tried again
        self._next_rest = 16
        self.proposed = 0
        self.accepted = 0

    def drafts(self, session: _core.Session, most: int) -> list[int]:
        """At most ``most`` that the next step should check; none where that does not pay, or a drafter has no room."""
        self._spent = 0.0
        if self._rest > 0:
            self._rest -= 1
            return []
        count = self._count(most)
        if count == 0:
            return []
        began = self._clock()
        try:
            found = self._asked(session, count)
        except CacheFullError:
            self.refused()
            return []
        finally:
            self._spent = self._clock() - began
        self.costs.drafted(count, self._spent)
        return found

    def _asked(self, session: _core.Session, count: int) -> list[int]:
        for drafter in self._drafters:
            found = drafter(session, count)
            if len(found) > 0:
                whole = max((each for each in _LENGTHS if each <= len(found)), default=0)
                return list(found[:whole])
        return []

    def stepped(self, rows: int, seconds: float) -> None:
        """A step took so long, with the drafting before it."""
        self.costs.measured(rows, seconds - self._spent)

    def _count(self, most: int) -> int:
        p = (self._right + 0.5) / (self._tried + 1)
        rates = {k: sum(p**i for i in range(k + 1)) / self._cost(k) for k in _LENGTHS if k <= most}
        best = max(rates, key=lambda k: rates[k], default=0)
        if not rates or rates[best] >= _GAIN:
            return best
        self.refused()
        self._tried = self._right = 0.0  # of the next try nothing is known
        return 0

    def _cost(self, drafts: int) -> float:
        """Of a step that checks them, in steps of one row."""
        return self.costs.of(drafts + 1) + self.costs.of_drafts(drafts)

    def verified(self, drafted: int, right: int) -> None:
        """So many of the drafts were what the model chose."""
        self.proposed += drafted
        self.accepted += right
        self._tried = self._tried * _FORGET + min(right + 1, drafted)
        self._right = self._right * _FORGET + right
        if 2 * right >= drafted and right > 0:
            self._next_rest = 16

    def refused(self) -> None:
        """They did not pay, or there was no room for them: a rest, and twice as long a one the next time."""
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)

    def watched(self, model: StepModel) -> StepModel:
        """``model``, whose steps drafters see."""
        return watched(model, self._drafters)

    def close(self) -> None:
        """Gives back what drafters hold. May be called again, from any thread."""
        for drafter in self._drafters:
            close_drafter(drafter)
