"""Whose the rows of a step are that several sessions share: those of one lie behind each other, in the step's order.

    rows       0 1 2 3 | 4 | 5 6       bounds of three sessions: 0, 4, 5, 7

Threads: any. Units: rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["bounds_of"]


class _Shared(Protocol):
    @property
    def sequences(self) -> npt.NDArray[np.int32]: ...


def bounds_of(step: _Shared, sessions: int) -> Sequence[int]:
    """[sessions + 1]: the first row of each session in ``step``, and how many rows that has."""
    return [0, *np.cumsum(np.bincount(step.sequences, minlength=sessions)).tolist()]
