"""How long drafts are: as long as they pay, by how many were right lately and by what steps of so many rows take.

An answer whose step checks k drafts gets 1 + p1 + p1 p2 + ... + p1 p2 ... pk tokens from it, where pi is how likely its
i-th draft is right behind right ones (_draft_chance.py). Each draft is a row more in the step that all answers share,
which then takes longer, by how much is measured:

    rows       4      8     16     32
    seconds    s4     s8    s16    s32        those with the most tokens a second; none where that is 0 drafts

Where all of a text is known, long drafts read the weights less often. A draft has up to 15 tokens, and up to 16 more
each time that one of as many as it may have was right from end to end; a wrong token takes it back to the first of
these numbers that it lay within:

    right           15 of 15     31 of 31     40 of 47     2 of 47
    the next has    up to 31     up to 47     up to 47     up to 15

So steps of so many rows are tried, and measured, only where all was right before. Each draft takes a slot of
states where layers have some, so there it ends at 15.

The next row goes to the answer whose next draft is likeliest to be right. What its drafter takes for a draft is added;
rows of prompts in the same step are there anyway, and are not held against the drafts.

An answer of which nothing is known tries some, as long as the credit allows that. Where its drafts do not pay, it rests
for 16 tokens, then is tried again, and rests twice as long each time that this fails. What looks and wrong drafts may
take is bounded by a credit of all answers that share steps (_draft_costs.py), so that a text without repetitions is
made about as fast as without drafts. Times decide how many drafts there are, never what they become.

Threads: that of the answer, or of the batch. Units: seconds, tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from . import _core
from ._draft_chance import Chance
from ._draft_costs import Costs
from ._draft_tree import Trees, breadth_of, ways_of
from ._prediction_head import HeadDrafter
from ._protocols import StepModel
from ._step_seconds import KEPT, lower_quartile
from .draft import Drafter, close_drafter, watched
from .errors import ArgumentError, CacheFullError

__all__ = ["MOST_STATES", "Costs", "Drafting"]

SHORT, LONGER, MOST = 15, 16, 63  # drafts of one answer: at first, each time more, and never more
MOST_STATES = SHORT  # where a step takes a slot of states for each
_FORGET = 0.9  # what is left of earlier verdicts after each
_LONGEST_REST = 128
_UNKNOWN = 0.5  # how likely a draft is right, of which nothing is known


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
        self._prices: deque[float] = deque(maxlen=KEPT)  # seconds that a draft took
        self._asked = False  # what is asked first catches up, and does not count
        self.costs = Costs() if costs is None else costs
        self._tried = self._right = 0.0
        self._rest = 0  # tokens until it is tried again
        self._next_rest = 16
        self._reach = SHORT  # drafts that the next step may have
        self.breadth = max((breadth_of(each) for each in drafters), default=1)
        self._trees = Trees()
        self.proposed = 0
        self.accepted = 0

    def paths(self, session: _core.Session, most: int) -> list[list[int]]:
        """The paths of drafts that the next step should check, of at most ``most`` tokens each: one, or, where a
        drafter knows several ways and that pays, a tree."""
        if self.breadth == 1:
            drafts = self.drafts(session, most)
            return [drafts] if drafts else []
        limit = self.limit(most)
        if limit == 0:
            return []
        of_line, of_tree = (
            self.costs.shares([chance], [limit], 1, 1, [self.price])[0]
            for chance in (self.chance, self._trees.chance_of_one(self.chance))
        )
        found = self._found(session, max(of_line, of_tree))
        paths = self._trees.best(found, self.chance, self.costs)
        if not paths and of_line == 0 < of_tree:
            self._begin_rest()
        return paths

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
        return lower_quartile(self._prices) if self._prices else 0.0

    def limit(self, most: int) -> int:
        """How many it may have in the next step, ``most`` at most: 0 while it rests."""
        self._spent = 0.0  # on drafts of a step that did not come
        if self._rest > 0:
            self._rest -= 1
            return 0
        return max(0, min(most, self._reach))

    @property
    def chance(self) -> Chance:
        """How likely drafts are right, by the last ones."""
        return Chance(self._right + _UNKNOWN, self._tried - self._right + 1 - _UNKNOWN)

    def find(self, session: _core.Session, count: int, before: float = 0.0) -> list[int]:
        """Up to ``count`` drafts, of the first drafter that knows something. It rests where it is to have none.
        ``before``: seconds that were spent on them already.

        ``kv.errors.ArgumentError`` for what is no token of the model.
        """
        found = self._found(session, count, before)
        return found[0] if found else []

    def _found(self, session: _core.Session, count: int, before: float = 0.0) -> list[list[int]]:
        if count == 0:
            self._begin_rest()
            return []
        began = self._clock()
        try:
            return self._first(session, count)
        except CacheFullError:
            self.refused()
            return []
        finally:
            self._took(count, before + self._clock() - began)

    def _begin_rest(self) -> None:
        """They do not pay now; of the next try nothing is known."""
        self.refused()
        if self.chance.first < _UNKNOWN:
            self._tried = self._right = 0.0

    def _first(self, session: _core.Session, count: int) -> list[list[int]]:
        for drafter in self._drafters:
            found = ways_of(drafter, session, count)
            if len(found) > 0:
                return [self._known(drafts[:count]) for drafts in found]
        return []

    def _took(self, count: int, seconds: float) -> None:
        self._spent = seconds
        if self._asked:
            self._prices.append(seconds / count)
            self.costs.paid(seconds)
        self._asked = True

    def take_spent(self) -> float:
        """Seconds on drafts since it was asked last."""
        spent, self._spent = self._spent, 0.0
        return spent

    def stepped(self, rows: int, seconds: float, paths: int = 1) -> None:
        """A step of this answer alone took so long, with the drafting before it; ``paths``: of a tree of drafts."""
        seconds -= self.take_spent()
        if paths == 1:
            self.costs.stepped(rows, rows - 1, 1, seconds)
        else:
            self._trees.measured(paths, rows, seconds, self.costs)
            self.costs.settle(max(self._trees.seconds(paths, rows, self.costs) - self.costs.steps.of(1), 0.0), 1)

    def _known(self, found: Sequence[int]) -> list[int]:
        for token in found:
            if token < 0 or (self._vocab_size is not None and token >= self._vocab_size):
                allowed = "0 or more" if self._vocab_size is None else f"0 to {self._vocab_size - 1}"
                raise ArgumentError(f"[generate] draft: got token id {token}, allowed {allowed}")
        return list(found)

    def verified(self, paths: Sequence[Sequence[int]], path: int, right: int) -> None:
        """So many of the drafts of that path were what the model chose."""
        drafted = len(paths[path])
        self.proposed += sum(map(len, paths))
        self.accepted += right
        self.costs.won(right)
        others = self._trees.verified(paths, path, right) if len(paths) > 1 else 0
        self._tried = self._tried * _FORGET + min(right + 1, drafted)
        self._right = self._right * _FORGET + right - others
        if 2 * right >= drafted and right > 0:
            self._next_rest = 16
        within = next((reach for reach in range(SHORT, MOST, LONGER) if right < reach), MOST)
        self._reach = within if right < drafted else max(within, self._reach)

    def refused(self) -> None:
        """They did not pay, or there was no room for them: a rest, and twice as long a one the next time."""
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
        self._reach = SHORT

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
        """Gives back what drafters hold, and keeps what was measured. May be called again, from any thread."""
        self.costs.steps.keep()
        for drafter in self._drafters:
            close_drafter(drafter)
