"""The drafts of an answer that are right, by the logits of the step that checks them.

    rows     the last token   draft 1   draft 2   draft 3
    chosen   draft 1          draft 2   another   -          two are right, and what comes behind them is chosen, too

None that ends the text counts as right: it is chosen next, and stays to be computed, as without drafts.

In a tree of drafts the paths whose drafts are what was chosen so far go on, and the longest right one stays:

    path 0   last   a   b   c         chosen: a, b, x     the rows of "last" and "a" are those of path 0,
    path 1   last   a   b   x   y     then y or another   those of "b" too; then path 1 has x
    path 2   last   d

Threads: that of the answer, or of the batch. Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._protocols import Logits
from .draws import NONE, Draw, draw
from .sampling import Choice, Sampler
from .stopping import Stopper

__all__ = ["Checked", "Checking", "Drawn", "begins_of"]


class Drawn(NamedTuple):
    """A token that is chosen already."""

    length: int  # tokens of the session that it follows
    token: int


class Checked(NamedTuple):
    """``right``: the first drafts of the path ``path``, with what is told of each. ``drawn``: the token behind them;
    None: it is to be chosen by their last row, or ``error`` was raised there."""

    path: int
    right: list[Choice]
    drawn: Drawn | None
    error: BaseException | None


class Checking:
    """The drafts of ``paths`` behind all tokens of ``session``, the last of which are those ``made`` for the answer.

    One path is a line of drafts, several are a tree. Rows are those of one path after the other.
    """

    def __init__(
        self,
        sampler: Sampler,
        stopper: Stopper,
        session: _core.Session,
        made: Sequence[int],
        paths: Sequence[Sequence[int]],
    ) -> None:
        self._sampler, self._stopper, self._session = sampler, stopper, session
        self._made, self._paths = made, paths
        self._begins = begins_of(paths)
        self._length: int = session.recorded

    @property
    def rows(self) -> int:
        """Logits that it takes: of each path those of the last token, and of each draft."""
        return self._begins[-1]

    @property
    def on_device(self) -> bool:
        """Whether tokens are chosen without their logits on the host."""
        return self._sampler.sampling.on_device

    def draws(self, vocab_size: int) -> list[Draw]:
        """The draw of each row. REQUIRES: ``on_device``"""
        return [
            self._sampler.draw(self._length + depth, self._before(path, depth), len(self._made) + depth, vocab_size)
            for path, drafts in enumerate(self._paths)
            for depth in range(len(drafts) + 1)
        ]

    def by(self, logits: Logits, tokens: Sequence[int] | None = None) -> Checked:
        """``logits`` [rows, vocab]; ``tokens``: what was drawn for each row, where that is done.

        Where paths agree so far, the first of them has the row that the next token is chosen by.
        """
        drawn = tokens
        if self.on_device and tokens is None:
            drawn = draw(logits, self.draws(int(np.shape(logits)[-1])))
        chosen: list[Choice] = []
        path = 0
        while True:
            row = self._begins[path] + len(chosen)
            try:
                choice = self._choice(path, len(chosen), logits[row : row + 1], None if drawn is None else drawn[row])
            except BaseException as error:
                return self._verdict(path, chosen, len(chosen), error)
            if choice is None:
                return self._verdict(path, chosen, len(chosen))
            chosen.append(choice)
            ahead = self._ahead(path, len(chosen) - 1, choice.token)
            if ahead is None:
                return self._verdict(path, chosen, len(chosen) - 1)
            path = ahead

    def _choice(self, path: int, depth: int, logits: Logits, drawn: int | None) -> Choice | None:
        """By one row; None: it cannot be chosen here, and the next choice says why."""
        if self.on_device and drawn is not None:
            return None if drawn == NONE else self._sampler.choice(drawn, logits)
        return self._sampler(logits, self._length + depth, self._before(path, depth), len(self._made) + depth)

    def _ahead(self, path: int, depth: int, token: int) -> int | None:
        """The first path that has the first ``depth`` drafts of ``path``, and then ``token``."""
        known = list(self._paths[path][:depth])
        for number in range(path, len(self._paths)):
            drafts = self._paths[number]
            if len(drafts) > depth and drafts[depth] == token and list(drafts[:depth]) == known:
                return number
        return None

    def _verdict(self, path: int, chosen: list[Choice], right: int, error: BaseException | None = None) -> Checked:
        count = self._stopper.first_end(self._made, self._paths[path][:right])
        if count == len(chosen):
            return Checked(path, chosen, None, error)
        return Checked(path, chosen[:count], Drawn(self._length + count, chosen[count].token), None)

    def _before(self, path: int, depth: int) -> Callable[[], npt.NDArray[np.int32]]:
        """All tokens before a row: those of the session, and drafts."""
        session, drafts = self._session, self._paths[path][:depth]
        return lambda: np.concatenate([session.tokens, np.asarray(drafts, np.int32)])


def begins_of(paths: Sequence[Sequence[int]]) -> list[int]:
    """[paths + 1]: the first row of each path in a step of all of them, and how many rows that has."""
    return list(accumulate((len(drafts) + 1 for drafts in paths), initial=0))
