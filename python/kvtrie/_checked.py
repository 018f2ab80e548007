"""The drafts of an answer that are right, by the logits of the step that checks them.

    rows     the last token   draft 1   draft 2   draft 3
    chosen   draft 1          draft 2   another   -          two are right, and what comes behind them is chosen, too

None that ends the text counts as right: it is chosen next, and stays to be computed, as without drafts.

Threads: that of the answer, or of the batch. Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._protocols import Logits
from .draws import NONE, Draw, draw
from .sampling import Choice, Sampler
from .stopping import Stopper

__all__ = ["Checked", "Checking", "Drawn"]


class Drawn(NamedTuple):
    """A token that is chosen already."""

    length: int  # tokens of the session that it follows
    token: int


class Checked(NamedTuple):
    """``right``: the first of the drafts, with what is told of each. ``drawn``: the token behind them; None: it is to
    be chosen by their last row, or ``error`` was raised there."""

    right: list[Choice]
    drawn: Drawn | None
    error: BaseException | None


class Checking:
    """``drafts`` behind all tokens of ``session``, the last of which are those ``made`` for the answer."""

    def __init__(
        self, sampler: Sampler, stopper: Stopper, session: _core.Session, made: Sequence[int], drafts: Sequence[int]
    ) -> None:
        self._sampler, self._stopper, self._session = sampler, stopper, session
        self._made, self._drafts = made, drafts
        self._length: int = session.recorded

    @property
    def rows(self) -> int:
        """Logits that it takes: of the last token, and of each draft."""
        return len(self._drafts) + 1

    @property
    def on_device(self) -> bool:
        """Whether tokens are chosen without their logits on the host."""
        return self._sampler.sampling.on_device

    def draws(self, vocab_size: int) -> list[Draw]:
        """The draw of each row. REQUIRES: ``on_device``"""
        return [
            self._sampler.draw(self._length + row, self._before(row), len(self._made) + row, vocab_size)
            for row in range(self.rows)
        ]

    def by(self, logits: Logits, tokens: Sequence[int] | None = None) -> Checked:
        """``logits`` [rows, vocab]; ``tokens``: what was drawn for each row, where that is done."""
        if not self.on_device:
            return self._verdict(*self._chosen(logits))
        drawn = draw(logits, self.draws(int(np.shape(logits)[-1]))) if tokens is None else list(tokens)
        finite = drawn[: drawn.index(NONE)] if NONE in drawn else drawn  # the next choice meets the other one
        return self._verdict([self._sampler.choice(each, logits[row : row + 1]) for row, each in enumerate(finite)])

    def _chosen(self, logits: Logits) -> tuple[list[Choice], BaseException | None]:
        """The choice of each row if the drafts before it are right, as far as they are, and what ended it early."""
        chosen: list[Choice] = []
        for row in range(self.rows):
            try:
                before = self._before(row)
                choice = self._sampler(logits[row : row + 1], self._length + row, before, len(self._made) + row)
            except BaseException as error:
                return chosen, error
            chosen.append(choice)
            if row < len(self._drafts) and choice.token != self._drafts[row]:
                break
        return chosen, None

    def _verdict(self, chosen: list[Choice], error: BaseException | None = None) -> Checked:
        right = 0
        while right < min(len(self._drafts), len(chosen)) and chosen[right].token == self._drafts[right]:
            right += 1
        count = self._stopper.first_end(self._made, self._drafts[:right])
        if count == len(chosen):
            return Checked(chosen, None, error)
        return Checked(chosen[:count], Drawn(self._length + count, chosen[count].token), None)

    def _before(self, row: int) -> Callable[[], npt.NDArray[np.int32]]:
        """All tokens before a row: those of the session, and drafts."""
        session, drafts = self._session, self._drafts[:row]
        return lambda: np.concatenate([session.tokens, np.asarray(drafts, np.int32)])
