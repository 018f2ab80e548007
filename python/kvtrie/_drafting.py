"""How long drafts are: as long as they pay, by how many were right lately and by what steps of so many rows take.

An answer whose step checks k drafts gets 1 + p + p^2 + ... + p^k tokens from it, where p is how often a draft of this
answer is right behind right ones. Each draft is a row more in the step that all answers share, which then takes longer,
by how much is measured:

    rows       4      8     16     32
    seconds    s4     s8    s16    s32        those with the most tokens a second; none where that is 0 drafts

The next row goes to the answer whose next draft is likeliest to be right. What its drafter takes for a draft is added;
rows of prompts in the same step are there anyway, and are not held against the drafts.

Where drafts of an answer do not pay, it rests for 16 tokens, then is tried again, and rests twice as long each time
that this fails, so that a text without repetitions is made about as fast as without drafts. Times decide how many
drafts there are, never what they become.

Threads: that of the answer, or of the batch. Units: seconds, tokens.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from . import _core
from ._prediction_head import HeadDrafter
from ._protocols import StepModel
from .draft import Drafter, close_drafter, watched
from .errors import ArgumentError, CacheFullError

__all__ = ["Costs", "Drafting"]

MOST = 15  # drafts of one answer
_KEPT = 9  # measurements of each; the lower quartile counts, so that what disturbs some of them does not
_FINE = 16  # rows; of more the costs are known in steps of half of it
_FORGET = 0.9  # what is left of earlier verdicts after each
_GAIN = 1.03  # least, for which it is worth it
_LONGEST_REST = 128
_UNKNOWN = 0.5  # how likely a draft is right, of which nothing is known
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
        own = self._seconds.setdefault(rows, deque(maxlen=_KEPT))
        own.append(seconds)
        self._low[rows] = _low(own)

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
        best, most = 0, _GAIN * decoding / plain
        for count in _counts(len(places)):
            seconds = plain + max(self.of(rows + count) - all_plain, 0.0) + (0.0 if paid is None else paid[count])
            rate = tokens[count] / seconds
            if rate >= most:
                best, most = count, rate
        given = [0] * len(chances)
        for _, at in places[:best]:
            given[-at] += 1
        return given


def _low(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _class_of(rows: int) -> int:
    """The number of rows that stands for it."""
    half = _FINE // 2
    return rows if rows <= _FINE else -(-rows // half) * half


def _guess(rows: int) -> float:
    return float(rows**_GUESS)


def _counts(most: int) -> Iterator[int]:
    """Of drafts that are worth a look: few, as steps of each number of rows are measured, and small ones recorded."""
    count = 1
    while count < most:
        yield count
        count = 2 * count + 1
    if most > 0:
        yield most


class Drafting:
    """The drafts of one answer. ``proposed`` and ``accepted`` count tokens. ``clock``: seconds."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: Costs | None = None,
        vocab_size: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafters = drafters
        self._vocab_size = vocab_size
        self._clock = clock
        self._spent = 0.0  # seconds on the drafts of the next step
        self._prices: deque[float] = deque(maxlen=_KEPT)  # seconds that a draft took
        self._asked = False  # what is asked first catches up, and does not count
        self.costs = Costs() if costs is None else costs
        self._tried = self._right = 0.0
        self._rest = 0  # tokens until it is tried again
        self._next_rest = 16
        self.proposed = 0
        self.accepted = 0

    def drafts(self, session: _core.Session, most: int) -> list[int]:
        """At most ``most`` that the next step, of this answer alone, should check; none where that does not pay, or a
        drafter has no room."""
        limit = self.limit(most)
        if limit == 0:
            return []
        found = self.find(session, *self.costs.shares([self.chance], [limit], 1, 1, [self.price]))
        return found[: self.costs.shares([self.chance], [len(found)], 1, 1)[0]] if found else []

    @property
    def price(self) -> float:
        """Seconds that a draft takes, before it is checked; 0 where nothing is known."""
        return _low(self._prices) if self._prices else 0.0

    def limit(self, most: int) -> int:
        """How many it may have in the next step, ``most`` at most: 0 while it rests."""
        self._spent = 0.0  # on drafts of a step that did not come
        if self._rest > 0:
            self._rest -= 1
            return 0
        return max(0, min(most, MOST))

    @property
    def chance(self) -> float:
        """How likely a draft is right behind right ones, by the last ones; 1/2 where nothing is known."""
        return (self._right + _UNKNOWN) / (self._tried + 1)

    def find(self, session: _core.Session, count: int, before: float = 0.0) -> list[int]:
        """Up to ``count`` drafts, of the first drafter that knows something. It rests where it is to have none.
        ``before``: seconds that were spent on them already.

        ``kv.errors.ArgumentError`` for what is no token of the model.
        """
        if count == 0:
            self.refused()
            if self.chance < _UNKNOWN:
                self._tried = self._right = 0.0  # of the next try nothing is known
            return []
        began = self._clock()
        try:
            return self._first(session, count)
        except CacheFullError:
            self.refused()
            return []
        finally:
            self._took(count, before + self._clock() - began)

    def _first(self, session: _core.Session, count: int) -> list[int]:
        for drafter in self._drafters:
            found = drafter(session, count)
            if len(found) > 0:
                return self._known(found[:count])
        return []

    def _took(self, count: int, seconds: float) -> None:
        self._spent = seconds
        if self._asked:
            self._prices.append(seconds / count)
        self._asked = True

    def take_spent(self) -> float:
        """Seconds on drafts since it was asked last."""
        spent, self._spent = self._spent, 0.0
        return spent

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of this answer alone took so long, with the drafting before it."""
        self.costs.measured(rows, seconds - self.take_spent())

    def _known(self, found: Sequence[int]) -> list[int]:
        for token in found:
            if token < 0 or (self._vocab_size is not None and token >= self._vocab_size):
                allowed = "0 or more" if self._vocab_size is None else f"0 to {self._vocab_size - 1}"
                raise ArgumentError(f"[generate] draft: got token id {token}, allowed {allowed}")
        return list(found)

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

    @property
    def watches(self) -> bool:
        """Whether a drafter reads more of the model's steps than its tokens."""
        return any(hasattr(each, "watch") for each in self._drafters)

    def watched(self, model: StepModel) -> StepModel:
        """``model``, whose steps drafters see."""
        return watched(model, self._drafters)

    def see(self, session: _core.Session, start: int, tokens: npt.NDArray[np.int32], hidden: _core.Tensor) -> None:
        """The rows of its answer in a step that others share; arguments as of ``HeadDrafter.see``."""
        for each in self._drafters:
            if isinstance(each, HeadDrafter):
                each.see(session, start, tokens, hidden)

    @property
    def first_head(self) -> HeadDrafter | None:
        """The prediction head that is asked first; None: others are."""
        first = self._drafters[0]
        return first if isinstance(first, HeadDrafter) else None

    def close(self) -> None:
        """Gives back what drafters hold. May be called again, from any thread."""
        for drafter in self._drafters:
            close_drafter(drafter)
