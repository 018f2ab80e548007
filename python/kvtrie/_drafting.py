"""How long drafts are: as long as they pay, by how many were right lately and by what steps of so many rows take.

A step that checks k drafts has 1 + k rows and gives 1 + p + p^2 + ... + p^k tokens, where p is how often a draft is
right behind right ones. It takes longer than a step of one row, by how much is measured:

    rows     1      2      4      8     16
    seconds  s1     s2     s4     s8    s16         the k with the most tokens a second; none where that is 0 drafts

Where nothing pays, drafting rests for 16 tokens, then is tried again, and rests twice as long each time that this
fails, so that a text without repetitions is made about as fast as without drafts. Times decide how many drafts there
are, never what they become.

Threads: of one answer. Units: seconds, tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from . import _core
from .draft import Drafter

__all__ = ["Drafting"]

_LENGTHS = (1, 3, 7, 15)  # few, since steps of each number of rows are recorded and warmed up
_KEPT = 9  # measurements of each; the lower quartile counts, so that what disturbs some of them does not
_FORGET = 0.9  # what is left of earlier verdicts after each
_GAIN = 1.03  # least, for which it is worth it
_LONGEST_REST = 128
_GUESS = 0.25  # of a step, that a row more takes as long as nothing is measured


class Costs:
    """The seconds that steps of so many rows take."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._begun: set[int] = set()

    def measured(self, rows: int, seconds: float) -> None:
        """The first step of each number of rows compiles and records, and does not count."""
        if rows not in self._begun:
            self._begun.add(rows)
            return
        self._seconds.setdefault(rows, deque(maxlen=_KEPT)).append(seconds)

    def of(self, rows: int) -> float:
        """In steps of one row; guessed from the nearest number of rows that was measured."""
        one = self._of_one()
        if rows == 1 or one is None:
            return 1.0 + _GUESS * (rows - 1)
        if rows in self._seconds:
            return _low(self._seconds[rows]) / one
        near = min((each for each in self._seconds if each > 1), key=lambda each: abs(each - rows), default=None)
        if near is None:
            return 1.0 + _GUESS * (rows - 1)
        return 1.0 + (_low(self._seconds[near]) / one - 1.0) * (rows - 1) / (near - 1)

    def _of_one(self) -> float | None:
        own = self._seconds.get(1)
        return _low(own) if own else None


def _low(seconds: Iterable[float]) -> float:
    each = sorted(seconds)
    return each[len(each) // 4]


class Drafting:
    """The drafts of one answer. ``proposed`` and ``accepted`` count tokens."""

    def __init__(self, drafters: Sequence[Drafter], costs: Costs | None = None) -> None:
        self._drafters = drafters
        self.costs = Costs() if costs is None else costs
        self._tried = self._right = 0.0
        self._rest = 0  # tokens until it is tried again
        self._next_rest = 16
        self.proposed = 0
        self.accepted = 0

    def drafts(self, session: _core.Session, most: int) -> list[int]:
        """At most ``most`` that the next step should check; none where that does not pay."""
        if self._rest > 0:
            self._rest -= 1
            return []
        count = self._count(most)
        if count == 0:
            return []
        for drafter in self._drafters:
            found = drafter(session, count)
            if len(found) > 0:
                whole = max((each for each in _LENGTHS if each <= len(found)), default=0)
                return list(found[:whole])
        return []

    def _count(self, most: int) -> int:
        p = (self._right + 0.5) / (self._tried + 1)
        rates = {k: sum(p**i for i in range(k + 1)) / self.costs.of(k + 1) for k in _LENGTHS if k <= most}
        best = max(rates, key=lambda k: rates[k], default=0)
        if not rates or rates[best] >= _GAIN:
            return best
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
        self._tried = self._right = 0.0  # of the next try nothing is known
        return 0

    def verified(self, drafted: int, right: int) -> None:
        """So many of the drafts were what the model chose."""
        self.proposed += drafted
        self.accepted += right
        self._tried = self._tried * _FORGET + min(right + 1, drafted)
        self._right = self._right * _FORGET + right
        if 2 * right >= drafted and right > 0:
            self._next_rest = 16

    def refused(self) -> None:
        """There was no room for the drafts."""
        self._rest = self._next_rest
