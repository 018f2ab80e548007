"""How many rows of prompts a step may have, so that those who decode beside them get their tokens evenly.

A step with rows of prompts takes longer than one without, by what a row takes. That is measured; the first prompts have
few rows, until it is known.

Threads: of one owner. Units: rows, seconds.
"""

from __future__ import annotations

import statistics
from collections import deque

_LEAST = 8  # rows a prompt has in any step, so that it ends some day
_UNKNOWN = 32  # as long as nothing is measured
_KEPT = 15  # measurements, whose median counts


class Pace:
    """``chunk``: rows that one prompt has in a step at most. ``stall``: seconds that prompts may add; None: any."""

    def __init__(self, chunk: int, stall: float | None) -> None:
        self._chunk = chunk
        self._stall = stall
        self._alone: deque[float] = deque(maxlen=_KEPT)  # seconds of steps without prompts
        self._row: deque[float] = deque(maxlen=_KEPT)  # seconds that a row of a prompt adds

    def rows(self, prompts: int, others: int) -> int:
        """Of each of ``prompts``, beside ``others`` that decode."""
        if self._stall is None or others == 0 or prompts == 0:
            return self._chunk
        if not self._row:
            return max(1, min(self._chunk, _UNKNOWN))
        fitting = self._stall / max(statistics.median(self._row), 1e-12) / prompts
        return max(min(_LEAST, self._chunk), int(min(fitting, self._chunk)))

    def measured(self, rows: int, others: int, seconds: float) -> None:
        """A step with so many rows of prompts, beside ``others`` that decoded."""
        if rows == 0 and others > 0:
            self._alone.append(seconds)
        elif rows > 0:
            alone = statistics.median(self._alone) if self._alone and others > 0 else 0.0
            self._row.append(max(seconds - alone, 0.0) / rows)
