"""One row of a batch: its tokens, and the session that keeps what is computed of them.

Invariant: ``tokens`` are those that the model has computed; where a pass was interrupted there may be more of them,
until :meth:`Row.cut`. The session, while there is one, has computed at least as many of the same tokens; it may be
ahead where somebody else published what follows, or where a pass was interrupted or taken back. A row without a session
goes on all the same, and nothing of it is kept: a cache may forget. ``why`` decides: with one there is no session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from .. import _core
from ..errors import Error, NotRestorableError

_log = logging.getLogger("kvtrie.hf")


class Row:
    """``pad``: columns of padding on its left in the tensors of the batch. ``why`` it is kept no longer, or None."""

    def __init__(
        self, session: _core.Session | None, tokens: Sequence[int], pad: int = 0, why: str | None = None
    ) -> None:
        self._session = session
        self.tokens: list[int] = list(tokens)
        self.pad = pad
        self.why = why

    @property
    def session(self) -> _core.Session | None:
        return self._session if self.why is None else None

    @property
    def length(self) -> int:
        return len(self.tokens)

    def forget(self, why: str) -> None:
        """Keeps nothing of what follows. Kept state stays in the tree."""
        first, self.why = self.why is None, self.why or why
        self.close()
        if first:
            _log.info("[hf] a row of %d tokens is no longer kept: %s", self.length, why)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def cut(self, columns: int) -> None:
        """Its tokens are those of the first ``columns`` of the batch."""
        del self.tokens[max(0, columns - self.pad) :]

    def branch(self) -> Row:
        """A row that goes on by itself from the same tokens; no K or V is copied."""
        session, why = None, self.why
        if self.session is not None:
            try:
                session = self.session.branch()
            except Error as error:
                why = str(error)
        return Row(session, self.tokens, self.pad, why)

    def rewind(self) -> None:
        """Lets the session go back to its tokens; one that cannot is closed."""
        if self.session is None or self.session.recorded == self.length:
            return
        try:
            self.session.rewind(self.length)
        except Error as error:
            self.forget(str(error))

    def record(self, ids: Sequence[int]) -> None:
        """Makes ``ids`` what the session has next, whatever it expected. May close the session; raises nothing."""
        if self.session is None:
            return
        try:
            self._record(self.session, ids)
        except Error as error:
            self.forget(str(error))

    def _record(self, session: _core.Session, ids: Sequence[int]) -> None:
        first, end = self.length, self.length + len(ids)
        if session.recorded > first:
            expected = session.tokens[first:end].tolist()
            same = next((i for i, (a, b) in enumerate(zip(expected, ids)) if a != b), len(expected))
            if first + same < min(session.recorded, end):
                session.rewind(first + same)
        if session.recorded < end:
            session.append(list(ids[session.recorded - first :]))

    def wanted(self, end: int) -> list[int]:
        """Lengths below ``end`` at which states are wanted of what is recorded. REQUIRES: a model with states."""
        if self.session is None:
            return []
        try:
            bounds = self.session.decode().boundaries()[0]
        except Error as error:
            self.forget(str(error))
            return []
        return [length for length in bounds if self.length < length < end]

    def steps(self, end: int) -> Iterator[_core.Step]:
        """Steps over what is recorded up to ``end``; each has to be filled before the next is asked for."""
        session = self.session
        while session is not None and session.length < end:
            step = next(session.prefill(chunk=end - session.length))
            if int(step.positions[-1]) >= end:  # it took over what somebody else published, and would go further
                del step
                continue
            if int(step.positions[0]) < self.length:
                raise NotRestorableError(f"[hf] a session stands at {step.positions[0]}, its row at {self.length}")
            yield step
