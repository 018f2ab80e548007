"""Trees of drafts: several ways in which an answer may go on, of which the longest right one stays.

    last --- a --- b --- c          path 0: what is likeliest
      |      '---- x --- y          path 1: parts from it behind "a"
      '----- d                      path 2: parts at once

One step checks all paths. Each of them has rows of its own, the last token included: a row more for each path, and one
for each token that it shares with another path. So a tree is worth it where drafts are often wrong, and where
the other way is then often right:

    p   how often the first choice is right behind right ones
    r   how often the next one is right where those before it were wrong

Path 0 gives p + p^2 + ... tokens, and a path that parts from it behind d tokens p^d (1 - p) r (1 + p + p^2 + ...).
Steps of several paths take the seconds of a line with as many rows, times what was measured.

Threads: that of the answer. Units: seconds, rows, tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import converting, refusal, shown
from ._draft_chance import Chance
from ._draft_costs import GAIN, Costs, counts
from ._step_seconds import KEPT, lower_quartile
from ._whole import Whole
from .errors import ArgumentError

__all__ = ["DraftTree", "Trees", "breadth_of", "ways_of"]

WaysFunction = Callable[[npt.NDArray[np.int32], int], Iterable[Iterable[int]]]
_MOST_BREADTH = 8
_MARGIN = 1.1  # least gain over fewer paths: what is known of more is known by fewer steps
_FORGET = 0.9  # what is left of earlier verdicts after each
_UNKNOWN = 0.5  # how likely the next choice is right, of which nothing is known


class DraftTree(Whole):
    """Several ways to go on as drafts of one answer: ``draft=kv.DraftTree("tree", breadth=3)``.

    ``source``: "tree" (what others of the namespace went on with behind the same tokens) or "suffix" (behind the same
    last tokens, anywhere in the namespace), or a callable (tokens int32, most) -> lists of token ids, the likeliest
    first. ``breadth``: the most paths of a step, 1 to 8; how many there are, and how long they are, follows from how
    many were right and from what that costs. For answers of :func:`kvtrie.generate`, ``model.chat`` and
    ``model.complete``; a batch refuses it. ``ArgumentError`` or ``ArgumentTypeError`` for others.
    """

    def __init__(self, source: str | WaysFunction, breadth: int = 2) -> None:
        allowed = '"tree", "suffix", or a callable (tokens, most) -> lists of tokens'
        if isinstance(source, str) and source not in ("tree", "suffix"):
            raise ArgumentError(f"[draft_tree] source: got {shown(source)}, allowed {allowed}")
        if not isinstance(source, str) and not callable(source):
            raise refusal(source, "draft_tree", "source", allowed)
        if not isinstance(breadth, int) or isinstance(breadth, bool):
            raise refusal(breadth, "draft_tree", "breadth", f"1 to {_MOST_BREADTH}")
        if not 1 <= breadth <= _MOST_BREADTH:
            raise ArgumentError(f"[draft_tree] breadth: got {breadth}, allowed 1 to {_MOST_BREADTH}")
        self.source, self.breadth = source, breadth

    def __call__(self, session: _core.Session, most: int) -> list[int]:
        """The first way: a drafter (draft.py)."""
        ways = self.several(session, most)
        return ways[0] if ways else []

    def several(self, session: _core.Session, most: int) -> list[list[int]]:
        """At most ``breadth`` ways of at most ``most`` tokens, none of them empty or the beginning of one before it."""
        if isinstance(self.source, str):
            if not isinstance(session, _core.Session):
                raise refusal(session, "draft_tree", "session", "a session of a prefix cache")
            found = session.continuations(most, self.breadth, suffix=self.source == "suffix")
            return [way.tolist() for way in found]
        given = self.source(session.tokens, most)
        with converting(given, "generate", "draft", "lists of token ids"):
            ways = [np.asarray(list(way)) for way in given]
        for way in ways:
            if way.size and (way.ndim != 1 or way.dtype.kind not in "iu"):
                raise refusal(given, "generate", "draft", "a callable that gives lists of token ids")
        return _distinct([way.tolist()[:most] for way in ways])[: self.breadth]


def breadth_of(drafter: object) -> int:
    """The most ways that a drafter gives."""
    return int(getattr(drafter, "breadth", 1))


def ways_of(
    drafter: Callable[[_core.Session, int], Sequence[int]], session: _core.Session, most: int
) -> list[list[int]]:
    """All of them; none where it knows nothing."""
    if isinstance(drafter, DraftTree):
        return drafter.several(session, most)
    found = list(drafter(session, most))
    return [found] if found else []


def _distinct(ways: Iterable[list[int]]) -> list[list[int]]:
    """The ways that are neither empty nor the beginning of one before them."""
    kept: list[list[int]] = []
    for way in ways:
        if way and all(_common(way, other) < len(way) for other in kept):
            kept.append(way)
    return kept


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


class Trees:
    """How wide and how long the trees of one answer are."""

    def __init__(self) -> None:
        self._tried = self._right = 0.0  # of next choices
        self._begun: set[tuple[int, int]] = set()
        self._ratios: dict[int, deque[float]] = {}  # of each number of paths: to a line of as many rows

    @property
    def chance(self) -> float:
        """How likely the next choice is right where those before it were wrong; 1/2 where nothing is known."""
        return (self._right + _UNKNOWN) / (self._tried + 1)

    def chance_of_one(self, chance: Chance) -> Chance:
        """That the first choice is right, or the next one; ``chance``: of the first."""
        return chance.first_is(chance.first + (1 - chance.first) * self.chance)

    def seconds(self, paths: int, rows: int, costs: Costs) -> float:
        """Of a step of so many rows; ``costs``: of lines."""
        ratios = self._ratios.get(paths)
        return costs.steps.of(rows) * (lower_quartile(ratios) if ratios else 1.0)

    def measured(self, paths: int, rows: int, seconds: float, costs: Costs) -> None:
        """The first step of each shape compiles and records, and does not count."""
        if (paths, rows) not in self._begun:
            self._begun.add((paths, rows))
            return
        self._ratios.setdefault(paths, deque(maxlen=KEPT)).append(seconds / costs.steps.of(rows))

    def best(self, found: Sequence[list[int]], chance: Chance, costs: Costs) -> list[list[int]]:
        """The first paths of what was found, and of each the first tokens, that give the most tokens a second; none
        where no draft pays. ``chance``: that a first choice is right."""
        chosen: list[list[int]] = []
        most = 0.0 if chance.is_unknown else GAIN / costs.steps.of(1)
        for paths in self._shapes(found):
            rows = sum(map(len, paths)) + len(paths)
            seconds = self.seconds(len(paths), rows, costs)
            if rows - 1 > costs.most_beside(1) or not costs.affords(seconds - costs.steps.of(1), 1):
                continue
            rate = self.tokens(paths, chance) / seconds
            if rate >= most * (_MARGIN if len(paths) > max(len(chosen), 1) else 1.0):
                chosen, most = paths, rate
        return chosen

    @staticmethod
    def _shapes(found: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        for ways in range(1, len(found) + 1):
            for length in counts(max(map(len, found[:ways]))):
                paths = _distinct(way[:length] for way in found[:ways])
                if len(paths) == ways:
                    yield paths

    def tokens(self, paths: Sequence[Sequence[int]], chance: Chance) -> float:
        """That a step of these is expected to give, the one behind the last right draft included.

        Behind n right first choices the next first one is as likely as ``chance.behind(n)`` says, another as ever.
        """
        # Of each path: where it parts from those before it, right first choices by then, and that its token is right.
        begins, firsts, likely = [0], [1], [chance.first]
        wrong: dict[tuple[int, int], float] = {}  # that all known choices behind so many tokens of that path are
        for number, path in enumerate(paths[1:], 1):
            common = [_common(path, each) for each in paths[:number]]
            parts = max(common)
            parent = common.index(parts)
            run = parts - begins[parent] - 1  # first choices of the parent from its own token to there
            known = 0 if parts == 0 else firsts[parent] + run
            reached = 1.0 if parts == 0 else likely[parent] * [1.0, *chance.runs(run, firsts[parent])][-1]
            left = wrong.get((parent, parts), reached * (1 - chance.behind(known)))
            wrong[parent, parts] = left * (1 - self.chance)
            begins.append(parts)
            firsts.append(known)
            likely.append(left * self.chance)
        return 1 + sum(
            here * (1 + sum(chance.runs(len(path) - begin - 1, first)))
            for here, first, begin, path in zip(likely, firsts, begins, paths)
        )

    def verified(self, paths: Sequence[Sequence[int]], path: int, right: int) -> int:
        """So many drafts of that path were right: how many of them were no first choice."""
        taken = list(paths[path][:right])
        tried, found = 0, 0
        for depth in range(right + 1):
            choices = list(dict.fromkeys(
                each[depth] for each in paths if len(each) > depth and list(each[:depth]) == taken[:depth]
            ))  # fmt: skip
            place = choices.index(taken[depth]) if depth < right else len(choices)
            found += 0 < place < len(choices)
            tried += max(0, min(place, len(choices) - 1))
        self._tried = self._tried * _FORGET + tried
        self._right = self._right * _FORGET + found
        return found
